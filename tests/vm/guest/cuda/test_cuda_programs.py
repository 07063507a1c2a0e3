# SPDX-License-Identifier: MIT
"""Programs compiled by NVIDIA's nvcc, with its runtime in them, in a Docker container by the documented line.

Each checks the results of its calls and the copied data (tests/cuda/*.cu); exit status 0 means success.
"""

from __future__ import annotations

from collections.abc import Iterator

import cuda_box as c
import docker_box as d
import pytest

pytestmark = pytest.mark.cuda_nvcc

PROGRAMS = sorted(path.stem for path in (d.REPO / "tests/cuda").glob("*.cu"))
ARGUMENTS = {"managedVariable": ("denied",)}


@pytest.fixture(scope="module")
def one() -> Iterator[d.Box]:
    c.make_image()
    with c.box(*d.variables(2, devices=0)) as started:
        yield started


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_driver_alone(name: str) -> None:
    """Checks the simulated driver with the program; managed memory is available there."""
    done = d.call(name, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_container(one: d.Box, name: str) -> None:
    c.program(one, name, *ARGUMENTS.get(name, ()), timeout=300)
