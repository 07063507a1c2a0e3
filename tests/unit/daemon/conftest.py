# SPDX-License-Identifier: MIT
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import SHIM_TIMEOUT_S, Node
from hypothesis import HealthCheck, settings

SHIM_SOURCE = Path(__file__).resolve().parents[3] / "cgpud/runtime"

# A slow machine must not fail a test.
settings.register_profile("daemon", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("daemon")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.cleanup()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cgpu-runtime, the sanitized build; its directory holds the socket and the configuration."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("shim")
    flags = f'-DCGPU_SOCKET_PATH=\\"{directory}/s\\" -DCGPU_CONF_PATH=\\"{directory}/runtime.conf\\"'
    flags += f' -DCGPU_STATE_PATH=\\"{directory}/state\\"'
    flags += f' -DCGPU_CLOSED_PATH=\\"{directory}/numbers\\"'
    # A directory below nodes is one of a container's.
    magic = subprocess.run(["stat", "-f", "-c", "0x%t", directory], capture_output=True, text=True, check=True).stdout
    flags += f' -DCGPU_NODES_PATH=\\"{directory}/nodes\\" -DCGPU_NODES_MAGIC={magic.strip()}'
    flags += f" -DCGPU_TIMEOUT_S={SHIM_TIMEOUT_S}"
    subprocess.run(
        [
            "make", "-s", "-C", str(SHIM_SOURCE), f"OUT={directory}", "CC=cc", f"CPPFLAGS={flags}", "STATIC=",
            "CFLAGS=-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all",
        ],
        check=True,
    )  # fmt: skip
    return directory
