# The test programs, and the runs of all of them.

.PHONY: test test-programs soak sanitize sanitize-run valgrind

# First the programs are built, then they run. What is built is counted beforehand, by make -n.
test: ## every test, on the simulated GPU; needs gcc and make only
	@mkdir -p $(BUILD) && : > $(BUILD)/steps && began=$$(date +%s) && \
	steps=$$($(MAKE) -n --no-print-directory ON=sim STEPS=1 test-programs | grep -c tests/step.sh); \
	[ "$$steps" = 0 ] || echo "building, $$steps steps, $(JOBS) at a time"; \
	$(MAKE) --no-print-directory ON=sim $(PARALLEL) STEPS=$$steps BEGAN=$$began test-programs
	@rm -f $(BUILD)/test/*.gcda $(BUILD)/linked/*.gcda
	@$(TOLD) ON=sim FIGURES=1 tests/run.sh $(RUNS) $(TESTS) $(if $(ONLY),,$(WORLDS)) $(TEST_SCRIPTS)
	@$(if $(COVERAGE),$(COVER) || { echo "once more: threads meet in other ways each time"; \
	  BUILD=$(BUILD) tests/run.sh $(RUNS) $(COUNTED) > $(BUILD)/again.log || \
	    { cat $(BUILD)/again.log; exit 1; }; $(COVER); })

WORLDS := $(BUILD)/test/world $(BUILD)/test/world_threads $(BUILD)/test/world_clock
RUNS = $(shell echo $$(($(JOBS) + 1))) # some wait, on no processor
NEXT_SCRIPTS := tests/gates/budget_test.sh tests/next/compile_test.sh tests/next/cpp_test.sh \
  tests/next/report_test.sh tests/next/pytorch_test.sh
TEST_SCRIPTS := $(if $(NEXT),$(NEXT_SCRIPTS) $(if $(ONLY),,examples/next/run_examples.sh),$(NEXT_SCRIPTS) \
  tests/gates/hygiene_test.sh tests/gates/docs_test.sh tests/gates/windows_test.sh \
  tests/tools/replay_test.sh tests/bench/bench_test.sh tests/bench/cliffs/cliffs_test.sh \
  tests/api/pytorch/pytorch_test.sh \
  examples/run_examples.sh)

# variants.mk adds to TESTS: one program for each `// build: NAME FLAGS` line of a test source; and to
# LINKED: the implementation, once for each set of flags. It may name another compiler for those with
# sanitizers or without optimization.
TESTS :=
COUNTED := # those with gcov's counters, which add up over runs
COVER := python3 tests/gates/coverage.py $(BUILD)/header/gpupool.h $(BUILD)
QUICK_CC := $(CC)
# gcc looks for misleading indentation, for a third of its time, even where -w lets it say nothing.
COUNTERS := --coverage -fprofile-update=atomic -w -Wno-misleading-indentation -D_exit=coverage_exit -Dalways_inline= -I$(BUILD)/header
# Both editions until tests/next has taken the place of the other; NEXT=1: that one alone.
TEST_FOLDERS := $(if $(NEXT),,tests/unit tests/api) tests/next/unit tests/next/api
TEST_SOURCES := $(wildcard $(TEST_FOLDERS:%=%/test_$(or $(ONLY),*).c)) \
                $(if $(ONLY)$(NEXT),,tests/fakecuda/self_test.c)
ifneq ($(filter test test-programs sanitize-run soak docs $(BUILD)/test/%,$(MAKECMDGOALS)),)
include $(BUILD)/variants.mk
endif
$(BUILD)/variants.mk: tests/variants.sh $(TEST_FOLDERS) $(TEST_SOURCES)
	@mkdir -p $(@D)
	@COVERAGE=$(COVERAGE) MODE='$(if $(filter sanitize-run,$(MAKECMDGOALS)),$(MODE))' tests/variants.sh $(BUILD) $(TEST_SOURCES) > $@

# Not optimized, clang is the quicker compiler; the counters are gcc's.
TEST_CC = $(if $(findstring --coverage,$(FLAGS)),$(CC),$(if $(findstring -fsanitize,$(FLAGS))$(findstring -O0,$(FLAGS)),$(QUICK_CC),$(CC)))
$(BUILD)/header/gpupool.h: gpupool.h
	@mkdir -p $(@D)
	@sed -e '/^static .*[^;]$$/s/^static \([^=]*(\)/static inline \1/' \
	  -e 's/GPUPOOL_API static __/GPUPOOL_API static inline __/' $< > $@
# Lines in the reports of sanitizers and debuggers take a fifth of the building: DEBUG=-g1 has them.
DEBUG ?= $(if $(filter test test-programs,$(MAKECMDGOALS)),,-g1)
TEST_COMPILE = $(TEST_CC) $(C_FLAGS) $(DEBUG) $(FLAGS) $(INCLUDES)

test-programs: $(TESTS) $(if $(ONLY),,$(WORLDS)) $(if $(NEXT),,$(BUILD)/replay $(BUILD)/demo $(BUILD)/bench-run \
               $(BUILD)/cliffs) $(if $(filter sim,$(ON)),$(if $(ONLY),$(if $(NEXT),,$(EXAMPLES)),$(EXAMPLES)))

$(TESTS): $(BUILD)/flags $(if $(COVERAGE),$(BUILD)/header/gpupool.h)
	$(SAY)
	$(Q)$(TEST_COMPILE) $(SIM_CUDA) -MF $@.d -o $@ $(filter %.c %.o,$^) $(filter %.a,$^) -lm
$(sort $(LINKED)): tests/support/linked.c $(BUILD)/flags $(if $(COVERAGE),$(BUILD)/header/gpupool.h)
	$(SAY)
	$(Q)$(TEST_COMPILE) $(SIM_CUDA) -c -o $@ $<

FAKE_SOURCES := $(wildcard tests/fakecuda/fk_*.c)
$(BUILD)/fakecuda/%.a: $(FAKE_SOURCES) $(wildcard tests/fakecuda/*.h tests/fakecuda/include/*.h) \
                       $(BUILD)/flags
	$(SAY)
	@mkdir -p $(BUILD)/fakecuda/$*
	$(Q)for f in $(FAKE_SOURCES); do \
	  $(if $(filter none,$*),$(CC),$(QUICK_CC)) -std=c11 $(WARNINGS) -O2 -g -pthread \
	    $(SIM_CUDA) $(if $(filter none,$*),,-fsanitize=$* -fno-sanitize-recover=all) \
	    -c -o $(BUILD)/fakecuda/$*/$$(basename $$f .c).o $$f || exit 1; done
	@rm -f $@
	@ar rcs $@ $(patsubst tests/fakecuda/%.c,$(BUILD)/fakecuda/$*/%.o,$(FAKE_SOURCES))

# ---- the same programs in other ways --------------------------------------------------------------

MODE ?= thread
sanitize: ## all tests under MODE=thread, or MODE=address,undefined; ONLY=NAME for one source
	@rm -f $(BUILD)/$(MODE)/variants.mk # ONLY may be another one now
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=$(BUILD)/$(MODE) MODE=$(MODE) sanitize-run
sanitize-run: $(TESTS)
	@BUILD=$(BUILD) TEST_LIMIT_S=1800 tests/run.sh $(JOBS) $(TESTS)

soak: $(BUILD)/test/test_soak-plain ## everything at once for ten minutes; SECONDS= SEED= THREADS=
	@$< $(or $(SECONDS),600) $(or $(SEED),$(shell date +%s)) $(or $(THREADS),6)

ROOMS := ground tree tree_misuse tree_memory
valgrind: $(ROOMS:%=$(BUILD)/valgrind/%) ## the rooms that need no CUDA, with few units
	@for room in $^; do echo "$$room"; \
	  valgrind -q --error-exitcode=9 --leak-check=full $$room || exit 1; done
$(BUILD)/valgrind/%: tests/unit/test_%.c $(FAKE)
	$(SAY)
	$(Q)$(COMPILE) -O1 -g1 $(INCLUDES) $(SIM_CUDA) -DFEW_UNITS=4 -MF $@.d -o $@ $^ -lm

# ---- tests/world: random calls against a model ----------------------------------------------------

WORLD := $(patsubst %,tests/world/%.c,model blocks graphs arena intrude world driver next)
WORLD_CC = $(CC) -std=gnu11 $(WARNINGS) -Wno-pedantic -pthread $(SIM_CUDA) -Itests/fakecuda
WORLD_HEADER ?= ../next/gpupool.h
.PHONY: worlds world-fuzz world-planted
worlds: $(WORLDS) ## random calls judged by a model and the race oracle; threads; a full launch queue
	@for world in $^; do echo "$$world"; $$world || exit 1; done
$(BUILD)/test/world $(BUILD)/test/world_clock: FLAGS := -O1 -g1
$(BUILD)/test/world_threads: FLAGS := -O1 -g1 -fsanitize=thread
$(BUILD)/test/world: tests/world/seeds.c $(FAKE)
$(BUILD)/test/world_threads: tests/world/threads.c $(BUILD)/fakecuda/thread.a
$(BUILD)/test/world_clock: tests/world/clock.c $(FAKE)
$(WORLDS): $(WORLD) tests/world/world.h tests/next/gpupool.h
	$(SAY)
	$(Q)$(WORLD_CC) $(FLAGS) -DWORLD_HEADER='"$(WORLD_HEADER)"' -o $@ $(filter %.c %.a,$^) -lm -ldl
world-fuzz: $(WORLD) $(FAKE_SOURCES) ## libFuzzer on the world, SECONDS=60; needs clang
	@mkdir -p $(BUILD)/fuzz/world
	@clang -std=gnu11 -w -O1 -g -pthread $(SIM_CUDA) -Itests/fakecuda -fsanitize=fuzzer,address \
	  -DWORLD_HEADER='"$(WORLD_HEADER)"' -o $(BUILD)/fuzz/world_fuzz $^ tests/world/fuzz.c -lm -ldl
	@$(BUILD)/fuzz/world_fuzz -max_len=16000 -artifact_prefix=$(BUILD)/fuzz/ -max_total_time=$(or $(SECONDS),60) $(BUILD)/fuzz/world
.PHONY: ring-planted shape-planted
ring-planted: ## wrong edits of the ring in tests/next, each of which a test must notice
shape-planted: ## those of default arenas, cudaMalloc's shape, and limits as text
ring-planted shape-planted: $(FAKE)
	@$(TOLD) tests/next/$(@:-planted=)_planted.sh
world-planted: $(FAKE) ## wrong edits of tests/next, each of which the world must see
	@$(TOLD) tests/world/planted.sh
