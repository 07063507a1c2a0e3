# SPDX-License-Identifier: MIT
"""PR_SET_DUMPABLE of prctl(2), which is called through ctypes."""

from __future__ import annotations

import ctypes
import os

_PR_SET_DUMPABLE = 4


def clear() -> None:
    """Close /proc/PID of this process to all without CAP_SYS_PTRACE.

    Else /proc/PID/root and fd of a process with few capabilities are open to root of every container in the host's pid
    namespace, and behind them the host's files and the daemon's socket. Of another user than root the files in
    /proc/self would become root's, and it has nothing to protect."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE")
