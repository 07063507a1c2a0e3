# SPDX-License-Identifier: MIT
"""The gpushare annotations of both generations: values of the vendor's extender, our own, and those of an author."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_kube import annotations as keys
from cgpu_kube.errors import BadAnnotation

#: As the vendor's extender wrote them on Kubernetes 1.36 for a node with 15 and 79 GiB.
RECORDED = {
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1795360427853938893",
    "ALIYUN_COM_GPU_MEM_DEV": "47",
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_POD": "6",
}


def test_the_old_generation_as_recorded() -> None:
    found = keys.parse(RECORDED)
    assert (found.gpus, found.pod_units, found.dev_units, found.assigned) == ((0,), 6, 47, False)
    assert found.assume_time_ns == 1795360427853938893
    assert found.of_container("c0", 0) is None
    assert keys.assigned_patch(found, 7) == {keys.ASSIGNED: "true", keys.ASSUME_TIME: "7"}


def test_the_newer_generation_names_containers_by_place_or_name() -> None:
    found = keys.parse({keys.ALLOCATION: '{"0":{"1":1},"side":{"1":7,"0":2}}', keys.NEW_ASSIGNED: "true"})
    assert found.assigned
    assert found.of_container("main", 0) == {1: 1}
    assert found.of_container("side", 1) == {1: 7, 0: 2}
    assert found.of_container("other", 2) is None
    assert found.gpus == (0, 1)


@pytest.mark.parametrize("given_", [None, {}, {"a": "b"}, {keys.POD: "6"}, {keys.ASSIGNED: "true"}], ids=str)
def test_annotations_that_name_no_gpu(given_: dict[str, str] | None) -> None:
    assert keys.parse(given_) is None


BAD = [
    ({keys.INDEX: "-1"}, "not a number"),
    ({keys.INDEX: "64"}, "from 0 to 63"),
    ({keys.INDEX: "0,0"}, "twice"),
    ({keys.INDEX: ""}, "not a number"),
    ({keys.INDEX: "٣"}, "not a number"),
    ({keys.INDEX: "0", keys.POD: "6.5"}, "ALIYUN_COM_GPU_MEM_POD=6.5"),
    ({keys.INDEX: "0", keys.ASSIGNED: "yes"}, "neither true nor false"),
    ({keys.INDEX: "0", keys.ASSUME_TIME: "9" * 40}, "not a number"),
    ({keys.ALLOCATION: "{"}, "not JSON"),
    ({keys.ALLOCATION: "[]"}, "is not {"),
    ({keys.ALLOCATION: '{"c":6}'}, "is not {"),
    ({keys.ALLOCATION: '{"c":{"x":6}}'}, "not a number"),
    ({keys.ALLOCATION: '{"c":{"0":0}}'}, "no whole number"),
    ({keys.ALLOCATION: '{"c":{"0":true}}'}, "no whole number"),
    ({keys.ALLOCATION: '{"c":{"0":1.5}}'}, "no whole number"),
    ({keys.ALLOCATION: '{"c":{"0":1,"00":2}}'}, "no whole number"),
    ({keys.ALLOCATION: "[" * 100000}, "longer"),
]


@pytest.mark.parametrize(("given_", "why"), BAD, ids=str)
def test_bad_values_are_a_sentence(given_: dict[str, str], why: str) -> None:
    with pytest.raises(BadAnnotation, match=why) as error:
        keys.parse(given_)
    assert len(str(error.value)) < 300


UNITS = st.dictionaries(st.integers(0, 63), st.integers(1, 1000), min_size=1, max_size=4)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), UNITS, min_size=1, max_size=4))
def test_what_is_written_is_read(table: dict[str, dict[int, int]]) -> None:
    found = keys.parse(keys.write(table, 15, 5, {"a": {0: 25}}))
    assert found.containers == table and found.core == {"a": {0: 25}}
    assert found.index == found.gpus == tuple(sorted({gpu for units in table.values() for gpu in units}))
    assert found.pod_units == sum(sum(units.values()) for units in table.values())
    assert not found.assigned


@given(st.dictionaries(st.sampled_from([keys.INDEX, keys.POD, keys.ALLOCATION, keys.ASSIGNED]), st.text(max_size=40)))
def test_any_text_is_an_allocation_or_a_sentence(given_: dict[str, str]) -> None:
    try:
        keys.parse(given_)
    except BadAnnotation as error:
        assert str(error).isprintable() or any(not char.isprintable() for value in given_.values() for char in value)


NODE = keys.NodeGpus(
    "cgpu", "GiB", (keys.NodeGpu(0, "GPU-a", 15109, 15, 15), keys.NodeGpu(1, "GPU-b", 81559, 79, 80, 20, "MIG"))
)


def test_the_gpus_of_a_node_are_read_as_written() -> None:
    assert keys.parse_node(keys.write_node(NODE)) == NODE
    assert keys.parse_node({}) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"mode":"","unit":"","gpus":[{}]}', '{"mode":"","unit":"","gpus":7}']
)
def test_a_damaged_annotation_of_a_node(text: str) -> None:
    with pytest.raises(BadAnnotation, match="damaged"):
        keys.parse_node({keys.NODE_GPUS: text})


@pytest.mark.parametrize("count", [1, 20, 32, 33, 500])
def test_pods_that_are_gone_do_not_damage_a_nodes_annotation(count: int) -> None:
    """Names as long as Kubernetes allows, on every GPU of a node with many: beyond TEXT_MAX it would be unreadable."""
    gpus = tuple(
        keys.NodeGpu(i, f"GPU-{i:08d}-0000-0000-0000-000000000000", 81559, 80, 80, model="NVIDIA H100 80GB HBM3")
        for i in range(16)
    )
    units = dict.fromkeys(range(16), 5)
    deleted = {f"{i:036d}": keys.Remains(f"{'n' * 63}/{'p' * 253}", units) for i in range(count)}
    (text,) = keys.write_node(keys.NodeGpus("cgpu", "GiB", gpus, deleted)).values()
    assert len(text) <= keys.TEXT_MAX
    found = keys.parse_node({keys.NODE_GPUS: text})
    assert len(found.gpus) == 16
    sums = {i: sum(one.units.get(i, 0) for one in found.deleted.values()) for i in range(16)}
    assert sums == dict.fromkeys(range(16), 5 * count), "what is not named is counted"
    assert len(found.deleted) >= min(count, 16)
