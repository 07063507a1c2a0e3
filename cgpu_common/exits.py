# SPDX-License-Identifier: MIT
"""Errors, their text and their exit codes (docs/user/cli.md)."""

from __future__ import annotations

import errno
from enum import IntEnum

from cgpu_common import policies
from cgpu_common.kernel_abi import (
    MAX_INST_MAX,
    OVERCOMMIT_MAX,
    OVERCOMMIT_MIN,
    PRIO_RATIO_MAX,
    PRIO_RATIO_MIN,
    SLICE_US_MAX,
    SLICE_US_MIN,
)

#: DKMS signs what it builds with a key that must be enrolled as trusted.
ENROL = "mokutil --import /var/lib/dkms/mok.pub, then boot: docs/user/install.md §3"


class Exit(IntEnum):
    """Exit codes of every command, now and later."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_MODULE = 3
    NOT_PERMITTED = 4
    NOT_FOUND = 5
    OUTPUT = 6
    PROBLEMS = 7


class CgpuError(Exception):
    """One sentence: the failed operation, the reason, a hint."""

    def __init__(self, code: Exit, what: str, why: str, hint: str = "", number: int = 0) -> None:
        """@number: the errno of a refusal of the kernel; 0: it is none."""
        super().__init__(f"{what}: {why}")
        self.number = number
        self.exit_code = int(code)
        self.code = code
        self.what = what
        self.why = why
        self.hint = hint

    def line(self, prog: str) -> str:
        """The text form, always one line."""
        tail = f" ({self.hint})" if self.hint else ""
        return " ".join(f"{prog}: error: {self.what}: {self.why}{tail}".split())

    def as_json(self) -> str:
        """The form for --json."""
        import json  # slow to import

        body = {
            "code": self.code.name.lower(),
            "exit": self.exit_code,
            "what": self.what,
            "why": self.why,
            "hint": self.hint,
        }
        return json.dumps({"schema_version": 1, "error": body})


def not_permitted(what: str) -> CgpuError:
    return CgpuError(Exit.NOT_PERMITTED, what, "not permitted", "be root on the host, outside any container")


# Reasons of a refused write, by errno and node; None: any other node (docs/reference/proc.md §2).
_WHY: dict[int, dict[str | None, tuple[str, str]]] = {
    errno.EINVAL: {
        "policy": ("not a policy", policies.ALLOWED),
        "max_inst": ("out of range", policies.MAX_INST_RANGE),
        "prio_ratio": ("out of range", f"{PRIO_RATIO_MIN} to {PRIO_RATIO_MAX} percent"),
        "slice_us": ("out of range", f"{SLICE_US_MIN} to {SLICE_US_MAX} microseconds, or 0: chosen again"),
        "overcommit": ("out of range", f"{OVERCOMMIT_MIN} to {OVERCOMMIT_MAX} percent"),
        "default_memsize": ("out of range", "at least 1 MiB, or 0: that of all GPUs"),
        "weight": ("out of range", "0 to max_inst, at most the ceiling"),
        "ceiling": ("out of range", "weight to max_inst, or 0: none"),
        "highprio": ("out of range", "0 or 1"),
        "memsize": ("out of range", "at least 1 MiB"),
        "host_memsize": ("out of range", "at least 1 MiB, or 0: no limit"),
        "uvm": ("not a mode", "deny or account"),
        "ipc": ("not a name", "1 to 128 printable characters without blanks, '/' and '='; or none"),
        None: ("the kernel does not accept this text", "see docs/reference/proc.md"),
    },
    errno.ERANGE: {None: ("the number is too large", "it must fit 64 bits")},
    errno.EBUSY: {
        "policy": (f"max_inst is above {MAX_INST_MAX}, which only {policies.WIDE} takes", "set max_inst first"),
        "max_inst": ("more containers or weight than that are in use", "cgpu-smi shows them"),
        "overcommit": ("the sum of the memory limits is larger", "cgpu-smi shows them"),
        "inst_ctl": ("a container of this id is dying, or the driver sleeps", "see the kernel log, then repeat it"),
        None: ("in use", ""),
    },
    errno.ENOSPC: {
        "weight": ("the sum of weights would exceed max_inst", "see FREE in cgpu-smi"),
        "memsize": ("the sum of limits would exceed the card's memory", "cgpu-smi shows the limits"),
        None: ("no room on the GPU: memory, weight or containers", "cgpu-smi shows their use"),
    },
    errno.EOPNOTSUPP: {
        "policy": ("the control this policy needs does not work on this driver", "policy 5 always works"),
        "upgrade": ("it cannot replace the running core", "see the kernel log"),
        None: ("not supported on this driver", "see the kernel log"),
    },
    errno.ENODEV: {None: ("no such GPU, or the NVIDIA driver is not loaded", "cgpu-smi lists the GPUs")},
    errno.EEXIST: {None: ("a container of this id exists already", "cgpu ps")},
    errno.ENOENT: {
        "upgrade": ("no such core is registered", "cgpu upgrade lists them"),
        None: ("there is no such container", "cgpu ps"),
    },
    errno.EIO: {
        "upgrade": ("its self-test failed", "see the kernel log"),
        None: ("the container has just gone", "cgpu ps"),
    },
    errno.ENOMEM: {None: ("the kernel is out of memory", "")},
}


def allowed(node: str) -> str:
    """The values of a node that is written, in words."""
    return _WHY[errno.EINVAL][node][1]


def refused(what: str, node: str, err: OSError) -> CgpuError:
    """The error for a failed write, by its errno."""
    if err.errno in (errno.EPERM, errno.EACCES):
        return not_permitted(what)
    words = _WHY.get(err.errno or 0, {})
    why, hint = words.get(node) or words.get(None) or (err.strerror or str(err), "")
    code = Exit.NOT_FOUND if err.errno in (errno.ENOENT, errno.ENODEV) else Exit.REFUSED
    return CgpuError(code, what, why, hint, err.errno or 0)
