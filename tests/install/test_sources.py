# SPDX-License-Identifier: MIT
"""What goes to DKMS: which files, which kernels, which version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from box import REPO

VERSION = (REPO / "VERSION").read_text().strip()


def conf(name: str) -> str:
    """A value of dkms.conf, as the shell that reads it sees it."""
    script = f'kernel_source_dir=/k; dkms_tree=/t; . {REPO}/dkms.conf; echo "${{{name}}}"'
    return subprocess.run(["bash", "-ec", script], check=True, capture_output=True, text=True).stdout.strip()


def sources() -> set[str]:
    """Paths that scripts/install puts into /usr/src."""
    patterns = re.search(r'^DKMS_SOURCES="(.*)"$', (REPO / "scripts/install").read_text(), re.MULTILINE)
    assert patterns
    return {str(path.relative_to(REPO)) for pattern in patterns[1].split() for path in REPO.glob(pattern)}


def test_the_version_is_that_of_the_file() -> None:
    assert conf("PACKAGE_VERSION") == VERSION


def test_both_modules_are_built_under_the_names_that_kbuild_gives_them() -> None:
    kbuild = (REPO / "Kbuild").read_text()
    assert "obj-m := cgpu_km.o $(cgpu_core).o" in kbuild
    assert conf("BUILT_MODULE_NAME[*]") == f"cgpu_km cgpu_core_{VERSION.replace('.', '_')}"


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("5.14.0-427.13.1.el9_4.x86_64", False),
        ("5.15.0-91-generic", False),
        ("6.0.19-1", False),
        ("6.1.0-56-amd64", True),
        ("6.8.0-45-generic", True),
        ("6.12.117+deb12-amd64", True),
        ("7.0.1", True),
        ("10.2.0", True),
    ],
)
def test_kernels_from_6_1_on(release: str, wanted: bool) -> None:
    """By the regular expression, which is what DKMS before 3.1 heeds, and by the least version."""
    assert bool(re.search(conf("BUILD_EXCLUSIVE_KERNEL"), release)) is wanted
    least = tuple(map(int, conf("BUILD_EXCLUSIVE_KERNEL_MIN").split(".")))
    assert (tuple(int(number) for number in re.findall(r"\d+", release)[:2]) >= least) is wanted


def test_no_tests_and_no_python() -> None:
    found = sources()
    assert {Path(path).suffix for path in found} == {".c", ".h", ".conf", ""}
    assert {Path(path).parts[0] for path in found} == {"dkms.conf", "Kbuild", "VERSION", "LICENSE", "cgpu_km"}


def test_every_object_and_every_header_is_there() -> None:
    found = sources()
    objects = re.findall(r"cgpu_km/\w+(?=\.o)", (REPO / "Kbuild").read_text())
    assert len(objects) > 15
    assert not [name for name in objects if f"{name}.c" not in found]
    for path in found:
        if Path(path).suffix not in (".c", ".h"):
            continue
        for header in re.findall(r'^#include "(.+)"', (REPO / path).read_text(), re.MULTILINE):
            near = (REPO / path).parent / header
            places = {str(near.resolve().relative_to(REPO)), f"cgpu_km/{header}"}
            assert places & found, f"{path} includes {header}"
