# SPDX-License-Identifier: MIT
"""cgpu upgrade --cold: cgpu_km itself goes and comes, without containers only (docs/user/upgrade.md)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from corebox import OLD, PRODUCT, loaded, running
from slicebox import MIB, PROC, Box, until

NAME = "c01d" * 16
MARK = Path("/run/cgpu/drain")


def cgpu(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["cgpu", *words, "--json"], capture_output=True, text=True, check=False, timeout=120)


def cold(*words: str) -> subprocess.CompletedProcess[str]:
    return cgpu("upgrade", "--cold", "--from", os.environ["CGPU_MODULES"], *words)


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    MARK.unlink(missing_ok=True)
    assert loaded(PRODUCT) and running() == OLD


def test_a_module_that_is_used_stays() -> None:
    with Box(NAME, 64) as box, box.client() as client:
        done = cold()
        assert done.returncode == 1
        assert f"1 container uses it: {NAME[:12]} (GPU 0)" in json.loads(done.stderr)["error"]["why"]
        assert not MARK.exists()
        assert client.gpu().alloc_vidmem(MIB)[0] == 0


def test_out_and_in_again() -> None:
    (PROC / "0/max_inst").write_text("7\n")
    done = cold()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unloaded"] == [PRODUCT, "cgpu_km"]
    until((PROC / "0/max_inst").exists)
    assert (PROC / "0/max_inst").read_text() == "20\n", "another module, and its defaults"
    with Box(NAME, 64) as box, box.client() as client:
        assert client.gpu().alloc_vidmem(MIB)[0] == 0
        assert box.used >= MIB


def test_drained_first() -> None:
    """The container's file is closed while the command waits for it."""
    box = Box(NAME, 64)
    client = box.client()
    outcome: list[subprocess.CompletedProcess[str]] = []

    def run() -> None:
        outcome.append(cold("--drain", "--timeout", "60"))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(MARK.exists)
        refused = cgpu("create", "5" * 12, "--gpu", "0", "--memsize", "64MiB")
        assert refused.returncode == 1 and "is being drained" in refused.stderr
        assert not outcome
    finally:
        client.close()
        box.destroy()
        thread.join()
    (done,) = outcome
    assert done.returncode == 0, done.stderr
    assert f"waiting for 1: {NAME[:12]} (GPU 0)" in done.stderr
    assert not MARK.exists()
