# SPDX-License-Identifier: MIT
"""PURE: names of the MPS node mode: the files of a GPU's control daemon, its unit, its numbers.

One control daemon of NVIDIA's for each GPU, in the unit cgpu-mps@UUID. Its clients are containers with the driver's own
nodes. Their memory limits are cooperative and watched: docs/decisions/0029.
"""

from __future__ import annotations

PROGRAM = "nvidia-cuda-mps-control"
PREFIX = "CUDA_MPS_"  # of the variables that a client, a server or the control daemon reads
ROOT = "/run/cgpu/mps"  # a directory for each GPU, by UUID
READY = "ready.json"  # in it while its control daemon answers: see Ready
EXCLUSIVE = "exclusive process"  # the compute mode, as gpus.py names it

LIMITS = "limits.sock"  # in it: where the unit's program takes the limits of cgroups, see mps_limits.py

SERVER_MIB = 512  # of a server; 418 MiB were seen on a card before its clients allocate anything
#: Memory that NVML counts for a client and the limit in its environment may not.
HIDDEN_MIB = 128
#: CUDA's version, as 1000 x major + 10 x minor -> clients of one GPU.
CLIENTS = ((13010, 60), (0, 48))


def directory(uuid: str, root: str = ROOT) -> str:
    return f"{root}/{uuid}"


def unit(uuid: str) -> str:
    return f"cgpu-mps@{uuid}.service"


def clients_max(cuda: int) -> int:
    """How many clients MPS takes on a GPU, by the version of CUDA that the driver has."""
    return next(most for since, most in CLIENTS if cuda >= since)


def words(*, by_cgroup: bool) -> str:
    """What the limit of a container is worth, wherever it is named."""
    if by_cgroup:
        return "limit of the cgroup, by the driver; one fatal fault ends all clients of the GPU"
    return "cooperative limit, watched; one fatal fault ends all clients of the GPU"
