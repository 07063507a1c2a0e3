# SPDX-License-Identifier: MIT
"""scripts/wheels.lock: what is installed has one version and known checksums, and is what pyproject.toml asks for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cgpu_common.toml import tomllib

REPO = Path(__file__).resolve().parents[3]
LOCK = REPO / "scripts/wheels.lock"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def locked() -> list[tuple[Requirement, list[str]]]:
    """Each version, and its checksums."""
    lines = LOCK.read_text().replace("\\\n", " ").splitlines()
    return [
        (Requirement(line.partition(" --hash")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\S)", line))
        for line in lines
        if line and not line.startswith("#")
    ]


def wanted() -> list[Requirement]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def there(requirement: Requirement, python: str) -> bool:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def test_each_has_one_version_and_checksums() -> None:
    for requirement, checksums in locked():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert checksums, requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_it_is_what_the_project_needs(python: str) -> None:
    versions = {canonicalize_name(one.name): one for one, _ in locked() if there(one, python)}
    for need in (one for one in wanted() if there(one, python)):
        found = versions.get(canonicalize_name(need.name))
        assert found, f"{need} is not in scripts/wheels.lock: scripts/lock-wheels"
        (pin,) = found.specifier
        assert need.specifier.contains(pin.version), f"{found} is not {need}: scripts/lock-wheels"


def test_a_file_with_another_checksum_is_not_taken(tmp_path: Path) -> None:
    """pip's own rule, for the option that build-wheels gives it."""
    assert "--require-hashes" in (REPO / "scripts/build-wheels").read_text()
    wheel = tmp_path / "nothing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\5\6" + 18 * b"\0")
    lock = tmp_path / "lock"
    lock.write_text(f"nothing==1.0 --hash=sha256:{64 * '0'}\n")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--find-links", str(tmp_path), "--require-hashes"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(tmp_path / "out"), "-r", str(lock)], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr
