# SPDX-License-Identifier: MIT
"""The machine has the properties that the other tests assume."""

import os
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]


def loaded() -> set[str]:
    return {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}


@pytest.mark.checked
def test_it_runs_the_kernel_it_was_asked_for():
    assert os.uname().release == os.environ["KERNEL_RELEASE"]


@pytest.mark.needs("ftrace")
def test_kprobes_are_on():
    assert Path("/sys/kernel/debug/kprobes/enabled").read_text().strip() == "1"


def test_the_modules_are_loaded():
    assert {"nvsim", "cgpu_km"} <= loaded()
    assert any(name.startswith("cgpu_core_") for name in loaded())


@pytest.mark.checked
@pytest.mark.debug_only
def test_the_debug_kernel_looks():
    assert Path("/sys/kernel/debug/kmemleak").exists()
    assert Path("/proc/lockdep").exists()


@pytest.mark.needs("uml")
def test_lockdep_looks_in_user_mode_linux():
    """In boots of container engines it does not (Machine.checks), so here it has to."""
    words = Path("/proc/lockdep_stats").read_text().split()
    assert words[words.index("debug_locks:") + 1] == "1"


@pytest.mark.stock_only
def test_a_warning_is_a_panic():
    assert Path("/proc/sys/kernel/panic_on_warn").read_text().strip() == "1"


def test_only_the_repository_is_kept():
    """Files that a test writes elsewhere are gone with the machine."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    writable = [m[1] for m in mounts if m[2] in ("9p", "hostfs") and "rw" in m[3].split(",")]
    assert set(writable) <= {str(REPO), "/lib/modules", "/usr/lib/modules"}


@pytest.mark.bare
@pytest.mark.debug_ok
def test_a_bare_machine_has_the_driver_alone():
    assert "nvsim" in loaded()
    assert "cgpu_km" not in loaded()


@pytest.mark.icount
@pytest.mark.needs("instructions")
def test_time_is_counted_instructions():
    """A loop takes the same time whenever it runs: within 5 % here, 2-fold on a busy host otherwise."""

    def spin() -> float:
        started = time.monotonic()
        for _ in range(100_000):
            pass
        return time.monotonic() - started

    spin()
    times = sorted(spin() for _ in range(5))
    assert times[3] < times[0] * 1.05, times


@pytest.mark.docker
def test_docker_answers():
    subprocess.run(["docker", "version"], check=True, timeout=60)
