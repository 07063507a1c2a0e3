# SPDX-License-Identifier: MIT
"""The commands of docs/user/tutorial.md and howto.md that are marked as tested, as a user types them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker_box as d
import engines_used
import pytest
from install import blocks

REPO = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.docker

SETTINGS = ("policy", "max_inst")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The pages change settings of GPU 0."""
    before = {name: (d.PROC / "0" / name).read_text() for name in SETTINGS}
    yield
    for name in d.call("docker", "ps", "-aq").stdout.split():
        d.call("docker", "rm", "-f", name)
    d.until(lambda: not list(d.STATE.glob("*.json")), "no slice is left")
    # A policy that allows fewer slices follows max_inst, not the reverse.
    for name in reversed(SETTINGS):
        (d.PROC / "0" / name).write_text(before[name])


def commands(page: str, name: str) -> list[str]:
    """Lines of the blocks with that mark; a line that ends with a backslash continues."""
    lines = blocks.marked((REPO / "docs/user" / page).read_text())[name]
    return "\n".join(lines).replace("\\\n", " ").split("\n")


def run(command: str) -> str:
    """As an administrator's shell runs it; with the image and the program of the tests."""
    engines_used.note("docker")
    chosen = {"IMAGE": d.IMAGE, "LOAD": "simload --kernel-us 1000 --alloc-mib 64 --depth 8 --seconds 0"}
    done = d.subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, timeout=300, check=False, env=os.environ | chosen
    )
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.mark.more
def test_the_tutorial() -> None:
    if shutil.which("docker") is None:
        pytest.fail("no docker")
    d.ensure_runtime()
    d.make_image()
    lines = commands("tutorial.md", "tutorial")
    assert len(lines) > 12
    output = {line.split(" -")[0]: run(line) for line in lines[:2]}
    assert len(output) == 1 and {"train", "serve"} <= set(run("cgpu ps --no-trunc").split())
    seen = [(line, run(line)) for line in lines[2:]]
    by_line = dict(seen)
    assert "6043" in by_line["cgpu inspect train"]
    shown = by_line["cgpu-smi --interval 2"]
    assert "33.3" in shown and "66.7" in shown, shown
    assert (d.PROC / "0/policy").read_text().strip() == "5"
    assert "train" not in run("cgpu ps")


@pytest.mark.more
def test_the_how_to() -> None:
    for line in commands("howto.md", "howto"):
        run(line)
