# The test programs, and the runs of all of them.

.PHONY: test test-programs sanitize sanitize-run

# First the programs are built, then they run. What is built is counted beforehand, by make -n.
test: ## every test, on the simulated GPU; needs gcc and make only
	@mkdir -p $(BUILD) && : > $(BUILD)/steps && began=$$(date +%s) && \
	steps=$$($(MAKE) -n --no-print-directory ON=sim STEPS=1 test-programs | grep -c tests/step.sh); \
	[ "$$steps" = 0 ] || echo "building, $$steps steps, $(JOBS) at a time"; \
	$(MAKE) --no-print-directory ON=sim $(PARALLEL) STEPS=$$steps BEGAN=$$began test-programs
	@$(TOLD) ON=sim QUICK=1 tests/run.sh $(RUNS) $(TESTS) $(if $(ONLY),,$(WORLDS) $(TEST_SCRIPTS))

RUNS = $(shell echo $$(($(JOBS) + 1))) # some wait, on no processor
WORLDS := $(BUILD)/test/world $(BUILD)/test/world_threads $(BUILD)/test/world_clock
TEST_SCRIPTS := $(patsubst %,tests/gates/%_test.sh,hygiene compile cpp report) \
  tests/gates/docs_test.sh \
  tests/tools/replay_test.sh tests/bench/bench_test.sh examples/run_examples.sh

# variants.mk adds to TESTS: one program for each `// build: NAME FLAGS` line of a test source; and to
# LINKED: the implementation, once for each set of flags. It may name another compiler for those with
# sanitizers or without optimization.
TESTS :=
QUICK_CC := $(CC)
TEST_SOURCES := $(wildcard tests/unit/test_$(or $(ONLY),*).c tests/api/test_$(or $(ONLY),*).c) \
                $(if $(ONLY),,tests/fakecuda/self_test.c)
ifneq ($(filter test test-programs sanitize-run $(BUILD)/test/%,$(MAKECMDGOALS)),)
include $(BUILD)/variants.mk
endif
$(BUILD)/variants.mk: tests/variants.sh tests/unit tests/api $(TEST_SOURCES) $(BUILD)/only
	@mkdir -p $(@D)
	@MODE='$(if $(filter sanitize-run,$(MAKECMDGOALS)),$(MODE))' tests/variants.sh $(BUILD) $(TEST_SOURCES) > $@
$(BUILD)/only: FORCE # changes when ONLY does
	@mkdir -p $(@D)
	@echo '$(ONLY)' | cmp -s - $@ || echo '$(ONLY)' > $@

# Lines in the reports of sanitizers and debuggers take a fifth of the building: DEBUG=-g1 has them.
DEBUG ?= $(if $(filter test test-programs,$(MAKECMDGOALS)),,-g1)
TEST_COMPILE = $(if $(findstring -fsanitize,$(FLAGS))$(findstring -O0,$(FLAGS)),$(QUICK_CC),$(CC)) \
  $(C_FLAGS) $(DEBUG) $(FLAGS) $(INCLUDES)

test-programs: $(TESTS) $(if $(ONLY),,$(WORLDS) $(BUILD)/replay $(BUILD)/demo \
               $(BUILD)/bench-run $(EXAMPLES))

$(TESTS): $(BUILD)/flags
	$(SAY)
	$(Q)$(TEST_COMPILE) $(SIM_CUDA) -MF $@.d -o $@ $(filter %.c %.o,$^) $(filter %.a,$^) -lm
$(sort $(LINKED)): tests/support/linked.c $(BUILD)/flags
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
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=$(BUILD)/$(MODE) MODE=$(MODE) sanitize-run
sanitize-run: $(TESTS)
	@BUILD=$(BUILD) TEST_LIMIT_S=1800 tests/run.sh $(JOBS) $(TESTS)

# ---- tests/world: random calls against a model ----------------------------------------------------

WORLD := $(patsubst %,tests/world/%.c,model blocks graphs arena intrude world library)
WORLD_CC = $(CC) -std=gnu11 $(WARNINGS) -Wno-pedantic -pthread $(SIM_CUDA) -I. -Itests/fakecuda
.PHONY: worlds soak fuzz
worlds: $(WORLDS) ## random calls judged by a model and the race oracle; threads; FIRST= LAST= seeds
	@for world in $^; do echo "$$world"; $$world $(FIRST) $(LAST) || exit 1; done
$(BUILD)/world/%.o: tests/world/%.c tests/world/world.h gpupool.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(WORLD_CC) -O1 -g1 -c -o $@ $<
W := $(WORLD:tests/world/%.c=$(BUILD)/world/%.o)
$(BUILD)/test/world: $(W) $(BUILD)/world/seeds.o $(FAKE)
$(BUILD)/test/world_clock: $(W) $(BUILD)/world/clock.o $(FAKE)
$(BUILD)/test/world $(BUILD)/test/world_clock:
	$(SAY)
	$(Q)$(WORLD_CC) -o $@ $^ -lm -ldl
$(BUILD)/test/world_threads: $(WORLD) tests/world/threads.c $(BUILD)/fakecuda/thread.a \
                             tests/world/world.h gpupool.h
	$(SAY)
	$(Q)$(WORLD_CC) -O1 -g1 -fsanitize=thread -o $@ $(filter %.c %.a,$^) -lm -ldl

soak: $(WORLDS) ## those with new seeds, all at once, for ten minutes; SECONDS= SEED=
	@seed=$(or $(SEED),$$(date +%s)); echo "from seed $$seed on"; \
	for world in $^; do \
	  { timeout $(or $(SECONDS),600) $$world $$seed 9999999999; [ $$? = 124 ]; } & \
	  running="$$running $$!"; \
	done; \
	for one in $$running; do wait $$one || failed=1; done; \
	[ -z "$$failed" ] && echo "the worlds found nothing wrong"

fuzz: $(WORLD) $(FAKE_SOURCES) ## libFuzzer chooses the calls, SECONDS=60; needs clang
	@mkdir -p $(BUILD)/fuzz/world
	@clang -std=gnu11 -w -O1 -g -pthread $(SIM_CUDA) -I. -Itests/fakecuda -fsanitize=fuzzer,address \
	  -o $(BUILD)/fuzz/world_fuzz $^ tests/world/fuzz.c -lm -ldl
	@$(BUILD)/fuzz/world_fuzz -max_len=16000 -artifact_prefix=$(BUILD)/fuzz/ \
	  -max_total_time=$(or $(SECONDS),60) $(BUILD)/fuzz/world
