# SPDX-License-Identifier: MIT
"""Commands to a control daemon, with a stand-in for NVIDIA's program that answers as 550.163.01 was seen to."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from cgpud import mps_control
from cgpud.mps_control import Control, ControlFailed

UUID = "GPU-00000000-0000-0000-0000-000000000000"
#: Client 7 of server 42 exists; a limit above 9000M is refused as an unknown device is.
ANSWERS = """#!/bin/sh
read command
echo "$CUDA_MPS_PIPE_DIRECTORY $command" >> "$0.log"
case $command in
get_default_active_thread_percentage) echo 100.0 ;;
get_server_list) [ -e "$0.idle" ] || echo 42 ;;
"terminate_client 42 7") echo 0 ;;
terminate_client*) echo "Invalid process 8!"; echo 1 ;;
*9999M) echo "Invalid device ordinal!" ;;
esac
"""


class Stand:
    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = here
        self.program = here / "nvidia-cuda-mps-control"
        self.write(ANSWERS)
        monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
        self.control = Control(here / "run")

    def write(self, text: str) -> None:
        self.program.write_text(text)
        self.program.chmod(stat.S_IRWXU)

    def commands(self) -> list[str]:
        log = Path(f"{self.program}.log")
        pipe = f"{self.control.directory(UUID)}/pipe "
        return [line.removeprefix(pipe) for line in log.read_text().splitlines()]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(tmp_path, monkeypatch)


def failure(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(ControlFailed) as caught:
        asyncio.run(work)
    return str(caught.value)


def test_health(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(stand.control.check(UUID))
    stand.write("#!/bin/sh\necho Cannot find MPS control daemon process; exit 1\n")
    assert failure(stand.control.check(UUID)) == "Cannot find MPS control daemon process"
    stand.write("#!/bin/sh\necho nonsense\n")
    assert failure(stand.control.check(UUID)) == "'nonsense' is no percentage"
    stand.write("#!/bin/sh\n")
    assert failure(stand.control.check(UUID)) == "'' is no percentage"
    stand.write("#!/bin/sh\nexec sleep 100\n")
    monkeypatch.setattr(mps_control, "ANSWER_S", 0.2)
    assert failure(stand.control.ask(UUID, "quit", 0.2)) == "no answer within 0.2 s"
    stand.program.unlink()
    monkeypatch.setenv("PATH", str(stand.here))
    assert failure(stand.control.check(UUID)).startswith("nvidia-cuda-mps-control cannot be run: No such file")


def test_a_limit_is_of_the_daemon_and_of_its_servers(stand: Stand) -> None:
    asyncio.run(stand.control.set_limit(UUID, 3968))
    assert stand.commands() == [
        "set_default_device_pinned_mem_limit 0 3968M",
        "get_server_list",
        "set_device_pinned_mem_limit 42 0 3968M",
    ]
    assert failure(stand.control.set_limit(UUID, 9999)) == "a limit of 9999 MiB: Invalid device ordinal!"


def test_a_client_is_ended_or_there_is_a_reason(stand: Stand) -> None:
    asyncio.run(stand.control.end(UUID, 7))
    assert stand.commands()[-1] == "terminate_client 42 7"
    assert failure(stand.control.end(UUID, 8)) == "Invalid process 8!"
    Path(f"{stand.program}.idle").touch()
    assert failure(stand.control.end(UUID, 7)) == "no server runs"


def test_a_control_daemon_that_is_busy_delays_the_end_of_a_client_by_a_bound(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for one client it answers nothing about the others."""
    stand.write("#!/bin/sh\nexec sleep 100\n")
    monkeypatch.setattr(mps_control, "END_S", 0.2)
    assert failure(stand.control.end(UUID, 7)) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("print('{')", "the answer of NVML is damaged"),
        ("print('[]')", "the answer of NVML is damaged"),
        ("raise SystemExit(3)", "the query of NVML ended with status 3"),
        ("import time; time.sleep(100)", "NVML has not answered for 0.3 s"),
    ],
)
def test_samples_that_do_not_come(stand: Stand, monkeypatch: pytest.MonkeyPatch, program: str, sentence: str) -> None:
    monkeypatch.setattr(mps_control, "_PROGRAM", program.replace("{", "{{"))
    monkeypatch.setattr(mps_control, "FIRST_S", 10.0 if "sleep" not in program else 0.3)

    async def follow() -> None:
        async for _ in stand.control.samples([UUID]):
            pass

    assert sentence in failure(follow())


def test_samples(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"uuid": "GPU-0", "exclusive": true, "processes": [[7, 100, false], [8, null, true]]}'
    monkeypatch.setattr(mps_control, "_PROGRAM", f"print({line!r})".replace("{", "{{").replace("}", "}}"))

    async def first() -> mps_control.Sample:
        samples = stand.control.samples([UUID])
        try:
            return await anext(samples)
        finally:
            await samples.aclose()  # type: ignore[attr-defined]

    found = asyncio.run(first())
    assert [(one.pid, one.mib, one.is_server) for one in found.processes] == [(7, 100, False), (8, None, True)]
    assert (found.uuid, found.exclusive, found.error) == ("GPU-0", True, "")
