# SPDX-License-Identifier: MIT
"""The files of the version that has served until an update: they are put back where the new daemon does not start."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from cgpu_common.files import write_file
from cgpu_kube.installer.host import BEFORE, BUILD, LIST

STAGE = f"{BEFORE}/stage"  # as `scripts/install put` takes it
_LIST, _BUILD, _MODULES, _DKMS = (f"{BEFORE}/{name}" for name in ("MANIFEST", "BUILD", "modules", "dkms"))
_NEW = f"{BEFORE}.new"


def keep(root: Path, modules: Path, dkms: str) -> None:
    """What the list names now, with the list. @modules: the image's, as they were copied for this kernel. @dkms: the
    version that DKMS has, or "". OSError: nothing is kept."""
    new = root / _NEW
    shutil.rmtree(new, ignore_errors=True)
    (new / "stage").mkdir(parents=True)
    for line in (root / LIST).read_text().splitlines():
        kind, _, path = line.split(" ", 2)
        found, target = root / path[1:], new / "stage" / path[1:]
        if kind == "file" and os.path.lexists(found) and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _keep_file(found, target, is_edited=path.startswith("/etc/"))
    shutil.copy2(root / LIST, new / "MANIFEST")
    shutil.copy2(root / BUILD, new / "BUILD")
    write_file(new / "dkms", dkms, 0o644)
    if modules.is_dir():
        shutil.copytree(modules, new / "modules")
    shutil.rmtree(root / BEFORE, ignore_errors=True)
    new.rename(root / BEFORE)


def _keep_file(found: Path, target: Path, *, is_edited: bool) -> None:
    """A file is replaced by a rename, so a link to it keeps its contents; a configuration is written in place."""
    if not is_edited:
        try:
            os.link(found, target, follow_symlinks=False)
            return
        except OSError as error:  # another file system, or one without links
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
    shutil.copy2(found, target, follow_symlinks=False)


def restore_list(root: Path) -> None:
    """After the files: the list of before has the checksums of the configuration as it came then."""
    write_file(root / LIST, (root / _LIST).read_text(), 0o644)


def restore_modules(root: Path, target: Path) -> bool:
    """False: the version of before had none of the image's."""
    if not (root / _MODULES).is_dir():
        return False
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / _MODULES, target)
    return True


def build(root: Path) -> str:
    return (root / _BUILD).read_text()


def dkms(root: Path) -> str:
    return (root / _DKMS).read_text()


def drop(root: Path) -> None:
    """A part of it counts for nothing."""
    for name in (BEFORE, _NEW):
        if (root / name).is_dir():
            shutil.rmtree(root / name)
