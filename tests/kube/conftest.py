# SPDX-License-Identifier: MIT
from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import Object, kustomized, named
from fakes import Warned
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

# A slow machine must not fail a test.
settings.register_profile("kube", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kube")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: a socket's name has at most 107 bytes, and pytest's own grows with each run."""
    with tempfile.TemporaryDirectory(prefix="cgpu-") as directory:
        yield Path(directory)


@pytest.fixture
def warned() -> Iterator[Warned]:
    """Is there a line of this warning in the log, with these words in its reason?"""
    with capture_logs() as lines:
        yield lambda event, words: any(one["event"] == event and words in one.get("reason", "") for one in lines)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl of this machine, else Debian's, unpacked below build/ and not installed."""
    found = shutil.which("kubectl")
    if found:
        return Path(found)
    folder = Path(__file__).parents[2] / "build/kubectl"
    program = folder / "usr/bin/kubectl"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-qq", "download", "kubernetes-client"], cwd=folder, check=True)
        package = next(folder.glob("kubernetes-client_*.deb"))
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    return program


@pytest.fixture(scope="session")
def helm() -> Path:
    """A folder with Helm 4 as a library, 75 MB: outside the environment, which every developer has."""
    folder = Path(__file__).parents[2] / "build/helm"
    if not (folder / "helm_python").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            folder,
            "helm-python-sdk==0.2.2",
        ]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def objects(kubectl: Path) -> dict[tuple[str, str], Object]:
    return named(kustomized(kubectl))
