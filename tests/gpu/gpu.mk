# What needs a GPU and a CUDA toolkit.

.PHONY: gpu-test gpu-test-programs gpu-sanitize gpu-world gpu-stress gpu-peers gpu-share \
        gpu-sleep

gpu-test: gpu-test-programs ## the same tests against the real CUDA runtime and GPU
	@tests/run.sh 1 $(GPU_TESTS)

gpu-sanitize: gpu-test-programs ## those under compute-sanitizer; CHECKS=memcheck for one tool
	@export PATH="$$PATH:$(TOOLKIT)/bin"; command -v compute-sanitizer > /dev/null || \
	  { echo "gpu-sanitize needs the CUDA toolkit's compute-sanitizer" >&2; exit 1; }; status=0; \
	for tool in $(or $(CHECKS),memcheck racecheck synccheck); do echo "$$tool"; \
	  TOOL=$$tool UNDER=tests/gpu/under.sh BUILD=$(BUILD)/$$tool \
	  tests/run.sh 4 $(GPU_TESTS) || status=1; done; exit $$status

# gpu-variants.mk has one program for each source: GPU_TESTS, and GPU_LINKED with them.
ifneq ($(filter gpu-test gpu-test-programs gpu-sanitize $(BUILD)/gpu-test/%,$(MAKECMDGOALS)),)
include $(BUILD)/gpu-variants.mk
endif
$(BUILD)/gpu-variants.mk: tests/variants.sh $(TEST_SOURCES)
	@mkdir -p $(@D)
	@ON=gpu tests/variants.sh $(BUILD) $(filter-out %/self_test.c,$(TEST_SOURCES)) > $@

gpu-test-programs:
	$(if $(TOOLKIT),,$(error the tests on a GPU need a CUDA toolkit: set CUDA_HOME))
	@$(MAKE) --no-print-directory $(PARALLEL) $(GPU_TESTS)

$(GPU_TESTS): $(BUILD)/flags
	$(SAY)
	$(Q)$(TEST_COMPILE) $(GPU_CUDA) -MF $@.d -o $@ $(filter %.c %.o,$^) $(GPU_LIBS) -lm
$(sort $(GPU_LINKED)): tests/support/linked.c $(BUILD)/flags
	$(SAY)
	$(Q)$(TEST_COMPILE) $(GPU_CUDA) -c -o $@ $<

gpu-world: ## on a GPU: the random world of tests/world, by kernels that stamp and verify; FIRST=1 LAST=40
	$(if $(NVCC),,$(error gpu-world needs nvcc))
	@mkdir -p $(BUILD)
	$(Q)$(NVCC) -std=c++14 -O2 $(if $(GPU),-arch=native) -I. -Itests/fakecuda -Xcompiler -pthread \
	  -o $(BUILD)/gpu-world tests/gpu/world_gpu.cu $(WORLD) tests/world/seeds.c -lcuda
	@$(TOOL) $(BUILD)/gpu-world $(or $(FIRST),1) $(or $(LAST),40) $(or $(OPERATIONS),2000)

gpu-peers: $(BUILD)/on-gpu/peers ## on two GPUs: each other's arenas; TOOL=memcheck
	@PATH="$$PATH:$(TOOLKIT)/bin" TOOL=$(TOOL) UNDER=$(if $(TOOL),tests/gpu/under.sh) tests/run.sh 1 $^
gpu-share: $(BUILD)/on-gpu/share ## on a GPU: blocks in two processes, exported and imported
	@tests/run.sh 1 $<
$(BUILD)/on-gpu/share: tests/gpu/share_socket.h
gpu-sleep: $(BUILD)/on-gpu/sleep $(BUILD)/examples/take_turns ## on a GPU: sleep and waking, CYCLES=1000 SEED=1
	@$< $(or $(CYCLES),1000) $(or $(LIMIT_MIB),2048) $(or $(SEED),1)
	@$(BUILD)/examples/take_turns 2048 3
gpu-stress: $(BUILD)/on-gpu/stress ## on a GPU: kernels verify every block, for SECONDS=60 on THREADS=8
	@$< $(or $(SECONDS),60) $(or $(THREADS),8)

NVCC_GPU = $(NVCC) -std=c++17 -O2 -lineinfo $(if $(GPU),-arch=native) -I. -Werror all-warnings \
  -Xcompiler -Wall,-Wextra
$(BUILD)/on-gpu/%: tests/gpu/%.cu tests/gpu/kit.h gpupool.h
	$(if $(NVCC),,$(error this needs nvcc))
	$(SAY)
	$(Q)$(NVCC_GPU) -o $@ $<
