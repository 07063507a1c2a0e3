# SPDX-License-Identifier: MIT
"""PURE: what an engine wrote into config.json about who a container is. Docker writes nothing there, but has a file."""

from __future__ import annotations

from typing import Any

#: Label -> annotations that say it: containerd's CRI, then CRI-O's.
ANNOTATIONS = {
    "name": ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
    "image": ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"),
    "pod": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "namespace": ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
}
LENGTH_MAX = 512


def of_spec(spec: dict[str, Any]) -> dict[str, str]:
    """Only what is said, cut to a length."""
    said = spec.get("annotations")
    if not isinstance(said, dict):
        return {}
    found = {
        label: next((said[key] for key in keys if isinstance(said.get(key), str) and said[key]), "")
        for label, keys in ANNOTATIONS.items()
    }
    return _cut(found)


def of_docker(file: Any) -> dict[str, str]:
    """From the container's config.v2.json."""
    top = file if isinstance(file, dict) else {}
    config = top.get("Config")
    found = {"name": top.get("Name"), "image": config.get("Image") if isinstance(config, dict) else None}
    return _cut({label: value.removeprefix("/") for label, value in found.items() if isinstance(value, str)})


def _cut(found: dict[str, str]) -> dict[str, str]:
    return {label: value[:LENGTH_MAX] for label, value in found.items() if value}
