# SPDX-License-Identifier: MIT
"""What the agent keeps of a pod: little, whatever its author writes."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from fake_api import recorded

from cgpu_kube import annotations as keys
from cgpu_kube.node import podview
from cgpu_kube.node.podview import kept

TEXT = "x" * 200_000
WRITTEN = {
    keys.MEMORY: TEXT,
    keys.INDEX: TEXT,
    f"{keys.NV_PREFIX}main{keys.NV_LIMIT}": TEXT,
    f"{keys.NV_PREFIX}other{keys.NV_LIMIT}": TEXT,
    podview.MIRROR: TEXT,
    "other": TEXT,
}


def pod(phase: str = "Running", *, limits: dict[str, str] | None = None, count: int = 1) -> dict[str, Any]:
    names = ["main", *(f"c{number}" for number in range(1, count))]
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": WRITTEN},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": name, "resources": {"limits": limits or {}}, "args": [TEXT]} for name in names],
        },
        "status": {"phase": phase},
    }


def test_texts_of_a_pod_without_a_gpu_are_not_kept() -> None:
    found = kept(pod(count=5000))
    assert set(found["metadata"]["annotations"]) == {podview.MIRROR}
    assert len(json.dumps(found)) < 20_000


def test_texts_of_a_pod_with_a_gpu_are_cut() -> None:
    found = kept(pod(limits={keys.GPU_MEM: "6"}))
    texts = found["metadata"]["annotations"]
    assert set(texts) == {*WRITTEN} - {"other", f"{keys.NV_PREFIX}other{keys.NV_LIMIT}"}
    assert {len(text) for text in texts.values()} == {keys.TEXT_MAX + 1}, "which the parsers refuse as too long"
    assert found["spec"]["containers"] == [{"name": "main", "resources": {"limits": {keys.GPU_MEM: "6"}}}]


def test_texts_of_a_pod_that_has_ended_are_not_kept() -> None:
    """Of those that the kubelet has refused there may be thousands."""
    found = kept(pod("Failed", limits={keys.GPU_MEM: "6"}))
    assert set(found["metadata"]["annotations"]) == {podview.MIRROR}
    running = pod("Failed", limits={keys.GPU_MEM: "6"})
    running["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    assert keys.MEMORY in kept(running)["metadata"]["annotations"], "it holds its memory"


@pytest.mark.parametrize("name", ["pod-gpushare-bound", "pod-with-claim", "pod-extended-resource"])
def test_the_decoder_has_all_that_is_kept(name: str) -> None:
    whole = recorded(name)
    static = copy.deepcopy(whole)
    static["metadata"].setdefault("annotations", {})[podview.MIRROR] = "m"
    static["metadata"] |= {"labels": {keys.GPU_COUNT: "2", "app": "a"}}
    static["metadata"]["ownerReferences"] = [{"kind": "Node", "name": whole["spec"]["nodeName"], "uid": "n"}]
    for found in (whole, static):
        sparse = msgspec.json.decode(json.dumps(found), type=podview.Sparse)
        assert kept(sparse) == kept(found)
