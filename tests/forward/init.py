# SPDX-License-Identifier: MIT
"""Process 1 of User-Mode Linux whose driver is the host's: mounts, modules, one step of inside.py, the end.

The kernel passes on what stands behind `--`: folders of the host to mount, then "end". The last one is that of the run:
its `run.json` says what there is to load, and what is written there is on the host. The root is the host's, read-only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
FINIT_MODULE, DELETE_MODULE, REBOOT, SYSLOG = 313, 176, 169, 103
SYSLOG_ALL, LOG_BYTES = 3, 1 << 20
LOG = ctypes.create_string_buffer(LOG_BYTES)
COPY_S = 5.0  #: between two copies of what the modules say, for a step that hangs or a machine that dies
POWER_OFF = 0x4321FEDC
COVERED = ("/proc", "/sys", "/dev", "/tmp", "/run")


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    """mount(2), the folder made if it can be."""
    if not Path(target).is_dir():
        Path(target).mkdir(parents=True)
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount of {kind} on {target}")


def mount_all(visible: list[str]) -> None:
    """The kernel's own file systems, and folders of the host that these cover."""
    for kind, target in zip(("proc", "sysfs", "devtmpfs", "tmpfs", "tmpfs"), COVERED, strict=True):
        mount(kind, target, kind)
    mount("tmpfs", "/dev/shm", "tmpfs", "mode=1777")
    mount("devpts", "/dev/pts", "devpts", "mode=620")
    Path("/tmp").chmod(0o1777)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path("/dev", name).symlink_to(f"/proc/self/fd/{number}")
    Path("/dev/fd").symlink_to("/proc/self/fd")
    for folder in visible:
        mount("host", folder, "hostfs", folder)


def load(module: Path, parameters: str = "") -> None:
    """insmod"""
    with module.open("rb") as file:
        if LIBC.syscall(FINIT_MODULE, file.fileno(), parameters.encode(), 0):
            raise OSError(ctypes.get_errno(), f"{module.name} cannot be loaded")


def unload(name: str) -> None:
    """rmmod, tried for two seconds: what a killed process had open goes a moment after it."""
    for _ in range(20):
        if not LIBC.syscall(DELETE_MODULE, name.encode(), os.O_NONBLOCK):
            return
        time.sleep(0.1)
    raise OSError(ctypes.get_errno(), f"{name} cannot be unloaded")


def run(out: Path) -> dict[str, object]:
    """What became of the step."""
    said = json.loads((out / "run.json").read_text())
    modules = Path(said["modules"])
    os.environ.update(said["environment"])
    load(modules / "nvidia.ko", f"socket={said['socket']}")
    loaded = ["nvidia"]
    if said["cgpu"]:
        load(modules / "cgpu_km.ko", said["parameters"])
        (core,) = modules.glob("cgpu_core_*.ko")
        load(core)
        loaded += ["cgpu_km", core.stem]
        mount("cgpu", "/dev/cgpu", "cgpu")
    with (out / "inside.log").open("wb") as log:
        command = [sys.executable, *said["plain"], said["inside"], str(out), *said["step"]]
        with copied(out):
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/").returncode
    if said["cgpu"]:
        LIBC.umount2(b"/dev/cgpu", 0)
    for name in reversed(loaded):
        unload(name)
    return {"status": status}


def kernel_log() -> str:
    """All that is in its buffer."""
    size = LIBC.syscall(SYSLOG, SYSLOG_ALL, LOG, LOG_BYTES)
    if size < 0:
        raise OSError(ctypes.get_errno(), "the kernel's log cannot be read")
    return ctypes.string_at(LOG, size).decode(errors="replace")


def copy_what_modules_say(out: Path) -> None:
    """What was not forwarded, the kernel's log, and its lines about calls that the module refused."""
    log = kernel_log()
    (out / "not_forwarded").write_text(Path("/proc/driver/nvforward").read_text())
    (out / "dmesg").write_text(log)
    (out / "refused").write_text("".join(f"{line}\n" for line in log.splitlines() if "cgpu_km" in line))


@contextlib.contextmanager
def copied(out: Path) -> Iterator[None]:
    """Now and then, and at the end of the block. By a thread that sleeps: Python's wait with a limit polls."""
    ended = threading.Event()

    def copy() -> None:
        while not ended.wait(COPY_S):
            copy_what_modules_say(out)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        copy_what_modules_say(out)


def main() -> None:
    """Never returns: that would be a panic."""
    folders = sys.argv[1 : sys.argv.index("end")]  # what follows are words that um adds
    out = Path(folders[-1])
    try:
        mount_all(folders)
        result = run(out)
    except BaseException:
        result = {"error": traceback.format_exc()}
        traceback.print_exc()
    (out / "end.json").write_text(json.dumps(result))
    os.sync()
    LIBC.syscall(REBOOT, 0xFEE1DEAD, 672274793, POWER_OFF, 0)


main()
