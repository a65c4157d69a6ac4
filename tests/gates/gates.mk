# The gates: what holds beside what the tests of `make test` say.

.PHONY: hygiene docs analyze compile mistakes

hygiene: ## the header's text, and what it may cost its reader; the text of all files
	@$(TOLD) tests/gates/hygiene_test.sh

docs: $(FAKE) ## the pages' programs run, and what the pages name is there
	@$(TOLD) tests/gates/docs_test.sh

analyze: ## clang -Weverything and cppcheck find nothing in the header
	@$(TOLD) tests/gates/analyze.sh

compile: $(FAKE) ## the header under every compiler and language version; CUDA's names over it; C++
	@$(TOLD) TEST_LIMIT_S=1800 tests/run.sh $(JOBS) tests/gates/compile_test.sh tests/gates/cpp_test.sh

mistakes: $(FAKE) ## wrong edits of the header, each of which a test must see; ONLY=NAME
	@$(TOLD) ONLY='$(ONLY)' tests/gates/mistakes.sh
