# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Read by a Kbuild, which has set
#   probe-file     the questions: blocks of C, each in #ifdef PROBE_<name>
#   probe-objects  the objects whose sources include the answers, probed.h
# Each block is compiled alone with the kernel's own flags. What compiles is defined as HAVE_<name> in probed.h: version
# numbers say little about kernels with backports. An answer is kept until the command or the kernel's headers change,
# the compiler's words beside it.
#
# HAVE_SANE must compile and HAVE_NONSENSE must not; if they do otherwise, the answers mean nothing, and the build ends.

probe-names := $(shell sed -n 's/^.ifdef PROBE_\([A-Z0-9_]*\)$$/\1/p' $(probe-file))
probe-answers := $(addprefix $(obj)/probed/,$(probe-names))

# What some compilers only warn of is an error here, and what some kernels make an error is none.
probe-flags = $(NOSTDINC_FLAGS) $(LINUXINCLUDE) $(KBUILD_CPPFLAGS) $(KBUILD_CFLAGS) $(KBUILD_CFLAGS_MODULE) \
	-std=gnu11 -Wno-error -Werror=implicit-function-declaration -Werror=incompatible-pointer-types -Werror=int-conversion \
	-DMODULE -DKBUILD_MODNAME='"probe"' -DKBUILD_BASENAME='"probe"' -DKBUILD_MODFILE='"probe"' -D__KBUILD_MODNAME=probe

# gcc compiles the headers of all questions once: half of the time. headers.h itself is empty: where gcc does not take what
# it has compiled, a question reads its own.
probe-headers := $(if $(CONFIG_CC_IS_GCC),$(if $(findstring clang,$(CC)),,$(obj)/probed/headers.h))

quiet_cmd_probe_headers = PROBE   $@
      cmd_probe_headers = mkdir -p $(@D) && : >$@; \
	awk '/^.include/ && !read[$$2]++ { h = substr($$0, 1, 1); \
		print h "if __has_include(" $$2 ")"; print; print h "endif" }' $(probe-file) >$(@D)/all.h; \
	$(CC) $(subst -include $(srctree)/include/linux/compiler-version.h,,$(probe-flags)) \
		-x c-header -o $@.gch $(@D)/all.h 2>$@.log || rm -f $@.gch

quiet_cmd_probe = PROBE   $@
      cmd_probe = mkdir -p $(@D); \
	if $(CC) $(addprefix -include ,$(probe-headers)) $(probe-flags) -DPROBE_$(@F) \
		-fsyntax-only -x c $(probe-file) 2>$@.log; \
	then echo '\#define HAVE_$(@F) 1'; else echo '/* no $(@F) */'; fi >$@

quiet_cmd_probed = PROBED  $@
      cmd_probed = rm -f $(addsuffix .gch,$(probe-headers)); cat $(probe-answers) >$@.new; \
	if grep -q 'define HAVE_SANE' $@.new && ! grep -q 'define HAVE_NONSENSE' $@.new; then mv $@.new $@; \
	else cat $(obj)/probed/SANE.log >&2; echo 'the headers of this kernel do not compile as they are' >&2; false; fi

targets += $(addprefix probed/,$(probe-names) headers.h) probed.h
clean-files += probed probed.h

probe-inputs := $(probe-file) $(wildcard $(addprefix $(objtree)/include/generated/,utsrelease.h autoconf.h))

$(probe-headers): $(probe-inputs) FORCE
	$(call if_changed,probe_headers)

$(probe-answers): $(probe-inputs) $(probe-headers) FORCE
	$(call if_changed,probe)

$(obj)/probed.h: $(probe-answers) FORCE
	$(call if_changed,probed)

$(addprefix $(obj)/,$(probe-objects)): $(obj)/probed.h
ccflags-y += -I$(obj) -std=gnu11
