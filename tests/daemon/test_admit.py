# SPDX-License-Identifier: MIT
"""Admission: slots, or a sentence with the GPU, the limit and the holders in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpud.admit import admit, check_grant
from cgpud.env import VISIBLE
from cgpud.errors import Refused
from cgpud.model import MIB, Container, Devices, Gpu, Plan, Request, Slot, SlotWant

ALL = Devices("every GPU", all=True)


def gpu(number: int = 0, **change: object) -> Gpu:
    base = Gpu(number, number, f"GPU-{number}{number}aa-0000", f"0000:0{number}:00.0", number, 15109, 20, 20)
    return replace(base, **change)  # type: ignore[arg-type]


def holder(name: str, mib: int, *, gpu: int = 0, weight: int = 1, dying: bool = False, used: int = 0) -> Container:
    slot = Slot(gpu, 9, gpu, mib * MIB, used * MIB, weight)
    return Container(name * 64, 1, name * 12, 509, 1, 2, dying, (slot,))


def sentence(request: Request, gpus: list[Gpu], there: list[Container] | None = None) -> str:
    with pytest.raises(Refused) as caught:
        admit(request, gpus, there or [])
    return str(caught.value)


def test_the_published_example() -> None:
    plan = admit(Request(ALL, (6,), 15), [gpu()], [])
    assert plan == Plan((SlotWant(0, 0, 6043 * MIB, 1, False),))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((3,), (3, 3, 3, 3)), ((3, 1), (3, 1, 1, 1)), ((3, 4, 5, 6), (3, 4, 5, 6)), ((3, 1, 2), (3, 1, 2, 2))],
)
def test_lists_over_four_gpus(sizes: tuple[int, ...], expected: tuple[int, ...]) -> None:
    gpus = [gpu(n, total_mib=23028) for n in range(4)]
    plan = admit(Request(ALL, sizes, 23), gpus, [])
    assert tuple(slot.limit for slot in plan.slots) == tuple(23028 * size // 23 * MIB for size in expected)


def test_more_sizes_than_gpus() -> None:
    assert "lists 3 sizes" in sentence(Request(ALL, (1, 2, 3), 15), [gpu(), gpu(1)])


def test_sizes_follow_the_order_of_the_device_list() -> None:
    plan = admit(Request(Devices(VISIBLE, items=(1, 0)), (3, 1), 15), [gpu(), gpu(1)], [])
    assert [(slot.gpu, slot.limit // MIB) for slot in plan.slots] == [(1, 15109 * 3 // 15), (0, 15109 // 15)]


def test_number_and_kernel_index_may_differ() -> None:
    gpus = [gpu(0, index=1, nv_minor=3), gpu(1, index=0, nv_minor=2)]
    plan = admit(Request(Devices(VISIBLE, items=(0,)), (3,), 15), gpus, [])
    assert (plan.slots[0].gpu, plan.slots[0].nv_minor) == (1, 3)


def test_uuid_by_its_beginning() -> None:
    gpus = [gpu(), gpu(1)]
    assert admit(Request(Devices(VISIBLE, items=("gpu-11",)), (3,), 15), gpus, []).slots[0].gpu == 1
    assert "which fits GPU 0 and 1" in sentence(Request(Devices(VISIBLE, items=("GPU-",)), (3,), 15), gpus)
    assert "is no GPU of this machine (GPUs: 0, 1)" in sentence(
        Request(Devices(VISIBLE, items=("GPU-ff",)), (3,), 15), gpus
    )


def test_unknown_and_repeated_gpu() -> None:
    assert "names GPU 7" in sentence(Request(Devices(VISIBLE, items=(7,)), (3,), 15), [gpu()])
    assert "names GPU 0 twice" in sentence(Request(Devices(VISIBLE, items=(0, 0)), (3,), 15), [gpu()])
    assert "no GPU" in sentence(Request(ALL, (3,), 15), [])


def test_more_than_the_card() -> None:
    assert "asks for 16 of the 15 GiB" in sentence(Request(ALL, (16,), 15), [gpu()])


def test_the_whole_card_is_allowed() -> None:
    assert admit(Request(ALL, (15,), 15), [gpu()], []).slots[0].limit == 15109 * MIB


def test_less_than_a_mib() -> None:
    assert "less than 1 MiB" in sentence(Request(ALL, (1,), 1 << 20), [gpu()])


def test_memory_names_the_holders() -> None:
    there = [holder("a", 8000), holder("b", 4000), holder("c", 15000, gpu=1)]
    text = sentence(Request(ALL, (6,), 15), [gpu()], there)
    assert "GPU 0 has 3109 of its 15109 MiB left and 6043 MiB were asked for" in text
    assert "aaaaaaaaaaaa 8000 MiB, bbbbbbbbbbbb 4000 MiB" in text
    assert "c" * 12 not in text


def test_a_dying_container_holds_what_it_uses() -> None:
    there = [holder("a", 15000, dying=True, used=100)]
    assert admit(Request(ALL, (6,), 15), [gpu()], there).slots
    assert "aaaaaaaaaaaa 10000 MiB" in sentence(
        Request(ALL, (6,), 15), [gpu()], [holder("a", 15000, dying=True, used=10000)]
    )


def test_no_weight_left_is_weight_0_and_said() -> None:
    plan = admit(Request(ALL, (1,), 15, weight=3), [gpu(free_weight=0)], [holder("a", 1000, weight=20)])
    assert plan.slots[0].weight == 0
    assert "no weight left" in plan.warnings[0]
    assert "aaaaaaaaaaaa 20" in plan.warnings[0]


def test_too_little_weight_left_is_refused() -> None:
    text = sentence(Request(ALL, (1,), 15, weight=3), [gpu(free_weight=2)], [holder("a", 1000, weight=18)])
    assert "GPU 0 has 2 of 20 weight left and 3 was asked for" in text
    assert "aaaaaaaaaaaa 18" in text


def test_weight_over_max_inst() -> None:
    assert "more than max_inst=20" in sentence(Request(ALL, (1,), 15, weight=21), [gpu()])


def test_max_inst_containers() -> None:
    there = [holder(c, 10) for c in "abc"]
    assert "already has max_inst=3 containers" in sentence(
        Request(ALL, (1,), 15), [gpu(max_inst=3, free_weight=0)], there
    )


def test_mig_and_unknown_memory() -> None:
    assert "MIG" in sentence(Request(ALL, (1,), 15), [gpu(mig=True)])
    assert "neither NVML nor cgpu_km" in sentence(Request(ALL, (1,), 15), [gpu(total_mib=0)])


def test_whole_gpus_beside_slices() -> None:
    request = Request(Devices(VISIBLE, items=(1,)), (1,), 15, native=Devices("NVIDIA_VISIBLE_DEVICES", items=(0, 1)))
    assert "whole GPUs beside slices" in sentence(request, [gpu(), gpu(1)])
    same = replace(request, native=Devices("NVIDIA_VISIBLE_DEVICES", items=("GPU-11",)))
    assert admit(same, [gpu(), gpu(1)], []).slots[0].gpu == 1


def test_default_memsize() -> None:
    request = Request(Devices(VISIBLE, items=(0,)), (), 0)
    assert admit(request, [gpu()], [], default_mib=8192).slots[0].limit == 8192 * MIB
    assert admit(request, [gpu()], [], default_mib=99999).slots[0].limit == 15109 * MIB


def test_check_grant() -> None:
    plan = Plan((SlotWant(0, 3, MIB),))
    good = Container("x", 1, "x", 509, 1, 2, slots=(Slot(0, 5, 3, MIB),))
    check_grant(plan, good)
    for slot in (Slot(0, 5, 4, MIB), Slot(1, 5, 3, MIB), Slot(0, 5, 3, 2 * MIB)):
        with pytest.raises(Refused):
            check_grant(plan, replace(good, slots=(slot,)))


@given(
    st.lists(st.integers(1, 15), max_size=5).map(tuple),
    st.lists(st.integers(0, 8000), max_size=4),
    st.integers(0, 20),
    st.integers(1, 20),
)
def test_what_is_admitted_fits(sizes: tuple[int, ...], held: list[int], free: int, weight: int) -> None:
    gpus = [gpu(0, free_weight=free), gpu(1)]
    there = [holder(chr(97 + n), mib) for n, mib in enumerate(held)]
    try:
        plan = admit(Request(ALL, sizes or (1,), 15, weight=weight), gpus, there)
    except Refused as error:
        assert "\n" not in str(error)
        return
    assert sum(held) + plan.slots[0].limit // MIB <= 15109
    assert plan.slots[0].weight <= free
