# SPDX-License-Identifier: MIT
"""Kubernetes: the node agent, the scheduler extender and `kubectl inspect`. Nothing of cgpud or cli imports it."""
