# SPDX-License-Identifier: MIT OR GPL-2.0
"""What the core needs from its environment, proved from its objects."""

import subprocess

import _build
import pytest

ALLOWED = {"memcpy", "memset", "memcmp", "memmove", "strlen"}
# x86 kernel objects: no red zone, no SSE. -ffreestanding: no call is taken for libc's.
KERNEL = [
    "-std=gnu11",
    "-O2",
    "-ffreestanding",
    "-fno-builtin",
    "-mno-sse",
    "-mno-red-zone",
    "-mcmodel=kernel",
    "-fno-pic",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
]


@pytest.fixture(scope="module")
def symbols(tmp_path_factory):
    """[(file, name, nm's letter)] of every symbol."""
    found, out = [], tmp_path_factory.mktemp("purity")
    for path in _build.sources():
        obj = out / f"{path.stem}.o"
        subprocess.run([_build.CC, *KERNEL, *_build.DEFINES, "-c", str(path), "-o", str(obj)], check=True)
        for line in subprocess.run(["nm", str(obj)], capture_output=True, text=True, check=True).stdout.splitlines():
            *_, kind, name = line.split()
            found.append((path.name, name, kind))
    return found


def test_needs_nothing_but_the_list(symbols):
    defined = {name for _, name, kind in symbols if kind.isupper() and kind != "U"}
    needed = {(file, name) for file, name, kind in symbols if kind == "U" and name not in defined}
    assert {(f, n) for f, n in needed if n not in ALLOWED} == set()


def test_every_global_is_called_cgpu(symbols):
    assert [(f, n) for f, n, kind in symbols if kind.isupper() and kind != "U" and not n.startswith("cgpu_")] == []


def test_nothing_is_kept_between_calls(symbols):
    """No writable data: all state is the caller's."""
    assert [(f, n) for f, n, kind in symbols if kind in "dDbBC"] == []
