# SPDX-License-Identifier: MIT
"""Runs a program of this project in a copy of the test's process.

The start of Python and the imports of a command take three seconds in an emulated machine; fork() takes none of that.
The copy is a process of its own: its pid, its capabilities and its namespaces are those that the kernel sees.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from subprocess import CompletedProcess

CLONE_NEWPID = 0x20000000  # linux/sched.h
PR_CAPBSET_DROP = 24  # linux/prctl.h
CAP_NET_ADMIN = 12  # linux/capability.h
CAP_VERSION_3 = 0x20080522
LIBC = ctypes.CDLL(None, use_errno=True)


def command(program: str, *words: str) -> CompletedProcess[str]:
    """`cgpu` or `cgpu-smi` with these words, as the installed script calls them."""
    from cgpu_cli import main, smi

    package = {"cgpu": main, "cgpu-smi": smi}[program]
    if words[0] in package.COMMANDS:  # imported here, once, and not in each copy
        importlib.import_module(package.COMMANDS[words[0]][0])
    return call(package.main, program, *words)


def call(
    function: Callable[[], object], *argv: str, before: Callable[[], None] | None = None, timeout_s: int = 120
) -> CompletedProcess[str]:
    """Call the function with `argv` as sys.argv; its exit status is that of a script that consists of this call.

    `before` runs in the copy first. A copy that takes longer than `timeout_s` is ended by SIGALRM.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(function, argv, before, out.fileno(), err.fileno(), timeout_s))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return CompletedProcess(argv, status, *texts)


def _child(
    function: Callable[[], object],
    argv: tuple[str, ...],
    before: Callable[[], None] | None,
    out: int,
    err: int,
    timeout_s: int,
) -> int:
    """Returns the exit status; nothing of the test's own process continues here."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as after exec: files of the GPU are not held here
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, "w" if fd else "r", closefd=False) for fd in range(3))
    sys.argv[:] = argv
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(timeout_s)
    status = 0
    try:
        if before is not None:
            before()
        function()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


def keep_capabilities(mask: int) -> None:
    """Drop every capability that is not in the mask, as setpriv with --bounding-set and a following exec do."""
    last = int(open("/proc/sys/kernel/cap_last_cap").read())  # noqa: SIM115
    for capability in range(last + 1):
        if not mask >> capability & 1:
            _checked(LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "PR_CAPBSET_DROP")
    head = (ctypes.c_uint32 * 2)(CAP_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32 & ((1 << (last + 1 - 32)) - 1)
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)  # effective, permitted, inheritable; twice
    _checked(LIBC.capset(head, data), "capset")


def enter_pid_namespace() -> None:
    """The rest runs as process 1 of a new pid namespace; its exit status becomes the copy's."""
    _checked(LIBC.unshare(CLONE_NEWPID), "unshare")
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
