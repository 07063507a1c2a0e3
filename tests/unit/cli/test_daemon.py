# SPDX-License-Identifier: MIT
"""cgpu-smi and settings that differ from cgpu.toml: requested from cgpud, shown, left out without cgpud."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator

import pytest
import schema
from fake_daemon import daemon_at, packed
from fake_tree import Cli, Tree

from cgpu_cli import daemon
from cgpu_common.proc import Paths

SCHEMA = schema.load("cgpu-smi")
ROW = {"gpu": 1, "index": 0, "key": "policy", "configured": "fixed", "live": "native"}


@pytest.fixture
def answer(tree: Tree) -> Iterator[Callable[[bytes], None]]:
    """Sets the reply to each request."""
    replies: dict[str, bytes] = {}
    with daemon_at(tree.root, replies):
        yield lambda data: replies.update(status=data, gpus=data)


def test_drift_is_shown(tree: Tree, answer: Callable[[bytes], None]) -> None:
    answer(packed({"ok": True, "drift": [ROW]}))
    text = Cli(tree).smi("--no-sample").stdout
    assert "  GPU 0: policy is native, cgpu.toml has fixed\n" in text
    data = json.loads(Cli(tree).smi("--no-sample", "--json").stdout)
    schema.validate(data, SCHEMA)
    assert data["drift"] == [{name: ROW[name] for name in ("index", "key", "configured", "live")}]


def test_no_drift_is_an_empty_list(tree: Tree, answer: Callable[[bytes], None]) -> None:
    answer(packed({"ok": True, "drift": []}))
    assert json.loads(Cli(tree).smi("--no-sample", "--json").stdout)["drift"] == []


def test_no_daemon(cli: Cli) -> None:
    assert json.loads(cli.smi("--no-sample", "--json").stdout)["drift"] is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        struct.pack(">I", 100) + b"{",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 2) + b"{]",
        packed({"ok": False, "error": "no"}),
        packed([]),
        packed({"ok": True}),
        packed(
            {"ok": True, "gpus": [7, {"uuid": 3, "total_bytes": "x"}], "containers": [1, {"names": []}], "drift": 1}
        ),
    ],
    ids=repr,
)
def test_a_strange_answer_is_none(tree: Tree, answer: Callable[[bytes], None], data: bytes) -> None:
    answer(data)
    assert daemon.drift(Paths.below(str(tree.root))) is None
    assert Cli(tree).smi("--no-sample").exit_code == 0
