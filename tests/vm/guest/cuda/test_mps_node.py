# SPDX-License-Identifier: MIT
"""The MPS node mode with NVIDIA's own daemon, server and clients: containers with a limit that they can change."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_box as c
import docker_box as d
import pytest

pytestmark = pytest.mark.cuda

ROOT = Path("/run/cgpu/mps")
GRANT_MIB = 2048
OVER_MIB = 3000
NOTICED_S = 2.0
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
EXCLUSIVE, DEFAULT = "Exclusive_Process", "Default"


def uuid() -> str:
    return d.must("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").strip()


def mode() -> str:
    return d.must("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader").strip()


def start_unit() -> subprocess.Popen[bytes]:
    """What the unit cgpu-mps@UUID starts."""
    words = [sys.executable, "-m", "cgpud", "--mps", uuid()]
    unit = subprocess.Popen(words, cwd=d.REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    d.until(lambda: d.ask(op="capacity")["gpus"][0]["mps"]["why"] == "" or unit.poll() is not None, "it is offered")
    return unit


def stop_unit(unit: subprocess.Popen[bytes]) -> str:
    unit.terminate()
    out, _ = unit.communicate(timeout=60)
    return out.decode()


@dataclass
class Running:
    unit: subprocess.Popen[bytes]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[Running]:
    c.make_image()
    running = Running(start_unit())
    assert running.unit.poll() is None, running.unit.communicate()
    yield running
    assert running.unit.poll() is None
    assert "default compute mode again" in stop_unit(running.unit)
    assert running.unit.returncode == 0
    assert mode() == DEFAULT


@contextlib.contextmanager
def client(mib: int = GRANT_MIB, *options: str) -> Iterator[str]:
    """A container with a grant of MPS: its id."""
    line = ("create", "--runtime=nvidia", "--network=none", "-e", "CGPU_DISABLE=true", *options, c.IMAGE, *d.SLEEP)
    container = d.must("docker", *line).strip()
    subject = {"id": container}
    grant = {
        "subject": subject,
        "variables": {"CGPU_DISABLE": "true"},
        "whole": uuid(),
        "mps": {"memory_mib": mib, "threads": 50},
    }
    try:
        assert d.ask(op="grant", grant=grant)["ok"]
        started = d.call("docker", "start", container)
        assert started.returncode == 0, started.stderr
        yield container
    finally:
        d.call("docker", "rm", "-f", container)
        d.ask(op="revoke", grant=subject)


def row(container: str) -> dict[str, Any]:
    return next(one for one in d.ask(op="mps")["containers"] if one["id"] == container)


def events(kind: str, since: float) -> list[dict[str, Any]]:
    return [one for one in d.ask(op="events", since=since)["events"] if one["fields"].get("kind") == kind]


def words(container: str, limit: str | None, mib: int, seconds: int = 0) -> list[str]:
    """gpuload in the container with another limit than ours; None: without one."""
    env = ["env", "-u", LIMIT] if limit is None else ["env", f"{LIMIT}={limit}"]
    load = ["--seconds", str(seconds), "--interval", "0.2", "--alloc-mib", str(mib)]
    return ["docker", "exec", container, *env, "gpuload", "--json", *load, *c.PAUSES]


@contextlib.contextmanager
def starting(container: str, limit: str | None, mib: int = 0) -> Iterator[c.Progress]:
    """gpuload, which ends with its container at the latest."""
    progress = c.Progress(words(container, limit, mib))
    try:
        yield progress
    finally:
        progress.stop()


@contextlib.contextmanager
def load(container: str, limit: str | None, mib: int = 0) -> Iterator[c.Progress]:
    """The same from its first line on, which it writes with its memory allocated."""
    with starting(container, limit, mib) as progress:
        assert progress.wait_event("ready", 120), progress.last_words()
        yield progress


def is_ended(escape: c.Progress) -> bool:
    """By terminate_client, so that its calls fail, or, where that gives no answer, by a signal."""
    return "MPS_CLIENT_TERMINATED" in escape.last_words() or escape.exited()


def test_a_client_has_its_limit() -> None:
    with client() as one:
        assert mode() == EXCLUSIVE
        pid = d.must("docker", "inspect", "-f", "{{.State.Pid}}", one).strip()
        env = Path(f"/proc/{pid}/environ").read_text()  # Docker gives an exec the image's and its own
        assert f"{LIMIT}=0={GRANT_MIB - 128}M" in env and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in env
        done = d.call("docker", "exec", one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(OVER_MIB))
        said = json.loads(done.stdout.splitlines()[-1])
        assert (said["first_error"]["call"], said["first_error"]["status"]) == ("cuMemAlloc", c.OUT_OF_MEMORY)
        done = d.call("docker", "exec", one, "gpuload", "--json", "--seconds", "1", "--alloc-mib", "1500")
        assert done.returncode == 0, done.stdout
        assert row(one)["overs"] == 0


def test_the_servers_limit_holds_a_client_without_a_smaller_one() -> None:
    with client() as one:
        for limit in (None, "0=8G"):
            done = d.call(*words(one, limit, OVER_MIB, 1))
            said = json.loads(done.stdout.splitlines()[-1])
            assert (said["first_error"]["call"], said["first_error"]["status"]) == ("cuMemAlloc", c.OUT_OF_MEMORY)
            assert row(one)["overs"] == 0


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("0=8G,1=4G", id="a second device"),
        pytest.param("GPU-00000000-1111-2222-3333-444444444444=8G", id="an unknown UUID", marks=pytest.mark.more),
        pytest.param("xx", id="malformed", marks=pytest.mark.more),
    ],
)
def test_an_escape_is_noticed_and_ended_and_its_neighbour_goes_on(limit: str) -> None:
    with client() as honest, client() as greedy, load(honest, f"0={GRANT_MIB - 128}M", 500) as neighbour:
        since, before = time.time(), c.card_used()
        with starting(greedy, limit, OVER_MIB) as escape:
            d.until(lambda: c.card_used() - before >= OVER_MIB << 20, "it has its memory", 120)
            begun = time.time()
            d.until(lambda: events("mps_over", since), "noticed")
            d.until(lambda: events("mps_ended", since) + events("mps_killed", since), "ended")
            end = (events("mps_ended", since) + events("mps_killed", since))[0]
            noticed, ended = events("mps_over", since)[0]["time"] - begun, end["time"] - begun
            print(f"noticed after {noticed:.2f} s, ended after {ended:.2f} s: {end['text']}")
            assert noticed <= NOTICED_S
            d.until(lambda: is_ended(escape), "its call fails, or it is killed")
        d.until(lambda: (row(greedy)["used_mib"] or 0) <= GRANT_MIB, "its memory is back")
        assert (row(greedy)["overs"], row(greedy)["ended"], row(greedy)["evict"]) == (1, 1, "")
        assert (row(honest)["overs"], row(honest)["ended"]) == (0, 0)
        works = neighbour.works()
        d.until(lambda: neighbour.works() > works + 10, "the neighbour goes on")


@pytest.mark.more
def test_a_container_that_repeats_it_has_to_go() -> None:
    with client() as greedy:
        for number in range(1, 5):
            with starting(greedy, "xx", OVER_MIB) as escape:
                d.until(lambda escape=escape: is_ended(escape), f"ended {number}", 120)
            d.until(lambda: (row(greedy)["used_mib"] or 0) <= GRANT_MIB, "its memory is back")
            assert row(greedy)["ended"] == number
            assert bool(row(greedy)["evict"]) == (number == 4)


def test_a_shared_memory_of_its_own_is_refused() -> None:
    shm = "/run/elsewhere:/dev/shm/mine"
    with pytest.raises(AssertionError, match=r"over /dev/shm.*error 205"), client(GRANT_MIB, "-v", shm):
        pass


def test_the_gpu_is_offered_to_clients_and_not_to_slices() -> None:
    with client() as one, load(one, f"0={GRANT_MIB - 128}M"):
        offer = d.ask(op="capacity")["gpus"][0]
        assert "has an MPS server (systemctl stop cgpu-mps@GPU-" in offer["why"]
        assert offer["mps"]["why"] == "" and offer["mps"]["clients"] == 48
        assert 13_000 < offer["mps"]["mib"] < c.CARD_MIB
        sliced = d.call(*d.run_line("--rm", *d.variables(6), command=d.SLEEP, image=c.IMAGE))
        assert sliced.returncode == d.REFUSED and "has an MPS server" in sliced.stderr


def test_a_killed_control_daemon_ends_the_unit_and_a_new_one_serves_its_containers(running: Running) -> None:
    """systemd starts the unit again; meanwhile the GPU stays closed to programs without MPS."""
    with client() as one:
        assert d.call(*words(one, "0=1000M", 100, 1)).returncode == 0
        daemon = int((ROOT / uuid() / "pipe/nvidia-cuda-mps-control.pid").read_text())
        os.kill(daemon, signal.SIGKILL)
        assert running.unit.wait(30) == 1
        assert mode() == EXCLUSIVE
        assert "has no MPS server" in d.ask(op="capacity")["gpus"][0]["mps"]["why"]
        with pytest.raises(AssertionError, match="has no MPS server: systemctl"), client():
            pass
        running.unit = start_unit()
        assert running.unit.poll() is None, running.unit.communicate()
        assert d.call(*words(one, "0=1000M", 100, 1)).returncode == 0
        done = d.call(*words(one, None, OVER_MIB, 1))
        assert done.returncode == d.OVER_LIMIT, "the new control daemon has the limit of the old one"
