# The demo, build/replay, and what the measuring tools are linked with.

.PHONY: demo

demo: $(BUILD)/demo ## replays a recorded GPT-2 training run, draws build/demo.svg
	@$(BUILD)/demo

TOOLS := replay demo bench-run ring sleep
tools: $(TOOLS:%=$(BUILD)/%) ## the demo, replay, and what measures: builds them in build/

OBJECTS := $(BUILD)/$(ON)
T := $(OBJECTS)/tools
S := $(OBJECTS)/support
REPLAY_OBJECTS := $(S)/trace.o $(S)/machine.o $(T)/replay_run.o

$(OBJECTS)/replay: $(T)/replay.o $(S)/library_counted.o $(REPLAY_OBJECTS)
$(OBJECTS)/demo: $(T)/demo.o $(S)/library.o $(REPLAY_OBJECTS)
$(TOOLS:%=$(OBJECTS)/%): $(filter %.a,$(LIBS))
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(LIBS)

TOOL_COMPILE = $(COMPILE) $(CFLAGS) $(CUDA) $(INCLUDES) $(TOOL_FLAGS) -c -o $@ $<
$(OBJECTS)/%.o: tests/%.c $(BUILD)/flags
	$(SAY)
	$(Q)$(TOOL_COMPILE)

# The plain names stand for the build in use; FORCE, because that may change without any source.
$(TOOLS:%=$(BUILD)/%): $(BUILD)/%: $(OBJECTS)/% FORCE
	@cmp -s $< $@ || cp $< $@
