# SPDX-License-Identifier: MIT
"""The Promela models: every interleaving keeps what each model states, and each fault that it describes breaks that."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
MODELS = {path.stem: path for path in sorted(HERE.glob("*.pml"))}


def faults(model: Path) -> list[int]:
    """The numbers that the model's head describes under BUG=n."""
    head = model.read_text().split("*/")[0]
    return sorted(map(int, re.findall(r"[:;]\s(?:\* )?(\d) ", head.split("BUG=n")[1].replace("\n *", ""))))


def check(model: Path, fault: int, work: Path) -> tuple[int, str]:
    """Errors and report of an exhaustive search; Spin's own limits count as a failure of the test."""
    for command in (
        ["spin", f"-DBUG={fault}", "-a", str(model)],
        ["gcc", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=2048", "-o", "pan", "pan.c"],
    ):
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    report = subprocess.run(["./pan", "-m100000"], cwd=work, capture_output=True, text=True, timeout=300, check=True)
    assert "Search not completed" not in report.stdout or "errors: 0" not in report.stdout, report.stdout
    assert "max search depth too small" not in report.stdout, report.stdout
    found = re.search(r"errors: (\d+)", report.stdout)
    assert found, report.stdout
    return int(found[1]), report.stdout


@pytest.mark.parametrize("name", MODELS)
def test_every_interleaving_holds(name: str, tmp_path: Path) -> None:
    errors, report = check(MODELS[name], 0, tmp_path)
    assert errors == 0, report
    states = int(re.search(r"(\d+) states, stored", report)[1])
    assert states > 100, "a model that does nothing holds too"


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, path in MODELS.items() for fault in faults(path)])
def test_a_fault_is_found(name: str, fault: int, tmp_path: Path) -> None:
    errors, report = check(MODELS[name], fault, tmp_path)
    assert errors, report


@pytest.mark.parametrize("name", MODELS)
def test_the_head_describes_every_fault(name: str) -> None:
    text = MODELS[name].read_text()
    assert set(faults(MODELS[name])) == set(map(int, re.findall(r"BUG [!=]= (\d)", text))) != set()


@pytest.mark.parametrize("name", MODELS)
def test_the_code_that_is_modelled_is_there(name: str) -> None:
    head = MODELS[name].read_text().split("*/")[0]
    functions = set(re.findall(r"(\w+)\(\)", head))
    code = "\n".join(path.read_text() for path in (REPO / "cgpu_km").rglob("*.c"))
    assert functions and not [one for one in functions if not re.search(rf"^\w[^\n;]*\b{one}\(", code, re.M)]
