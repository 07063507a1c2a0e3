# SPDX-License-Identifier: MIT
"""Every command of cgpu and cgpu-smi with garbage: no traceback, and a command that fails has changed nothing."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from commands import leaves
from fake_tree import ID1, Tree, write
from fakelink import FakeLink
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpu_cli import collect, drain, events, trace
from cgpu_cli.main import cgpu
from cgpu_cli.smi import smi
from cgpu_common.exits import Exit
from cgpu_common.model import KernelEvent

#: Exit codes of commands that were carried out.
DONE = {Exit.OK, Exit.PROBLEMS}
OWN = {"root", "proc"}  # set by the test: other places are no tree

VALUES = [
    *("", " ", "-", "--", "-1", "0", "1", "2", "7", "0.1", "0.2", "99999999999999999999", "1e309", "nan", "inf"),
    *("x", "é", "\udcff", "a\nb", "../..", "/", "/dev/null/x", "file", "there", "folder", "docker", "bash"),
    *(ID1, ID1[:3], "gpu_test1", "gpu_test", "0,1", "0,0", "GPU-", "fair", "policy", "weight", "1g", "512MiB", "name"),
    *("name=a", "name=a,weight=2", "count=99", "weight=", "csv", "csv,noheader", "json", "10m", "2026-01-01", "a100"),
    *("err40_pct=27", "index,name", "id,share.got", "0x1", "chram", "none", "1.2.3", "deny", "account"),
]


COMMANDS = [(program, path, command) for program in (cgpu, smi) for path, command in leaves(program)]


class Silent(FakeLink):
    """The running module's netlink without an event and without a container."""

    async def events(self, joined: Any = None) -> AsyncIterator[KernelEvent]:
        for event in ():
            yield event


@pytest.fixture
def quick(tree: Tree, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Nothing waits, streams for ever, or starts another program."""

    def no_program(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    async def no_events(*_: object) -> None:
        return

    real_record, real_stream = trace.record, collect.stream
    monkeypatch.setattr(subprocess, "run", no_program)
    monkeypatch.setattr(subprocess, "Popen", no_program)
    monkeypatch.setattr(collect.Collector, "wait", lambda *_: None)
    monkeypatch.setattr(collect, "stream", lambda *args: itertools.islice(real_stream(*args), 2))
    monkeypatch.setattr(drain, "wait", lambda *_: None)
    monkeypatch.setattr(events, "stream", no_events)
    monkeypatch.setattr(events, "open_link", Silent)
    monkeypatch.setattr(trace, "record", lambda paths, gpus, *_: real_record(paths, gpus, 0.003, 0.001))
    work = tmp_path_factory.mktemp("work")
    (work / "folder").mkdir()
    write(work / "there", '[[container]]\nname = "x"')
    monkeypatch.chdir(work)
    write(tree.root / "etc/docker/daemon.json", "{}")
    return tree


def contents(*folders: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for folder in folders
        for path in folder.rglob("*")
    }


@pytest.fixture
def before(quick: Tree) -> dict[Path, bytes | None]:
    return contents(quick.root, Path.cwd())


def restore(before: dict[Path, bytes | None], after: dict[Path, bytes | None]) -> None:
    for path in sorted(after.keys() - before.keys(), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for path, data in before.items():
        if data is not None and after.get(path) != data:
            path.write_bytes(data)


#: What a word of a command line can consist of: execve() ends it at a NUL.
ARGUMENT = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@st.composite
def lines(draw: st.DrawFn) -> tuple[click.Command, list[str]]:
    """A program and words: a command, some of its own options with values of any kind, some words more."""
    program, path, command = draw(st.sampled_from(COMMANDS))
    words = list(path)
    value = st.sampled_from(VALUES) | st.text(ARGUMENT, max_size=10)
    params = [one for one in command.params if one.name not in OWN]
    for param in draw(st.lists(st.sampled_from(params), max_size=6)) if params else []:
        if isinstance(param, click.Option):
            words.append(draw(st.sampled_from([*param.opts, *param.secondary_opts])))
            if not param.is_flag and draw(st.integers(0, 9)):
                words.append(draw(value))
        else:
            words.append(draw(st.sampled_from(list(param.type.choices)) if _is_choice(param) else value))
    if draw(st.integers(0, 4)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(value))
    return program, words


def _is_choice(param: click.Parameter) -> bool:
    return isinstance(param.type, click.Choice)


RANGES = [
    (program, [*path, param.opts[0], "nan"])
    for program, path, command in COMMANDS
    for param in command.params
    if isinstance(param.type, click.FloatRange)
]


@pytest.mark.parametrize(
    ("program", "words"), RANGES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_nan_is_in_no_range(quick: Tree, program: click.Command, words: list[str]) -> None:
    assert len(RANGES) > 5
    result = CliRunner().invoke(program, ["--root", str(quick.root), *words], prog_name=program.name)
    assert result.exit_code == 2 and "is no number" in result.stderr, (result.exit_code, result.stderr)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=600, deadline=None)
@given(line=lines())
def test_garbage(quick: Tree, before: dict[Path, bytes | None], line: tuple[click.Command, list[str]]) -> None:
    program, words = line
    environment = dict(os.environ)
    result = CliRunner().invoke(program, ["--root", str(quick.root), *words], prog_name=program.name)
    after = contents(quick.root, Path.cwd())
    try:
        assert "Traceback" not in result.output, words
        assert "internal:" not in result.stderr, (words, result.stderr)
        assert result.exit_code in {*map(int, Exit)}, (words, result.exit_code, result.exception)
        if result.exit_code not in DONE:
            assert after == before, words
            in_json = "--json" in words
            last = result.stderr.splitlines()[-1]
            assert last.startswith('{"schema_version"' if in_json else f"{program.name}: error: "), (words, last)
            assert result.stdout == "", words
        assert dict(os.environ) == environment
    finally:
        restore(before, after)


def test_every_command_is_driven() -> None:
    """The walk finds the commands below groups too, whose modules are imported when they run."""
    names = {" ".join(path) for program, path, _ in COMMANDS if program is cgpu}
    assert {"create", "set container", "doctor", "trace", "stats", "simulate", "gpu show", "policy set"} <= names
