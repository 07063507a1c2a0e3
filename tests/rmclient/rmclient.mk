# SPDX-License-Identifier: MIT
# For the Makefiles of the clients, which set OUT and RMCLIENT (this folder) before. RM are the sources of the client
# library, RM_H what depends on its headers; rm_abi.h is made below OUT.
RM := $(addprefix $(RMCLIENT)/,rm.c rm_context.c)
RM_ABI := $(OUT)/include/rm_abi.h
RM_H := $(addprefix $(RMCLIENT)/,rm.h rm_internal.h) $(RM_ABI)
RM_FLAGS := -I$(RMCLIENT) -I$(OUT)/include

$(RM_ABI): $(addprefix $(RMCLIENT)/,header.py rmabi.py rmlayout.py)
	@mkdir -p $(@D)
	python3 $< >$@.new
	mv $@.new $@
