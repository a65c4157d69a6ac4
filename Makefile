# gpupool: `make` alone lists the targets.
#
# The header needs no building. What is built here proves it, shows it and measures it, on a GPU
# where there is one with a CUDA toolkit, else on tests/fakecuda, a GPU simulated on the CPU.
# CUDA_HOME= (empty) leaves a toolkit out; ON=sim leaves a GPU out; STRICT=1: a warning is an error.

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
# -g1: reports need lines; with variables too a sanitized program takes twice as long to build.
CFLAGS ?= -O2 -g1
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build
Q := $(if $(V),,@)# V=1 shows the commands
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion $(if $(STRICT),-Werror)

# ---- where CUDA comes from -----------------------------------------------------------------------

NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(origin CUDA_HOME),undefined)
CUDA_HOME := $(if $(NVCC),$(patsubst %/bin/,%,$(dir $(realpath $(NVCC)))),/usr/local/cuda)
endif
TOOLKIT := $(patsubst %/include/cuda_runtime_api.h,%,\
             $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)))
GPU := $(or $(wildcard /dev/nvidia[0-9]*),$(shell nvidia-smi -L 2>/dev/null | sed -n '1s/:.*//p'))
ON := $(if $(TOOLKIT),$(if $(GPU),gpu,sim),sim)

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
TEST_COMPILE := $(COMPILE) -O1 -g1
comma := ,
TOOLS := replay demo fixed_range crowd waits bench-run churn ring sleep

# ---- targets -------------------------------------------------------------------------------------

.PHONY: help demo test test-programs coverage gpu-test gpu-sanitize gpu-test-programs gpu-stress \
        gpu-stitch gpu-share gpu-sleep gpu-names gpu-cpp examples windows bench bench-memory bench-ring \
        bench-sleep soak soak-memory fuzz prove schedules sanitize sanitize-run valgrind test32 tools all clean FORCE

help: ## lists the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
	| while IFS='|' read -r target words; do printf '%-20s %s\n' "$$target" "$$words"; done
	@echo
	@echo "here: $(if $(TOOLKIT),CUDA toolkit in $(TOOLKIT),no CUDA toolkit),"\
	      "$(if $(filter gpu,$(ON)),a GPU,no GPU: runs are simulated)"

demo: $(BUILD)/demo ## replays a recorded GPT-2 training run, draws build/demo.svg
	@$(BUILD)/demo

test: ## every test, on the simulated GPU; needs gcc and make only
	@$(MAKE) --no-print-directory ON=sim \
	  $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) test-programs
	@ON=sim CC='$(CC)' CXX='$(CXX)' NVCC='$(if $(TOOLKIT),$(NVCC))' TOOLKIT='$(TOOLKIT)' \
	  BUILD='$(BUILD)' tests/run.sh $(JOBS) tests/compile/matrix.sh tests/compile/names.sh \
	  tests/compile/cpp.sh $(TESTS) \
	  tests/hygiene_test.sh tests/replay_test.sh tests/bench_test.sh tests/docs_test.sh \
	  tests/windows_test.sh tests/pytorch_test.sh examples/run_examples.sh

gpu-test: gpu-test-programs ## the same tests against the real CUDA runtime and GPU
	@tests/run.sh 1 $(GPU_TESTS)

gpu-sanitize: gpu-test-programs ## those under compute-sanitizer; CHECKS=memcheck for one tool
	@export PATH="$$PATH:$(TOOLKIT)/bin"; command -v compute-sanitizer > /dev/null || \
	  { echo "gpu-sanitize needs the CUDA toolkit's compute-sanitizer" >&2; exit 1; }; status=0; \
	for tool in $(or $(CHECKS),memcheck racecheck synccheck); do echo "$$tool"; \
	  TOOL=$$tool UNDER=tests/gpu/under.sh BUILD=$(BUILD)/$$tool \
	  tests/run.sh 4 $(GPU_TESTS) || status=1; done; exit $$status

gpu-test-programs:
	$(if $(TOOLKIT),,$(error the tests on a GPU need a CUDA toolkit: set CUDA_HOME))
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) $(GPU_TESTS)

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
$(BUILD)/gpu-stitch/share: tests/share_socket.h
gpu-sleep: $(BUILD)/gpu-stitch/sleep $(BUILD)/examples/take_turns ## on a GPU: sleep and waking, CYCLES=1000 SEED=1
	@$< $(or $(CYCLES),1000) $(or $(LIMIT_MIB),2048) $(or $(SEED),1)
	@$(BUILD)/examples/take_turns 2048 3
$(BUILD)/gpu-stitch/%: tests/gpu/%.cu tests/gpu/kit.h gpupool.h
	$(if $(NVCC),,$(error gpu-stitch needs nvcc))
	@mkdir -p $(@D)
	@echo "  $@"
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
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(NVCC) -std=c++$* -O2 $(if $(GPU),-arch=native) -Werror all-warnings -o $@ \
	  tests/gpu/names_main.cu tests/gpu/names_other.cu

GPU_CPP := $(BUILD)/gpu-cpp/cpp_thrust
gpu-cpp: $(GPU_CPP) ## on a GPU: Thrust over the header's C++; TOOL=memcheck
	@PATH="$$PATH:$(TOOLKIT)/bin" BUILD=$(BUILD)/gpu-cpp TOOL=$(TOOL) \
	  UNDER=$(if $(TOOL),tests/gpu/under.sh) tests/run.sh 1 $^
$(GPU_CPP): $(BUILD)/gpu-cpp/%: tests/gpu/%.cu tests/gpu/kit.h gpupool.h
	$(if $(NVCC),,$(error gpu-cpp needs nvcc))
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(NVCC) -std=c++17 -O2 -lineinfo $(if $(GPU),-arch=native) -Werror all-warnings \
	  -Xcompiler -Wall,-Wextra -o $@ $<

coverage: $(FAKE) ## what no test executes of gpupool.h, line by line and branch by branch
	@CC='$(CC)' tests/coverage.sh $(BUILD) $(JOBS) '$(SIM_CUDA)'

EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,\
              $(filter-out examples/nccl_%,$(wildcard examples/*.c)))
GPU_EXAMPLES := $(if $(TOOLKIT),\
  $(if $(NVCC),$(patsubst examples/%.cu,$(BUILD)/examples/%,$(wildcard examples/*.cu))\
    $(BUILD)/examples/image_pyramid_plain $(BUILD)/examples/sanitizer_demo_annotated)\
  $(if $(wildcard $(TOOLKIT)/include/nccl.h /usr/include/nccl.h),$(BUILD)/examples/nccl_allreduce))
examples: $(EXAMPLES) $(GPU_EXAMPLES) ## builds and runs what is in examples/
	@ON=$(ON) BUILD=$(BUILD) CUDA_HOME=$(TOOLKIT) examples/run_examples.sh

.PHONY: pictures
pictures: ## draws the pictures of README.md, in examples/pictures
	@$(MAKE) --no-print-directory ON=sim $(BUILD)/sim/replay
	@$(BUILD)/sim/replay --streams 3 --svg examples/pictures/memory_map.svg \
	  tests/traces/resnet50.trace.gz > /dev/null
	@awk -f tests/bench/reserved.awk README.md > examples/pictures/reserved.svg
	@ls -l examples/pictures/*.svg

windows: ## the header as mingw-w64 compiles it, its integer rooms under wine
	@CC='$(CC)' BUILD='$(BUILD)' tests/windows_test.sh

bench: $(BUILD)/bench-run ## nanoseconds an operation costs on the host, here and with others
	@NVCC='$(if $(filter gpu,$(ON)),$(NVCC))' CXX='$(CXX)' tests/bench/bench.sh $(BUILD) $(ON)

bench-memory: $(BUILD)/replay $(BUILD)/fixed_range $(BUILD)/crowd ## reserved memory and speed on real traces
	@tests/bench/memory.sh $(BUILD) $(ON)

bench-waits: $(BUILD)/waits ## what a call costs beside many streams, threads and failures
	@$<

soak: $(BUILD)/test/test_soak-plain ## everything at once for ten minutes; SECONDS= SEED= THREADS=
	@$< $(or $(SECONDS),600) $(or $(SEED),$(shell date +%s)) $(or $(THREADS),6)

bench-ring: $(BUILD)/ring ## transfers through the staging ring, against CUDA's own
	@$(BUILD)/ring

bench-sleep: $(BUILD)/sleep ## sleep and waking, against the driver and the ring; GIB= KEEP_GIB=
	@$(BUILD)/sleep $(or $(GIB),0) $(or $(KEEP_GIB),0)

soak-memory: $(BUILD)/churn ## 100 million operations under limits that move; OPS= for fewer
	@$(BUILD)/churn $(OPS)

FUZZ := arena limit ring trace
fuzz: $(FUZZ:%=$(BUILD)/fuzz/%) ## libFuzzer on each of tests/fuzz, SECONDS=60; KEEP=1 adds to the corpus
	@KEEP=$(KEEP) tests/fuzz/fuzz.sh $(BUILD)/fuzz $(or $(SECONDS),60) $(FUZZ)

prove: ## a model checker (ESBMC=...) on tests/prove, PROOF=NAME for one; skipped without
	@ESBMC='$(ESBMC)' tests/prove/prove.sh $(BUILD)/prove $(PROOF)

schedules: $(BUILD)/fakecuda/none.a ## two threads in every order, CUTS=2 interruptions; then broken headers
	@CUTS=$(CUTS) tests/broken.sh $(BUILD)/schedules $(TEST_COMPILE) $(SIM_CUDA) -Itests $<

MODE ?= thread
sanitize: ## all tests under MODE=thread, or MODE=address,undefined; ONLY=NAME for one source
	@rm -f $(BUILD)/$(MODE)/tests.mk # ONLY may be another one now
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=$(BUILD)/$(MODE) MODE=$(MODE) sanitize-run

ROOMS := ground tree tree_misuse tree_memory
valgrind: $(ROOMS:%=$(BUILD)/valgrind/%) ## the rooms that need no CUDA, with few units
	@for room in $^; do echo "$$room"; \
	  valgrind -q --error-exitcode=9 --leak-check=full $$room || exit 1; done
$(BUILD)/valgrind/%: tests/test_%.c $(BUILD)/fakecuda/none.a
	@mkdir -p $(@D)
	$(Q)$(TEST_COMPILE) $(SIM_CUDA) -DFEW_UNITS=4 -MF $@.d -o $@ $^ -lm

test32: ## a 32-bit compiler must be told why it cannot have the header (needs gcc-multilib)
	@if ! echo '#include <stdio.h>' | $(CC) -m32 -fsyntax-only -x c - 2> /dev/null; \
	then echo "0 passed, 0 failed, 1 skipped ($(CC) -m32 has no headers)"; \
	elif printf '%s\n' '#define GPUPOOL_IMPLEMENTATION' '#include "gpupool.h"' | \
	  $(CC) -m32 -fsyntax-only -I. $(SIM_CUDA) -x c - 2>&1 | grep -m 1 'gpupool needs a 64-bit build'; \
	then echo "1 passed, 0 failed"; \
	else echo "0 passed, 1 failed"; false; fi

tools: $(TOOLS:%=$(BUILD)/%)
EVERYTHING := tools test docs analyze coverage schedules prove valgrind test32 mutants fuzz soak
all: ## all that needs no GPU, for two hours or so, going on after failures; SECONDS= for fuzz, soak
	@MAKE='$(MAKE)' tests/all.sh $(BUILD)/all $(EVERYTHING)

clean: ## removes build/
	rm -rf $(BUILD)

# ---- the demo and the measuring tools ------------------------------------------------------------

OBJECTS := $(BUILD)/$(ON)
REPLAY := trace trace_build lines idmap machine replay_plan replay_pass replay_run replay_limit \
          replay_timeline replay_print
REPLAY_OBJECTS := $(REPLAY:%=$(OBJECTS)/%.o)
UNIT_OBJECTS := $(foreach unit,256 512 2048 8192,$(OBJECTS)/replay_unit_$(unit).o)

$(OBJECTS)/replay: $(OBJECTS)/replay.o $(OBJECTS)/replay_units.o $(OBJECTS)/library_counted.o \
                   $(UNIT_OBJECTS) $(REPLAY_OBJECTS)
$(OBJECTS)/demo: $(OBJECTS)/demo.o $(OBJECTS)/pow2.o $(OBJECTS)/library.o $(REPLAY_OBJECTS)
$(OBJECTS)/fixed_range: $(OBJECTS)/bench/fixed_range.o $(OBJECTS)/machine.o $(OBJECTS)/library.o
$(OBJECTS)/crowd: $(OBJECTS)/bench/crowd.o $(OBJECTS)/machine.o $(OBJECTS)/library.o
$(OBJECTS)/waits: $(OBJECTS)/bench/waits.o $(OBJECTS)/machine.o $(OBJECTS)/library.o
$(OBJECTS)/churn: $(OBJECTS)/bench/churn.o $(OBJECTS)/machine.o $(OBJECTS)/library.o
BENCH := bench run lane works peers peer_gpupool peer_gpupool_unlocked bars print svg
$(OBJECTS)/bench-run: $(BENCH:%=$(OBJECTS)/bench/%.o) $(OBJECTS)/library.o $(REPLAY_OBJECTS)
$(OBJECTS)/ring: $(OBJECTS)/bench/ring.o
$(OBJECTS)/sleep: $(OBJECTS)/bench/sleep.o
$(TOOLS:%=$(OBJECTS)/%): $(filter %.a,$(LIBS))
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(LIBS)

$(OBJECTS)/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(COMPILE) $(CFLAGS) $(CUDA) -Itests -c -o $@ $<

$(UNIT_OBJECTS): $(OBJECTS)/replay_unit_%.o: tests/replay_unit.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(COMPILE) $(CFLAGS) $(CUDA) -DREPLAY_UNIT=$* -Itests -c -o $@ $<

$(OBJECTS)/bench/peer_gpupool_unlocked.o: tests/bench/peer_gpupool.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(COMPILE) $(CFLAGS) $(CUDA) -Itests -DBENCH_UNLOCKED=1 -c -o $@ $<

# The plain names stand for the build in use; FORCE, because that may change without any source.
$(TOOLS:%=$(BUILD)/%): $(BUILD)/%: $(OBJECTS)/% FORCE
	@cmp -s $< $@ || cp $< $@

$(BUILD)/examples/%: examples/%.c $(BUILD)/flags $(filter %.a,$(LIBS))
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(COMPILE) $(CFLAGS) $(CUDA) -DSIMULATED_GPU=$(if $(filter sim,$(ON)),1,0) -I. \
	  -c -o $@.o $<
	$(Q)$(LINK) -o $@ $@.o $(LIBS)

NVCC_EXAMPLE = $(NVCC) -O2 -g -lineinfo -I. $(if $(filter gpu,$(ON)),-arch=native) \
  -Werror all-warnings -Xcompiler -Wall,-Wextra $(FLAGS) -o $@ $< -lcublas
$(BUILD)/examples/%_annotated: FLAGS := -DGPUPOOL_NVTX=1 -DGPUPOOL_SITES=1
$(BUILD)/examples/%_annotated: examples/%.cu gpupool.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(NVCC_EXAMPLE)
$(BUILD)/examples/%_plain: FLAGS := -DPLAIN=1
$(BUILD)/examples/%_plain: examples/%.cu gpupool.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(NVCC_EXAMPLE)
$(BUILD)/examples/%: examples/%.cu gpupool.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(NVCC_EXAMPLE)

$(BUILD)/examples/nccl_allreduce: examples/nccl_allreduce.c gpupool.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(COMPILE) $(CFLAGS) $(GPU_CUDA) -D_POSIX_C_SOURCE=200809L -I. -o $@ $< $(GPU_LIBS) -lnccl

# Changes when the compiler or its flags do, and then everything is built again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(COMPILE) $(CFLAGS) $(CUDA) $(LINK)' | cmp -s - $@ || \
	  echo '$(COMPILE) $(CFLAGS) $(CUDA) $(LINK)' > $@

# ---- test programs -------------------------------------------------------------------------------

# tests.mk adds to TESTS: one program for each `// build: NAME FLAGS` line of a test source. It may
# name another compiler for those with sanitizers or without optimization.
TESTS :=
QUICK_CC := $(CC)
TEST_SOURCES := $(wildcard tests/test_$(or $(ONLY),*).c) \
                $(if $(ONLY),,$(wildcard tests/fakecuda/self_test.c))
ifneq ($(filter test test-programs sanitize-run soak docs $(BUILD)/test/%,$(MAKECMDGOALS)),)
include $(BUILD)/tests.mk
endif
$(BUILD)/tests.mk: tests/variants.sh $(TEST_SOURCES)
	@mkdir -p $(@D)
	@MODE='$(if $(filter sanitize-run,$(MAKECMDGOALS)),$(MODE))' tests/variants.sh $(BUILD) $(TEST_SOURCES) > $@

sanitize-run: $(TESTS)
	@BUILD=$(BUILD) TEST_LIMIT_S=1800 tests/run.sh $(JOBS) $(TESTS)

test-programs: $(TESTS) $(BUILD)/replay $(BUILD)/demo $(BUILD)/bench-run \
               $(if $(filter sim,$(ON)),$(EXAMPLES))

$(TESTS): $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(if $(findstring -fsanitize,$(FLAGS))$(findstring -O0,$(FLAGS)),$(QUICK_CC),$(CC)) $(C_FLAGS) -g1 $(SIM_CUDA) \
	  $(FLAGS) -MF $@.d -o $@ $(filter %.c,$^) $(filter %.a,$^) -lm

FAKE_SOURCES := $(wildcard tests/fakecuda/fk_*.c)
$(BUILD)/fakecuda/%.a: $(FAKE_SOURCES) $(wildcard tests/fakecuda/*.h tests/fakecuda/include/*.h) \
                       $(BUILD)/flags
	@mkdir -p $(BUILD)/fakecuda/$*
	@echo "  $@"
	$(Q)for f in $(FAKE_SOURCES); do \
	  $(if $(filter none,$*),$(CC),$(QUICK_CC)) -std=c11 $(WARNINGS) -O2 -g -pthread \
	    $(SIM_CUDA) $(if $(filter none,$*),,-fsanitize=$* -fno-sanitize-recover=all) \
	    -c -o $(BUILD)/fakecuda/$*/$$(basename $$f .c).o $$f || exit 1; done
	@rm -f $@
	@ar rcs $@ $(patsubst tests/fakecuda/%.c,$(BUILD)/fakecuda/$*/%.o,$(FAKE_SOURCES))

# ---- fuzzers: clang alone has the engine, and builds all that they are linked with ----------------

CLANG ?= clang
FUZZ_COMPILE = $(CLANG) -std=c11 $(WARNINGS) -O1 -g -pthread $(SIM_CUDA) -Itests \
  -fsanitize=$(1),address,undefined -fno-sanitize-recover=undefined -MMD -MP
FUZZ_OBJECTS := $(patsubst tests/%.c,$(BUILD)/fuzz/objects/%.o,\
                  $(FAKE_SOURCES) $(addprefix tests/,trace.c trace_build.c lines.c idmap.c))
$(BUILD)/fuzz/objects/fakecuda/%.o: tests/fakecuda/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(subst fuzzer-no-link$(comma),,$(call FUZZ_COMPILE,fuzzer-no-link)) -c -o $@ $<
$(BUILD)/fuzz/objects/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(call FUZZ_COMPILE,fuzzer-no-link) -c -o $@ $<
$(FUZZ:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: tests/fuzz/fuzz.c $(FUZZ_OBJECTS)
	@echo "  $@"
	$(Q)$(call FUZZ_COMPILE,fuzzer) -DFUZZ='"$*"' -MF $@.d -o $@ $< $(FUZZ_OBJECTS) -lm

# ---- gates: what holds of the text, beside what the programs do -----------------------------------

.PHONY: hygiene docs analyze mutants
GATE := CC='$(CC)' CXX='$(CXX)' BUILD='$(BUILD)' TOOLKIT='$(TOOLKIT)'
FIGURES := $(patsubst %,$(BUILD)/test/%-plain,test_tree test_tree_long test_tree_misuse)
hygiene: ## the header's text, its exported names, the macros left over
	@$(GATE) tests/hygiene_test.sh
docs: $(BUILD)/fakecuda/none.a $(FIGURES) ## README.md, examples/README.md and the header's top comment against the code
	@$(GATE) FIGURES=1 tests/docs_test.sh
analyze: ## clang --analyze, clang -Weverything, gcc -fanalyzer and cppcheck find nothing
	@$(GATE) tests/analyze.sh
mutants: $(BUILD)/fakecuda/none.a ## the tests against small mistakes: N=200 SEED=1 ROOM=TREE WHOLE=1
	@python3 tests/mutants/mutants.py --build='$(BUILD)' --fake=$< --cuda='$(SIM_CUDA)' \
	  --jobs=$(JOBS) --count=$(or $(N),200) --seed=$(or $(SEED),1) --room='$(ROOM)' \
	  $(if $(WHOLE),--whole)

GPU_TESTS := $(patsubst tests/%.c,$(BUILD)/gpu-test/%,$(wildcard tests/test_*.c))
$(GPU_TESTS): $(BUILD)/gpu-test/%: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  $@"
	$(Q)$(TEST_COMPILE) $(GPU_CUDA) -MF $@.d -o $@ $< $(GPU_LIBS) -lm

-include $(wildcard $(OBJECTS)/*.d $(OBJECTS)/*/*.d $(BUILD)/*/*.d)
