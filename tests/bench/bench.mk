# What measures.

.PHONY: bench bench-memory bench-ring bench-sleep bench-cliffs

bench: $(BUILD)/bench-run ## nanoseconds an operation costs on the host, here and with others
	@NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' tests/bench/bench.sh $(BUILD) $(ON)

bench-memory: $(BUILD)/replay ## reserved memory and speed on real traces
	@tests/bench/memory.sh $(BUILD) $(ON)

bench-ring: $(BUILD)/ring ## transfers through a ring, against CUDA's own
	@$<

bench-sleep: $(BUILD)/sleep ## sleep and waking, against the driver and the ring; GIB= KEEP_GIB=
	@$< $(or $(GIB),0) $(or $(KEEP_GIB),0)

bench-cliffs: $(BUILD)/cliffs ## works that never repeat themselves, beside others; QUICK=1 WORKS=
	@NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' QUICK='$(QUICK)' WORKS='$(WORKS)' \
	  tests/bench/cliffs/cliffs.sh $(BUILD) $(ON)

B := $(OBJECTS)/bench
$(OBJECTS)/ring: $(B)/ring.o
$(OBJECTS)/sleep: $(B)/sleep.o
BENCH := bench peers peer_cuda peer_gpupool
$(OBJECTS)/bench-run: $(BENCH:%=$(B)/%.o) $(S)/library.o $(REPLAY_OBJECTS)

$(OBJECTS)/cliffs: $(patsubst %,$(B)/cliffs/%.o,main works draw run stand_by) $(B)/peer_cuda.o \
  $(B)/peer_gpupool.o $(S)/library_counted.o $(S)/trace.o $(S)/machine.o
