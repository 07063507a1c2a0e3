# SPDX-License-Identifier: MIT
"""Links between GPUs: as NVML and the kernel have them, their ranks, and the set that several of them make."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pytest
from fake_nvml import Card, Library
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common import gpus, links
from cgpu_common.cards import NvmlGpu
from cgpu_common.gpus import merge, query
from cgpu_common.links import NVLINK, SWITCH, best, quality, rank, total
from cgpu_common.model import KernelGpu


def gpu(number: int, *peers: str, bridges: tuple[str, ...] = ()) -> NvmlGpu:
    address = f"0000:0{number + 1}:00.0"
    return NvmlGpu(number, f"GPU-{number}", address, number, 1000, peers=peers, bridges=bridges)


ONE, TWO = "0000:01:00.0", "0000:02:00.0"


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (gpu(0), gpu(1), 0),
        (gpu(0, TWO), gpu(1, ONE), NVLINK),
        (gpu(0, TWO, TWO), gpu(1, ONE, ONE), 2 * NVLINK),
        (gpu(0, TWO, TWO), gpu(1, ONE), NVLINK),  # one end is down
        (gpu(0, *[SWITCH] * 18), gpu(1, *[SWITCH] * 18), 18 * NVLINK),
        (gpu(0, SWITCH), gpu(1, ONE), 0),
        (gpu(0, "0000:09:00.0"), gpu(1, "0000:09:00.0"), 0),  # both to a third one
        (gpu(0, bridges=("pci0000:00", "a", "b")), gpu(1, bridges=("pci0000:00", "a", "c")), 2),
        (gpu(0, bridges=("pci0000:00",)), gpu(1, bridges=("pci0000:80",)), 0),
        (gpu(0, TWO, bridges=("x",)), gpu(1, ONE, bridges=("x",)), NVLINK),
    ],
)
def test_ranks(left: NvmlGpu, right: NvmlGpu, wanted: int) -> None:
    assert rank(left, right) == rank(right, left) == wanted


def test_nvml_and_the_kernel_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        Card(0, nvlinks=("0000:02:00.0", None, "0000:02:00.0", "switch")),
        Card(1, nvlinks=("0000:01:00.0",)),
        Card(2),
    ]
    real = tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    real.mkdir(parents=True)
    monkeypatch.setattr(gpus.os.path, "realpath", lambda path: str(path).replace("/bus/pci", "/devices/pci0000:00"))
    monkeypatch.setitem(sys.modules, "pynvml", Library(cards))
    found = query()
    assert [one.peers for one in found] == [(TWO, TWO, SWITCH), (ONE,), ()]
    assert found[0].bridges == ("pci0000:00", "devices")


def test_the_inventory_has_the_ranks_by_minor() -> None:
    seen = [gpu(0, TWO), gpu(1, ONE), gpu(2), NvmlGpu(3, "GPU-3", "0000:04:00.0", 3, 1000, lost="gone")]
    kernel = [KernelGpu(n, f"GPU-{n}", f"0000:0{n + 1}:00.0", n, 1 << 30) for n in range(5)]
    found = merge(kernel, seen)
    assert [one.links for one in found] == [((1, NVLINK),), ((0, NVLINK),), (), (), ()]
    assert not any(one.links for one in merge(kernel[:2], seen[:2])), "of two there is nothing to choose"


#: Of eight: four and four with NVLink each to each; between the groups PCIe.
GROUPS = {
    one: {other: NVLINK if one // 4 == other // 4 else 2 for other in range(8) if other != one} for one in range(8)
}
#: A cube mesh: 0-3 and 4-7, double links on two sides, and one link to the opposite corner.
MESH_LINKS = ((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1),
              (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2))  # fmt: skip


def mesh() -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {one: {} for one in range(8)}
    for left, right, count in MESH_LINKS:
        found[left][right] = found[right][left] = NVLINK * count
    return found


@pytest.mark.parametrize(
    ("ordered", "count", "wanted"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 4, [0, 1, 2, 3]),
        ([7, 0, 1, 2, 3, 4, 5, 6], 4, [7, 4, 5, 6]),  # the preferred GPU's group
        ([0, 4, 1, 5], 2, [0, 1]),
        ([0, 1, 4, 5, 6], 3, [4, 5, 6]),  # a whole group before a part of the preferred one
        ([3, 4], 2, [3, 4]),
        ([5, 4], 1, [5]),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_best_set_is_of_one_group(ordered: list[int], count: int, wanted: list[int]) -> None:
    assert sorted(best(ordered, count, GROUPS)) == sorted(wanted)


def test_without_links_the_order_decides() -> None:
    assert best([3, 1, 2], 2, {}) == [3, 1]


@given(st.sets(st.integers(0, 7), min_size=2), st.integers(2, 8), st.sampled_from(["groups", "mesh"]))
def test_no_set_is_better_where_links_are_in_groups(free: set[int], count: int, shape: str) -> None:
    ranks = GROUPS if shape == "groups" else mesh()
    count = min(count, len(free))
    found = best(sorted(free), count, ranks)
    assert len(set(found)) == count and set(found) <= free
    most = max(total(one, ranks) for one in combinations(sorted(free), count))
    assert total(found, ranks) >= (most if shape == "groups" else 0.75 * most)


def test_the_quality_is_the_part_of_pairs_with_nvlink() -> None:
    assert (quality([0, 1, 2], GROUPS), quality([0, 4], GROUPS), quality([0, 1, 4], GROUPS)) == (1.0, 0.0, 1 / 3)
    assert (quality([0], GROUPS), quality([], GROUPS), quality([0, 1], {})) == (0.0, 0.0, 0.0)


def test_a_rank_of_pcie_is_below_a_link() -> None:
    deep = tuple(map(str, range(300)))
    assert rank(gpu(0, bridges=deep), gpu(1, bridges=deep)) == links.PCIE_MAX < NVLINK
