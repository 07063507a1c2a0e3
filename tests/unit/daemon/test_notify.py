# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FAKE_CGPUD

from cgpu_common import notify

ROOT = Path(__file__).resolve().parents[3]


def test_send_to_a_path_and_to_an_abstract_name(tmp_path: Path) -> None:
    for address, name in (
        (str(tmp_path / "n"), str(tmp_path / "n")),
        (f"\0cgpu-{os.getpid()}", f"@cgpu-{os.getpid()}"),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(address)
            assert notify.send("READY=1", {"NOTIFY_SOCKET": name})
            assert sock.recv(64) == b"READY=1"


def test_nobody_to_tell(tmp_path: Path) -> None:
    assert not notify.send("READY=1", {})
    assert not notify.send("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("environ", "period"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
    ],
)
def test_watchdog_period(environ: dict[str, str], period: float | None) -> None:
    assert notify.watchdog_period(environ) == period


def tidings(sock: socket.socket) -> Iterator[str]:
    while True:
        yield sock.recv(4096).decode()


def reload(daemon: subprocess.Popen[str], told: Iterator[str], text: str, *status: str) -> None:
    """Reloading is announced, and over when the new configuration, or the old one, is in force."""
    (Path(daemon.args[-1])).write_text(text)
    begin = time.monotonic()
    daemon.send_signal(signal.SIGHUP)
    first = next(line for line in told if line != "WATCHDOG=1").splitlines()
    assert first[0] == "RELOADING=1"
    assert begin <= int(first[1].removeprefix("MONOTONIC_USEC=")) / 1e6 + 1e-6 <= time.monotonic() + 1e-6
    last = next(line for line in told if line != "WATCHDOG=1").splitlines()
    assert last[0] == "READY=1"
    assert last[1].startswith("STATUS=" + status[0] if status[0] else "STATUS=")
    assert all(part in last[1] for part in status)
    assert (last[1] == "STATUS=") == (status == ("",))


def test_the_whole_program(tmp_path: Path) -> None:
    """Started as the service manager does: ready, pings, reload, a polite end. A bad file changes nothing."""
    address = tmp_path / "notify"
    config = tmp_path / "cgpu.toml"
    config.write_text("[gpu]\npolicy = 1\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(address))
        sock.settimeout(20)
        daemon = subprocess.Popen(
            [
                *(sys.executable, FAKE_CGPUD, "--log-format", "json"),
                *("--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state"), "--config", str(config)),
            ],
            env={**os.environ, "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000", "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            told = tidings(sock)
            assert {next(told) for _ in range(5)} == {"READY=1\nSTATUS=", "WATCHDOG=1"}
            bad = "nonsense = 1\n[gpu]\npolicy = 2\n"
            reload(daemon, told, bad, "configuration kept as it was: ", "nonsense is not a known key")
            reload(daemon, told, "[gpu]\npolicy = 3\n", "")
            daemon.send_signal(signal.SIGTERM)
            assert "STOPPING=1" in told
            _, log = daemon.communicate(timeout=20)
        finally:
            daemon.kill()
    assert daemon.returncode == 0
    assert "nonsense is not a known key" in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert "ready" in [line["event"] for line in lines]
    assert ("preemptive", "fixed") in [(line.get("old"), line.get("new")) for line in lines]
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_without_root_it_is_one_line(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, FAKE_CGPUD, "--socket", str(tmp_path / "s"), "--state-dir", str(state)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        user=65534,
        group=65534,
        extra_groups=[],
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"cgpud: {state}: Permission denied (be root on the host)"
