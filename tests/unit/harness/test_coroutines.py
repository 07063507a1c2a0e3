# SPDX-License-Identifier: MIT
"""tests/conftest.py: a coroutine is run to its end, and fails as another test does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]

SOURCE = """
import asyncio
import contextlib
import pytest

@pytest.fixture
def one():
    return 1

ends = []

@pytest.fixture
def server(one):
    @contextlib.asynccontextmanager
    async def running():
        loop = asyncio.get_running_loop()
        yield loop, one
        ends.append(loop)
    return running()

async def test_a_context_manager_is_entered_in_the_loop_of_the_test(server):
    assert server == (asyncio.get_running_loop(), 1) and not ends

def test_and_left_after_it():
    assert len(ends) == 1

@pytest.mark.parametrize("two", [2, 3])
async def test_values(one, two):
    await asyncio.sleep(0)
    assert one + two == 3

class TestMethod:
    async def test_method(self, one):
        assert one == 1

@pytest.mark.within(0.1)
async def test_hangs():
    await asyncio.Event().wait()

@pytest.mark.xfail(strict=True)
async def test_expected():
    assert False
"""


def test_outcomes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-rA", "--tb=line"]
    done = subprocess.run(
        [*command, "-c", TESTS.parent / "pyproject.toml", "--rootdir", tmp_path, tmp_path / "test_it.py"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    outcomes = {
        line.split()[1].partition("::")[2]: line.split()[0] for line in done.stdout.splitlines() if "::" in line
    }
    assert outcomes == {
        "test_a_context_manager_is_entered_in_the_loop_of_the_test": "PASSED",
        "test_and_left_after_it": "PASSED",
        "test_values[2]": "PASSED",
        "test_values[3]": "FAILED",
        "TestMethod::test_method": "PASSED",
        "test_hangs": "FAILED",
        "test_expected": "XFAIL",
    }, done.stdout + done.stderr
    assert "TimeoutError" in done.stdout
