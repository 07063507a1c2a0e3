# SPDX-License-Identifier: MIT
"""Which GPU a pod gets: sizes, phases, several GPUs, compute, and the reasons where none will do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.placement import (
    BINPACK,
    INIT,
    MAIN,
    SIDECAR,
    SPREAD,
    Gpu,
    Load,
    Need,
    NoRoom,
    Placement,
    PodNeed,
    free_units,
    loads_of,
    peak,
    place,
    score,
)

T4, H100 = Gpu(0, 15), Gpu(1, 79)
NODE = (T4, H100)


def one(units: int, core: int = 0, gpus: int = 1) -> PodNeed:
    return PodNeed((Need("c0", units, core),), gpus)


def many(*units: int) -> PodNeed:
    return PodNeed(tuple(Need(f"c{i}", each) for i, each in enumerate(units)))


@given(st.integers(0, 80), st.integers(0, 90), st.integers(0, 21), st.sampled_from(["", "is lost"]))
def test_what_is_free_is_what_a_container_gets(units: int, taken: int, containers: int, why: str) -> None:
    gpu = Gpu(3, units, slots=20, why=why)
    used = {3: Load(taken, slots=containers)}
    free = free_units((gpu,), used)[3]
    assert isinstance(place(one(free + 1), (gpu,), used), NoRoom)
    assert not free or isinstance(place(one(free), (gpu,), used), Placement)


def chosen(found: Placement | NoRoom) -> tuple[int, ...]:
    assert isinstance(found, Placement), found
    return found.indices


@pytest.mark.parametrize(
    ("need", "used", "policy", "gpus"),
    [
        (one(6), {}, BINPACK, (0,)),  # the smaller one is the fuller one
        (one(6), {}, SPREAD, (1,)),
        (one(16), {}, BINPACK, (1,)),  # each GPU has its own size
        (one(15), {}, BINPACK, (0,)),
        (one(6), {0: Load(10)}, BINPACK, (1,)),
        (one(6), {0: Load(9)}, BINPACK, (0,)),
        (one(6), {1: Load(70)}, BINPACK, (1,)),  # 9 free is fuller than 15 free
        (one(6), {1: Load(70)}, SPREAD, (0,)),
        (one(6, gpus=2), {}, BINPACK, (0, 1)),
        (one(6, core=25), {0: Load(core=80)}, BINPACK, (1,)),
        (one(1), {0: Load(slots=20)}, BINPACK, (1,)),
        (many(5, 5, 5), {}, BINPACK, (0,)),
        (many(10, 10), {1: Load(69)}, BINPACK, (0, 1)),  # split: neither has 20
    ],
)
def test_choice(need, used, policy, gpus) -> None:
    assert chosen(place(need, NODE, used, policy)) == gpus


@pytest.mark.parametrize(
    ("need", "gpus", "used", "sentence", "never"),
    [
        (
            one(15),
            NODE,
            {0: Load(9), 1: Load(70)},
            "15 GiB asked for: GPU 0 has 6 of 15 GiB free, GPU 1 has 9 of 79 GiB free",
            False,
        ),
        (one(80), NODE, {}, "80 GiB asked for: GPU 0 has 15 of 15 GiB free, GPU 1 has 79 of 79 GiB free", True),
        (
            one(16, gpus=2),
            NODE,
            {},
            "16 GiB on each of 2 GPUs asked for: GPU 0 has 15 of 15 GiB free, GPU 1 has room",
            True,
        ),
        (one(1, gpus=3), NODE, {}, "3 GPUs asked for and the node has 2", True),
        (one(1), (), {}, "the node has no GPU", True),
        (
            one(1),
            (Gpu(0, 15, why="is unhealthy: Xid 79"), H100),
            {1: Load(slots=20)},
            "1 GiB asked for: GPU 0 is unhealthy: Xid 79, GPU 1 has 20 of the 20 containers that it takes",
            False,
        ),
        (
            one(1, core=30),
            NODE,
            {0: Load(core=75), 1: Load(core=80)},
            (
                "1 GiB asked for: GPU 0 has 25 of 100 % of compute free, and 30 asked for, "
                "GPU 1 has 20 of 100 % of compute free, and 30 asked for"
            ),
            False,
        ),
        (
            one(1, core=30),
            (Gpu(0, 15, core=0),),
            {},
            "1 GiB asked for: GPU 0 offers no % of compute",
            True,
        ),
        (
            many(10, 10),
            (T4,),
            {},
            "20 GiB asked for by 2 containers, the largest 10: GPU 0 has 15 of 15 GiB free",
            False,
        ),
    ],
)
def test_why_not(need, gpus, used, sentence, never) -> None:
    found = place(need, gpus, used)
    assert isinstance(found, NoRoom)
    assert (found.why, found.never) == (sentence, never)


def test_no_split_on_a_vendors_node() -> None:
    assert isinstance(place(many(10, 10), NODE, {1: Load(69)}, split=False), NoRoom)


def test_phases() -> None:
    """Init containers run before the others, sidecars from their start on."""
    init, main = Need("i", 9, phase=INIT, step=0), Need("m", 6)
    assert peak([init, main]) == Load(9, 0, 1)
    side = Need("s", 4, phase=SIDECAR, step=0)
    later = Need("i", 9, phase=INIT, step=1)
    assert peak([side, later, main]) == Load(13, 0, 2)
    earlier = Need("i", 9, phase=INIT, step=0)
    late_side = Need("s", 4, phase=SIDECAR, step=1)
    assert peak([earlier, late_side, main]) == Load(10, 0, 2)


needs = st.builds(
    lambda containers, gpus: PodNeed(
        tuple(
            Need(f"c{i}", units, core * 5, phase, i if phase != MAIN else 0)
            for i, (units, core, phase) in enumerate(containers)
        ),
        gpus,
    ),
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 20), st.sampled_from([MAIN, MAIN, INIT, SIDECAR])),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 3),
)
nodes = st.lists(
    st.builds(Gpu, st.just(0), st.integers(1, 30), st.sampled_from([0, 100]), st.integers(1, 4)), max_size=3
).map(lambda gpus: tuple(Gpu(i, gpu.units, gpu.core, gpu.slots) for i, gpu in enumerate(gpus)))
loads = st.dictionaries(st.integers(0, 2), st.builds(Load, st.integers(0, 30), st.integers(0, 100), st.integers(0, 4)))


def room(gpus, used, need, on) -> bool:
    taken = loads_of(need, on)
    return all(load.fits(gpus[index].size - used.get(index, Load())) for index, load in taken.items())


@given(needs, nodes, loads, st.sampled_from([BINPACK, SPREAD]), st.booleans())
def test_a_placement_fits_and_a_refusal_has_tried_every_gpu(need, gpus, used, policy, split) -> None:
    found = place(need, gpus, used, policy, split=split)
    if isinstance(found, Placement):
        assert set(found.gpus) == {each.name for each in need.containers}
        assert all(len(set(on)) == need.gpus for on in found.gpus.values())
        assert room(gpus, used, need, found.gpus)
        assert dict(found.loads) == loads_of(need, found.gpus)
        if not split or need.gpus > 1:
            assert len(set(found.gpus.values())) == 1
        return
    assert set(found.whys) == {gpu.index for gpu in gpus}
    singles = [gpu for gpu in gpus if room(gpus, used, need, {each.name: (gpu.index,) for each in need.containers})]
    assert len(singles) < need.gpus
    if found.never:
        empty = place(need, gpus, {}, policy, split=split)
        assert isinstance(empty, NoRoom)


@given(needs.filter(lambda need: need.gpus == 1 and all(each.phase == MAIN for each in need.containers)), nodes, loads)
def test_the_split_is_close_to_the_best(need, gpus, used) -> None:
    """The search does not go back, but for two containers it finds whatever exists."""
    if (
        len(need.containers) > 2
        or any(each.core for each in need.containers)
        or isinstance(place(need, gpus, used), Placement)
    ):
        return
    indices = [gpu.index for gpu in gpus]
    for combination in product(indices, repeat=len(need.containers)):
        on = {each.name: (index,) for each, index in zip(need.containers, combination, strict=True)}
        assert not room(gpus, used, need, on)


def by_phase(containers: Sequence[Need]) -> list[Load]:
    """The definition: what runs in the phase of each init container, and then in the main one."""
    found = []
    for step in (*sorted({each.step for each in containers if each.phase != MAIN}), None):
        there = Load()
        for each in containers:
            runs = step is None if each.phase == MAIN else each.step == step
            if runs or (each.phase == SIDECAR and (step is None or each.step < step)):
                there += each.load
        found.append(there)
    return found


def most_of(found: Sequence[Load]) -> Load:
    return Load(*(max((getattr(each, key) for each in found), default=0) for key in ("units", "core", "slots")))


many_needs = st.builds(
    lambda phases: PodNeed(tuple(Need(f"c{i}", units, 5, phase, i) for i, (units, phase) in enumerate(phases))),
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([MAIN, INIT, INIT, SIDECAR, SIDECAR])), min_size=2, max_size=9
    ),
)


@given(many_needs)
def test_peak_is_the_most_of_any_phase(need) -> None:
    assert peak(need.containers) == most_of(by_phase(need.containers))


@given(many_needs, nodes, loads, st.sampled_from([BINPACK, SPREAD]))
def test_the_search_for_a_split_is_that_of_its_definition(need, gpus, used, policy) -> None:
    """Each container, what runs for long and the large ones first, on the preferred GPU with room in all its phases."""
    found = place(need, gpus, used, policy)
    if isinstance(found, Placement) and len(set(found.gpus.values())) == 1:
        return
    on: dict[str, int] = {}
    sign = -1 if policy == SPREAD else 1
    for each in sorted(need.containers, key=lambda each: (each.phase == INIT, -each.units, each.name)):
        rooms = {}
        for gpu in gpus:
            there = [other for other in need.containers if on.get(other.name) == gpu.index]
            free = gpu.size - used.get(gpu.index, Load())
            if most_of(by_phase([*there, each])).fits(free):
                # What is left in the phases in which it runs: those in which it adds to what is there.
                steps = {other.step for other in (*there, each) if other.phase != MAIN}
                marks = [Need(f"m{step}", 0, 0, INIT, step) for step in sorted(steps)]
                before, after = by_phase([*there, *marks]), by_phase([*there, each, *marks])
                taken = most_of([old for old, new in zip(before, after, strict=True) if old.units != new.units])
                rooms[gpu.index] = Load(free.units - taken.units, free.core - taken.core)
        if not rooms:
            assert isinstance(found, NoRoom)
            return
        on[each.name] = min(rooms, key=lambda i: (sign * rooms[i].units, sign * rooms[i].core, i))
    assert isinstance(found, Placement)
    assert dict(found.gpus) == {name: (index,) for name, index in on.items()}


def test_the_largest_pod_costs_a_node_little() -> None:
    """63 sidecars and one main container, over the 20 slots of a GPU, on a node of eight: one scheduler's request looks
    at a thousand such nodes. The least of several: of other programs there is no cost."""
    need = PodNeed((*(Need(f"s{i}", 1, 0, SIDECAR, i) for i in range(63)), Need("main", 1)))
    gpus = [Gpu(i, 79) for i in range(8)]
    took = []
    for _ in range(20):
        began = time.thread_time()
        found = place(need, gpus, {})
        took.append(time.thread_time() - began)
    assert isinstance(found, Placement) and len(found.loads) == 4
    assert min(took) < 0.004


def test_score() -> None:
    assert score(NODE, {}, BINPACK) == 0 and score(NODE, {}, SPREAD) == 10
    assert score(NODE, {1: Load(47)}, BINPACK) == 5
    assert score((), {}, BINPACK) == 0
