# SPDX-License-Identifier: MIT
"""The node installer: module, daemon and runtime on the host, from a pod (docs/decisions/0028)."""
