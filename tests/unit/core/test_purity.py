# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What the core, and cgpu_km/pure, need from their environment, proved from their objects."""

import re
import subprocess

import _build
import pytest

ALLOWED = {"memcpy", "memset", "memcmp", "memmove", "strlen"}
# x86 kernel objects: no red zone, no SSE. -ffreestanding: no call is taken for libc's.
KERNEL = ["-std=gnu11", "-O2", "-ffreestanding", "-fno-builtin", "-mno-sse", "-mno-red-zone", "-mcmodel=kernel",
          "-fno-pic", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"]  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Every file as the modules have it."""
    out = tmp_path_factory.mktemp("purity")
    subprocess.run([_build.CC, *KERNEL, _build.VERSION, "-c", *_build.sources()], cwd=out, check=True)
    return [(path, out / f"{path.stem}.o") for path in _build.sources()]


@pytest.fixture(scope="module")
def symbols(objects):
    """[(file, name, nm's letter)] of every symbol; file is a path."""
    file_of = {str(obj): path for path, obj in objects}
    listed = subprocess.run(["nm", "-A", *file_of], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(.+\.o):[ 0-9a-f]*(\w) (\w+)$", listed, re.M)
    return [(file_of[obj], name, kind) for obj, kind, name in found]


@pytest.mark.parametrize("folder", [_build.CORE, _build.PURE], ids=lambda path: path.name)
def test_needs_nothing_but_the_list(symbols, folder):
    """Each is in a module of its own: cgpu_km.ko reaches the core by its table alone, and the core nothing of pure/."""
    mine = [symbol for symbol in symbols if symbol[0].parent == folder]
    defined = {name for _, name, kind in mine if kind.isupper() and kind != "U"}
    assert len(defined) > 20
    needed = {(file.name, name) for file, name, kind in mine if kind == "U" and name not in defined}
    assert {(f, n) for f, n in needed if n not in ALLOWED} == set()


def test_every_global_is_called_cgpu(symbols):
    assert [(f.name, n) for f, n, kind in symbols if kind.isupper() and kind != "U" and not n.startswith("cgpu_")] == []


def test_nothing_is_kept_between_calls(symbols):
    """No writable data: all state is the caller's."""
    assert [(f.name, n) for f, n, kind in symbols if kind in "dDbBC"] == []


def test_the_module_has_no_text_of_the_call_table(objects):
    """Names, headers and notes of its rows are for documents and tools."""
    tables = [(path, obj) for path, obj in objects if path.name.startswith("nv_table_")]
    assert len(tables) == 9
    for path, obj in tables:
        assert "DOC(" in path.read_text()
        assert not re.search(rb"[A-Za-z_ ]{12}", section(obj, ".rodata")), path.name


def section(obj, prefix):
    """The content of all sections whose name begins with @prefix."""
    names = subprocess.run(["objdump", "-h", str(obj)], capture_output=True, text=True, check=True).stdout
    found = b""
    for name in re.findall(rf"^\s*\d+ ({re.escape(prefix)}\S*)", names, re.M):
        out = obj.with_suffix(".section")
        subprocess.run(["objcopy", "-O", "binary", f"--only-section={name}", str(obj), str(out)], check=True)
        found += out.read_bytes()
    assert found
    return found
