# SPDX-License-Identifier: MIT
"""Memory that is held by a child of the process that opened the node: the child is named, not the dead process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_tree import Tree

from cgpu_common import holders, proc
from cgpu_common.holders import living
from cgpu_common.proc import Paths

PROC = Path("/proc")


def dead() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """A process with the file open."""
    with path.open() as file:
        process = subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def nodes(folder: Path) -> Path:
    (folder / "nodes").mkdir()
    (folder / "nodes/nvidia0").touch()
    (folder / "other").touch()
    return folder / "nodes"


def test_the_child_is_named(tmp_path: Path) -> None:
    directory, gone = nodes(tmp_path), dead()
    with holding(tmp_path / "other"), holding(directory / "nvidia0") as child:
        assert living(PROC, directory, ((gone, 5), (1, 7))) == ((child, 5), (1, 7))
        assert living(PROC, directory, ((gone, 5), (child, 7))) == ((gone, 5), (child, 7)), "it has its own line"
        assert living(PROC, directory, ((gone, 5), (dead(), 7))) == ((child, 12),)
    assert living(PROC, directory, ((gone, 5),)) == ((gone, 5),)


def test_a_zombie_holds_nothing(tmp_path: Path) -> None:
    directory = nodes(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", "pass"])
    while (PROC / f"{parent.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    with holding(directory / "nvidia0") as child:
        assert living(PROC, directory, ((parent.pid, 5),)) == ((child, 5),)
    parent.wait()


def test_nothing_is_searched_without_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_holders", lambda *_: 1 / 0)
    assert living(PROC, nodes(tmp_path), ((1, 5),)) == ((1, 5),)
    assert living(PROC, tmp_path / "none", ((dead(), 5),))[0][1] == 5


def test_a_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, gone = nodes(tmp_path), dead()
    monkeypatch.setattr(holders, "FILES_MAX", 1)
    with holding(directory / "nvidia0"):
        assert living(PROC, directory, ((gone, 5),)) == ((gone, 5),)


def test_the_tree_has_it(tree: Tree) -> None:
    """Every view of the commands reads the processes there."""
    (slot, *_) = proc.read_tree(Paths.below(str(tree.root))).gpus[0].slots
    gone = dead()
    (tree.proc / f"0/{slot.dir}/meminfo").write_text(f"Free: 1\nPID: {gone} Mem: 5\n")
    directory = tree.root / "dev/cgpu" / slot.dir
    directory.mkdir(parents=True)
    (directory / "nvidia0").touch()
    with holding(directory / "nvidia0") as child:
        (tree.root / f"proc/{child}").symlink_to(f"/proc/{child}")
        assert proc.read_tree(Paths.below(str(tree.root))).gpus[0].slots[0].pids == ((child, 5),)
