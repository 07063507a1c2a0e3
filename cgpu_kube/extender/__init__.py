# SPDX-License-Identifier: MIT
"""The scheduler extender: filter, prioritize and bind of the gpushare protocol, for pods with aliyun.com/gpu-mem."""
