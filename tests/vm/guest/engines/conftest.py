# SPDX-License-Identifier: MIT
"""Each test's report names the engines that it has used (build/engines.json)."""

from __future__ import annotations

from collections.abc import Iterator

import docker_box as d
import engine_box as e
import engines_used
import pytest
from cri import Cri


@pytest.fixture(autouse=True)
def report_engines(request: pytest.FixtureRequest) -> Iterator[None]:
    """As record_property() does, which warns about each test with the reports' default schema."""
    yield
    request.node.user_properties += [("engine", " ".join(found)) for found in engines_used.taken()]


@pytest.fixture(scope="session")
def containerd() -> Iterator[e.Containerd]:
    """One for the boot: it takes seconds to start. A test that ends it starts it again."""
    with e.Containerd() as running:
        yield running


@pytest.fixture(scope="session")
def cri(containerd: e.Containerd) -> Cri:
    """Its plugin for the kubelet, with the image of pods."""
    archive = e.ROOT / "box.tar"
    archive.write_bytes(e.image_archive())
    d.must("ctr", "--address", str(e.ADDRESS), "--namespace=k8s.io", "image", "import", str(archive))
    return Cri(str(e.ADDRESS))
