# SPDX-License-Identifier: MIT
"""kubectl inspect cgpu, run by kubectl itself against the API server of the tests."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import sys
from pathlib import Path

import pytest
from cluster import MAPS, NODES, PODS, container, gpu, our_node, pod, simple, vendor_node
from fake_api import FakeApi, kubeconfig, recorded

from cgpu_kube import annotations as notes
from cgpu_kube import dra

BIN = Path(sys.executable).parent
SLICES, CLAIMS = "apis/resource.k8s.io/v1/resourceslices", "apis/resource.k8s.io/v1/resourceclaims"


def bound(found: dict, node: str, **texts: str) -> dict:
    found["spec"]["nodeName"] = node
    found["metadata"]["annotations"] = texts
    return found


def cluster() -> list[tuple[str, dict]]:
    """Two nodes; a pod on each GPU, one whose GPU is not known, one that has ended, two that wait."""
    ended = bound(simple("ended", 9), "n1", **{notes.INDEX: "0"})
    ended["status"]["phase"] = "Succeeded"
    return [
        (NODES, our_node("n1", gpu(0, 15), gpu(1, 79, why="is lost: Xid 79"))),
        (NODES, vendor_node("v1", 8, 1)),
        (NODES, {"metadata": {"name": "plain"}, "status": {}}),
        (PODS, bound(simple("a", 6), "n1", **{notes.ALLOCATION: '{"c0":{"0":6}}'})),
        (PODS, bound(pod("b", container("x", 20), container("y", 3)), "n1", **{notes.INDEX: "1"})),
        (PODS, bound(simple("static", 2), "v1")),
        (PODS, ended),
        (PODS, simple("big", 12)),
        (PODS, simple("zero", 0)),
        (PODS, pod("plain", container("c", None))),
    ]


def run(kubectl: Path, tmp_path: Path, objects: list[tuple[str, dict]], *words: str) -> tuple[int, str, str]:
    """`kubectl inspect cgpu …`; exit status, output, errors."""

    async def whole() -> tuple[int, str, str]:
        async with FakeApi() as server:
            for collection, found in objects:
                server.put(collection, found)
            env = os.environ | {
                "KUBECONFIG": str(kubeconfig(tmp_path, server.url)),
                "HOME": str(tmp_path),
                "PATH": f"{BIN}:{kubectl.parent}:{os.environ['PATH']}",
            }
            process = await asyncio.create_subprocess_exec(
                str(kubectl), "inspect", "cgpu", *words, env=env, stdout=-1, stderr=-1
            )
            output, errors = await process.communicate()
            return process.returncode or 0, output.decode(), errors.decode()

    return asyncio.run(whole())


def squeezed(text: str) -> list[str]:
    return [re.sub(" +", " ", line) for line in text.splitlines()]


def test_the_vendors_columns_and_the_pods_that_wait(kubectl: Path, tmp_path: Path) -> None:
    status, text, errors = run(kubectl, tmp_path, cluster())
    assert (status, errors) == (0, "")
    assert squeezed(text) == [
        "NAME IPADDRESS GPU0(Allocated/Total) GPU1(Allocated/Total) PENDING(Allocated) GPU Memory(GiB)",
        "n1 10.0.0.7 6/15 23/79 29/94",
        "v1 0/8 0/0 2 2/8",
        "-" * len(text.splitlines()[3]),
        "Allocated/Total GPU Memory In Cluster:",
        "31/102 (30%)",
        "",
        "Pending: default/big",
        (
            " n1: 12 GiB asked for: GPU 0 has 9 of 15 GiB free, GPU 1 is lost: Xid 79 "
            "(held by: GPU 0: default/a 6; GPU 1: default/b 23)"
        ),
        " v1: 12 GiB asked for: GPU 0 has 6 of 8 GiB free (held by: GPU 0: default/static 2 (its GPU is not known))",
        "",
        "Pending: default/zero: container c0: aliyun.com/gpu-mem is 0; leave it out, or ask for 1 or more",
    ]


def test_details(kubectl: Path, tmp_path: Path) -> None:
    status, text, _ = run(kubectl, tmp_path, cluster(), "-d", "n1")
    assert status == 0
    assert squeezed(text)[:11] == [
        "NAME: n1",
        "IPADDRESS: 10.0.0.7",
        "",
        "NAME NAMESPACE GPU0(Allocated) GPU1(Allocated)",
        "a default 6 0",
        "b default 0 23",
        "Allocated : 29/94 (30%)",
        "Total : 94",
        "Note : GPU 1 is lost: Xid 79",
        "-" * len(text.splitlines()[9]),
        "",
    ]
    assert "v1" not in text.split("Pending")[0]


def test_one_pod_and_json(kubectl: Path, tmp_path: Path) -> None:
    status, text, _ = run(kubectl, tmp_path, cluster(), "--pod", "big")
    assert status == 0 and text.startswith("Pending: default/big\n") and "zero" not in text
    status, text, _ = run(kubectl, tmp_path, cluster(), "-o", "json")
    found = json.loads(text)
    assert found["schema_version"] == 1
    node = found["nodes"][0]
    assert [one["allocated_units"] for one in node["gpus"]] == [6, 23]
    assert [one["free_units"] for one in node["gpus"]] == [9, 0], "GPU 1 is lost"
    vendors = next(one for one in found["nodes"] if one["name"] == "v1")
    assert [(one["allocated_units"], one["free_units"]) for one in vendors["gpus"]] == [(0, 6)], "2 wait somewhere"
    assert node["pods"][1]["containers"] == {"x": [1], "y": [1]}
    assert found["nodes"][1]["unplaced_units"] == 2 and found["nodes"][1]["pods"][0]["units"] is None
    assert {one["pod"] for one in found["pending"]} == {"default/big", "default/zero"}


def test_an_administrators_mark(kubectl: Path, tmp_path: Path) -> None:
    mark = {"metadata": {"namespace": "kube-system", "name": "unhealthy-gpu-n1"}, "data": {"gpus": "0"}}
    status, text, _ = run(kubectl, tmp_path, [*cluster(), (MAPS, mark)], "--pod", "big")
    assert status == 0 and "GPU 0 is marked unhealthy by an administrator" in text


def dra_objects() -> list[tuple[str, dict]]:
    """The recorded slice, claim and pod of 1.36, and a pod that the scheduler could not place."""
    allocated = recorded("claim-allocated")
    big = copy.deepcopy(recorded("claim-fraction"))
    big["metadata"] |= {"name": "big-g-rbjs8", "uid": "other"}
    big["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] = {"memory": "80Gi", "weight": "2"}
    del big["status"]
    return [
        (SLICES, recorded("resourceslice")),
        (CLAIMS, allocated),
        (CLAIMS, big),
        (PODS, recorded("pod-with-claim")),
        (PODS, recorded("pod-unschedulable")),
    ]


def test_claims_of_dra(kubectl: Path, tmp_path: Path) -> None:
    status, text, _ = run(kubectl, tmp_path, dra_objects())
    assert status == 0
    assert squeezed(text) == [
        "Devices of cgpu.io (Allocated/Total):",
        "NODE DEVICE MEMORY(MiB) WEIGHT SLOTS CLAIMS",
        "n1 gpu-0 6144/15109 5/20 1/20 default/six1-g-22xzg",
        "n1 gpu-1 0/81559 0/20 0/20",
        "",
        "Pending: default/big",
        (
            " n1: claim big-g-rbjs8, request gpu: 81920 MiB asked for: GPU 0 has 8965 of 15109 MiB free, "
            "GPU 1 has 81559 of 81559 MiB free"
        ),
    ]


def test_why_a_claim_waits() -> None:
    devices = dra.devices([recorded("resourceslice")])
    pods = recorded("pod-unschedulable")
    claim = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "cgpu.io"}}]}}}
    claims = {"default/big-g-rbjs8": claim}
    assert dra.pending(pods, claims, devices, []) == {"n1": "claim big-g-rbjs8, request gpu: has room"}
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    exactly |= {"count": 2, "capacity": {"requests": {"memory": "10Gi", "weight": "19"}}}
    taken = dra.parts([recorded("claim-allocated")])
    assert dra.pending(pods, claims, devices, taken) == {
        "n1": "claim big-g-rbjs8, request gpu: 10240 MiB on each of 2 GPUs asked for: "
        "GPU 0 has 8965 of 15109 MiB free, GPU 1 has room"
    }
    exactly |= {"count": 1, "capacity": {"requests": {"weight": "19", "memory": "1Gi"}}}
    tainted = copy.deepcopy(recorded("resourceslice"))
    tainted["spec"]["devices"][1]["taints"] = [{"key": "cgpu.io/unhealthy", "value": "xid-79", "effect": "NoExecute"}]
    assert dra.pending(pods, claims, dra.devices([tainted]), taken) == {
        "n1": "claim big-g-rbjs8, request gpu: 1024 MiB asked for: GPU 0 has 15 of 20 weight free, and 19 asked for, "
        "GPU 1 has the taint cgpu.io/unhealthy=xid-79"
    }
    newer = copy.deepcopy(tainted)
    newer["spec"]["pool"]["generation"] = 2
    newer["spec"]["devices"] = newer["spec"]["devices"][:1]
    assert len(dra.devices([tainted, newer])) == 1
    exactly["deviceClassName"] = "other"
    assert dra.pending(pods, claims, devices, []) == {}


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["none"], 5, "error: node none: offers no aliyun.com/gpu-mem (n1, v1)"),
        (["--pod", "a"], 5, "error: pod default/a: does not wait for GPU memory"),
        (["--context", "other"], 1, "context"),
        (["--kubectl", "/nonexistent"], 5, "/nonexistent: there is no such program (install kubectl)"),
        (["-o", "yaml"], 2, "Invalid value"),
    ],
)
def test_errors(kubectl: Path, tmp_path: Path, words: list[str], status: int, sentence: str) -> None:
    done, text, errors = run(kubectl, tmp_path, cluster(), *words)
    assert (done, text) == (status, "")
    assert sentence in errors and len(errors.splitlines()) == 1


def test_an_empty_cluster(kubectl: Path, tmp_path: Path) -> None:
    status, text, errors = run(kubectl, tmp_path, [])
    assert (status, text) == (0, "No node offers aliyun.com/gpu-mem.\n")
    assert "docs/user/kubernetes.md" in errors
