# SPDX-License-Identifier: MIT
# For the Makefiles of the clients, which set OUT and RMCLIENT (this folder) before. RM are the sources of the client
# library and the module's call table, which has the sizes of parameters; RM_H what depends on its headers.
RM_CORE := $(RMCLIENT)/../../cgpu_km/core
RM_TABLE := $(wildcard $(RM_CORE)/nv_table_*.c) $(RM_CORE)/nv_call.c $(RM_CORE)/nv_branch.c
RM := $(addprefix $(RMCLIENT)/,rm.c rm_context.c) $(RM_TABLE)
RM_ABI := $(RMCLIENT)/rm_abi.h $(RMCLIENT)/../nvsim/module/nvabi.h $(wildcard $(RM_CORE)/nv_*.h)
RM_H := $(addprefix $(RMCLIENT)/,rm.h rm_internal.h) $(RM_ABI)
RM_FLAGS := -I$(RMCLIENT) -I$(RMCLIENT)/../nvsim/module -I$(RM_CORE) -Wno-missing-field-initializers
