# SPDX-License-Identifier: MIT
"""cgpu-smi: text against golden files, JSON against the published schema."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import schema
from fake_tree import ID1, ID2, Cli, Tree, inst_line
from golden_files import golden

from cgpu_cli import rates
from cgpu_common import policies, proc
from cgpu_common.model import Snapshot

SCHEMA = schema.load("cgpu-smi")


def test_no_container_does_not_wait(empty_cli: Cli) -> None:
    result = empty_cli.smi("--interval", "600")
    assert result.exit_code == 0
    golden("smi-empty.txt", result.stdout)


@pytest.mark.parametrize("policy", policies.Policy)
def test_json_fits_the_schema(tree: Tree, policy: int) -> None:
    tree.gpu(0, policy=policy)
    tree.gpu(1, control="none", stat="total_bytes 0\ncontrol none")
    for args in (("--json", "--no-sample"), ("--json", "--interval", "0.01")):
        result = Cli(tree).smi(*args)
        assert result.exit_code == 0
        schema.validate(json.loads(result.stdout), SCHEMA)


def test_a_mode_of_a_newer_module_is_unknown(tree: Tree) -> None:
    (tree.proc / "0/uvm").write_text("mapped\n")
    assert json.loads(Cli(tree).smi("--json", "--no-sample").stdout)["gpus"][0]["uvm"] == "unknown"


def test_unknown_stat_names_are_ignored(tree: Tree) -> None:
    path = tree.slot(0, ID1) / "stat"
    path.write_text(path.read_text() + "brand_new 12\nstrange\nworded not a number\n")
    assert Cli(tree).smi("--no-sample").exit_code == 0


@pytest.mark.parametrize("gone", ["id", "weight", "memsize", "meminfo", "stat", "highprio"])
def test_container_that_vanishes_is_left_out(tree: Tree, gone: str) -> None:
    (tree.proc / "0" / ID1[:12] / gone).unlink()
    result = Cli(tree).smi("--no-sample", "--json")
    assert result.exit_code == 0
    assert [one["id"] for one in json.loads(result.stdout)["gpus"][0]["containers"]] == [ID2]


def test_container_that_goes_between_open_and_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """procfs answers EIO then."""
    real = Path.read_text

    def read_text(path: Path, *args: Any, **more: Any) -> str:
        if path.parent.name == ID1[:12] and path.name == "meminfo":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    data = json.loads(Cli(tree).smi("--no-sample", "--json").stdout)
    assert [one["id"] for one in data["gpus"][0]["containers"]] == [ID2]


def test_gpu_that_vanishes_is_left_out(tree: Tree) -> None:
    tree.gpu(1)
    (tree.proc / "1/uuid").unlink()
    data = json.loads(Cli(tree).smi("--no-sample", "--json").stdout)
    assert [gpu["index"] for gpu in data["gpus"]] == [0]


def test_garbage_in_a_node_is_one_line(tree: Tree) -> None:
    (tree.proc / "0/policy").write_text("two\n")
    result = Cli(tree).smi("--no-sample")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("cgpu-smi: error: ")


def test_dying_container(tree: Tree) -> None:
    tree.listed(inst_line(ID1, 1, "dying"), inst_line(ID2, 7))
    states = [
        one["state"] for one in json.loads(Cli(tree).smi("--json", "--no-sample").stdout)["gpus"][0]["containers"]
    ]
    assert states == ["dying", "waiting"]


def a_second_later(before: Snapshot, after: Snapshot) -> Snapshot:
    """The second reading, as if each container had been read exactly a second after the first."""
    then = {(slot.gpu, slot.dir): slot.at_ns for gpu in before.gpus for slot in gpu.slots}
    gpus = [
        replace(gpu, slots=tuple(replace(slot, at_ns=then[slot.gpu, slot.dir] + 10**9) for slot in gpu.slots))
        for gpu in after.gpus
    ]
    return replace(after, gpus=tuple(gpus))


def test_sampling_measures_between_two_looks(tree: Tree) -> None:
    before = proc.read_tree(proc.Paths.below(str(tree.root)))
    tree.slot(0, ID1, stat="gpu_ns 1250000000\nopened 1")
    after = proc.read_tree(proc.Paths.below(str(tree.root)))
    after = a_second_later(before, after)
    got = {key: one.share_got_pct for key, one in rates.rates([before, after]).items()}
    assert got == {(0, ID1[:12]): 25.0, (0, ID2[:12]): 0.0}


def test_reused_name_is_not_compared_with_its_predecessor(tree: Tree) -> None:
    before = proc.read_tree(proc.Paths.below(str(tree.root)))
    tree.slot(0, ID1, id=ID1[:12] + "9" * 52)
    after = proc.read_tree(proc.Paths.below(str(tree.root)))
    assert rates.rates([before, after])[0, ID1[:12]].share_got_pct is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("module"),
        lambda data: data.update(more=1),
        lambda data: data.update(schema_version=2),
        lambda data: data["gpus"][0].update(max_inst=101),
        lambda data: data["gpus"][0].update(index=True),
        lambda data: data["gpus"][0]["containers"][0].update(state="tired"),
        lambda data: data["gpus"][0]["containers"][0]["pids"][0].update(pid="1"),
    ],
)
def test_the_schema_is_strict(cli: Cli, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(cli.smi("--json", "--no-sample").stdout)
    schema.validate(data, SCHEMA)
    change(data)
    with pytest.raises(schema.Invalid):
        schema.validate(data, SCHEMA)
