# SPDX-License-Identifier: MIT
"""The program of cgpu-mps@UUID, with stand-ins for NVIDIA's control daemon and NVML: what it sets, and takes back."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cgpu_common import mps as names
from cgpu_common.errors import CgpuError, Refused
from cgpu_common.gpus import NvmlAbsent
from cgpu_common.mps_nvml import Card, Failed
from cgpud import mps_unit
from cgpud.mps_unit import Unit

UUID = "GPU-00000000-0000-0000-0000-000000000000"
CARD = Card(mig=False, exclusive=False, processes=(), driver="550.163.01", clients=48, by_cgroup=False)
REPO = Path(__file__).resolve().parents[3]
#: Answers commands while the daemon's pid file is there; "dead" makes it silent, "broken" keeps it from starting.
CONTROL = """#!/bin/sh
dir=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    [ ! -e {here}/broken ] || exit 7
    env > {here}/env
    echo $$ > $dir/pid
    while [ -e $dir/pid ]; do sleep 0.05; done
    exit 0
fi
read command
echo "$command" >> {here}/commands
case $command in
quit*) rm -f $dir/pid ;;
get_default*) [ -e {here}/dead ] || [ ! -e $dir/pid ] || echo 100.0 ;;
esac
"""


@dataclass
class FakeNvml:
    """One GPU."""

    card: Card = CARD
    fails: str = ""  # of look()
    refuses: str = ""  # of set_exclusive()
    modes: list[bool] = field(default_factory=list)

    def look(self, uuid: str) -> Card:
        if self.fails:
            raise Failed(self.fails)
        return self.card

    def set_exclusive(self, uuid: str, on: bool) -> None:
        if self.refuses:
            raise Failed(self.refuses)
        self.modes.append(on)
        self.card = replace(self.card, exclusive=on)


class Stand:
    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = here
        self.nvml = FakeNvml()
        self.slices = 0
        bin_folder = here / "bin"
        bin_folder.mkdir()
        self.program("nvidia-cuda-mps-control", CONTROL.replace("{here}", str(here)))
        # No namespace and no mount without root: the words that follow are run as they are.
        self.program("unshare", 'shift 3\nexec "$@"\n')
        self.program("mount", "exit 0\n")
        self.program("umount", f"echo $* >> {here}/umounts\n")
        monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M")
        monkeypatch.setattr(mps_unit, "HEALTH_S", 0.3)
        monkeypatch.setattr(mps_unit, "START_S", 3.0)
        monkeypatch.setattr(mps_unit, "QUIT_S", 3.0)
        monkeypatch.setattr(signal, "signal", lambda number, action: None)
        self.unit = Unit(UUID, here / "run", here / "log", self.nvml, lambda uuid: self.slices)
        self.directory = here / "run" / UUID
        self.result: Any = None

    def program(self, name: str, text: str) -> None:
        path = self.here / "bin" / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self) -> threading.Thread:
        def run() -> None:
            try:
                self.result = self.unit.run()
            except CgpuError as error:
                self.result = error

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: (self.directory / names.READY).exists() or not thread.is_alive(), "ready")
        return thread

    def stop(self, thread: threading.Thread) -> Any:
        self.unit.on_signal(signal.SIGTERM, None)
        thread.join(15)
        assert not thread.is_alive()
        return self.result

    def commands(self) -> list[str]:
        path = self.here / "commands"
        return path.read_text().splitlines() if path.exists() else []


def until(check: Any, what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(tmp_path, monkeypatch)


def test_one_life(stand: Stand) -> None:
    thread = stand.start()
    ready = json.loads((stand.directory / names.READY).read_text())
    assert ready.pop("life")
    assert ready == {
        "clients": 48,
        "driver": "550.163.01",
        "by_cgroup": False,
    }
    assert stand.nvml.modes == [True]
    env = dict(line.split("=", 1) for line in (stand.here / "env").read_text().splitlines() if "=" in line)
    assert env["CUDA_VISIBLE_DEVICES"] == UUID
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(stand.directory / "pipe")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env, "of the unit's own environment"
    assert stand.stop(thread) == 0
    assert stand.nvml.modes == [True, False] and not (stand.directory / names.READY).exists()
    assert [word for word in stand.commands() if word.startswith("quit")] == ["quit -t 2"]
    assert not (stand.directory / "exclusive").exists()


def card(**change: Any) -> Any:
    def apply(stand: Stand) -> None:
        stand.nvml.card = replace(CARD, **change)

    return apply


def no_program(stand: Stand) -> None:
    (stand.here / "bin/nvidia-cuda-mps-control").unlink()


def no_gpu(stand: Stand) -> None:
    stand.nvml.fails = f"NVML knows no GPU {UUID}: Not Found"


def not_settable(stand: Stand) -> None:
    stand.nvml.refuses = "Not Supported"


def sliced(stand: Stand) -> None:
    stand.slices = 2


REFUSALS = [
    ("without the program", no_program, "nvidia-cuda-mps-control is not installed, so GPU .* has no MPS: install it"),
    ("in use", card(processes=(7, 8)), "is in use by process 7 and 1 more, which MPS would lock out: end it"),
    ("sliced", sliced, r"has 2 slice\(s\) of cgpu: drain the node, then start the unit again"),
    ("MIG", card(mig=True), "is in MIG mode"),
    ("another's mode", card(exclusive=True), "EXCLUSIVE_PROCESS already, which another program has set: nvidia-smi"),
    ("no such GPU", no_gpu, "NVML knows no GPU .*; nvidia-smi -L lists"),
    ("not settable", not_settable, "cannot be set to EXCLUSIVE_PROCESS: Not Supported; nvidia-smi"),
]


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_begin_changes_nothing(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, change: Any, sentence: str
) -> None:
    change(stand)
    if change is no_program:
        monkeypatch.setenv("PATH", str(stand.here / "bin"))
    with pytest.raises(Refused, match=sentence):
        stand.unit.run()
    assert stand.nvml.modes == [] and stand.commands() == []
    assert not (stand.directory / names.READY).exists() and not (stand.directory / "exclusive").exists()


def test_without_nvml_it_is_tried_again(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(uuid: str) -> Card:
        raise NvmlAbsent("Driver Not Loaded")

    monkeypatch.setattr(stand.nvml, "look", absent)
    with pytest.raises(CgpuError, match="NVML is not there") as caught:
        stand.unit.run()
    assert not isinstance(caught.value, Refused), "systemd starts the unit again"


def test_a_daemon_that_does_not_start_leaves_the_gpu_as_it_was(stand: Stand) -> None:
    (stand.here / "broken").touch()
    with pytest.raises(CgpuError, match=r"does not start: nvidia-cuda-mps-control ended with status 7; .*control\.log"):
        stand.unit.run()
    assert stand.nvml.modes == [True, False]


def test_a_daemon_that_dies_or_falls_silent_ends_the_unit_and_leaves_the_gpu_closed(stand: Stand) -> None:
    for fault in ("dies", "falls silent"):
        stand.nvml.modes.clear()
        thread = stand.start()
        if fault == "dies":
            os.kill(int((stand.directory / "pipe/pid").read_text()), signal.SIGKILL)
        else:
            (stand.here / "dead").touch()
        thread.join(15)
        assert stand.result == 1 and stand.nvml.modes == [True], fault
        assert not (stand.directory / names.READY).exists(), "no container starts"
        # Its clients are there: the next life takes them over.
        stand.nvml.card = replace(stand.nvml.card, processes=(7,))
        (stand.here / "dead").unlink(missing_ok=True)
    thread = stand.start()
    assert (stand.directory / names.READY).exists()
    assert stand.stop(thread) == 0 and stand.nvml.modes[-1] is False


def test_a_second_life_that_does_not_start_leaves_the_gpu_closed(stand: Stand) -> None:
    """The clients of the first one have the GPU's own nodes."""
    thread = stand.start()
    os.kill(int((stand.directory / "pipe/pid").read_text()), signal.SIGKILL)
    thread.join(15)
    stand.nvml.card = replace(stand.nvml.card, processes=(7,))
    (stand.here / "broken").touch()
    for _ in range(2):
        with pytest.raises(CgpuError, match="does not start") as caught:
            stand.unit.run()
        assert not isinstance(caught.value, Refused), "systemd starts the unit again"
        assert stand.nvml.card.exclusive
    (stand.here / "broken").unlink()
    assert stand.stop(stand.start()) == 0 and not stand.nvml.card.exclusive


def test_an_end_in_the_call_that_sets_the_mode_is_remembered(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def ends(uuid: str, on: bool) -> None:
        stand.nvml.card = replace(stand.nvml.card, exclusive=on)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(stand.nvml, "set_exclusive", ends)
        with pytest.raises(Killed):
            stand.unit.run()
    assert stand.stop(stand.start()) == 0, "the mode is its own"


def test_a_mode_that_was_changed_is_set_again(stand: Stand) -> None:
    thread = stand.start()
    stand.nvml.card = replace(stand.nvml.card, exclusive=False)
    until(lambda: stand.nvml.modes == [True, True], "set again")
    assert stand.stop(thread) == 0


def test_logs_are_bounded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_unit, "LOG_MAX", 100)
    thread = stand.start()
    log = stand.here / "log" / f"mps-{UUID}" / "server.log"
    log.write_text("x" * 200)
    until(lambda: log.stat().st_size == 0, "emptied")
    assert stand.stop(thread) == 0


def test_the_program_ends_with_a_status_that_systemd_does_not_repeat(tmp_path: Path) -> None:
    """Nothing of NVIDIA's is here."""
    done = subprocess.run(
        [sys.executable, "-m", "cgpud", "--mps", UUID], cwd=REPO, capture_output=True, text=True,
        env={"PATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "nvidia-cuda-mps-control is not installed" in done.stderr
    unit = (REPO / "systemd/cgpu-mps@.service").read_text()
    assert "RestartPreventExitStatus=2\n" in unit and "cgpud --mps %i\n" in unit
