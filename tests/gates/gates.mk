# The gates: what holds beside what the tests of `make test` say.

.PHONY: hygiene docs analyze compile windows test32 coverage mutants fuzz prove schedules mistakes

hygiene: ## the header's text, its exported names, the macros left over; what it may cost its reader
	@$(TOLD) tests/gates/hygiene_test.sh
	@$(TOLD) tests/gates/budget_test.sh

FIGURES := $(patsubst %,$(BUILD)/test/%-plain,test_tree test_tree_long test_tree_misuse)
docs: $(FAKE) $(FIGURES) ## the pages and the top comment of the header against the code
	@$(TOLD) FIGURES=1 tests/gates/docs_test.sh

analyze: ## clang --analyze, clang -Weverything, gcc -fanalyzer and cppcheck find nothing; QUICK=1
	@$(TOLD) QUICK=$(QUICK) tests/gates/analyze.sh

compile: $(FAKE) ## the header under every compiler and language version; CUDA's names over it; C++
	@$(TOLD) TEST_LIMIT_S=1800 tests/run.sh $(JOBS) $(patsubst %,tests/gates/compile/%.sh,matrix names cpp order)

windows: ## the header as mingw-w64 compiles it, its integer rooms under wine
	@$(TOLD) tests/gates/windows_test.sh

test32: ## a 32-bit compiler must be told why it cannot have the header (needs gcc-multilib)
	@if ! echo '#include <stdio.h>' | $(CC) -m32 -fsyntax-only -x c - 2> /dev/null; \
	then echo "0 passed, 0 failed, 1 skipped ($(CC) -m32 has no headers)"; \
	elif printf '%s\n' '#define GPUPOOL_IMPLEMENTATION' '#include "gpupool.h"' | \
	  $(CC) -m32 -fsyntax-only -I. $(SIM_CUDA) -x c - 2>&1 | grep -m 1 'gpupool needs a 64-bit build'; \
	then echo "1 passed, 0 failed"; \
	else echo "0 passed, 1 failed"; false; fi

coverage: ## `make test`, and what no test takes of gpupool.h, line by line and branch by branch
	@$(MAKE) --no-print-directory test COVERAGE=1

# clang cuts the mutants into build/mutants.json; with that file of the same header gcc does the rest.
# More: FROM= leaves so many of the sample out, WITHIN= seconds and no mutant is begun any more,
# LIMIT= seconds for one mutant, AGAIN=1 tries the listed ones too.
mutants: $(FAKE) ## the tests against small mistakes: N=200 SEED=1 ROOM=TREE ONLY=FUNCTION WHOLE=1 NAMED=FILE
	@python3 tests/gates/mutants/mutants.py --build='$(BUILD)' --fake=$< --cuda='$(SIM_CUDA)' \
	  --jobs=$(JOBS) --count=$(or $(N),200) --seed=$(or $(SEED),1) --room='$(ROOM)' \
	  --only='$(ONLY)' --first=$(or $(FROM),0) --limit=$(or $(LIMIT),60) --tests='$(TESTS)' \
	  $(if $(NAMED),--named='$(NAMED)') \
	  --within=$(or $(WITHIN),inf) $(if $(WHOLE),--whole) $(if $(AGAIN),--again)

schedules: $(FAKE) ## two threads in every order of CUTS=2 interruptions, and make mistakes
	@CUTS=$(or $(CUTS),2) ONLY=$(ONLY) JOBS=$(JOBS) tests/gates/schedules.sh $(BUILD)/schedules \
	  $(COMPILE) -O1 -g1 $(SIM_CUDA) $<

mistakes: ## headers with known mistakes about threads and streams: a scene must see each; ONLY=NAME
	@$(MAKE) --no-print-directory schedules CUTS=0

prove: ## a model checker (ESBMC=...) on tests/gates/prove, PROOF=NAME for one; skipped without
	@ESBMC='$(ESBMC)' tests/gates/prove/prove.sh $(BUILD)/prove $(JOBS) $(PROOF)

FUZZ := arena limit ring trace import sleep
fuzz: $(FUZZ:%=$(BUILD)/fuzz/%) ## libFuzzer on each of tests/gates/fuzz, SECONDS=60; KEEP=1 adds to the corpus
	@KEEP=$(KEEP) tests/gates/fuzz/fuzz.sh $(BUILD)/fuzz $(or $(SECONDS),60) $(FUZZ)

# Clang alone has the engine, and builds all that the fuzzers are linked with; the simulated CUDA
# is not to be learnt.
CLANG ?= clang
FUZZ_COMPILE = $(CLANG) $(C_FLAGS) -O1 -g $(INCLUDES) $(SIM_CUDA) \
  -fno-sanitize-recover=undefined -fsanitize=address,undefined
FUZZ_OBJECTS := $(patsubst tests/%.c,$(BUILD)/fuzz/objects/%.o,$(FAKE_SOURCES) \
  $(patsubst %,tests/support/%.c,linked trace trace_build lines idmap))
$(BUILD)/fuzz/objects/support/%.o: EYES := -fsanitize=fuzzer-no-link
$(FUZZ_OBJECTS): $(BUILD)/fuzz/objects/%.o: tests/%.c $(BUILD)/flags
	$(SAY)
	$(Q)$(FUZZ_COMPILE) $(EYES) -c -o $@ $<
$(FUZZ:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: tests/gates/fuzz/fuzz.c $(FUZZ_OBJECTS)
	$(SAY)
	$(Q)$(FUZZ_COMPILE) -fsanitize=fuzzer -DLINKED=1 -DFUZZ='"$*"' -MF $@.d -o $@ \
	  $(filter %.c %.o,$^) -lm
