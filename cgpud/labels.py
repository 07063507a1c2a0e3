# SPDX-License-Identifier: MIT
"""PURE: name, image, pod and namespace of a container, from annotations in config.json or from Docker's own file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cgpu_common.errors import Refused

#: Field -> annotation that each engine's CRI service writes itself, last of all, and so over a pod's of that name.
CONTAINERD = {
    "name": "io.kubernetes.cri.container-name",
    "image": "io.kubernetes.cri.image-name",
    "pod": "io.kubernetes.cri.sandbox-name",
    "namespace": "io.kubernetes.cri.sandbox-namespace",
    "uid": "io.kubernetes.cri.sandbox-uid",
    "type": "io.kubernetes.cri.container-type",
}
CRIO = {
    "name": "io.kubernetes.container.name",
    "image": "io.kubernetes.cri-o.ImageName",
    "pod": "io.kubernetes.pod.name",
    "namespace": "io.kubernetes.pod.namespace",
    "uid": "io.kubernetes.pod.uid",
    "type": "io.kubernetes.cri-o.ContainerType",
}
ENGINES = (CONTAINERD, CRIO)
IDENTITY = ("name", "pod", "namespace", "uid")
SANDBOX = "sandbox"  # the type of a pod's own container, which runs nothing of the pod
LABELS = ("name", "image", "pod", "namespace")
LENGTH_MAX = 512
NAME_MAX = 64  # of one name in a refusal
HOLDER_MAX = 80  # in a sentence with up to 25 of them


def of_spec(spec: Mapping[str, Any]) -> dict[str, str]:
    """The labels that are set, each cut to LENGTH_MAX; none where two engines' annotations disagree."""
    try:
        found = of_engine(spec)
    except Refused:
        return {}
    return _cut({label: found.get(label, "") for label in LABELS})


def of_engine(spec: Mapping[str, Any]) -> dict[str, str]:
    """What the engine says about the container, those fields that are not empty. Raises Refused.

    CRI-O copies every annotation of the Pod into config.json, and containerd those that its pod_annotations let
    through: the other engine's names may be the pod author's. Either engine writes its own names over them, and the two
    cannot be told apart. So the fields of one engine are read, never a mixture, and where both are there they have to
    name the same container of the same pod.
    """
    annotations = spec.get("annotations")
    given = annotations if isinstance(annotations, dict) else {}
    sets = [
        {field: value for field, key in keys.items() if isinstance(value := given.get(key), str) and value}
        for keys in ENGINES
    ]
    named = [found for found in sets if any(field in found for field in IDENTITY)]
    if len(named) > 1 and len({tuple(found.get(field) for field in IDENTITY) for found in named}) > 1:
        raise Refused(
            f"the annotations of config.json name two containers: {' and '.join(map(_identity, named))}; a pod may not "
            f"have annotations io.kubernetes.cri… or io.kubernetes.pod… of its own"
        )
    return named[0] if named else {}


def _identity(found: Mapping[str, str]) -> str:
    return "/".join(found.get(field, "?")[:NAME_MAX] for field in ("namespace", "pod", "name", "uid"))


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
