# SPDX-License-Identifier: MIT
"""cgpu-kube and kubectl inspect cgpu with garbage: one line of error, no traceback, nothing written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import leaves
from fake_api import kubeconfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpu_common.exits import Exit
from cgpu_kube.extender import command as extender_command
from cgpu_kube.inspect import inspect
from cgpu_kube.main import kube
from cgpu_kube.node import command as node_command
from cgpu_kube.node import host_keeper, keeper

VALUES = [
    *("", " ", "-", "--", "-1", "0", "65536", "nan", "x", "é", "\udcff", "a\nb", "../..", "/", "/dev/null/x"),
    *("there", "folder", "config", "cert", ":", "[::1]:1", "0.0.0.0:0", "127.0.0.1:x", "GiB", "MiB", "json", "text"),
    *("node-a", "default/pod", "c", "debug", "inspect", "node", "extender"),
]
ARGUMENT = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


COMMANDS = [(program, path, command) for program in (kube, inspect) for path, command in leaves(program)]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is served, and no other program is started."""

    def no_program(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "kubectl")

    async def nothing(*_: object) -> None:
        return

    async def kept(*_: object) -> int:
        """The agent gets the same words, and one more: those of these lines that have it are its own."""
        return 0

    monkeypatch.setattr(subprocess, "run", no_program)
    monkeypatch.setattr(extender_command, "serve", nothing)
    monkeypatch.setattr(node_command, "serve", nothing)
    monkeypatch.setattr(keeper, "keep", kept)
    monkeypatch.setattr(host_keeper, "serve", nothing)
    (tmp_path / "folder").mkdir()
    (tmp_path / "there").write_text("x")
    kubeconfig(tmp_path, "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@st.composite
def lines(draw: st.DrawFn) -> tuple[click.Command, list[str]]:
    program, path, command = draw(st.sampled_from(COMMANDS))
    words = list(path)
    value = st.sampled_from(VALUES) | st.text(ARGUMENT, max_size=10)
    for param in draw(st.lists(st.sampled_from(command.params), max_size=5)):
        if isinstance(param, click.Option):
            words.append(draw(st.sampled_from([*param.opts, *param.secondary_opts])))
            if not param.is_flag and draw(st.integers(0, 9)):
                words.append(draw(value))
        else:
            words.append(draw(value))
    if draw(st.integers(0, 4)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(value))
    return program, words


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(line=lines())
def test_garbage(work: Path, line: tuple[click.Command, list[str]]) -> None:
    program, words = line
    before = sorted(work.rglob("*"))
    result = CliRunner().invoke(program, words, prog_name=program.name)
    assert "Traceback" not in result.output and "internal:" not in result.stderr, (words, result.stderr)
    assert result.exit_code in {*map(int, Exit)}, (words, result.exit_code, result.exception)
    if result.exit_code:
        assert result.stderr.splitlines()[-1].startswith(f"{program.name}: error: "), (words, result.stderr)
        assert result.stdout == "", words
    assert sorted(work.rglob("*")) == before, words


def test_every_command_is_driven() -> None:
    assert {(program.name, " ".join(path)) for program, path, _ in COMMANDS} == {
        *(("cgpu-kube", name) for name in ("", "extender", "inspect", "install", "keep", "node")),
        ("kubectl-inspect-cgpu", ""),
    }
