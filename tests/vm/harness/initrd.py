# SPDX-License-Identifier: MIT
"""Builds the initial RAM disk: busybox, the modules that reach the host's file
system over 9p, and `boot/initrd-init`."""

from __future__ import annotations

import lzma
import os
import shutil
from pathlib import Path

#: The modules that the guest needs before it can read a file of the host.
WANTED = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_rng")


def ensure(kernel_dir: Path, init: Path) -> Path:
    """The RAM disk of that kernel, built anew when its parts changed."""
    target = kernel_dir / "initrd.img"
    newest = max(p.stat().st_mtime for p in (init, Path(__file__), kernel_dir / "release"))
    if not target.exists() or target.stat().st_mtime < newest:
        partial = target.with_suffix(f".{os.getpid()}")  # two boots of one kernel may begin at once
        partial.write_bytes(build(kernel_dir, init))
        partial.rename(target)
    return target


def build(kernel_dir: Path, init: Path) -> bytes:
    """The archive: /init, /bin/busybox, /modules/NN-name.ko in loading order."""
    busybox = shutil.which("busybox", path="/usr/bin:/bin")
    if busybox is None:
        raise FileNotFoundError("busybox-static is not installed: make setup")
    entries = [directory(name) for name in ("bin", "dev", "proc", "sys", "modules", "host", "rw", "new")]
    entries.append(file("bin/busybox", Path(busybox).read_bytes()))
    entries.append(file("init", init.read_bytes()))
    for number, module in enumerate(load_order(kernel_dir)):
        name = module.name.split(".")[0]
        entries.append(file(f"modules/{number:02}-{name}.ko", unpacked(module)))
    entries.append(newc("TRAILER!!!", 0, b""))
    return b"".join(entries)


def load_order(kernel_dir: Path) -> list[Path]:
    """The files of WANTED, each after its dependencies; built-in modules have no file."""
    depends: dict[str, list[str]] = {}
    bases = list((kernel_dir / "lib/modules").glob("*/modules.dep"))
    for base in bases:
        for line in base.read_text().splitlines():
            module, _, needs = line.partition(":")
            depends[module] = needs.split()
    by_name = {Path(module).name.split(".")[0]: module for module in depends}
    order: list[str] = []
    for name in WANTED:
        if name not in by_name:
            continue
        module = by_name[name]
        for each in [*reversed(depends[module]), module]:
            if each not in order:
                order.append(each)
    return [bases[0].parent / module for module in order]


def unpacked(module: Path) -> bytes:
    """The module's bytes; Debian compresses those of some kernels."""
    data = module.read_bytes()
    return lzma.decompress(data) if module.suffix == ".xz" else data


def directory(name: str) -> bytes:
    """A directory entry."""
    return newc(name, 0o040755, b"")


def file(name: str, data: bytes) -> bytes:
    """An executable file entry."""
    return newc(name, 0o100755, data)


def newc(name: str, mode: int, data: bytes) -> bytes:
    """One entry of a cpio archive in the "new ASCII" format."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
    return padded(head) + padded(data)


def padded(data: bytes) -> bytes:
    """`data` filled with zeros to a multiple of four."""
    return data + b"\0" * (-len(data) % 4)
