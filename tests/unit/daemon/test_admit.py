# SPDX-License-Identifier: MIT
"""Admission: slots, or a sentence with the GPU, the limit and the holders in it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.cards import Gpu
from cgpu_common.errors import KernelRefused, Refused
from cgpu_common.model import MIB, Container, KernelGpu, Slot, SlotWant
from cgpu_common.policies import Policy
from cgpu_common.settings import Caps
from cgpud.admit import NeedsContainerList, admit, check_grant, free_mib
from cgpud.env import VISIBLE
from cgpud.limits import CONTEXT_MIB
from cgpud.values import Devices, Plan, Request, SlotRequest

ALL = Devices("every GPU", all=True)


def gpu(number: int = 0, **change: object) -> Gpu:
    base = Gpu(number, number, f"GPU-{number}{number}aa-0000", f"0000:0{number}:00.0", number, 15109, 20, 20)
    return replace(base, **change)  # type: ignore[arg-type]


TABLE = "/etc/cgpu/cgpu.toml"


def caps(**values: object) -> Caps:
    return Caps(**values, files=dict.fromkeys(values, TABLE))  # type: ignore[arg-type]


def holder(name: str, mib: int, *, gpu: int = 0, weight: int = 1, dying: bool = False, used: int = 0) -> Container:
    slot = Slot(gpu, 9, gpu, mib * MIB, used * MIB, weight)
    return Container(name * 64, 1, name * 12, 509, 1, 2, dying, (slot,))


def sentence(request: Request, gpus: list[Gpu], there: list[Container] | None = None, limits: Caps = Caps()) -> str:  # noqa: B008
    with pytest.raises(Refused) as caught:
        admit(request, gpus, there or [], limits)
    return str(caught.value)


@given(
    st.integers(1, 20),
    st.integers(0, 20_000),
    st.integers(0, 15109) | st.none(),
    st.sampled_from([100, 150]),
    st.sampled_from(["", "lost"]),
)
def test_what_is_free_is_what_admission_lets_in(
    max_inst: int, held: int, room: int | None, overcommit: int, lost: str
) -> None:
    """To the MiB: `cgpu nodes` and the metric have the number of the admission itself."""
    there = [holder("a", held)] if held else []
    one = gpu(max_inst=max_inst, free_weight=max_inst, room_mib=room, overcommit=overcommit, lost=lost)
    one = replace(one, limits=held * MIB, instances=len(there))
    free = free_mib(one)
    assert free is not None

    def takes(mib: int) -> bool:
        exact = (SlotRequest(one.uuid, mib, 1),)
        wanted = Request(Devices("a grant", items=(one.uuid,)), (), 0, exact=exact)
        try:
            admit(wanted, [one], there)
        except Refused:
            return False
        return True

    assert not takes(free + 1)
    if free >= CONTEXT_MIB + 1:
        assert takes(min(free, one.total_mib))


def test_what_is_free_is_not_known_of_an_older_module() -> None:
    assert free_mib(gpu()) is None and free_mib(gpu(limits=0, total_mib=0)) is None
    assert free_mib(gpu(limits=0)) == 15109 and free_mib(gpu(limits=0, instances=20)) == 0


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
    assert "gives 0 MiB of GPU 0, and one context takes 32" in sentence(Request(ALL, (1,), 1 << 20), [gpu()])


def test_memory_names_the_holders() -> None:
    there = [holder("a", 8000), holder("b", 4000), holder("c", 15000, gpu=1)]
    text = sentence(Request(ALL, (6,), 15), [gpu()], there)
    assert "GPU 0 has 3109 of its 15109 MiB left and 6043 MiB were requested" in text
    assert "aaaaaaaaaaaa 8000 MiB, bbbbbbbbbbbb 4000 MiB" in text
    assert "c" * 12 not in text


def test_what_is_held_of_destroyed_containers_is_named() -> None:
    there = [holder("a", 8000), holder("b", 4000)]
    text = sentence(Request(ALL, (6,), 15), [gpu(limits=12008 * MIB)], there)
    assert "bbbbbbbbbbbb 4000 MiB, destroyed containers 8 MiB (/proc/cgpu_km/ended names them)" in text
    assert "destroyed" not in sentence(Request(ALL, (6,), 15), [gpu(limits=12000 * MIB)], there)


def test_a_dying_container_holds_what_it_has_in_the_kernel() -> None:
    there = [holder("a", 15000, dying=True, used=100)]
    assert "aaaaaaaaaaaa (dying) 15000 MiB" in sentence(Request(ALL, (6,), 15), [gpu()], there)
    assert "max_inst=1 containers: aaaaaaaaaaaa (dying)" in sentence(
        Request(ALL, (1,), 15), [gpu(max_inst=1, free_weight=0)], [holder("a", 100, dying=True)]
    )


def test_the_kernels_sums_are_enough() -> None:
    """Only the sentence of a refusal needs the list of containers."""
    held = gpu(limits=8000 * MIB + 1, instances=2, free_weight=1)
    assert admit(Request(ALL, (7,), 15), [held], None).slots[0].limit == 7050 * MIB
    for request, change in (
        (Request(ALL, (8,), 15), {}),
        (Request(ALL, (1,), 15, weight=2), {}),
        (Request(ALL, (1,), 15), {"free_weight": 0}),
        (Request(ALL, (1,), 15), {"max_inst": 2}),
        (Request(ALL, (1,), 15), {"limits": None}),
    ):
        with pytest.raises(NeedsContainerList):
            admit(request, [replace(held, **change)], None)
    assert "has 7108 of its 15109 MiB left" in sentence(Request(ALL, (8,), 15), [held], [holder("a", 8000)])


def test_what_is_outside_of_containers_is_not_given_out() -> None:
    tight = gpu(room_mib=14000)
    assert admit(Request(ALL, (13,), 15), [tight], []).slots
    text = sentence(Request(ALL, (15,), 15), [tight])
    assert "GPU 0 has 14000 of its 15109 MiB left and 15109 MiB were requested" in text
    assert text.endswith("held by: the driver and what runs outside of containers 1109 MiB")
    assert "left and 6043 MiB" in sentence(Request(ALL, (6,), 15), [tight], [holder("a", 8000)])


def test_overcommit() -> None:
    there = [holder("a", 15109)]
    assert admit(Request(ALL, (6,), 15), [gpu(overcommit=140)], there).slots
    text = sentence(Request(ALL, (7,), 15), [gpu(overcommit=140)], there)
    assert "GPU 0 has 6043 of its 15109 MiB (overcommit 140 %) left and 7050 MiB were requested" in text
    assert "left and 6043 MiB" in sentence(Request(ALL, (6,), 15), [gpu(overcommit=140, room_mib=15000)], there)
    # What one container gets is never more than the card.
    assert "asks for 16 of the 15 GiB" in sentence(Request(ALL, (16,), 15), [gpu(overcommit=1000)])


def test_no_weight_left_is_weight_0_and_said() -> None:
    plan = admit(Request(ALL, (1,), 15, weight=3), [gpu(free_weight=0)], [holder("a", 1000, weight=20)])
    assert plan.slots[0].weight == 0
    assert "no weight left" in plan.warnings[0]
    assert "aaaaaaaaaaaa 20" in plan.warnings[0]


def test_too_little_weight_left_is_refused() -> None:
    text = sentence(Request(ALL, (1,), 15, weight=3), [gpu(free_weight=2)], [holder("a", 1000, weight=18)])
    assert "GPU 0 has 2 of 20 weight left and 3 was requested" in text
    assert "aaaaaaaaaaaa 18" in text


def test_weight_over_max_inst() -> None:
    assert "more than max_inst=20" in sentence(Request(ALL, (1,), 15, weight=21), [gpu()])


def test_max_inst_containers() -> None:
    there = [holder(c, 10) for c in "abc"]
    assert "already has max_inst=3 containers" in sentence(
        Request(ALL, (1,), 15), [gpu(max_inst=3, free_weight=0)], there
    )


def test_no_more_containers_than_slots_whatever_max_inst() -> None:
    there = [holder(f"{n:x}", 10) for n in range(16)] + [holder(c, 10) for c in "ghijklmno"]
    assert "already has 25, the most that a GPU takes, containers" in sentence(
        Request(ALL, (1,), 15), [gpu(max_inst=100, free_weight=60)], there
    )


def test_mig_and_unknown_memory() -> None:
    assert "MIG" in sentence(Request(ALL, (1,), 15), [gpu(mig=True)])
    assert "GPU 0 has Confidential Computing on" in sentence(Request(ALL, (1,), 15), [gpu(confidential=True)])
    assert "GPU 1 is in compute mode exclusive process" in sentence(
        Request(ALL, (1,), 15), [gpu(), gpu(1, compute_mode="exclusive process")]
    )
    assert "neither NVML nor cgpu_km" in sentence(Request(ALL, (1,), 15), [gpu(total_mib=0)])


def test_whole_gpus_beside_slices() -> None:
    request = Request(Devices(VISIBLE, items=(1,)), (1,), 15, native=Devices("NVIDIA_VISIBLE_DEVICES", items=(0, 1)))
    assert "whole GPUs beside slices" in sentence(request, [gpu(), gpu(1)])
    same = replace(request, native=Devices("NVIDIA_VISIBLE_DEVICES", items=("GPU-11",)))
    assert admit(same, [gpu(), gpu(1)], []).slots[0].gpu == 1


def test_default_memsize() -> None:
    request = Request(Devices(VISIBLE, items=(0,)), (), 0)
    assert admit(request, [gpu(default_mib=8192)], []).slots[0].limit == 8192 * MIB
    assert "99999 MiB, is more than its 15109 MiB" in sentence(request, [gpu(default_mib=99999)])
    assert "GPU 0 has no default_memsize_mib" in sentence(request, [gpu()])


CAPPED = [
    # (request, caps, the sentence)
    (
        Request(ALL, (6,), 15),
        caps(max_memory_mib=6042),
        (
            "ALIYUN_COM_GPU_MEM_CONTAINER=6 asks for 6043 MiB of GPU 0, and 6042 MiB are allowed: "
            "max_memory_mib = 6042 in [container] of /etc/cgpu/cgpu.toml"
        ),
    ),
    (
        Request(ALL, (6, 8), 15),
        caps(max_memory_mib=9000, max_memory_fraction=0.5),
        (
            "ALIYUN_COM_GPU_MEM_CONTAINER=6,8 asks for 8058 MiB of GPU 1, and 7554 MiB are allowed: "
            "max_memory_fraction = 0.5 in [container] of /etc/cgpu/cgpu.toml"
        ),
    ),
    (
        Request(Devices(VISIBLE, items=(0,)), (), 0),
        caps(max_memory_mib=99),
        (
            "ALIYUN_COM_GPU_VISIBLE_DEVICES without ALIYUN_COM_GPU_MEM_CONTAINER asks for 100 MiB of GPU 0, and 99 MiB "
            "are allowed: max_memory_mib = 99 in [container] of /etc/cgpu/cgpu.toml"
        ),
    ),
    (
        Request(ALL, (6,), 15, weight=5),
        caps(max_weight=4),
        (
            "ALIYUN_COM_GPU_SCHD_WEIGHT=5 asks for weight 5, and 4 is allowed: "
            "max_weight = 4 in [container] of /etc/cgpu/cgpu.toml"
        ),
    ),
    (
        Request(ALL, (6,), 15, highprio=True),
        caps(highprio="refuse"),
        (
            "ALIYUN_COM_GPU_HIGH_PRIO=1 asks for high priority, which is not allowed: "
            'highprio = "refuse" in [container] of /etc/cgpu/cgpu.toml'
        ),
    ),
]


@pytest.mark.parametrize(("request_", "limits", "text"), CAPPED, ids=[str(row[1]) for row in CAPPED])
def test_caps_name_variable_asked_allowed_and_key(request_: Request, limits: Caps, text: str) -> None:
    gpus = [gpu(default_mib=100), gpu(1)]
    assert sentence(request_, gpus, [], limits) == text
    assert admit(request_, gpus, []).slots


def test_at_the_cap_nothing_is_changed() -> None:
    limits = caps(max_memory_mib=6043, max_memory_fraction=0.5, max_weight=4, highprio="allow")
    request = Request(ALL, (6,), 15, weight=4, highprio=True)
    assert admit(request, [gpu()], [], limits) == admit(request, [gpu()], [])


@pytest.mark.parametrize(
    ("ceiling", "weight", "made"), [(None, 2, 0), (5, 2, 5), (5, 5, 5), (5, 7, 7), (19, 1, 19), (20, 1, 0), (50, 3, 0)]
)
def test_the_configured_ceiling_is_at_least_the_weight(ceiling: int | None, weight: int, made: int) -> None:
    """One of max_inst, 20 here, limits nothing."""
    (slot,) = admit(Request(ALL, (6,), 15, weight=weight), [gpu()], [], caps(ceiling=ceiling)).slots
    assert (slot.weight, slot.ceiling) == (weight, made)


def burst(number: int = 0, max_inst: int = 100) -> Gpu:
    kernel = KernelGpu(number, "", "", number, 15109 * MIB, policy=Policy.BURST)
    return gpu(number, max_inst=max_inst, free_weight=max_inst, kernel=kernel)


@pytest.mark.parametrize(
    ("limit", "weight", "ceiling", "made"),
    [(None, 1, 30, 30), (40, 1, 30, 30), (40, 1, 40, 40), (40, 50, 50, 50), (None, 1, 100, 0), (40, 1, None, 40)],
)
def test_a_requested_ceiling_is_at_most_the_configured_one(
    limit: int | None, weight: int, ceiling: int | None, made: int
) -> None:
    """Or the weight, if that is larger."""
    exact = (SlotRequest("GPU-00aa-0000", 6043, weight, False, ceiling),)
    for request in (
        Request(ALL, (6,), 15, weight=weight, ceiling=ceiling),
        Request(Devices("the grant", items=(0,)), (), 0, exact=exact),
    ):
        (slot,) = admit(request, [burst()], [], caps(ceiling=limit)).slots
        assert (slot.weight, slot.ceiling) == (weight, made)


def test_each_gpu_of_a_grant_has_its_own_ceiling() -> None:
    exact = (SlotRequest("GPU-00aa-0000", 100, ceiling=30), SlotRequest("GPU-11aa-0000", 100))
    request = Request(Devices("the grant", items=(0, 1)), (), 0, exact=exact)
    assert [slot.ceiling for slot in admit(request, [burst(0), burst(1)], []).slots] == [30, 0]


CEILINGS = [
    (burst(max_inst=20), caps(), "asks for ceiling 30, more than max_inst=20 of GPU 0"),
    (burst(), caps(ceiling=25), f"asks for ceiling 30, and 25 is allowed: ceiling = 25 in [container] of {TABLE}"),
    (
        replace(burst(), kernel=KernelGpu(0, "", "", 0, 15109 * MIB, policy=Policy.WEIGHTED)),
        caps(),
        "asks for ceiling 30 of GPU 0, and policy 2 (weighted) ignores ceilings: only burst has them",
    ),
]


@pytest.mark.parametrize(("gpu_", "limits", "text"), CEILINGS, ids=[row[2] for row in CEILINGS])
def test_a_ceiling_that_cannot_be_is_refused_with_its_source(gpu_: Gpu, limits: Caps, text: str) -> None:
    by_variable = Request(ALL, (6,), 15, ceiling=30)
    assert sentence(by_variable, [gpu_], [], limits) == f"ALIYUN_COM_GPU_SCHD_CEILING=30 {text}"
    exact = (SlotRequest("GPU-00aa-0000", 6043, ceiling=30),)
    by_grant = Request(Devices("the grant for a/b/c", items=(0,)), (), 0, exact=exact)
    assert sentence(by_grant, [gpu_], [], limits) == f"the grant for a/b/c {text}"


def test_check_grant() -> None:
    plan = Plan((SlotWant(0, 3, MIB),))
    good = Container("x", 1, "x", 509, 1, 2, slots=(Slot(0, 5, 3, MIB, weight=1),))
    check_grant(plan, good)
    for slot in (Slot(0, 5, 4, MIB, weight=1), Slot(1, 5, 3, MIB, weight=1), Slot(0, 5, 3, 2 * MIB, weight=1)):
        with pytest.raises(Refused):
            check_grant(plan, replace(good, slots=(slot,)))
    with pytest.raises(Refused, match="ceiling"):
        check_grant(plan, replace(good, slots=(Slot(0, 5, 3, MIB, weight=1, ceiling=5),)))
    with pytest.raises(Refused, match="priority"):
        check_grant(plan, replace(good, slots=(Slot(0, 5, 3, MIB, weight=1, highprio=True),)))
    with pytest.raises(KernelRefused, match="granted weight 0 of GPU 0 instead of 1") as caught:
        check_grant(plan, replace(good, slots=(Slot(0, 5, 3, MIB, weight=0),)))
    assert caught.value.code == errno.ENOSPC


@given(
    st.lists(st.integers(1, 15), max_size=5).map(tuple),
    st.lists(st.integers(0, 8000), max_size=4),
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(0, 15109),
    st.integers(100, 300),
    st.one_of(st.none(), st.integers(1, 15109)),
)
def test_what_is_admitted_fits(
    sizes: tuple[int, ...], held: list[int], free: int, weight: int, room: int, overcommit: int, cap: int | None
) -> None:
    gpus = [gpu(0, free_weight=free, room_mib=room, overcommit=overcommit), gpu(1)]
    there = [holder(chr(97 + n), mib) for n, mib in enumerate(held)]
    sizes = sizes or (1,)
    try:
        plan = admit(Request(ALL, sizes, 15, weight=weight), gpus, there, caps(max_memory_mib=cap))
    except Refused as error:
        assert "\n" not in str(error)
        return
    assert sum(held) + plan.slots[0].limit // MIB <= room * overcommit // 100
    assert plan.slots[0].limit == 15109 * sizes[0] // 15 * MIB  # as requested, never lowered
    assert cap is None or plan.slots[0].limit <= cap * MIB
    assert plan.slots[0].weight <= free


def test_less_than_a_context_is_refused() -> None:
    """6 GiB of 15109, which is MiB: no program could use the slice, and its start would say nothing."""
    mixed = Request(ALL, (6,), 15109)
    assert sentence(mixed, [gpu()]) == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=6 gives 6 MiB of GPU 0, and one context takes 32, so that no program could use "
        "it; are ALIYUN_COM_GPU_MEM_CONTAINER and ALIYUN_COM_GPU_MEM_DEV=15109 in one unit?"
    )
    assert admit(Request(ALL, (32,), 15109), [gpu()], []).slots[0].limit == 32 * MIB
    seen = replace(gpu(), context_mib=101)
    assert "100 MiB of GPU 0, and one context takes 101" in sentence(Request(ALL, (100,), 15109), [seen])
    assert admit(Request(ALL, (101,), 15109), [seen], []).slots[0].limit == 101 * MIB


def test_a_context_is_what_the_module_charges() -> None:
    text = (Path(__file__).parents[3] / "cgpu_km/state/gpu.c").read_text()
    assert f"ctx_reserve_mib = {CONTEXT_MIB};" in text


def test_the_holder_has_the_name_that_its_engine_gives_it() -> None:
    there = [holder("a", 9000), holder("b", 4000, dying=True)]
    names = {there[0].id: "prod/llm-0", there[1].id: "notebook"}
    with pytest.raises(Refused) as caught:
        admit(Request(ALL, (6,), 15), [gpu()], there, names=names)
    assert str(caught.value).endswith(
        f"held by: {'a' * 12} (prod/llm-0) 9000 MiB, {'b' * 12} (notebook, dying) 4000 MiB"
    )
    with pytest.raises(Refused, match=r"containers: a+ \(prod/llm-0\), b+ \(notebook, dying\)$"):
        admit(Request(ALL, (1,), 15), [gpu(max_inst=2)], there, names=names)


@pytest.mark.parametrize(
    ("total_mib", "dev", "said"),
    [
        (15109, 15, False),
        (15109, 16, False),
        (81559, 80, False),
        (81559, 79, False),
        (40536, 40, False),
        (81559, 100, False),  # percentages
        (81559, 15, True),
        (15109, 24, True),
    ],
)
def test_a_dev_that_is_not_the_cards_is_said(total_mib: int, dev: int, said: bool) -> None:
    plan = admit(Request(Devices(VISIBLE, items=(0,)), (6,), dev), [gpu(total_mib=total_mib)], [])
    mib = total_mib * 6 // dev
    assert plan.slots[0].limit == mib * MIB, "the interface's arithmetic stays"
    sentence = (
        f"ALIYUN_COM_GPU_MEM_DEV={dev}, and GPU 0 has {total_mib / 1024:.0f} GiB: ALIYUN_COM_GPU_MEM_CONTAINER=6 is "
        f"the fraction 6/{dev} of it, {mib} MiB, not 6 GiB"
    )
    assert plan.warnings == ((sentence,) if said else ())


def test_a_slice_of_each_gpu_without_a_variable_that_names_one_is_said() -> None:
    gpus = [gpu(number) for number in range(8)]
    plan = admit(Request(ALL, (6,), 15), gpus, [])
    assert len(plan.slots) == 8
    assert plan.warnings == (f"{VISIBLE} is not set: the container gets a slice of each of the 8 GPUs, not of one",)
    assert not admit(Request(Devices(VISIBLE, all=True), (6,), 15), gpus, []).warnings, "all, as written"
