# SPDX-License-Identifier: MIT
"""Runs steps of inside.py in User-Mode Linux on this machine's NVIDIA driver, each in a machine of its own.

A step that hangs, or a machine that dies, ends with its time limit; what it had written by then stays, and the next
step starts anew. Standard library only: it runs where nothing is installed. docs/develop/forward.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from vm.harness import console  # noqa: E402

SIMULATORS = ("nvsim", "simgpu")
#: Of gpuload's kernels on a card; on a simulated one ten milliseconds in four waves, since an emulated processor takes
#: up to a millisecond to launch one, and a share is one of the GPU only while that is never idle.
KERNEL_US, SIMULATED_KERNEL_US, WAVES = 1000, 10_000, 4
#: Of gpuload's measurement, on a card and on a simulated one.
CALIBRATION_S, SIMULATED_CALIBRATION_S = 20, 120
MEMORY_PCT = 80  #: of a folder's room that User-Mode Linux may have: a page for which there is none is a SIGBUS
PROCESSORS_TO_SPARE = 4
END_S = 5  #: after SIGKILL; a process in a call of the driver that hangs does not end
#: What User-Mode Linux says where the host refuses its filters. With ptrace its processes do not get files that were
#: opened after they were started.
NO_SECCOMP = b"SECCOMP userspace requested but not functional"
REFUSED_SECCOMP = "this machine refuses seccomp filters, without which no process of User-Mode Linux reaches the driver"
#: Reports of the guest's kernel that say how busy its host is.
BUSY = ("stall", "hung task")
#: Of Python: without other packages, which take most of the start in an emulated machine.
PLAIN = ("-E", "-S", "-s", "-B")


@dataclass(frozen=True)
class Home:
    """Where the parts are."""

    linux: Path  #: User-Mode Linux
    modules: Path
    nvforwardd: Path
    environment: dict[str, str] = field(default_factory=dict)  #: of the step
    memory: str = "700M"
    parameters: str = ""  #: of cgpu_km
    python: str = sys.executable
    verbose: frozenset[str] = frozenset()  #: steps of which nvforwardd logs each call


@dataclass(frozen=True)
class Outcome:
    """Of a step."""

    step: str
    ok: bool
    seconds: float
    why: str  #: "" if it ended by itself
    results: list[dict[str, object]]  #: the lines that it wrote
    not_forwarded: list[str]
    refused: list[str]


@contextlib.contextmanager
def forwarding(home: Home, socket: Path, log: Path, verbose: bool = False) -> Iterator[None]:
    """nvforwardd, until the end of the block."""
    environment = os.environ | ({"NVFORWARDD_VERBOSE": "1"} if verbose else {})
    with log.open("ab") as file:
        process = subprocess.Popen(
            [home.nvforwardd, socket], stdout=file, stderr=file, env=environment, start_new_session=True
        )
    try:
        end = time.monotonic() + 10
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"nvforwardd does not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.02)
        yield
    finally:
        # Its processes end with it.
        process.kill()
        reaped(process, "nvforwardd")


def reaped(process: subprocess.Popen[Any], name: str) -> None:
    """After SIGKILL. One that hangs in the host's driver is left behind, so that what comes after it is begun."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        print(f"{name} {process.pid} does not end: left behind", file=sys.stderr, flush=True)


def call(command: Sequence[str], limit_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Status and output of a program of the host; OSError or TimeoutExpired, also where it hangs in the driver."""
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, text=True, env=os.environ | environment, start_new_session=True, **pipes
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        reaped(process, command[0])
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def simulated() -> list[Path]:
    """The simulated card's module, in one of its two homes."""
    return [path for path in (Path("/sys/module", name) for name in SIMULATORS) if path.exists()]


def nested() -> bool:
    """Whether this machine is User-Mode Linux itself: its processors are then scheduled by two kernels."""
    return "User Mode Linux" in Path("/proc/cpuinfo").read_text()


def card_environment(home: Home, gpuload: Path) -> dict[str, str]:
    """What the steps are told about the card: whether it is one, how long gpuload's kernels are, and how many rounds of
    its loop that is, measured on the driver alone. Without an answer a kernel is one round. In a nested machine shares
    are those of the processors, so that they are not judged.
    """
    us = SIMULATED_KERNEL_US if simulated() else KERNEL_US
    for module in simulated():
        (module / "parameters/wave_ns").write_text(str(us * 1000 // WAVES))
    said = {"CARD_IS_SIMULATED": str(int(bool(simulated()))), "GPULOAD_KERNEL_US": str(us)}
    said["SHARES_ARE_JUDGED"] = str(int(not nested()))
    command = [str(gpuload), "--calibrate", "--json", "--kernel-us", str(us)]
    limit_s = SIMULATED_CALIBRATION_S if simulated() else CALIBRATION_S
    try:
        done = call(command, limit_s, **home.environment)
        said["GPULOAD_ITERATIONS"] = str(json.loads(done.stdout.splitlines()[-1])["iterations"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        print(f"gpuload's kernel is not measured: {error!r}", file=sys.stderr, flush=True)
    return said


def covered(paths: list[Path]) -> list[str]:
    """Folders that the machine's own file systems hide, so that they are mounted there: each once, parents first."""
    hidden = ("/tmp/", "/run/", "/dev/", "/sys/", "/proc/")
    found: list[str] = []
    for path in sorted({str(path) for path in paths}):
        if path.startswith(hidden) and not any(path.startswith(f"{other}/") for other in found):
            found.append(path)
    return found


def command_line(home: Home, out: Path, socket: Path) -> list[str]:
    """Of User-Mode Linux."""
    mib = memory(home.memory)[1]
    argv = [str(home.linux), f"mem={mib}M", "rootfstype=hostfs", "rootflags=/", "ro", "seccomp=on"]
    argv += ["con=null", "con0=null,fd:1", "ssl=null", f"uml_dir={socket.parent}", "umid=uml", "loglevel=6"]
    visible = covered([HERE.parents[1], home.modules, home.linux.parent, Path(home.python).resolve().parents[1]])
    visible = [folder for folder in visible if not str(out).startswith(f"{folder}/")]
    return [*argv, f"init={home.python}", "--", *PLAIN, str(HERE / "init.py"), *visible, str(out), "end"]


def play(home: Home, out: Path, step: list[str], limit_s: float, cgpu: bool = True) -> Outcome:
    """One step: a folder of its own below `out`, named by its first word."""
    folder = out / step[0]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scratch = Path(subprocess.run(["mktemp", "-d"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    socket = scratch / "socket"
    said = {
        "modules": str(home.modules),
        "environment": home.environment,
        "socket": str(socket),
        "cgpu": cgpu,
        "parameters": home.parameters,
        "inside": str(HERE / "inside.py"),
        "plain": PLAIN,
        "step": step,
    }
    (folder / "run.json").write_text(json.dumps(said))
    started = time.monotonic()
    try:
        with forwarding(home, socket, folder / "nvforwardd.log", step[0] in home.verbose):
            why = boot(command_line(home, folder, socket), folder, limit_s, memory(home.memory)[0])
    except (RuntimeError, OSError) as error:
        why = str(error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return judge(folder, step[0], time.monotonic() - started, why)


def mib_of(size: str) -> int:
    """Of "16G" or "700M"."""
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


def room_mib() -> dict[str, int]:
    """By folder in which a program may run, what a file there may take. A tmpfs may be larger than the memory."""
    found = {name: os.statvfs(name) for name in ("/dev/shm", "/tmp", "/var/tmp") if Path(name).is_dir()}
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    room = {name: one.f_bavail * one.f_frsize >> 20 for name, one in found.items() if not one.f_flag & os.ST_NOEXEC}
    return {name: min(mib, int(line.split()[1]) >> 10) * MEMORY_PCT // 100 for name, mib in room.items()}


def memory(asked: str) -> tuple[str, int]:
    """Folder of the file that is the machine's memory, and its MiB: as asked for, or what there is room for. /dev/shm
    where it has room for half of it, since a file on a disk is written there.
    """
    mib, room = mib_of(asked), room_mib()
    if not room:
        raise RuntimeError("no folder for the memory of User-Mode Linux: /dev/shm, /tmp and /var/tmp are noexec")
    best = max(room, key=lambda name: room[name])
    folder = "/dev/shm" if room.get("/dev/shm", 0) >= mib // 2 else best
    return folder, max(1, min(mib, room[folder]))


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def begin_machine() -> None:
    """In a new process, before User-Mode Linux. No machine outlives this program, even one that is killed. The guest's
    kernel, one thread, runs before its programs, which are processes of the host and wait for it anyway: a control's
    end is seen at once where they compute. Without the right to that it runs as they do. Each file of the driver that
    the guest has open is one of the kernel's: of forty processes they are more than the usual thousand. Kernel and
    program take turns, a futex each time: on one processor neither has to wake another one, which sleeps. nvforwardd
    has them all. Without the priority, or with few processors, each other program would be in the way there.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        processors = os.sched_getaffinity(0)
        if len(processors) >= PROCESSORS_TO_SPARE:
            os.sched_setaffinity(0, {max(processors)})


def boot(argv: list[str], folder: Path, limit_s: float, memory_folder: str = "/tmp") -> str:
    """The machine from start to end. Its processes are in a session of its own, which is killed as a whole."""
    environment = os.environ | {"TMPDIR": memory_folder}
    with (folder / "console.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=begin_machine,
        )
    try:
        status = process.wait(limit_s)
        # The guest is down then. um's own exit aborts now and then, nested, which is no result of the step.
        said = (folder / "console.log").read_bytes()
        if NO_SECCOMP in said:
            return REFUSED_SECCOMP
        is_down = b"reboot: Power down" in said[-400:]
        return f"User-Mode Linux ended with status {status}" if status and not is_down else ""
    except subprocess.TimeoutExpired:
        return f"ended after {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reaped(process, "User-Mode Linux")


def judge(folder: Path, step: str, seconds: float, why: str) -> Outcome:
    """What the step left in its folder."""

    def lines(name: str) -> list[str]:
        path = folder / name
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    end: dict[str, object] = {}
    with contextlib.suppress(ValueError, TypeError, IndexError):  # of a machine that died while it wrote
        end = dict(json.loads(lines("end.json")[0]))
    if not why and "error" in end:
        why = str(end["error"]).strip().splitlines()[-1]
    if not why and end.get("status") != 0:
        why = f"status {end.get('status')}: {' / '.join(lines('inside.log')[-3:])}"
    reports = [one for one in console.findings("\n".join(lines("console.log"))) if one.kind not in BUSY]
    if not why and reports:
        why = f"the guest's kernel: {reports[0].title}"
    results = []
    for line in lines("results.jsonl"):
        with contextlib.suppress(ValueError):  # of a step that died while it wrote
            results.append(json.loads(line))
    return Outcome(step, not why, seconds, why, results, lines("not_forwarded"), lines("refused"))
