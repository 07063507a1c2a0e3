# SPDX-License-Identifier: MIT
"""The socket by which cgpud limits cgroups, with a stand-in for the process that calls NVML."""

from __future__ import annotations

import asyncio
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgpu_common import mps as names
from cgpu_common import server
from cgpud.mps_control import Control, ControlFailed
from cgpud.mps_limits import Limits

UUID = "GPU-00000000-0000-0000-0000-000000000000"


class Stand:
    def __init__(self, here: Path) -> None:
        self.here = here
        self.control = Control(here / "run")
        self.group = here / "cgroup/docker/abc"
        self.group.mkdir(parents=True)
        self.control.directory(UUID).mkdir(parents=True)
        self.limits: Limits | None = None

    def serve(self, script: str) -> None:
        path = self.control.directory(UUID) / names.LIMITS
        self.limits = Limits(UUID, path, ("sh", "-c", script, "sh"), self.here / "cgroup")

    def limit(self, directory: Path | str, mib: int = 2048) -> None:
        asyncio.run(self.control.limit_cgroup(UUID, str(directory), mib))


@pytest.fixture
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="cgpu-") as directory:  # a socket's name is short
        stand = Stand(Path(directory))
        yield stand
        if stand.limits is not None:
            stand.limits.close()


def test_a_limit_is_set_by_the_units_program(stand: Stand) -> None:
    stand.serve(f'echo "$@" >> {stand.here}/calls')
    stand.limit(stand.group)
    stand.limit(stand.group, 1)
    calls = (stand.here / "calls").read_text().splitlines()
    assert calls == [f"{UUID} {stand.group} {2048 << 20}", f"{UUID} {stand.group} {1 << 20}"]
    path = stand.control.directory(UUID) / names.LIMITS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stand.limits is not None
    stand.limits.close()
    assert not path.exists()


def test_what_nvml_says_is_the_reason(stand: Stand) -> None:
    stand.serve("echo one >&2; echo Insufficient Permissions >&2; exit 1")
    with pytest.raises(ControlFailed, match=r"\AInsufficient Permissions\Z"):
        stand.limit(stand.group)


ELSEWHERE = ["{here}/cgroup", "{here}", "{here}/cgroup/../run", "{here}/cgroup/none", "", "docker"]


@pytest.mark.parametrize("where", ELSEWHERE)
def test_only_a_cgroup_is_limited(stand: Stand, where: str) -> None:
    stand.serve(f"touch {stand.here}/called")
    with pytest.raises(ControlFailed, match="is no cgroup"):
        stand.limit(where.format(here=stand.here))
    assert not (stand.here / "called").exists()


def test_no_container_sets_its_own(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root there has the socket by a bind of /run; the mode is no obstacle."""
    stand.serve(f"touch {stand.here}/called")
    monkeypatch.setattr(server, "is_outside_of_containers", lambda pid: False)
    with pytest.raises(ControlFailed, match=r"does not answer|gave no answer"):
        stand.limit(stand.group)
    assert not (stand.here / "called").exists()


def test_without_the_unit_nothing_starts(stand: Stand) -> None:
    with pytest.raises(ControlFailed, match="does not answer"):
        stand.limit(stand.group)
