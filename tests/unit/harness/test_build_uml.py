# SPDX-License-Identifier: MIT
"""When scripts/build-uml builds the kernel again: not for a changed comment, minutes of processor time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
ADDED = "tests/uml/kernel"
CODE, CONFIG, SCRIPT = f"{ADDED}/cgpu_redirect.c", f"{ADDED}/config", "scripts/build-uml"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(REPO / ADDED, tmp_path / ADDED)
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPO / SCRIPT, tmp_path / SCRIPT)
    return tmp_path


def inputs(tree: Path) -> str:
    """What the function of that name prints, in a tree."""
    code = f"ADDED={ADDED} fragments=(); eval \"$(sed -n '/^inputs()/,/^}}/p' {SCRIPT})\"; inputs"
    return subprocess.run(["bash", "-euc", code], cwd=tree, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (CODE, "/* a remark */"),
        (CODE, "// a remark\n"),
        (CONFIG, "# A remark."),
        (SCRIPT, "    # a remark"),
    ],
)
def test_a_remark_changes_nothing(tree: Path, path: str, line: str) -> None:
    before = inputs(tree)
    (tree / path).write_text(f"{(tree / path).read_text()}\n{line}\n")
    assert inputs(tree) == before


@pytest.mark.parametrize(
    ("path", "line"),
    [(CODE, "int more;"), (CODE, "#define MORE 1"), (CONFIG, "CONFIG_MORE=y"), (SCRIPT, "more")],
)
def test_what_is_compiled_counts(tree: Path, path: str, line: str) -> None:
    before = inputs(tree)
    (tree / path).write_text(f"{(tree / path).read_text()}\n{line}\n")
    assert inputs(tree) != before


def test_a_line_without_its_remark_counts(tree: Path) -> None:
    """An option that is commented out is not a remark alone."""
    config = tree / CONFIG
    before = inputs(tree)
    config.write_text(config.read_text().replace("CONFIG_KSM=y", "# CONFIG_KSM=y"))
    assert inputs(tree) != before
