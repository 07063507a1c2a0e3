# SPDX-License-Identifier: MIT
"""cgpud and cgpu-runtime with one fault each, of mutants.toml: the test that a fault names must notice it.

Two of them run always, all with CGPU_MUTANTS=all (five minutes).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cgpu_common.toml import tomllib

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]
ALL: list[dict[str, str]] = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
FAILED = 1  # pytest's exit status when tests ran and some failed
ALWAYS = ("EPERM on DESTROY taken as done: loop", "socket: any uid is allowed")
CHOSEN = ALL if os.environ.get("CGPU_MUTANTS") == "all" else [one for one in ALL if one["name"] in ALWAYS]


def name_of(mutant: Any) -> str:
    return str(mutant["name"])


def copied(tree: Path) -> Path:
    """The repository, with copies of what mutants change and of the tests, which look for it beside them."""
    for path in REPO.iterdir():
        if path.name in ("cgpud", "cgpu_common"):
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name not in ("tests", "build", ".git"):
            (tree / path.name).symlink_to(path)
    (tree / "tests/unit").mkdir(parents=True)
    for path in [*(REPO / "tests").iterdir(), *(REPO / "tests/unit").iterdir()]:
        if path.name not in ("unit", "daemon"):
            (tree / path.relative_to(REPO)).symlink_to(path)
    shutil.copytree(HERE, tree / "tests/unit/daemon", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def outcome(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("mutant", CHOSEN, ids=name_of)
def test_mutant_is_noticed(tmp_path: Path, mutant: dict[str, str]) -> None:
    path = copied(tmp_path) / mutant["file"]
    path.write_text(path.read_text().replace(mutant["before"], mutant["after"]))
    done = outcome(tmp_path, mutant["noticed_by"])
    assert done.returncode == FAILED, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "error: " not in done.stderr, f"it does not compile: {done.stderr[-2000:]}"


@pytest.mark.parametrize("mutant", ALL, ids=name_of)
def test_mutant_is_still_one_of_this_source(mutant: dict[str, str]) -> None:
    assert (REPO / mutant["file"]).read_text().count(mutant["before"]) == 1
    assert mutant["before"] != mutant["after"]
    path, _, test = mutant["noticed_by"].partition("::")
    assert f"def {test}(" in (REPO / path).read_text()


def test_the_source_as_it_is_passes_this_way(tmp_path: Path) -> None:
    """Or a mutant would be noticed for the wrong reason."""
    done = outcome(copied(tmp_path), *sorted({mutant["noticed_by"] for mutant in CHOSEN}))
    assert done.returncode == 0, done.stdout[-2000:]
