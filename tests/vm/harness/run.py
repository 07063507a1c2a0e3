# SPDX-License-Identifier: MIT
"""Starts a machine, waits for its verdict and reads its console."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import console, initrd
from .machine import (
    PORTS,
    Machine,
    Paths,
    Wires,
    docker_settings,
    guest_environment,
    memory_size,
    qemu_arguments,
    uml_arguments,
)

REPO = Path(__file__).resolve().parents[3]

#: Exit statuses that are not the command's own.
EXIT_FINDINGS = 122
EXIT_SETUP = 123
EXIT_LOST = 125

#: Machines that run at a time on a host of few processors: each waits for half of its time.
PLACES = 3

#: So many run directories are kept for reading after the fact.
KEPT_RUNS = 30


class LostVM(Exception):
    """The machine ended, or had to be ended, without a verdict."""


class SetupFailed(Exception):
    """The machine came up, but a module or daemon did not; the command never ran."""


@dataclass(frozen=True)
class Result:
    """The outcome of one run."""

    status: int
    findings: list[console.Finding]
    run_dir: Path
    seconds: float


def run(
    machine: Machine, command: str, timeout: float, out: Callable[[bytes], object], err: Callable[[bytes], object]
) -> Result:
    """Run `command` in the machine; its streams go to `out` and `err` as they come.

    Raises LostVM or SetupFailed; a failing command is a Result.
    """
    with one_of_the_places(machine.shell):
        run_dir = make_run_dir(machine, command)
        paths = locate(machine, run_dir)
        started = time.monotonic()
        verdict = spawn(machine, paths, timeout, out, err)
        seconds = time.monotonic() - started
    found = console.findings(read_console(run_dir))
    return judge(verdict, found, run_dir, seconds)


def judge(verdict: bytes, found: list[console.Finding], run_dir: Path, seconds: float) -> Result:
    """Digits and a newline are the command's status; anything less is a lost machine."""
    text = verdict.decode(errors="replace")
    if text.startswith("setup: ") and text.endswith("\n"):
        raise SetupFailed(f"{text.strip()}\n{console.report(found)}\nlogs in {run_dir}")
    if not (text.endswith("\n") and text.strip().isdigit()):
        why = console.report(found) or last_lines(read_console(run_dir))
        raise LostVM(f"no verdict after {seconds:.0f} s (got {text!r})\n{why}\nlogs in {run_dir}")
    return Result(int(text), found, run_dir, seconds)


def spawn(machine: Machine, paths: Paths, timeout: float, out, err) -> bytes:
    """The machine from start to end; returns the bytes received on the verdict's port."""
    verdict = bytearray()
    sinks = {"out": out, "err": err, "status": verdict.extend}
    ports = [port for port in PORTS if not (machine.shell and port == "out")]
    pairs = {port: socket.socketpair() for port in ports}
    wires = Wires({port: theirs.fileno() for port, (_, theirs) in pairs.items()})
    process = start(machine, paths, wires)
    readers = [start_reader(ours, sinks[port]) for port, (ours, _) in pairs.items()]
    for _, theirs in pairs.values():
        theirs.close()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise LostVM(
            f"timed out after {timeout:.0f} s\n{last_lines(read_console(paths.run))}\nlogs in {paths.run}"
        ) from None
    finally:
        # Also on Ctrl-C: no machine outlives this process.
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
    if process.returncode != 0:
        raise LostVM(why_it_ended(machine, paths, process.returncode))
    return bytes(verdict)


def start(machine: Machine, paths: Paths, wires: Wires) -> subprocess.Popen:
    """QEMU, or User-Mode Linux, whose stdout is the console."""
    stdin = None if machine.shell else subprocess.DEVNULL
    fds = tuple(wires.fds.values())
    if not machine.uml:
        stdout = None if machine.shell else subprocess.DEVNULL
        with (paths.run / "qemu.log").open("wb") as log:
            argv = qemu_arguments(machine, paths, wires)
            return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=log, pass_fds=fds)
    check_memory_file(Path(os.environ.get("TMPDIR") or "/dev/shm"), memory_size(machine))
    with (paths.run / "console.log").open("ab") as console_log:
        stderr = None if machine.shell else console_log
        argv = uml_arguments(machine, paths, wires)
        return subprocess.Popen(argv, stdin=stdin, stdout=console_log, stderr=stderr, pass_fds=fds)


#: The way without User-Mode Linux, at the end of each sentence about what it lacks.
INSTEAD = "the same in QEMU: BACKEND=qemu"

#: What User-Mode Linux prints where the machine refuses what it stands on, and what that is.
REFUSALS = (
    ("check_seccomp", "processes here may not install seccomp filters"),
    ("check_ptrace", "processes here may not trace their children"),
    ("Failed to initialize default registers", "processes here may not trace their children"),
    ("noexec", "the folder of its memory file is mounted noexec"),
)


def check_memory_file(folder: Path, memory: str) -> None:
    """User-Mode Linux has its RAM in a file, which programs are run from."""
    found = os.statvfs(folder)
    if found.f_flag & os.ST_NOEXEC:
        raise SetupFailed(f"User-Mode Linux has its memory in {folder}, which is mounted noexec; {INSTEAD}")
    free_mib, need_mib = found.f_bavail * found.f_frsize >> 20, mib(memory)
    if free_mib < need_mib:
        raise SetupFailed(
            f"User-Mode Linux has its memory in {folder}, which has {free_mib} MiB free and needs {need_mib}: "
            f"VM_MEM=<less>, or TMPDIR=<folder>; {INSTEAD}"
        )


def mib(size: str) -> int:
    """`2G` or `512M` in MiB."""
    units = {"G": 1024, "M": 1}
    if size[-1:].upper() not in units or not size[:-1].isdigit():
        raise SetupFailed(f"VM_MEM={size} is no size: a number and M or G")
    return int(size[:-1]) * units[size[-1].upper()]


def why_it_ended(machine: Machine, paths: Paths, status: int) -> str:
    """The reason of a machine that ended by itself, with another status than 0."""
    if not machine.uml:
        return f"QEMU failed: {(paths.run / 'qemu.log').read_text(errors='replace')}"
    text = read_console(paths.run)
    if "Linux version" not in text:
        known = [sentence for mark, sentence in REFUSALS if mark in text]
        why = known[0] if known else f"it ended with status {status}: {text.strip()[-300:]}"
        raise SetupFailed(f"User-Mode Linux does not start on this machine, {why}; {INSTEAD}")
    found = console.findings(text)
    why = console.report(found) or last_lines(text)
    return f"User-Mode Linux ended with status {status}\n{why}\nlogs in {paths.run}"


def start_reader(ours: socket.socket, sink: Callable[[bytes], object]) -> threading.Thread:
    """A thread that copies everything from `ours` to `sink` until its end.

    When the sink has no reader any more, the rest is dropped, so that the guest
    does not block on it.
    """

    def copy() -> None:
        deaf = False
        with ours:
            while data := ours.recv(65536):
                try:
                    if not deaf:
                        sink(data)
                except BrokenPipeError:
                    deaf = True

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def make_run_dir(machine: Machine, command: str) -> Path:
    """A fresh build/vm/<time>-<kernel>-<pid> with the files that boot/init reads."""
    base = REPO / "build/vm"
    base.mkdir(parents=True, exist_ok=True)
    prune(base)
    run_dir = base / f"{time.strftime('%H%M%S')}-{machine.kernel}-{os.getpid()}"
    run_dir.mkdir()
    check_engines(machine)
    release = (kernel_dir(machine) / "release").read_text().strip()
    (run_dir / "env").write_text(guest_environment(machine, REPO, release))
    (run_dir / "command").write_text(command + "\n")
    if machine.nvsim:
        (run_dir / "nvsim").write_text(nvsim_command(machine))
    (run_dir / "console.log").touch()
    if machine.docker:
        extra = json.loads(Path(machine.docker_config).read_text()) if machine.docker_config else {}
        (run_dir / "daemon.json").write_text(json.dumps(docker_settings(extra), indent=2))
    return run_dir


def check_engines(machine: Machine) -> None:
    """Whether scripts/setup-engines has unpacked the engines that ENGINES names."""
    if machine.engines and not (REPO / "build/engines" / machine.engines / "usr").is_dir():
        raise SetupFailed(f"the engines of {machine.engines} are not below build/engines: make engines")


def nvsim_command(machine: Machine) -> str:
    """The command that loads nvsim in the guest; built here, where starting Python is cheap."""
    words = [sys.executable, REPO / "tests/nvsim/load.py", "--print"]
    words += ["--module", REPO / "build/modules" / machine.kernel / "nvsim.ko"]
    options = {
        "profile": machine.profile,
        "gpus": machine.gpus,
        "mem-mib": machine.mem_mib,
        "driver": machine.driver or (nvidia_release(machine.nvidia) if machine.nvidia else ""),
    }
    for option, value in options.items():
        words += [f"--{option}", value] if value else []
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupFailed(done.stderr.strip().splitlines()[-1])
    return done.stdout


def nvidia_release(branch: str) -> str:
    """The exact release that scripts/setup-nvidia has unpacked of a branch, as its libraries are named by."""
    libraries = REPO / "build/nvidia" / branch / "usr/lib/x86_64-linux-gnu/nvidia/current"
    found = [path.name.removeprefix("libcuda.so.") for path in libraries.glob("libcuda.so.*.*")]
    if not found:
        raise SetupFailed(f"NVIDIA's user space {branch} is not below build/nvidia: scripts/setup-nvidia {branch}")
    return found[0]


def prune(base: Path) -> None:
    """Remove the oldest run directories, never one younger than an hour."""
    runs: list[tuple[float, Path]] = []
    for path in filter(Path.is_dir, base.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another boot removes them too
            runs.append((path.stat().st_mtime, path))
    for mtime, old in sorted(runs)[:-KEPT_RUNS]:
        if time.time() - mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)


def kernel_dir(machine: Machine) -> Path:
    """build/kernels/<kernel>, which `make setup` fills."""
    path = REPO / "build/kernels" / machine.kernel
    if not (path / "release").exists():
        raise SetupFailed(f"there is no kernel in {path}: make setup")
    return path


def locate(machine: Machine, run_dir: Path) -> Paths:
    """The files the machine boots from."""
    kernel = kernel_dir(machine)
    if machine.uml:
        return Paths(repo=REPO, run=run_dir, vmlinuz=kernel / "linux", initrd=Path("/"))
    ramdisk = initrd.ensure(kernel, REPO / "tests/vm/harness/boot/initrd-init")
    return Paths(repo=REPO, run=run_dir, vmlinuz=kernel / "vmlinuz", initrd=ramdisk)


@contextlib.contextmanager
def one_of_the_places(free: bool) -> Iterator[None]:
    """No more machines at a time than three or processors / 2, else all of them crawl
    into their time-outs. Waiting does not count as running."""
    if free:
        yield
        return
    base = REPO / "build/vm"
    base.mkdir(parents=True, exist_ok=True)
    places = max(PLACES, (os.cpu_count() or 2) // 2)
    with contextlib.ExitStack() as stack:
        queue, *files = [
            stack.enter_context((base / name).open("w")) for name in (".queue", *(f".slot-{n}" for n in range(places)))
        ]
        if not (try_lock(queue) and any(try_lock(file) for file in files)):
            print("vm: waiting for another machine to end", file=sys.stderr, flush=True)
            # The holder of the queue's lock is next; the kernel wakes the others in order.
            fcntl.flock(queue, fcntl.LOCK_EX)
            while not any(try_lock(file) for file in files):
                time.sleep(0.3)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


def try_lock(file) -> bool:
    """Whether this process now holds the lock on `file`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_console(run_dir: Path) -> str:
    """The kernel log of a run, however short."""
    return (run_dir / "console.log").read_text(errors="replace")


def last_lines(text: str, count: int = 30) -> str:
    """The end of a log, for an error message."""
    return "\n".join(["last lines of the console:", *text.splitlines()[-count:]])
