# What the C tests and the fuzz targets share: how the files of csrc become something to link.
#
# 1. Every csrc/FOLDER is an archive; of an archive only the files that a program needs are linked.
# 2. A program links the archives of the folders whose headers it includes, and wire.
# 3. A variant is a compiler and its flags, set by the including Makefile: CC, VARIANT, SANITIZE.

ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))../..)
OUT := $(ROOT)/build/$(notdir $(CURDIR))/$(VARIANT)
FOLDERS := media relay wire

CPPFLAGS += -I$(ROOT)/csrc -I$(ROOT)/tests/c -DVR_TESTS_DIR='"$(ROOT)/tests"'
CFLAGS ?= -O1 -g
WARNINGS ?= -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla
BUILD_FLAGS = -std=gnu11 -fno-omit-frame-pointer $(WARNINGS) $(SANITIZE) $(CPPFLAGS) $(CFLAGS)

# "yes" where csrc/media can be built.
MEDIA_HEADERS := $(shell printf '\043include <opus/opus.h>\n\043include <speex/speex_resampler.h>\n' | \
    $(CC) -E -x c - >/dev/null 2>&1 && echo yes)

LIBS_wire := -lcrypto
LIBS_media := -lopus -lspeexdsp -lm -lpthread

# included SOURCE: the folders that it includes headers of, as "wire/stun.h" or "../csrc/wire/stun.h".
included = $(shell sed -n 's|^.include "\(.*/\)\{0,1\}\([a-z]*\)/[a-z0-9_]*\.h".*|\2|p' $1)
# parts SOURCE: the folders to link.
parts = $(filter $(call included,$1) wire,$(FOLDERS))
archives = $(patsubst %,$(OUT)/lib%.a,$(call parts,$1))
libraries = $(foreach part,$(call parts,$1),$(LIBS_$(part)))

$(OUT)/%.o: $(ROOT)/csrc/%.c
	@mkdir -p $(@D)
	@echo "  $(CC) $(<F)"
	@$(CC) $(BUILD_FLAGS) -MMD -MP -c $< -o $@

define archive
$(OUT)/lib$1.a: $(patsubst $(ROOT)/csrc/%.c,$(OUT)/%.o,$(sort $(wildcard $(ROOT)/csrc/$1/*.c)))
	@rm -f $$@
	@$(AR) rcs $$@ $$^
endef
$(foreach folder,$(FOLDERS),$(eval $(call archive,$(folder))))

# Compiles and links the program $@ from its first prerequisite, a source file.
define link
@mkdir -p $(@D)
@echo "  $(CC) $(<F)"
@$(CC) $(BUILD_FLAGS) $(PROGRAM_FLAGS) -MMD -MP $< $(MAIN) \
    -Wl,--start-group $(call archives,$<) -Wl,--end-group $(call libraries,$<) -o $@
endef

-include $(wildcard $(OUT)/*.d $(OUT)/*/*.d)
