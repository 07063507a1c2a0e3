# SPDX-License-Identifier: MIT
"""PURE: name, image, pod and namespace of a container, from annotations in config.json or from Docker's own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Label -> annotations with its value: containerd's CRI, then CRI-O's.
ANNOTATIONS = {
    "name": ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
    "image": ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"),
    "pod": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "namespace": ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
}
LENGTH_MAX = 512
HOLDER_MAX = 80  # in a sentence with up to 25 of them


def of_spec(spec: dict[str, Any]) -> dict[str, str]:
    """The labels that are set, each cut to LENGTH_MAX."""
    annotations = spec.get("annotations")
    if not isinstance(annotations, dict):
        return {}
    return _cut({label: annotation(annotations, keys) for label, keys in ANNOTATIONS.items()})


def annotation(annotations: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The first of these annotations that is not empty: an engine may write another's with no value."""
    return next((value for key in keys if isinstance(value := annotations.get(key), str) and value), "")


def of_docker(file: Any) -> dict[str, str]:
    """From the container's config.v2.json."""
    top = file if isinstance(file, dict) else {}
    config = top.get("Config")
    found = {"name": top.get("Name"), "image": config.get("Image") if isinstance(config, dict) else None}
    return _cut({label: value.removeprefix("/") for label, value in found.items() if isinstance(value, str)})


def holder(found: Mapping[str, str], namespace: str) -> str:
    """How people name the container: namespace/pod, else its engine's name. "" for a pod of another namespace, whose
    names are not for the one that reads the sentence."""
    if pod := found.get("pod"):
        name = f"{namespace}/{pod}" if found.get("namespace") == namespace else ""
    else:
        name = found.get("name", "")
    return "".join(filter(str.isprintable, name))[:HOLDER_MAX]


def _cut(found: dict[str, str]) -> dict[str, str]:
    return {label: value[:LENGTH_MAX] for label, value in found.items() if value}
