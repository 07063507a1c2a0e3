# SPDX-License-Identifier: MIT
"""A real kubelet, scheduler and containerd with cgpud and cgpu-kube; only the kernel is simulated, in memory."""

from __future__ import annotations

from cluster.scenarios import *  # noqa: F403
