# SPDX-License-Identifier: MIT
"""Writes a file: all of it or nothing, and only where a plain file is or none.

A rename takes the place of whatever has the name. As root it would replace a device node, a FIFO or a socket by a file,
and a write without a rename would go to the disk behind the node. A symbolic link is refused too: in a folder such as
/tmp another user chooses where it leads.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def check_target(path: Path) -> os.stat_result | None:
    """The file that write_file() would replace; None: none. OSError: it would fail, for a reason that is known before.

    A command that runs long calls this first.
    """
    if not path.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    try:
        found = path.lstat()
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise OSError(errno.EINVAL, f"is {kind}, and only a plain file is replaced", str(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))
    return found


def _fill(fd: int, part: Path, before: os.stat_result | None, like: Path, data: bytes, mode: int | None) -> None:
    with open(fd, "wb") as stream:
        stream.write(data)
        if before is not None:
            os.fchown(fd, before.st_uid, before.st_gid)
            shutil.copystat(like, part)
            os.utime(part)
        elif mode is not None:
            os.fchmod(fd, mode)
        stream.flush()
        os.fsync(fd)


def write_file(path: Path, data: str | bytes, mode: int | None = None, keep: bool = False) -> None:
    """Write beside the file, then rename. OSError, which has the path: the file is as before.

    @mode: of the file; None: by the umask. @keep: an existing file's owner, mode and attributes.
    """
    body = data.encode() if isinstance(data, str) else data
    part = path.with_name(f".cgpu-{secrets.token_hex(6)}.part")
    try:
        before = check_target(path)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode)
        try:
            _fill(fd, part, before if keep else None, path, body, mode)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as err:
        raise OSError(err.errno, err.strerror, str(path)) from err
