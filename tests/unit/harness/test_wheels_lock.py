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


KUBE = REPO / "scripts/kube.lock"


def locked(lock: Path = LOCK) -> list[tuple[Requirement, list[str]]]:
    """Each version, and its checksums."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return [
        (Requirement(line.partition(" --hash")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\S)", line))
        for line in lines
        if line and not line.startswith("#")
    ]


def wanted(lock: Path = LOCK) -> list[Requirement]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] if lock == LOCK else project["optional-dependencies"]["kube"]
    return [Requirement(text) for text in texts]


def there(requirement: Requirement, python: str) -> bool:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("lock", [LOCK, KUBE])
def test_each_has_one_version_and_checksums(lock: Path) -> None:
    for requirement, checksums in locked(lock):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert checksums, requirement


EACH = [*((LOCK, one) for one in PYTHONS), *((KUBE, one) for one in PYTHONS[1:])]


@pytest.mark.parametrize(("lock", "python"), EACH)
def test_it_is_what_the_project_needs(lock: Path, python: str) -> None:
    versions = {canonicalize_name(one.name): one for one, _ in locked(lock) if there(one, python)}
    for need in (one for one in wanted(lock) if there(one, python)):
        found = versions.get(canonicalize_name(need.name))
        assert found, f"{need} is not in {lock.name}: scripts/lock-wheels"
        (pin,) = found.specifier
        assert need.specifier.contains(pin.version), f"{found} is not {need}: scripts/lock-wheels"


def test_what_both_have_is_the_same() -> None:
    """cgpu-kube finds cgpu's own packages first."""
    pins = {canonicalize_name(one.name): str(one.specifier) for one, _ in locked() if there(one, "3.11")}
    for one, _ in locked(KUBE):
        assert pins.get(canonicalize_name(one.name), str(one.specifier)) == str(one.specifier), one


def test_every_way_to_cgpu_kube_takes_the_lock() -> None:
    image = (REPO / "deploy/Containerfile").read_text()
    assert "--require-hashes -r /src/scripts/wheels.lock -r /src/scripts/kube.lock" in image and "[kube]" not in image
    page = (REPO / "docs/user/kubernetes-node.md").read_text()
    assert "pip install --require-hashes --target /usr/lib/cgpu-kube -r /usr/share/cgpu/kube.lock" in page
    assert "scripts/kube.lock" in (REPO / "scripts/doc-pages").read_text()


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
