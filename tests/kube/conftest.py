# SPDX-License-Identifier: MIT
from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from cluster import Cluster, gpu, our_node
from deployed import Object, kustomized, named
from fake_api import FakeApi
from fakes import Warned
from hypothesis import HealthCheck, settings
from node_world import World
from structlog.testing import capture_logs

from cgpu_kube import api

# A slow machine must not fail a test.
settings.register_profile("kube", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kube")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: a socket's name has at most 107 bytes, and pytest's own grows with each run."""
    with tempfile.TemporaryDirectory(prefix="cgpu-") as directory:
        yield Path(directory)


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    """A node that offers its GPUs in the mode cgpu, while the test runs."""
    return World(tmp_path).offering()


@pytest.fixture
def server() -> FakeApi:
    """An API server, while the test runs; as an argument before `client`."""
    return FakeApi()


@pytest.fixture
def client(server: FakeApi) -> AbstractAsyncContextManager[api.Client]:
    @asynccontextmanager
    async def connected() -> AsyncIterator[api.Client]:
        async with api.Client(api.Config(server.url)) as found:
            yield found

    return connected()


@pytest.fixture
def cluster() -> Cluster:
    """An API server with one node of ours, and the extender, while the test runs."""
    return Cluster(our_node("n1", gpu(0, 15), gpu(1, 79)))


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
