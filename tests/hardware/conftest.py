# SPDX-License-Identifier: MIT
"""What runs on a GPU, tested on a machine without one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import preloaded
import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def built() -> Path:
    """The programs, nodes that are none, and in cuda/ a libcuda that is none."""
    out = HERE.parents[1] / "build/gpu"
    subprocess.run(["make", "-s", "-C", HERE, f"OUT={out}"], check=True)
    compile_it = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compile_it, HERE / "rmtap/fake_nodes.c", "-o", out / "fake.so"], check=True)
    (out / "cuda").mkdir(exist_ok=True)
    subprocess.run([*compile_it, HERE / "load/fake_cuda.c", "-o", out / "cuda/libcuda.so.1"], check=True)
    return out


@pytest.fixture
def start(built, tmp_path):
    running = []

    def one(program: str = preloaded.CONTEXT, **env: str) -> preloaded.Process:
        running.append(preloaded.Process(built, tmp_path, program, **env))
        return running[-1]

    yield one
    for process in running:
        if process.process.poll() is None:
            process.end()
