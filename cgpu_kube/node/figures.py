# SPDX-License-Identifier: MIT
"""PURE: the agent's figures for Prometheus (docs/user/kubernetes.md), as text: prometheus-client takes 4 MiB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RESULTS = ("granted", "refused")  # of decisions
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "cgpu_node_agent_ready": "1: the kubelet has the node's devices, or this agent waits behind one that serves.",
    "cgpu_node_agent_standby": "1: another agent serves the node.",
    "cgpu_node_agent_decisions_total": "Containers that were given their part of a GPU, or refused.",
    "cgpu_node_agent_devices": "Devices that are offered to the kubelet, healthy ones.",
    "cgpu_node_agent_unasked": (
        "Containers of claims that run without their slice: CDI devices ignored, or another runtime class."
    ),
    "cgpu_node_agent_token_expiry_timestamp_seconds": "End of the token of the agent's kubeconfig.",
    "cgpu_node_agent_watch_failing": "1: the last request to the API server failed.",
}


@dataclass(frozen=True)
class Figures:
    """The input of one response."""

    node: str
    ready: bool
    standby: bool
    decisions: Mapping[str, int] = field(default_factory=dict)  # granted, refused
    devices: Mapping[str, int] = field(default_factory=dict)  # by resource
    failing: Mapping[str, bool] = field(default_factory=dict)  # by resource of the API server
    unasked: int = 0
    token_ends: int = 0  # of a kubeconfig; 0: it has none, or no end


def text(found: Figures) -> bytes:
    samples: dict[str, list[tuple[dict[str, str], int]]] = {
        "cgpu_node_agent_ready": [({}, int(found.ready))],
        "cgpu_node_agent_standby": [({}, int(found.standby))],
        "cgpu_node_agent_decisions_total": [({"result": key}, found.decisions.get(key, 0)) for key in RESULTS],
        "cgpu_node_agent_devices": [({"resource": key}, count) for key, count in found.devices.items()],
        "cgpu_node_agent_unasked": [({}, found.unasked)],
        "cgpu_node_agent_token_expiry_timestamp_seconds": [({}, found.token_ends)] if found.token_ends else [],
        "cgpu_node_agent_watch_failing": [({"resource": key}, int(bad)) for key, bad in found.failing.items()],
    }
    lines = []
    for name, values in samples.items():
        lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"]
        for labels, value in values:
            inside = ",".join(f'{key}="{word}"' for key, word in ({"node": found.node} | labels).items())
            lines.append(f"{name}{{{inside}}} {value}")
    return ("\n".join(lines) + "\n").encode()
