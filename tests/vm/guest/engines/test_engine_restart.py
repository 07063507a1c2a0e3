# SPDX-License-Identifier: MIT
"""cgpud stopped in the middle of a start: docs/user/daemon.md §5. runc by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, variables

pytestmark = pytest.mark.engines

# In front of runc: holds a prepared container back, unbound, until the test releases it.
GATE = """#!/bin/sh
: >{place}/prepared
while ! [ -e {place}/go ]; do sleep 0.1; done
exec runc "$@"
"""


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    e.make_rootfs()
    yield
    d.ensure_daemon()
    d.until(e.nothing_is_left, "nothing is left of the container")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").write_text(GATE.format(place=tmp_path))
    (tmp_path / "gate").chmod(0o755)
    return tmp_path


@contextlib.contextmanager
def starting_behind(gate: Path) -> Iterator[ThreadPoolExecutor]:
    """Whatever happens to the test, the start ends."""
    with ThreadPoolExecutor(1) as aside:
        try:
            yield aside
        finally:
            (gate / "go").touch()


def hook_runs() -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:3] == [b"cgpu-runtime", b"hook", b"bind"]:
            return True
    return False


def test_the_start_waits_for_the_next_daemon(gate: Path) -> None:
    engine = ByHand("runc")
    with e.hands_over_to(str(gate / "gate"), wait_s=60), starting_behind(gate) as aside:
        starting = aside.submit(engine.start, variables(3), e.SLEEP)
        d.until((gate / "prepared").exists, "it is prepared")
        (before,) = d.ask(op="status")["containers"]
        cookies = d.cookies()
        d.stop_daemon()
        (gate / "go").touch()
        d.until(hook_runs, "the bind hook finds nobody")
        d.start_daemon()
        done, one = starting.result()
        try:
            assert done.returncode == 0, done.stderr
            (after,) = d.ask(op="status")["containers"]
            assert (before["phase"], after["phase"]) == ("prepared", "bound")
            assert d.cookies() == cookies, "taken up, not made anew"
            assert one.total_bytes() == one.memsize()
        finally:
            engine.remove(one.id)


@pytest.mark.more
def test_a_daemon_that_stays_away_gives_back_when_it_comes(gate: Path) -> None:
    """The start is refused without a message to the daemon, which does not wait for the lease of two minutes to end."""
    engine = ByHand("runc")
    with e.hands_over_to(str(gate / "gate"), wait_s=1), starting_behind(gate) as aside:
        starting = aside.submit(engine.start, variables(3), e.SLEEP)
        d.until((gate / "prepared").exists, "it is prepared")
        d.stop_daemon()
        (gate / "go").touch()
        done, one = starting.result()
        assert done.returncode != 0
        assert "cgpud does not answer" in done.stderr
        assert one.id in e.directories(), "still held"
        d.start_daemon()
        d.until(e.nothing_is_left, "given back")


@pytest.mark.parametrize("runtime", ["runc", pytest.param("crun", marks=pytest.mark.more)])
def test_a_start_that_fails_gives_back_at_once(runtime: str) -> None:
    """After cgpud, before the hooks: a mount of nothing. No look at everything comes in time to help."""
    engine = ByHand(runtime)
    missing = [{"destination": "/tmp/x", "type": "bind", "source": "/nowhere", "options": ["rbind"]}]
    with e.hands_over_to(runtime), e.configured("reconcile_s = 3600\nlease_s = 3600\n"):
        d.stop_daemon()  # the last reconciliation of the old reconcile_s would come too
        d.start_daemon()
        done, one = engine.start_bundle(bundle_with(engine, missing))
        assert done.returncode != 0
        assert "cgpu" not in done.stderr, "it was admitted"
        d.until(e.nothing_is_left, "given back")
        engine.remove(one.id)


def bundle_with(engine: ByHand, mounts: list[dict[str, object]]) -> Path:
    where = engine.bundle(variables(3), e.SLEEP)
    spec = json.loads((where / "config.json").read_text())
    spec["mounts"] += mounts
    (where / "config.json").write_text(json.dumps(spec))
    return where
