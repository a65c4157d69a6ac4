# What needs a GPU and a CUDA toolkit.

.PHONY: gpu-test gpu-test-programs gpu-sanitize gpu-stress gpu-stitch gpu-share gpu-sleep \
        gpu-names gpu-cpp gpu-facts gpu-world

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

gpu-world: ## on a GPU: the random world, by kernels that stamp and verify; FIRST=1 LAST=40
	$(if $(NVCC),,$(error gpu-world needs nvcc))
	@mkdir -p $(BUILD)
	$(Q)$(NVCC) -std=c++14 -O2 $(if $(GPU),-arch=native) -I. -Itests/fakecuda -Xcompiler -pthread \
		  -o $(BUILD)/gpu-world tests/gpu/world_gpu.cu $(WORLD) tests/world/seeds.c -lcuda
	@$(TOOL) $(BUILD)/gpu-world $(or $(FIRST),1) $(or $(LAST),40) $(or $(OPERATIONS),2000)

gpu-stress: ## on a GPU: kernels verify every block, for SECONDS=60 on THREADS=8
	$(if $(NVCC),,$(error gpu-stress needs nvcc))
	@mkdir -p $(BUILD)
	$(Q)$(NVCC) -std=c++14 -O2 -lineinfo $(if $(GPU),-arch=native) -o $(BUILD)/gpu-stress \
	  tests/gpu/stress.cu
	@$(BUILD)/gpu-stress $(or $(SECONDS),60) $(or $(THREADS),8)

# NCCL_HOME: where include/nccl.h and NCCL's library are. Under a tool (TOOL=memcheck) no kernel
# starts early, and what outlives a reset is a leak: the programs about these are left out.
NCCL_HOME ?= $(firstword $(patsubst %/include/nccl.h,%,\
               $(wildcard $(TOOLKIT)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h)))
GPU_STITCH := $(patsubst tests/gpu/%.cu,$(BUILD)/gpu-stitch/%,\
                $(filter-out $(if $(NCCL_HOME),,%_nccl.cu %_registered.cu) $(if $(TOOL),%_early.cu %_reset.cu),\
                  $(wildcard tests/gpu/stitch_*.cu)))
gpu-stitch: $(GPU_STITCH) ## on one GPU or two: stitched blocks in CUDA and NCCL; TOOL=memcheck
	@PATH="$$PATH:$(TOOLKIT)/bin" BUILD=$(BUILD)/gpu-stitch TOOL=$(TOOL) \
	  UNDER=$(if $(TOOL),tests/gpu/under.sh) tests/run.sh 1 $^
gpu-share: $(BUILD)/gpu-stitch/share ## on a GPU: blocks in two processes, exported and imported
	@tests/run.sh 1 $<
$(BUILD)/gpu-stitch/share: tests/support/share_socket.h
gpu-sleep: $(BUILD)/gpu-stitch/sleep $(BUILD)/examples/take_turns ## on a GPU: sleep and waking, CYCLES=1000 SEED=1
	@$< $(or $(CYCLES),1000) $(or $(LIMIT_MIB),2048) $(or $(SEED),1)
	@$(BUILD)/examples/take_turns 2048 3
$(BUILD)/gpu-stitch/%: tests/gpu/%.cu tests/gpu/kit.h gpupool.h
	$(if $(NVCC),,$(error gpu-stitch needs nvcc))
	$(SAY)
	$(Q)$(NVCC) -std=c++14 -O2 -lineinfo $(if $(GPU),-arch=native) -Werror all-warnings \
		  -Xcompiler -Wall,-Wextra $(STITCH_LIBS) -o $@ $<
$(BUILD)/gpu-stitch/stitch_gemm: STITCH_LIBS := -lcublas
$(BUILD)/gpu-stitch/stitch_registered: STITCH_CUDA := -lcuda
$(BUILD)/gpu-stitch/stitch_nccl $(BUILD)/gpu-stitch/stitch_registered: STITCH_LIBS = \
  $(STITCH_CUDA) -I$(NCCL_HOME)/include -L$(NCCL_HOME)/lib64 \
  -L$(NCCL_HOME)/lib -l:libnccl.so.2 -Xlinker -rpath,$(NCCL_HOME)/lib64:$(NCCL_HOME)/lib

GPU_NAMES := $(BUILD)/gpu-names/cxx17 $(BUILD)/gpu-names/cxx20
gpu-names: $(GPU_NAMES) ## on a GPU: Thrust's vectors over cudaMalloc's replaced names, in two files
	@tests/run.sh 1 $^
$(GPU_NAMES): $(BUILD)/gpu-names/cxx%: $(wildcard tests/gpu/names*) gpupool.h
	$(if $(NVCC),,$(error gpu-names needs nvcc))
	$(SAY)
	$(Q)$(NVCC) -std=c++$* -O2 $(if $(GPU),-arch=native) $(INCLUDES) -Werror all-warnings -o $@ \
	  tests/gpu/names_main.cu tests/gpu/names_other.cu

GPU_CPP := $(BUILD)/gpu-cpp/cpp_thrust
gpu-cpp: $(GPU_CPP) ## on a GPU: Thrust over the header's C++; TOOL=memcheck
	@PATH="$$PATH:$(TOOLKIT)/bin" BUILD=$(BUILD)/gpu-cpp TOOL=$(TOOL) \
	  UNDER=$(if $(TOOL),tests/gpu/under.sh) tests/run.sh 1 $^
$(GPU_CPP): $(BUILD)/gpu-cpp/%: tests/gpu/%.cu tests/gpu/kit.h gpupool.h
	$(if $(NVCC),,$(error gpu-cpp needs nvcc))
	$(SAY)
	$(Q)$(NVCC) -std=c++17 -O2 -lineinfo $(if $(GPU),-arch=native) -Werror all-warnings \
	  -Xcompiler -Wall,-Wextra -o $@ $<

gpu-facts: $(BUILD)/gpu-facts ## on a GPU: what gpupool counts on of the driver, in half a minute
	@$<
$(BUILD)/gpu-facts: tests/gpu/facts.cu $(wildcard tests/gpu/facts*.h)
	$(if $(NVCC),,$(error gpu-facts needs nvcc))
	$(SAY)
	$(Q)$(NVCC) -std=c++14 -O2 -lineinfo $(if $(GPU),-arch=native) -Werror all-warnings \
	  -Xcompiler -Wall,-Wextra -o $@ $< -lcuda
