# SPDX-License-Identifier: MIT
"""Reading and atomically replacing the config.json of a bundle."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from cgpu_common.errors import ContainerGone, Refused

SIZE_MAX = 16 << 20


def _content(path: Path) -> bytes:
    """Read a regular file only: a FIFO would block, a device may have no end."""
    # O_NOCTTY: the daemon leads a session without a terminal, and the path may be a link to a terminal.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(min(found.st_size, SIZE_MAX) + 1)  # the bound holds if the file grows meanwhile
    finally:
        os.close(fd)
    if len(data) > SIZE_MAX:
        raise Refused(f"{path} is larger than {SIZE_MAX >> 20} MiB")
    return data


def check(bundle: str) -> None:
    """Raises ContainerGone if the bundle is no longer there: a kubelet whose request has timed out removes it."""
    if not Path(bundle).exists():
        raise ContainerGone(bundle)


def read(bundle: str) -> dict[str, Any]:
    path = Path(bundle) / "config.json"
    try:
        spec = json.loads(_content(path).decode("utf-8"))
    except OSError as error:
        check(bundle)
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is not JSON") from error
    if not isinstance(spec, dict):
        raise Refused(f"{path} is not a JSON object")
    return spec


def write(bundle: str, spec: dict[str, Any]) -> None:
    """Replace the file atomically, with its owner and mode."""
    path = Path(bundle) / "config.json"
    try:
        before = path.stat()
        fd, name = tempfile.mkstemp(prefix=".config.json.", dir=bundle)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as out:
                out.write(
                    json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
                )  # faster than dump(), which is pure Python
                os.fchmod(out.fileno(), before.st_mode & 0o7777)
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(out.fileno(), before.st_uid, before.st_gid)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        check(bundle)
        raise Refused(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
