# gpupool: `make` alone lists the targets.
#
# The header needs no building. What is built here proves it, shows it and measures it, on a GPU
# where there is one with a CUDA toolkit, else on tests/fakecuda, a GPU simulated on the CPU.
# CUDA_HOME= (empty) leaves a toolkit out; ON=sim leaves a GPU out; STRICT=1: a warning is an error;
# V=1 shows the commands; JOBS= how many at a time.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build
Q := $(if $(V),,@)
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion $(if $(STRICT),-Werror)
INCLUDES := -I. -Itests -Itests/support -Iexamples

# ---- where CUDA comes from -----------------------------------------------------------------------

NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(origin CUDA_HOME),undefined)
CUDA_HOME := $(if $(NVCC),$(patsubst %/bin/,%,$(dir $(realpath $(NVCC)))),/usr/local/cuda)
endif
TOOLKIT := $(patsubst %/include/cuda_runtime_api.h,%,\
             $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)))
GPU := $(or $(wildcard /dev/nvidia[0-9]*),$(shell nvidia-smi -L 2>/dev/null | sed -n '1s/:.*//p'))
ON := $(if $(TOOLKIT),$(if $(GPU),gpu,sim),sim)
# What is measured is on a GPU; elsewhere the compiler's time counts. -g1: reports need lines.
CFLAGS ?= $(if $(filter gpu,$(ON)),-O2,-O1) -g1

SIM_CUDA := $(if $(TOOLKIT),-isystem $(TOOLKIT)/include,-Itests/fakecuda/include)
GPU_CUDA := -isystem $(TOOLKIT)/include -DGPUPOOL_TEST_GPU=1
GPU_LIBS := -L$(TOOLKIT)/lib64 -Wl,-rpath,$(TOOLKIT)/lib64 -lcudart
FAKE := $(BUILD)/fakecuda/none.a

ifeq ($(ON),gpu)
CUDA := $(GPU_CUDA)
LINK := $(if $(NVCC),$(NVCC) -Xcompiler -pthread,$(CC) -pthread)
LIBS := $(if $(NVCC),,$(GPU_LIBS)) -lm -ldl
else
CUDA := $(SIM_CUDA)
LINK := $(CC) -pthread
LIBS := $(FAKE) -lm -ldl
endif

C_FLAGS := -std=c11 $(WARNINGS) -pthread -MMD -MP
COMPILE := $(CC) $(C_FLAGS)
PARALLEL = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))
# What the scripts of the tests and gates are told.
TOLD := ON='$(ON)' CC='$(CC)' CXX='$(CXX)' BUILD='$(BUILD)' TOOLKIT='$(TOOLKIT)' \
        NVCC='$(if $(TOOLKIT),$(NVCC))' JOBS='$(JOBS)'

# Begins a rule: makes the folder, and says what is made; in `make test`, how far it is, too.
define SAY
@mkdir -p $(@D)
@$(if $(STEPS),tests/step.sh $(BUILD)/steps $(STEPS) $(BEGAN),echo ' ') $@
endef

# Changes when the compiler or its flags do, and then everything is built again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(COMPILE) $(CFLAGS) $(CUDA) $(LINK)' | cmp -s - $@ || \
	  echo '$(COMPILE) $(CFLAGS) $(CUDA) $(LINK)' > $@

# ---- targets: these, and those of the files included ----------------------------------------------

.PHONY: help examples tools clean FORCE

help: ## lists the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(filter-out $(BUILD)/%,$(MAKEFILE_LIST)) \
	| while IFS='|' read -r target words; do printf '%-21s %s\n' "$$target" "$$words"; done
	@echo
	@echo "here: $(if $(TOOLKIT),CUDA toolkit in $(TOOLKIT),no CUDA toolkit),"\
	      "$(if $(filter gpu,$(ON)),a GPU,no GPU: runs are simulated)"

# before the includes: `make test` builds them, too
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,\
              $(filter-out examples/nccl_%,$(wildcard examples/*.c)))
RMM := $(or $(RMM),$(shell python3 -c 'import librmm; print(*librmm.__path__)' 2>/dev/null))
GPU_EXAMPLES := $(if $(TOOLKIT),\
  $(if $(NVCC),$(patsubst examples/%.cu,$(BUILD)/examples/%,$(wildcard examples/*.cu)))\
  $(if $(wildcard $(TOOLKIT)/include/nccl.h /usr/include/nccl.h),$(BUILD)/examples/nccl_allreduce)\
  $(if $(RMM),$(BUILD)/examples/rmm_resource))

include tests/tools/tools.mk tests/tests.mk tests/gates/gates.mk tests/bench/bench.mk tests/gpu/gpu.mk

examples: $(EXAMPLES) $(GPU_EXAMPLES) ## builds and runs what is in examples/
	@$(TOLD) CUDA_HOME=$(TOOLKIT) GPUPOOL_INCLUDE=$(CURDIR) \
	  examples/run_examples.sh

.PHONY: pictures
pictures: ## draws the pictures of README.md, in examples/pictures
	@$(MAKE) --no-print-directory ON=sim $(BUILD)/examples/memory_map
	@$(BUILD)/examples/memory_map examples/pictures/memory_map.svg > /dev/null
	@awk -f tests/bench/reserved.awk README.md > examples/pictures/reserved.svg
	@ls -l examples/pictures/*.svg

clean: ## removes build/
	rm -rf $(BUILD)

# ---- examples ------------------------------------------------------------------------------------

$(EXAMPLES): $(BUILD)/examples/%: examples/%.c $(BUILD)/flags gpupool.h $(wildcard examples/*.h) \
             $(filter %.a,$(LIBS))
	$(SAY)
	$(Q)$(COMPILE) $(if $(filter gpu,$(ON)),$(CFLAGS),-O0 -g1) $(CUDA) \
	  -DSIMULATED_GPU=$(if $(filter sim,$(ON)),1,0) -I. -c -o $@.o $<
	$(Q)$(LINK) -o $@ $@.o $(LIBS)

NVCC_EXAMPLE = $(NVCC) -O2 -g -lineinfo -I. $(if $(filter gpu,$(ON)),-arch=native) \
  -Werror all-warnings -Xcompiler -Wall,-Wextra -o $@ $< -lcublas
$(BUILD)/examples/%: examples/%.cu gpupool.h $(BUILD)/flags
	$(SAY)
	$(Q)$(NVCC_EXAMPLE)

$(BUILD)/examples/nccl_allreduce: examples/nccl_allreduce.c gpupool.h $(BUILD)/flags
	$(SAY)
	$(Q)$(COMPILE) $(CFLAGS) $(GPU_CUDA) -D_POSIX_C_SOURCE=200809L -I. -o $@ $< \
	  $(GPU_LIBS) -lnccl

$(BUILD)/examples/rmm_resource: examples/rmm_resource.cpp gpupool.h $(BUILD)/flags
	$(SAY)
	$(Q)$(CXX) -std=c++20 -O2 -Wall -Wextra -Wno-deprecated-declarations -pthread -I. \
	  -isystem $(RMM)/include -isystem $(RMM)/include/rapids $(GPU_CUDA) -o $@ $< $(GPU_LIBS) \
	  $(foreach library,$(RMM)/lib64 $(RMM)/../rapids_logger/lib64,-L$(library) -Wl,-rpath,$(library)) \
	  -lrmm -lrapids_logger

-include $(wildcard $(OBJECTS)/*.d $(OBJECTS)/*/*.d $(OBJECTS)/*/*/*.d $(BUILD)/*/*.d)
