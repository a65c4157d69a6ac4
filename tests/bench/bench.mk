# What measures.

.PHONY: bench bench-memory bench-waits bench-ring bench-sleep soak-memory \
        bench-cliffs

bench: $(BUILD)/bench-run ## nanoseconds an operation costs on the host, here and with others
	@NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' tests/bench/bench.sh $(BUILD) $(ON)

bench-memory: $(BUILD)/replay $(BUILD)/fixed_range $(BUILD)/crowd ## reserved memory and speed on real traces
	@tests/bench/memory.sh $(BUILD) $(ON)

bench-waits: $(BUILD)/waits ## what a call costs beside many streams, threads and failures
	@$<

bench-ring: $(BUILD)/ring ## transfers through the rings of both editions, against CUDA's own
	@$<

bench-sleep: $(BUILD)/sleep ## sleep and waking, against the driver and the ring; GIB= KEEP_GIB=
	@$< $(or $(GIB),0) $(or $(KEEP_GIB),0)

bench-cliffs: $(BUILD)/cliffs ## works that never repeat themselves, beside others; QUICK=1 PROTOTYPE= NEXT=1
	@NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' QUICK='$(QUICK)' PROTOTYPE='$(PROTOTYPE)' \
	  tests/bench/cliffs/cliffs.sh $(BUILD) $(ON)

soak-memory: $(BUILD)/churn ## 100 million operations under limits that move; OPS= for fewer
	@$< $(OPS)

B := $(OBJECTS)/bench
$(patsubst %,$(OBJECTS)/%,fixed_range crowd waits churn): $(OBJECTS)/%: \
  $(B)/%.o $(S)/machine.o $(S)/library.o
$(OBJECTS)/ring: $(B)/ring.o $(B)/ring_second.o $(B)/ring_third.o
$(B)/ring_second.o $(B)/ring_third.o: tests/bench/ring_edition.c $(BUILD)/flags
	$(SAY)
	$(Q)$(TOOL_COMPILE) $(if $(findstring third,$@),-DRING_THIRD=1)
$(OBJECTS)/sleep: $(B)/sleep.o
BENCH := bench run lane works peers peer_cuda peer_gpupool $(if $(NEXT),,peer_gpupool_unlocked) bars print svg
$(OBJECTS)/bench-run: $(BENCH:%=$(B)/%.o) $(S)/library.o $(REPLAY_OBJECTS)
$(B)/peer_gpupool_unlocked.o: tests/bench/peer_gpupool.c $(BUILD)/flags
	$(SAY)
	$(Q)$(TOOL_COMPILE) -DBENCH_UNLOCKED=1

# PROTOTYPE= names the one file of a core to compare with.
$(OBJECTS)/cliffs: $(patsubst %,$(B)/cliffs/%.o,main works draw run stand_by) $(B)/peer_cuda.o \
  $(B)/peer_gpupool.o $(if $(PROTOTYPE),$(B)/peer_prototype.o) $(S)/library_counted.o \
  $(TRACE_OBJECTS) $(S)/machine.o
$(B)/cliffs/main.o: TOOL_FLAGS := $(if $(PROTOTYPE),-DPROTOTYPE=1)
$(B)/cliffs/main.o: $(BUILD)/prototype
$(B)/peer_prototype.o: tests/bench/peer_prototype.c $(PROTOTYPE) $(BUILD)/flags $(BUILD)/prototype
	$(SAY)
	$(Q)$(CC) -std=gnu11 -w -pthread $(CFLAGS) $(CUDA) $(INCLUDES) \
	  -DPROTOTYPE='"$(abspath $(PROTOTYPE))"' -c -o $@ $<
$(BUILD)/prototype: FORCE
	@mkdir -p $(@D)
	@echo '$(PROTOTYPE)' | cmp -s - $@ || echo '$(PROTOTYPE)' > $@
