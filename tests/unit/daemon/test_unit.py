# SPDX-License-Identifier: MIT
"""The unit as systemd reads it, without a running systemd. tests/vm runs it under one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UNIT = "cgpud.service"
MOUNT = "dev-cgpu.mount"
KUBE = "cgpu-kube.service"
KEEP = "cgpu-kube-keep.service"
MPS = "cgpu-mps@.service"
EXPOSURE_MAX = 33  # tenths; docs/user/daemon.md has the same figure
KUBELETS = {
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.microk8s.daemon-kubelite.service",
}
PROGRAMS = (
    "usr/bin/cgpud", "usr/bin/cgpu-kube", "bin/kill", "bin/sh", "sbin/modprobe",
)  # fmt: skip
UNITS = Path("usr/lib/systemd/system")
NEEDED = (
    "sysinit.target",
    "basic.target",
    "shutdown.target",
    "multi-user.target",
    "network-online.target",
    "modprobe@.service",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of a machine that the unit names."""
    (tmp_path / UNITS).mkdir(parents=True)
    for name in NEEDED:
        shutil.copy("/" / UNITS / name, tmp_path / UNITS / name)
    for name in (UNIT, MOUNT, KUBE, KEEP, MPS):
        shutil.copy(ROOT / "systemd" / name, tmp_path / UNITS / name)
    for program in PROGRAMS:
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return tmp_path


def analyze(root: Path, *words: str, unit: str = UNIT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", f"--root={root}", "--no-pager", *words, unit], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("unit", [UNIT, MOUNT, KUBE, KEEP, MPS.replace("@", "@GPU-1")])
def test_verify_has_nothing_to_say(root: Path, unit: str) -> None:
    done = analyze(root, "verify", "--man=no", unit=unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_would_say_it(root: Path) -> None:
    unit = root / UNITS / UNIT
    unit.write_text(unit.read_text().replace("WatchdogSec=30", "WatchdogSec=often"))
    assert "often" in analyze(root, "verify", "--man=no").stderr


def before(unit: str) -> set[str]:
    lines = (ROOT / "systemd" / unit).read_text().splitlines()
    return {name for line in lines if line.startswith("Before=") for name in line.removeprefix("Before=").split()}


@pytest.mark.parametrize("unit", [UNIT, KUBE, KEEP, MPS])
def test_it_is_there_before_every_kubelet(unit: str) -> None:
    """Also those of distributions of Kubernetes, which have a unit and an engine of their own."""
    assert before(unit) >= KUBELETS
    microk8s = "snap.microk8s.daemon-containerd.service"
    assert unit != UNIT or microk8s in before(unit)


def test_exposure(root: Path) -> None:
    """The figure of `systemd-analyze security` is EXPOSURE_MAX, neither more nor less, and the page has it."""
    bars = {bar: analyze(root, "security", "--offline=true", f"--threshold={bar}") for bar in range(31, 35)}
    assert bars[EXPOSURE_MAX].returncode == 0, bars[EXPOSURE_MAX].stdout
    assert bars[EXPOSURE_MAX - 1].returncode != 0
    assert f"{EXPOSURE_MAX / 10} OK" in bars[EXPOSURE_MAX].stdout
    assert f"| {EXPOSURE_MAX / 10} |" in (ROOT / "docs/user/daemon.md").read_text()
