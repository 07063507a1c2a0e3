# SPDX-License-Identifier: MIT
"""When scripts/build-modules runs kbuild: not before each boot, and always for what the modules are made of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
SCRIPT = "scripts/build-modules"
#: What inputs() reads is below them: without one it fails.
FOLDERS = ("cgpu_km/", "scripts/", *(f"tests/{name}/" for name in ("forward", "nvsim", "simgpu", "uml", "vm")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources of the modules and a kernel's headers, as far as inputs() reads them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.startswith(FOLDERS) or name in ("Kbuild", "VERSION"):
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (REPO / name).is_symlink():
                target.symlink_to((REPO / name).readlink())
            elif name.endswith((".c", ".h", ".mk")) or "." not in target.name:
                target.write_bytes((REPO / name).read_bytes())
    for name in ("release", "build/include/generated/autoconf.h"):
        (tmp_path / "build/kernels/6.1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "build/kernels/6.1" / name).write_text("6.1\n")
    return tmp_path


def inputs(tree: Path, *arguments: str) -> str:
    """What the function of that name prints, in a tree."""
    code = f"""kernel=6.1 headers=build/kernels/6.1/build
        eval "$(sed -n '/^INPUTS=/p; /^SOURCES=/p; /^inputs()/,/^}}/p' {SCRIPT})"; inputs 6.1 "$@" """
    words = ["bash", "-euo", "pipefail", "-c", code, "bash", *arguments]
    return subprocess.run(words, cwd=tree, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize(
    "path",
    [
        "cgpu_km/main.c",
        "cgpu_km/core/sched_rr.c",
        "cgpu_km/uapi.h",
        "cgpu_km/probe.mk",
        "cgpu_km/FILES",
        "Kbuild",
        "VERSION",
        SCRIPT,
        "tests/nvsim/module/rm.c",
        "tests/simgpu/engine/push.c",
        "tests/vm/cores/Kbuild",
        "tests/vm/faults/cgpu_faults.c",
        "tests/vm/headers.h",
        "tests/uml/shim/cgpu_um.h",
        "build/kernels/6.1/release",
        "build/kernels/6.1/build/include/generated/autoconf.h",
    ],
)
def test_what_is_compiled_counts(tree: Path, path: str) -> None:
    before = inputs(tree)
    (tree / path).write_text(f"{(tree / path).read_text()}\n")
    assert inputs(tree) != before


def test_a_new_file_and_the_arguments_count(tree: Path) -> None:
    before = inputs(tree)
    assert inputs(tree, "W=1") != before
    (tree / "cgpu_km/core/more.h").touch()
    assert inputs(tree) != before


def test_a_date_and_a_test_do_not(tree: Path) -> None:
    before = inputs(tree)
    (tree / "cgpu_km/main.c").touch()
    (tree / "tests/vm/cores/test_more.py").touch()
    assert inputs(tree) == before


def test_the_products_compiled_headers_serve_nvsim():
    """gcc leaves headers that were compiled with another pr_fmt, without a word: each file would read them itself."""
    formats = [
        line.partition(" -D")[2]
        for path in ("Kbuild", "tests/nvsim/module/Kbuild")
        for line in (REPO / path).read_text().splitlines()
        if "pr_fmt" in line
    ]
    assert formats == ["""'pr_fmt(fmt)=KBUILD_MODNAME ": " fmt'"""] * 2
