# SPDX-License-Identifier: MIT
"""The options of `cgpu-kube node`, and its intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cgpu_kube.node import host


@dataclass(frozen=True)
class Settings:
    """By default those of a node."""

    node: str
    kubelet: Path = Path("/var/lib/kubelet")
    cgpud: Path = Path("/run/cgpu/cgpud.sock")
    socket: Path = Path("/run/cgpu/kube.sock")
    state: Path = Path("/var/lib/cgpu/kube")
    cdi: Path = Path("/var/run/cdi")
    cdi_enabled: bool = False
    unit: str = host.GIB
    overcommit: int = 100
    poll_s: float = 2.0
    refresh_s: float = 10.0  # cgpud's figures
    clean_s: float = 60.0  # grants of pods that are gone
    health_s: float = 300.0  # NVML, which costs cgpud a process; every admission asks it too
    first_wait_s: float = 20.0  # of a decision, for cgpud's first answer; cgpud waits 25 s for the decision
    pod_wait_s: float = 5.0  # of a decision, for a pod that the API server does not give
    # From the report that the agent ends to its end: pods that are bound already are admitted meanwhile.
    leave_s: float = 2.0
