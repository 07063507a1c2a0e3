# SPDX-License-Identifier: MIT
"""The input of DKMS: files, kernels, version."""

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


def sources() -> list[str]:
    """Paths that scripts/install puts into /usr/src, and that Kbuild compiles."""
    return (REPO / "cgpu_km/FILES").read_text().split("\n")[:-1]


def there(*patterns: str) -> set[str]:
    return {str(path.relative_to(REPO)) for pattern in patterns for path in (REPO / "cgpu_km").rglob(pattern)}


def test_the_version_is_that_of_the_file() -> None:
    assert conf("PACKAGE_VERSION") == VERSION


def test_both_modules_are_built_under_the_names_that_kbuild_gives_them() -> None:
    kbuild = (REPO / "Kbuild").read_text()
    assert "obj-m := cgpu_km.o $(cgpu_core).o" in kbuild
    assert conf("BUILT_MODULE_NAME[*]") == f"cgpu_km cgpu_core_{VERSION.replace('.', '_')}"


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("4.18.0-553.el8_10.x86_64", False),
        ("5.4.0-190-generic", False),
        ("5.9.15-1", False),
        ("5.10.0-46-amd64", True),
        ("5.10.134-18.al8.x86_64", True),
        ("5.14.0-427.13.1.el9_4.x86_64", True),
        ("5.15.0-91-generic", True),
        ("6.0.19-1", True),
        ("6.1.0-56-amd64", True),
        ("6.8.0-45-generic", True),
        ("6.12.117+deb12-amd64", True),
        ("7.0.1", True),
        ("10.2.0", True),
    ],
)
def test_kernels_from_5_10_on(release: str, wanted: bool) -> None:
    """By the regular expression, which DKMS before 3.1 uses, and by the least version."""
    assert bool(re.search(conf("BUILD_EXCLUSIVE_KERNEL"), release)) is wanted
    least = tuple(map(int, conf("BUILD_EXCLUSIVE_KERNEL_MIN").split(".")))
    assert (tuple(int(number) for number in re.findall(r"\d+", release)[:2]) >= least) is wanted


def test_no_tests_and_no_python() -> None:
    others = [path for path in sources() if Path(path).suffix not in (".c", ".h")]
    assert others == ["dkms.conf", "Kbuild", "VERSION", "LICENSE", "cgpu_km/FILES", "cgpu_km/probe.mk"]


def test_the_list_is_all_there_is() -> None:
    """A file missing in the list would not be compiled anywhere, and would be missing on machines with DKMS."""
    found = sources()
    assert len(found) == len(set(found))
    assert {path for path in found if path.endswith((".c", ".h"))} == there("*.c", "*.h")


def test_every_file_is_of_the_module_that_its_folder_says(tmp_path: Path) -> None:
    """The lists that make reads from Kbuild, whose only rules of its own are those of probe.mk."""
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"src := {REPO}\ninclude {REPO}/Kbuild\nall:\n\t@echo $(cgpu_km-y); echo $($(cgpu_core)-y)\n")
    told = subprocess.run(["make", "-s", "-f", makefile, "all"], check=True, capture_output=True, text=True).stdout
    shell, core = ({word.removesuffix(".o") + ".c" for word in line.split()} for line in told.splitlines())
    assert core == {path for path in there("*.c") if path.startswith("cgpu_km/core/")}
    assert shell == there("*.c") - core


def test_every_header_is_there() -> None:
    found = set(sources())
    for path in found:
        if Path(path).suffix not in (".c", ".h"):
            continue
        for header in re.findall(r'^#include "(.+)"', (REPO / path).read_text(), re.MULTILINE):
            near = (REPO / path).parent / header
            places = {str(near.resolve().relative_to(REPO)), f"cgpu_km/{header}"}
            # Kbuild writes the answers to probe.h.
            assert places & found or header == "probed.h", f"{path} includes {header}"
