# SPDX-License-Identifier: MIT
"""How containers end, and how the daemon does: nothing is left, nothing is widened."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import docker_box as d
import pytest
from docker_box import Box, box, must, number, run_line, run_once, until, variables

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    if shutil.which("docker") is None or d.call("docker", "version").returncode:
        pytest.skip("no Docker engine answers")
    d.ensure_runtime()
    d.make_image()
    yield


@pytest.fixture(autouse=True)
def a_daemon_before_and_after() -> Iterator[None]:
    d.ensure_daemon()
    free = number(d.PROC / "0/free_weight")
    yield
    d.ensure_daemon()
    until(lambda: number(d.PROC / "0/free_weight") == free, "the weight is back")
    until(lambda: not list(d.STATE.glob("*.json")), "no state file is left")


def wait_until_set_up(one: Box) -> None:
    """All of it: simload's first charge is not its last."""
    until(lambda: "ready: " in must("docker", "logs", one.id), "simload has all that it holds")


def test_docker_kill_removes_directory_and_memory() -> None:
    with box(*variables(6, devices=0), command=d.HOLD) as one:
        until(lambda: "PID:" in (one.dir / "meminfo").read_text(), "simload holds memory")
        one.kill()
        until(one.gone, "the directory is gone")
        until(lambda: one.id not in d.known_ids(), "the daemon forgot it")
    # The whole card can be given again.
    (d.PROC / "inst_ctl").write_text(f"create whole gpu=0 memsize={d.total_mib() * d.MIB}")
    (d.PROC / "inst_ctl").write_text("destroy whole")


def test_stop_and_start_is_a_new_life() -> None:
    with box("--name", "twice", *variables(6, devices=0)) as one:
        first = d.cookies()[one.id]
        must("docker", "kill", one.id)
        must("docker", "start", one.id)
        second = d.cookies()[one.id]
        assert first != second
        assert one.info()["total_bytes"] == one.memsize()


@pytest.mark.more
def test_two_at_once() -> None:
    with ThreadPoolExecutor(2) as pool:
        lines = [run_line("-d", *variables(6, devices=0), command=d.SLEEP) for _ in range(2)]
        started = [Box(out.strip()) for out in pool.map(lambda line: must(*line), lines)]
    try:
        assert all(one.dir.is_dir() for one in started)
        assert run_once(*variables(6, devices=0), command=("true",)).returncode == d.REFUSED
    finally:
        for one in started:
            d.call("docker", "rm", "-f", one.id)
    until(lambda: all(one.gone() for one in started), "both are gone")


def test_a_daemon_restart_keeps_containers() -> None:
    with box(*variables(6, devices=0), command=d.HOLD) as one, box(*variables(3, devices=0)) as two:
        size = one.memsize()
        d.stop_daemon()
        assert one.memsize() == size
        two.kill()
        assert two.dir.exists(), "no daemon runs to release it"
        d.start_daemon()
        assert one.id in d.known_ids()
        until(two.gone, "found dead at start")
        assert one.info()["total_bytes"] == size
        one.kill()
        until(one.gone, "watched by the new life")


@pytest.mark.more
def test_a_killed_daemon_is_no_different() -> None:
    with box(*variables(6, devices=0)) as one:
        d.stop_daemon(signal.SIGKILL)
        assert one.dir.exists()
        d.start_daemon()
        assert one.id in d.known_ids()


def test_no_daemon_no_start() -> None:
    d.stop_daemon()
    done = run_once(*variables(6, devices=0), command=("true",))
    assert done.returncode == d.REFUSED
    assert "cgpud does not answer" in done.stderr
    assert run_once(command=("true",)).returncode == 0, "containers without variables do not need it"


def test_destroyed_by_hand_while_it_runs() -> None:
    with box(*variables(6, devices=0)) as one:
        (d.PROC / "inst_ctl").write_text(f"destroy {one.id}")
        until(one.gone, "destroyed")
        until(lambda: one.id not in d.known_ids(), "the daemon heard of it")
        assert one.run("simload", "--info").returncode != 0, "its nodes lead nowhere"


@pytest.mark.more
def test_live_restore() -> None:
    """dockerd is killed and restarted: containers, their slices and the daemon's watches stay throughout."""
    d.settings(**{"live-restore": True})
    until(lambda: must("docker", "info", "--format", "{{.LiveRestoreEnabled}}").strip() == "true", "it is on")
    with box(*variables(6, devices=0), command=d.HOLD) as one:
        wait_until_set_up(one)
        held, size = (one.dir / "meminfo").read_text(), one.memsize()
        d.restart_dockerd()
        assert ((one.dir / "meminfo").read_text(), one.memsize()) == (held, size)
        assert one.info()["total_bytes"] == size
        one.kill()
        until(one.gone, "released as ever")


@pytest.mark.more
def test_pause_and_update() -> None:
    """A paused container keeps its slice; an update of its cgroup leaves its nodes alone."""
    with box(*variables(6, devices=0), command=d.HOLD) as one:
        wait_until_set_up(one)
        held = (one.dir / "meminfo").read_text()
        must("docker", "pause", one.id)
        assert (one.dir / "meminfo").read_text() == held
        must("docker", "unpause", one.id)
        must("docker", "update", "--memory", "512m", "--memory-swap", "512m", one.id)
        assert one.info()["total_bytes"] == one.memsize()
