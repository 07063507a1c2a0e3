# SPDX-License-Identifier: MIT
"""Whatever authors write into amounts, labels and annotations: an answer, or a sentence of bounded length."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from cluster import Object
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cgpu_kube import annotations as notes
from cgpu_kube import pods, quantity
from cgpu_kube.errors import KubeError
from cgpu_kube.ledger import read_node

EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
LIMIT, REQUEST = (f"nvidia.com/container.c0.gpu-memory.{word}" for word in ("limit", "request"))
KEYS = (
    *(notes.INDEX, notes.POD, notes.ALLOCATION, notes.ASSIGNED, notes.ASSUME_TIME, notes.NODE_GPUS, notes.MEMORY),
    *(notes.GPU_TYPE, notes.GPU_UUID, notes.HAMI_TYPE, notes.HAMI_NO_UUID, notes.PRIORITY, notes.THREADS),
    *(LIMIT, REQUEST, notes.GPU_COUNT),
)
AMOUNTS = (notes.GPU_MEM, notes.GPU_CORE, notes.NV_GPU, notes.NV_MEM, notes.NV_PERCENT, notes.NV_CORES)
NODE = notes.NodeGpus("cgpu", "GiB", (notes.NodeGpu(0, "GPU-a", 15109, 15, 15, links=((1, 100),)),))
#: What a parser takes, as a whole or beside something else.
GOOD = (
    *("0", "6", "-1", "6Gi", "1e3", "1E18", "500m", ".5", "5.", "9" * 60, "true", "high", "0,1", "H100,A100", "!T4"),
    *(
        "5500Mi",
        "50%",
        "c0=7%",
        "main=5500Mi,side=300Mi",
        '{"c0":{"0":6,"1":2}}',
        "{",
        "[",
        "NaN",
        "Infinity",
        "1e999",
        "\u0663",
        "\0",
    ),
    *notes.write_node(NODE).values(),
    *notes.write({"c0": {0: 6}, "c1": {1: 3}}, 15, 5, {"c0": {0: 25}}).values(),
)
PIECE = st.sampled_from(GOOD) | st.text(max_size=12)
TEXT = st.builds(lambda one, two, at: one[:at] + two + one[at:], PIECE, st.just("") | PIECE, st.integers(0, 60))
VALUE = TEXT | st.sampled_from([0, 1, 6, -1, True, None, 1.5, 10**40, [], {}])
CONTAINER = st.builds(
    lambda number, limits, more: {"name": f"c{number}", "resources": {"limits": limits}, **more},
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(AMOUNTS), VALUE, max_size=3),
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)
POD = st.builds(
    lambda texts, labels, init, main: {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": texts, "labels": labels},
        "spec": {"initContainers": init, "containers": main},
    },
    st.dictionaries(st.sampled_from(KEYS), TEXT, max_size=4),
    st.dictionaries(st.sampled_from([notes.GPU_COUNT]), TEXT),
    st.lists(CONTAINER, max_size=1),
    st.lists(CONTAINER, min_size=1, max_size=3),
)


def answer(ask: Callable[[], Any]) -> Any:
    """None: it was refused, by a sentence that fits into an event of a pod."""
    try:
        return ask()
    except KubeError as error:
        assert 0 < len(str(error)) <= 1024
        return None


@settings(max_examples=EXAMPLES)
@given(VALUE)
def test_quantities(value: object) -> None:
    for parse in (quantity.parse, quantity.whole, quantity.mib):
        answer(lambda parse=parse: parse(value))


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(st.sampled_from(KEYS), TEXT, max_size=4))
def test_annotations(texts: dict[str, str]) -> None:
    for read in (notes.parse, notes.parse_node, notes.choice, notes.parse_assumed):
        answer(lambda read=read: read(texts))
    answer(lambda: notes.exact(texts, "c0", ["c0", "main", "side"]))
    answer(lambda: notes.nv_limit_mib(texts, "c0"))


#: Numbers of JSON that are no whole ones: Python's reader takes the words, too.
NO_WHOLE = st.sampled_from(
    ["Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1.5", "1e400", "9" * 400, "true", '"6"']
)
NUMBERS = tuple(re.finditer(r"(?<=:)[0-9]+", notes.write_node(NODE)[notes.NODE_GPUS]))


@given(st.sampled_from(NUMBERS), NO_WHOLE)
def test_any_number_of_a_nodes_annotation(at: re.Match[str], number: str) -> None:
    """One node's annotation ends no process that reads those of all."""
    text = at.string[: at.start()] + number + at.string[at.end() :]
    ours = answer(lambda: notes.parse_node({notes.NODE_GPUS: text}))
    node = read_node({"metadata": {"name": "n", "annotations": {notes.NODE_GPUS: text}}, "status": {}})
    assert node.is_ours
    if ours is None:
        assert node.why and not node.gpus
    else:
        assert [one.index for one in node.gpus] == [one.index for one in ours.gpus]


@settings(max_examples=2 * EXAMPLES)
@given(POD)
@example({"metadata": {}, "spec": {"containers": [{"name": "c0", "resources": {"limits": {notes.NV_CORES: "0"}}}]}})
def test_pods(pod: Object) -> None:
    """Also as the watch keeps it, and of one that is on a node already."""
    need = answer(lambda: pods.needs(pod))
    assert need is None or (need.containers and need.gpus >= 1)
    assert answer(lambda: pods.needs(pods.trimmed(pod) | {"metadata": pod["metadata"]})) == need
    counted = pods.counted(pod)
    assert counted is None or counted.containers
    if need is not None:
        pods.gpus_of(pod, need)
