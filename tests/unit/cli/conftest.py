# SPDX-License-Identifier: MIT
"""Trees to look at: an empty one, and two containers on one simulated T4."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_tree import ID1, ID2, MIB, PCI, STAT, Cli, Moving, Tree, inst_line, waits, write
from hypothesis import settings

# A slow machine must not fail a test.
settings.register_profile("cli", deadline=None)
settings.load_profile("cli")


@pytest.fixture
def empty(tmp_path: Path) -> Tree:
    """The module is loaded, no container is there."""
    tree = Tree(tmp_path)
    write(tree.proc / "version", "0.1.0")
    write(tree.proc / "upgrade", "0.1.0")
    write(tmp_path / "sys/module/cgpu_km/version", "0.1.0")
    write(tree.proc / "default_memsize", str(8 << 30))
    (tree.proc / "inst_ctl").write_text("", encoding="utf-8")
    tree.gpu(0, free_weight=20)
    write(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.105.08  x")
    write(tmp_path / f"proc/driver/nvidia/gpus/{PCI}/information", "Model: \t\t Tesla T4 (simulated)\nDevice Minor: 0")
    return tree


@pytest.fixture
def tree(empty: Tree) -> Tree:
    """Two containers, weights 1 and 2, policy 2."""
    empty.gpu(0)
    empty.slot(0, ID1)
    empty.slot(
        0,
        ID2,
        memsize=8058 * MIB,
        weight=2,
        meminfo=f"Free: {7546 * MIB}\n" + "\n".join(f"PID: {200 + n} Mem: {MIB}" for n in range(6)),
        stat=f"gpu_ns 2000000000\nwait_ns 1000000000\nturns 31\noverruns 0\nrunning 0\nopened 1\n"
        f"limit_bytes {8058 * MIB}\nused_bytes {512 * MIB}\npeak_bytes {512 * MIB}\nrefused_allocs 0\nrefused_calls 7\n"
        + waits({6: 90, 8: 10}, 100),
    )
    empty.listed(inst_line(ID1, 1), inst_line(ID2, 7))
    write(empty.root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps({"Name": "/gpu_test1"}))
    return empty


@pytest.fixture
def cli(tree: Tree) -> Cli:
    return Cli(tree)


@pytest.fixture
def empty_cli(empty: Tree) -> Cli:
    return Cli(empty)


@pytest.fixture
def moving(tree: Tree) -> Iterator[Tree]:
    """Its two containers take turns of 50 ms."""
    for one in (ID1, ID2):
        tree.slot(0, one, stat=STAT.format(ran=0, waited=0, turns=0).ljust(200))
    writer = Moving(tree, 0.05)
    writer.start()
    yield tree
    writer.over.set()
    writer.join(5)
