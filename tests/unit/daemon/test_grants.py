# SPDX-License-Identifier: MIT
"""What an image or a pod may set: an administrator's keys decide, and a grant is out of the tenant's reach."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fakelink import FakeLink, example_gpus
from fakes import VARIABLES, Node

from cgpu_common.config import Config, merge
from cgpu_common.errors import Refused
from cgpu_common.model import MIB
from cgpu_common.policies import Policy
from cgpu_common.settings import Caps, GpuSettings
from cgpud import labels
from cgpud.admit import check_disable
from cgpud.env import parse
from cgpud.grants import Grants, Subject, subjects
from cgpud.values import NotSliced

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
OFF = [
    ("CGPU_DISABLE=true", *VARIABLES),
    ("CGPU_DISABLE=1",),
    ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=0"),
    ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=6,0"),
]
SIX = {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_VISIBLE_DEVICES": "1"}
POD = {"namespace": "team-a", "pod": "train-0", "uid": "u-1", "container": "main"}


# ---- disable ----


@pytest.mark.parametrize("env", OFF, ids=str)
async def test_an_image_cannot_switch_isolation_off_where_it_may_not(node: Node, env: tuple[str, ...]) -> None:
    node.config = Config(container=Caps(disable="deny", files={"disable": "/etc/cgpu/cgpu.toml"}))
    path = node.bundle(ID, env) / "config.json"
    before = path.read_bytes()
    async with node.running():
        error = (await node.prepare(ID, env))["error"]
        assert error.endswith(
            'a container may not switch cGPU off: disable = "deny" in [container] of /etc/cgpu/cgpu.toml'
        )
        assert path.read_bytes() == before
        assert (await node.prepare(OTHER))["ok"], "another container is not concerned"


LIMITS = [
    ({}, False),
    ({"max_memory_mib": 100}, True),
    ({"max_memory_fraction": 0.5}, True),
    ({"max_weight": 3}, True),
    ({"highprio": "refuse"}, True),
    ({"highprio": "allow"}, False),
    ({"max_weight": 3, "disable": "allow"}, False),
    ({"disable": "deny"}, True),
    ({"grants": "required"}, False),
]


@pytest.mark.parametrize(("keys", "denied"), LIMITS, ids=str)
def test_disable_is_denied_where_limits_are_set(keys: dict[str, Any], denied: bool) -> None:
    caps = merge([("/f", {"container": keys})]).container
    wanted = parse({"CGPU_DISABLE": "1"})
    assert isinstance(wanted, NotSliced)
    if denied:
        with pytest.raises(Refused, match=r"CGPU_DISABLE is set, and a container may not switch cGPU off: .* of /f"):
            check_disable(wanted, caps)
    else:
        check_disable(wanted, caps)


async def test_a_container_without_variables_is_not_concerned(node: Node) -> None:
    node.config = Config(container=Caps(disable="deny"))
    async with node.running():
        for env in ((), ("CGPU_DISABLE=0",)):
            assert await node.prepare(ID, env) == {"ok": True, "action": "pass"}
        warned = await node.prepare(ID, ("ALIYUN_COM_GPU_SCHD_WEIGHT=3",))
        assert (warned["action"], "no slice and no limit" in warned["warning"]) == ("pass", True)


# ---- grants ----


def annotations(subject: dict[str, str], crio: bool) -> dict[str, str]:
    keys = labels.CRIO if crio else labels.CONTAINERD
    given = {
        **{"name" if field == "container" else field: value for field, value in subject.items()},
        "type": "container",
    }
    return {keys[field]: value for field, value in given.items() if value}


def annotate(node: Node, container_id: str, env: tuple[str, ...], crio: bool = False, **changes: str) -> str:
    """A bundle of the pod, as containerd or CRI-O annotates it."""
    with node.edited(container_id, env) as spec:
        spec["annotations"] = annotations({**POD, **changes}, crio)
    return str(node.directory / "bundles" / container_id)


TENANT = [
    ("CGPU_DISABLE=true",),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=0",),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=15", "ALIYUN_COM_GPU_MEM_DEV=15"),
    ("ALIYUN_COM_GPU_SCHD_WEIGHT=20", "ALIYUN_COM_GPU_HIGH_PRIO=1"),
    ("ALIYUN_COM_GPU_SCHD_CEILING=100",),
    ("NVIDIA_VISIBLE_DEVICES=0", "ALIYUN_COM_GPU_VISIBLE_DEVICES=0"),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=nonsense",),
    (),
]


@pytest.mark.parametrize("crio", [False, True])
@pytest.mark.parametrize("env", TENANT, ids=str)
async def test_a_grant_is_out_of_the_tenants_reach(node: Node, env: tuple[str, ...], crio: bool) -> None:
    node.link = FakeLink(example_gpus(2))
    async with node.running():
        assert await node.ask(op="grant", grant={"subject": POD, "variables": SIX}) == {"ok": True}
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, env, crio))
        assert reply["action"] == "edited"
        (slot,) = node.link.containers[ID].slots
        assert (slot.gpu, slot.limit, slot.weight, slot.highprio) == (1, 6043 * MIB, 1, False)


@pytest.mark.parametrize("crio", [False, True])
async def test_the_authors_annotations_bring_no_other_pods_grant(node: Node, crio: bool) -> None:
    """CRI-O copies a Pod's annotations into config.json, containerd by pod_annotations; the engine adds its own."""
    own = {**POD, "namespace": "team-b", "pod": "thief-0", "uid": "u-9"}
    with node.edited(ID) as spec:
        spec["annotations"] = {**annotations(POD, not crio), **annotations(own, crio)}
    async with node.running():
        assert await node.ask(op="grant", grant={"subject": POD, "variables": SIX}) == {"ok": True}
        reply = await node.again(ID)
        assert "name two containers" in reply["error"] and "team-b/thief-0/main" in reply["error"]
        assert not node.link.calls


@pytest.mark.parametrize("crio", [False, True])
@pytest.mark.parametrize("field", ["namespace", "pod", "uid", "name"])
def test_a_part_of_another_engines_annotations_is_refused(field: str, crio: bool) -> None:
    other = (labels.CONTAINERD if crio else labels.CRIO)[field]
    with pytest.raises(Refused, match="name two containers") as refused:
        subjects(ID, {"annotations": {**annotations(POD, crio), other: "other-1"}})
    assert {POD["container" if field == "name" else field], "other-1"} <= set(re.split("[ /;]", str(refused.value)))


@pytest.mark.parametrize("crio", [False, True])
def test_both_engines_annotations_of_one_pod(crio: bool) -> None:
    both = {**annotations(POD, True), **annotations(POD, False)}
    assert subjects(ID, {"annotations": both}) == subjects(ID, {"annotations": annotations(POD, crio)})
    assert len(subjects(ID, {"annotations": both})) == 3


@pytest.mark.parametrize("crio", [False, True])
def test_a_pods_sandbox_takes_no_containers_grant(crio: bool) -> None:
    given = annotations(POD, crio) | {(labels.CRIO if crio else labels.CONTAINERD)["type"]: labels.SANDBOX}
    assert subjects(ID, {"annotations": given}) == (Subject(id=ID),)


@pytest.mark.parametrize("change", [{"uid": "u-2"}, {"uid": ""}, {"namespace": "x"}, {"pod": "x"}, {"container": "x"}])
async def test_a_grant_is_for_its_subject_only(node: Node, change: dict[str, str]) -> None:
    node.config = Config(container=Caps(grants="required", files={"grants": "/f"}))
    async with node.running():
        variables = {**SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES": "0"}
        await node.ask(op="grant", grant={"subject": POD, "variables": variables})
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, VARIABLES, **change))
        assert reply["error"] == (
            "the variables ask for a slice, and no grant gives the container one: "
            'grants = "required" in [container] of /f'
        )
        assert not node.link.calls
        assert (await node.ask(op="prepare", id=OTHER, bundle=annotate(node, OTHER, VARIABLES)))["ok"]


async def test_a_grant_without_a_uid_is_for_any_pod_of_the_name(node: Node) -> None:
    async with node.running():
        subject = {key: value for key, value in POD.items() if key != "uid"}
        await node.ask(op="grant", grant={"subject": subject, "variables": {**SIX, "ALIYUN_COM_GPU_MEM_IDX": "0"}})
        for uid in ("u-7", ""):
            bundle = annotate(node, ID, ("CGPU_DISABLE=1",), uid=uid)
            error = (await node.ask(op="prepare", id=ID, bundle=bundle))["error"]
            assert "ALIYUN_COM_GPU_VISIBLE_DEVICES names GPU 1" in error, "of the grant: there is one GPU"


async def test_a_grant_outlives_the_daemon_and_a_cleared_run(node: Node) -> None:
    async with node.running() as daemon:
        variables = {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_CONTAINER": "3"}
        await node.ask(op="grant", grant={"subject": {"id": ID}, "variables": variables})
        (file,) = (node.directory / "state/grants").iterdir()
        assert file.parent.stat().st_mode & 0o777 == 0o700
        file.unlink()
        await daemon.reconcile()
        assert file.exists()
        (file.parent / "x.json").write_text("{}")
    async with node.running():
        assert (await node.ask(op="status"))["grants"] == 1
        assert await node.ask(op="grants") == {"ok": True, "grants": [{"id": ID}], "gpus": [[]]}
        assert (await node.prepare(ID, ("CGPU_DISABLE=1",)))["action"] == "edited"
        assert node.link.containers[ID].slots[0].limit == 3021 * MIB
        assert await node.ask(op="revoke", grant={"id": ID}) == {"ok": True, "revoked": True}
        assert await node.ask(op="revoke", grant={"id": ID}) == {"ok": True, "revoked": False}
        assert ID in node.link.containers, "a container that has its slice keeps it"
        assert not file.exists()
        assert (await node.ask(op="status"))["grants"] == 0
        assert await node.prepare(OTHER, ("CGPU_DISABLE=1",)) == {"ok": True, "action": "pass"}


async def test_a_grant_is_bounded_by_the_caps(node: Node) -> None:
    node.config = Config(container=Caps(max_memory_mib=100))
    async with node.running():
        await node.ask(op="grant", grant={"subject": {"id": ID}, "variables": dict(v.split("=") for v in VARIABLES)})
        assert "100 MiB are allowed" in (await node.prepare(ID))["error"]


async def test_a_grant_that_gives_nothing_any_more(node: Node) -> None:
    """The grant relied on a default size that the administrator has removed: an error, and no whole GPU instead."""

    node.config = Config(gpu=GpuSettings(default_memsize_mib=1000))
    async with node.running() as daemon:
        grant = {"subject": {"id": ID}, "variables": {"ALIYUN_COM_GPU_VISIBLE_DEVICES": "0"}}
        assert (await node.ask(op="grant", grant=grant))["ok"]
        assert (await node.prepare(ID, ()))["action"] == "edited"
        daemon.config = replace(daemon.config, gpu=GpuSettings())
        assert "gives no slice: ALIYUN_COM_GPU_MEM_CONTAINER is not set" in (await node.prepare(ID, ()))["error"]


def burst_link(policy: int = Policy.BURST) -> FakeLink:
    return FakeLink([replace(gpu, policy=policy, max_inst=100, free_weight=100) for gpu in example_gpus(2)])


BY_SLOT = {"gpu": example_gpus(2)[1].uuid, "memory_mib": 6043, "weight": 10, "ceiling": 30}
CEILING_GRANTS = [
    {"variables": {**SIX, "ALIYUN_COM_GPU_SCHD_WEIGHT": "10", "ALIYUN_COM_GPU_SCHD_CEILING": "30"}},
    {"variables": SIX, "slots": [BY_SLOT]},
]


@pytest.mark.parametrize(
    "env", [(), ("ALIYUN_COM_GPU_SCHD_CEILING=100",), ("ALIYUN_COM_GPU_SCHD_CEILING=x", "CGPU_DISABLE=1")], ids=str
)
@pytest.mark.parametrize("given", CEILING_GRANTS, ids=["variables", "slots"])
async def test_the_ceiling_of_a_grant_is_out_of_the_tenants_reach(
    node: Node, given: dict[str, Any], env: tuple[str, ...]
) -> None:
    node.link = burst_link()
    async with node.running():
        assert await node.ask(op="grant", grant={"subject": POD, **given}) == {"ok": True}
    async with node.running():  # read from its file
        for _ in range(2):
            annotate(node, ID, env)
            assert (await node.again(ID))["action"] == "edited"
            (slot,) = node.link.containers[ID].slots
            assert (slot.gpu, slot.weight, slot.ceiling) == (1, 10, 30)
            shown = [one for one in node.spec(ID)["process"]["env"] if one.startswith("ALIYUN_COM_GPU_SCHD_CEILING")]
            assert shown == [f"{name}={text}" for name, text in given["variables"].items() if "CEILING" in name]
            await node.ask(op="release", id=ID, cookie=node.cookie(ID))


@pytest.mark.parametrize("given", CEILING_GRANTS, ids=["variables", "slots"])
async def test_a_grant_of_a_ceiling_needs_the_policy_that_has_one(node: Node, given: dict[str, Any]) -> None:
    node.link = burst_link(Policy.WEIGHTED)
    async with node.running():
        assert (await node.ask(op="grant", grant={"subject": POD, **given}))["ok"]
        annotate(node, ID, ())
        before = node.spec(ID)
        error = (await node.again(ID))["error"]
        assert error.endswith(
            "asks for ceiling 30 of GPU 1, and policy 2 (weighted) ignores ceilings: only burst has them"
        )
        assert not node.link.containers and node.spec(ID) == before


@pytest.mark.parametrize("asked", ["30", "100"])
async def test_a_container_lowers_the_configured_ceiling_only(node: Node, asked: str) -> None:
    node.link = burst_link()
    node.config = Config(container=Caps(ceiling=50, files={"ceiling": "/f"}))
    async with node.running():
        every = "ALIYUN_COM_GPU_VISIBLE_DEVICES=all"
        reply = await node.prepare(ID, (*VARIABLES, every, f"ALIYUN_COM_GPU_SCHD_CEILING={asked}"))
        if asked == "30":
            assert [slot.ceiling for slot in node.link.containers[ID].slots] == [30, 30] and "warning" not in reply
        else:
            assert reply["error"] == (
                "ALIYUN_COM_GPU_SCHD_CEILING=100 asks for ceiling 100, and 50 is allowed: ceiling = 50 in "
                "[container] of /f"
            )


BAD = [
    (None, "not a grant"),
    ({}, "not a grant"),
    ({"subject": {}, "variables": SIX}, "the subject of a grant is"),
    ({"subject": {"id": "x", "pod": "y"}, "variables": SIX}, "the subject of a grant is"),
    ({"subject": {"namespace": "x", "pod": "y"}, "variables": SIX}, "the subject of a grant is"),
    ({"subject": {"id": "x" * 300}, "variables": SIX}, "the subject of a grant is"),
    ({"subject": {"id": "x"}, "variables": SIX, "more": 1}, "not a grant"),
    ({"subject": {"id": "x", "name": "y"}, "variables": SIX}, "not a grant"),
    ({"subject": {"id": "x"}, "variables": {}}, "a grant of no slice"),
    ({"subject": {"id": "x"}, "variables": {**SIX, "ALIYUN_COM_GPU_MEM_CONTAINER": "0"}}, "a grant of no slice"),
    ({"subject": {"id": "x"}, "variables": {**SIX, "CGPU_DISABLE": "1"}}, "not CGPU_DISABLE"),
    ({"subject": {"id": "x"}, "variables": {**SIX, "ALIYUN_COM_GPU_SCHD_WEIGHT": "no"}}, "is not allowed: it must be"),
    ({"subject": {"id": "x"}, "variables": {**SIX, "ALIYUN_COM_GPU_MEM_DEV": 15}}, "not a grant"),
    (
        {"subject": {"id": "x"}, "variables": {**SIX, "ALIYUN_COM_GPU_SCHD_CEILING": "0"}},
        "SCHD_CEILING=0 is not allowed: it must be a whole number of slices, not below the weight, from 1 to 100",
    ),
    *(
        ({"subject": {"id": "x"}, "variables": {}, "slots": [{**BY_SLOT, "ceiling": bad}]}, why)
        for bad, why in (
            (0, "a slot of a grant has a ceiling from its weight, 10, to 100, or none, not 0"),
            (9, "from its weight, 10, to 100, or none, not 9"),
            (101, "not 101"),
            (-1, "not -1"),
            ("30", "not a grant"),
            (True, "not a grant"),
        )
    ),
]


@pytest.mark.parametrize(("grant", "why"), BAD, ids=str)
async def test_a_bad_grant_is_a_sentence(node: Node, grant: Any, why: str) -> None:
    async with node.running():
        assert why in (await node.ask(op="grant", grant=grant))["error"]
        assert (await node.ask(op="status"))["grants"] == 0
    assert not list(node.directory.glob("state/grants/*"))


def test_the_number_of_grants_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgpud.grants.GRANTS_MAX", 2)
    grants = Grants(tmp_path, {})
    for name in "aba":
        grants.add({"subject": {"id": name}, "variables": SIX})
    with pytest.raises(Refused, match="2 grants already"):
        grants.add({"subject": {"id": "c"}, "variables": SIX})
    assert len(grants) == 2


def test_a_grant_that_is_refused_changes_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgpud.grants.GRANTS_MAX", 2)
    grants = Grants(tmp_path, {})
    for name in "aba":
        grants.add({"subject": {"id": name}, "variables": SIX}, asked=True)
    assert [one["id"] for one in grants.subjects()] == ["b", "a"], "replaced: the last one"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(subject: Subject) -> bool:
        raise OSError(30, "read-only")

    monkeypatch.setattr(grants, "_drop", fail)
    with pytest.raises(Refused, match="cannot write its state"):
        grants.add({"subject": {"id": "c"}, "variables": SIX})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert [one["id"] for one in grants.subjects()] == ["b", "a"]


@pytest.mark.parametrize("given", [None, [], "x", {"io.kubernetes.pod.name": 7}, {"io.kubernetes.pod.name": "p"}])
def test_annotations_that_name_no_pod(given: Any) -> None:
    assert subjects(ID, {"annotations": given}) == (Subject(id=ID),)
