# SPDX-License-Identifier: MIT
"""cgpud's status, over its socket: what /proc/cgpu_km does not contain."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cgpu_common.proc import Paths

from .facts import ROOT_ONLY

if TYPE_CHECKING:
    from cgpu_common.versions import Versions

TIMEOUT_S = 2.0
REPLY_MAX = 16 << 20


class Silence(Exception):
    """Why cgpud gave no answer, and what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


_START = "systemctl start cgpud; journalctl -u cgpud"
_RESTART = "systemctl restart cgpud, which ends no container; journalctl -u cgpud"
_ROOT = "be root on the host, outside any container"
#: Of a connection, by the errno.
_SILENT = {
    errno.ENOENT: ("is not running", _START),
    errno.ECONNREFUSED: ("is not running: it left its socket behind", _START),
    errno.EACCES: (ROOT_ONLY, _ROOT),
    errno.EPERM: (ROOT_ONLY, _ROOT),
}


def ask(paths: Paths, operation: str, **more: Any) -> dict[str, Any]:
    """cgpud's answer. Raises Silence."""
    path = f"{paths.run}/cgpud.sock"
    try:
        os.stat(path)  # noqa: PTH116
    except OSError as err:
        raise Silence(*_SILENT.get(err.errno or 0, _SILENT[errno.ENOENT])) from None
    import socket  # slow to import, both, and needless without a daemon

    from cgpu_common import frames

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(path)
            reply = frames.exchange(sock, {"op": operation, **more}, REPLY_MAX)
    except TimeoutError:
        raise Silence(f"runs and gives no answer within {TIMEOUT_S:g} s", _RESTART) from None
    except (OSError, ValueError) as err:
        number = err.errno if isinstance(err, OSError) else None
        raise Silence(*_SILENT.get(number or 0, (f"gives no answer: {err}", "journalctl -u cgpud"))) from None
    if not isinstance(reply, dict) or reply.get("ok") is not True:
        why = reply.get("error") if isinstance(reply, dict) else None
        raise Silence(f"refuses the request: {why}" if why else "gives no valid answer", "journalctl -u cgpud")
    return reply


def request(paths: Paths, operation: str, **more: Any) -> dict[str, Any] | None:
    """cgpud's answer; None without one. The commands that show the GPUs work without the daemon."""
    try:
        return ask(paths, operation, **more)
    except Silence:
        return None


def status(paths: Paths) -> dict[str, Any] | None:
    return request(paths, "status")


def found_versions(paths: Paths) -> Versions:
    """Of every part: the daemon's is in its answer."""
    from cgpu_common import versions

    try:
        version = ask(paths, "status").get("version")
    except Silence as silence:
        return versions.collect(paths, None, silence.why, silence.remedy)
    return versions.collect(paths, version if isinstance(version, str) else "unknown", "", "")


def rows(answer: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A list of objects in an answer; what is none of them is left out."""
    found = (answer or {}).get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def kernel_id(row: Mapping[str, Any]) -> Any:
    """The id of the kernel's container behind a row of status: a claim's slice is named by the claim."""
    return row.get("slice") or row.get("id")


def drift_of(answer: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """GPU settings that differ from cgpu.toml, in an answer to status; None: it has none."""
    if not isinstance((answer or {}).get("drift"), list):
        return None
    return [row for row in rows(answer, "drift") if {"index", "key", "configured", "live"} <= row.keys()]


def drift(paths: Paths) -> list[dict[str, Any]] | None:
    """The same, read now; None: no answer from cgpud."""
    return drift_of(status(paths))
