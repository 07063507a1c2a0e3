# SPDX-License-Identifier: MIT
"""The node of these tests, in namespaces of its own: `make test-cluster`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("cluster.scenarios", "cluster.stand")

from cluster.one_node import REPO  # noqa: E402
from cluster.stand import Stand  # noqa: E402

TMPFS_MAGIC = "0x01021994"  # linux/magic.h


@pytest.fixture(scope="session")
def runtime() -> None:
    """cgpu-runtime that takes a tmpfs for the module's file system."""
    flags = f"-DCGPU_NODES_MAGIC={TMPFS_MAGIC}"
    out = REPO / "build/kube/runtime"
    out.mkdir(parents=True, exist_ok=True)
    source = REPO / "cgpud/runtime"
    subprocess.run(["make", "-s", "-C", source, f"OUT={out}", f"CPPFLAGS={flags}"], check=True)


@pytest.fixture(scope="session")
def stand(runtime: None) -> Iterator[Stand]:
    if os.environ.get("CGPU_NAMESPACE") != "1":
        pytest.fail("these tests run in namespaces of their own: make test-cluster")
    logs = REPO / "build/cluster"
    shutil.rmtree(logs, ignore_errors=True)
    with Stand(logs, fake=True, files={"bin/busybox": Path("/bin/busybox")}, seconds=60) as found:
        yield found
