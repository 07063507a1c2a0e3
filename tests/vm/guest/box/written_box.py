# SPDX-License-Identifier: MIT
"""The files that were written on this machine's root since it was started with systemd."""

from __future__ import annotations

import os
from pathlib import Path

OVERLAY = Path("/run/overlay")  # files written on the root since the machine was started

#: The databases of dpkg, systemd and rpm (dkms runs rpm where there is one); and the engines' files: those that setup
#: wrote are compared by test_setup_is_undone.
BOOKS = ("/var/lib/dpkg/", "/var/lib/systemd/", "/var/cache/debconf/", "/etc/machine-id/", "/root/.rpmdb/")
OTHERS = (*BOOKS, "/etc/docker/", "/etc/containerd/", "/etc/cni/")


def mounts() -> list[Path]:
    """File systems in memory that lie over parts of the root, as guest/become-systemd has made them."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [Path(where) for _, where, kind, *_ in lines if kind == "tmpfs"]
    return [path for path in found if path.parts[1] in ("etc", "lib", "usr")]


def is_new(path: Path) -> bool:
    """The overlay copies a folder up when a file in it is written, so a folder's name alone does not prove it new."""
    if path.is_symlink() or not path.is_dir() or not path.is_relative_to(OVERLAY):
        return True
    return any("trusted.overlay.opaque" in os.listxattr(one) for one in (path, *path.parents) if one != OVERLAY)


def written() -> set[str]:
    """Files and folders that are new or changed since the packages were installed."""
    found: set[str] = set()
    before = set(Path(os.environ["CGPU_RUN"], "files.before").read_text().splitlines())
    for top in (OVERLAY, *mounts()):
        for folder, folders, files in os.walk(top):
            found |= {str(Path(folder, name)) for name in (*folders, *files) if is_new(Path(folder, name))}
    return {path.removeprefix(str(OVERLAY)) for path in found - before}
