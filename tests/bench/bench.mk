# What measures.

.PHONY: bench bench-cliffs bench-memory bench-ring bench-sleep

BENCH = @NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' WORKS='$(WORKS)' \
        tests/bench/bench.sh $(BUILD) $(ON)

bench: $(BUILD)/bench-run ## nanoseconds a call costs on the host, here and with others; WORKS=
	$(BENCH) host

bench-cliffs: $(BUILD)/bench-run ## works that never repeat themselves, beside others; QUICK=1 WORKS=
	$(BENCH) $(if $(QUICK),quick,full)

bench-memory: $(BUILD)/bench-run ## reserved memory and speed on recorded runs, beside others
	$(BENCH) memory

bench-ring: $(BUILD)/ring ## transfers through a ring, against CUDA's own
	@$<

bench-sleep: $(BUILD)/sleep ## sleep and waking, against the driver and the ring; GIB= KEEP_GIB=
	@$< $(or $(GIB),0) $(or $(KEEP_GIB),0)

B := $(OBJECTS)/bench
$(OBJECTS)/ring: $(B)/ring.o
$(OBJECTS)/sleep: $(B)/sleep.o
$(OBJECTS)/bench-run: $(patsubst %,$(B)/%.o,main works draw run stand_by peers peer_cuda peer_gpupool) \
  $(S)/library_counted.o $(S)/trace.o $(S)/machine.o
