# SPDX-License-Identifier: MIT
"""What the steps are made of, inside User-Mode Linux: results, containers, loads in them, shares."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/demo"))

from measure import Progress, rate, whole_rounds  # noqa: E402

PROC = Path("/proc/cgpu_km")
NODES = Path("/dev/cgpu")
MIB = 1 << 20
NAMES = ("a" * 64, "b" * 64, "c" * 64)
SIMULATED = os.environ.get("CARD_IS_SIMULATED") == "1"
#: Loads in PyTorch run on tests/forward/standin: their control flow, and no result.
STANDIN = os.environ.get("TORCH_IS_STANDIN") == "1"
STANDIN_SAYS = "PyTorch is a stand-in: this is the control flow"
#: Whether the shares are compared with a bar (home.py).
JUDGED = os.environ.get("SHARES_ARE_JUDGED", "1") == "1"
#: Factor of what a program and its end may take, on a busy or emulated host (module-run --slow).
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
#: Of a program, of a load's first work, and of work between two moments: less than a step has, so that a program that
#: hangs is a result and the step goes on. PyTorch takes half a minute to its first work.
CALL_S, START_S, PROGRESS_S = (300.0, 240.0, 120.0) if SIMULATED else (25.0, 60.0, 30.0)
#: How long a kernel is, and how many rounds of its loop that is, was measured on the driver alone (home.py).
KERNEL_US = os.environ.get("GPULOAD_KERNEL_US", "1000")
KERNEL = ("--kernel-us", KERNEL_US, "--iterations", os.environ.get("GPULOAD_ITERATIONS", "1"))
#: Those, queued without end.
LOAD = ("gpuload", "--json", "--seconds", "0", "--interval", "0.2", "--depth", "16", *KERNEL)


class Report:
    """Writes results as they come."""

    def __init__(self, out: Path) -> None:
        self.folder = out
        self._file = (out / "results.jsonl").open("a")

    def add(self, name: str, **values: object) -> None:
        self._file.write(json.dumps({"name": name} | values) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def missing(self, name: str, reason: str, **values: object) -> None:
        """Not measured, because what it needs is not on this machine."""
        self.add(name, ok=None, missing=reason, **values)

    def of_standin(self, name: str, ok: object, **values: object) -> None:
        """Of a load whose PyTorch is the stand-in: that it came to its end."""
        self.missing(name, STANDIN_SAYS, **values)


class Box:
    """A plain container: made through inst_ctl, its nodes in the place of NVIDIA's in a mount namespace."""

    def __init__(self, name: str, mib: int, **more: object) -> None:
        self.name = name
        words = "".join(f" {key}={value}" for key, value in more.items())
        (PROC / "inst_ctl").write_text(f"create {name} gpu=0 memsize={mib * MIB}{words}")
        line = next(line for line in (PROC / "inst_ctl").read_text().splitlines() if line.split()[0] == name)
        self.dir = dict(word.split("=", 1) for word in line.split()[1:])["dir"]
        self.proc = PROC / "0" / self.dir

    def head(self) -> list[str]:
        """Of a command line that runs in it."""
        if not shutil.which("setpriv"):
            raise RuntimeError("setpriv is not installed: a container's programs would be the driver's administrator")
        nodes = sorted(path.name for path in (NODES / self.dir).iterdir())
        # Without one of its nodes a program would find the driver's.
        binds = " && ".join(f"mount --bind {NODES}/{self.dir}/{name} /dev/{name}" for name in nodes)
        # As an engine's container: root without capabilities, so that the host's driver has no administrator.
        drop = "setpriv --bounding-set=-all --inh-caps=-all"
        return ["unshare", "-m", "sh", "-c", f'{binds} && exec {drop} "$@"', "sh"]

    def used(self) -> int:
        """Bytes that it is charged."""
        return int(self.stat()["used_bytes"])

    def is_empty(self, limit_s: float = 10) -> bool:
        """Whether everything comes back: what a process had goes a moment after its end."""
        end = time.monotonic() + limit_s * SLOWNESS
        while self.used():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def set(self, node: str, value: object) -> None:
        (self.proc / node).write_text(str(value))

    def stat(self) -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in (self.proc / "stat").read_text().splitlines())

    def destroy(self) -> None:
        with contextlib.suppress(OSError):
            (PROC / "inst_ctl").write_text(f"destroy {self.name}")
        end = time.monotonic() + 30 * SLOWNESS
        while self.proc.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"container {self.dir} does not end")
            time.sleep(0.05)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()


def call(*words: str, limit_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
    """Status and output; `limit_s` of a host that is not slow."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=limit_s * SLOWNESS)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(words, 124, "", f"ended after {error.timeout:.0f} s")


def call_all(commands: Sequence[Sequence[str]], limit_s: float = CALL_S) -> list[subprocess.CompletedProcess[str]]:
    """The same for several at once."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda words: call(*words, limit_s=limit_s), commands))


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program said last, a line of JSON; nothing if it said none."""
    lines = done.stdout.splitlines()
    with contextlib.suppress(ValueError, IndexError):
        return dict(json.loads(lines[-1]))
    return {}


def set_gpu(node: str, value: object) -> None:
    """A setting of the first GPU."""
    (PROC / "0" / node).write_text(str(value))


def card_mib() -> int:
    """Of the first GPU, as the driver alone says it."""
    done = call("nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return int(done.stdout.split()[0])


def slices() -> tuple[int, int]:
    """6 and 8 of 15 parts of the card, MiB."""
    return card_mib() * 6 // 15, card_mib() * 8 // 15


@contextlib.contextmanager
def load(box: Box | None, command: Sequence[str] = LOAD, talk: bool = False) -> Iterator[Progress]:
    """A load in a container, or on the driver alone, from its first line of progress on."""
    progress = Progress([*(box.head() if box else []), *command], talk)
    try:
        if not progress.wait_until(0.001, START_S * SLOWNESS):
            raise RuntimeError(f"{command[0]} does not start: {progress.last_words()}")
        yield progress
    finally:
        progress.stop()


def gpu_stat() -> dict[str, str]:
    """Of the GPU: policy, controls."""
    return dict(line.split(maxsplit=1) for line in (PROC / "0/stat").read_text().splitlines())


def rates_of(loads: Sequence[Progress], window_s: float, weights: Sequence[int]) -> list[float]:
    """Works per second of each in whole rounds, begun a second after what was set."""
    round_s = sum(weights) * int((PROC / "0/slice_us").read_text()) / 1e6
    time.sleep(1)
    begin = time.monotonic()
    end = begin + whole_rounds(window_s, round_s)
    for one in loads:
        if not one.wait_until(end, end - begin + PROGRESS_S * SLOWNESS):
            raise RuntimeError(f"no progress: {one.last_words()}")
    return [rate(one.samples(), begin, end) for one in loads]


CONTROLS = ("control_p50_us", "control_p99_us", "control_max_us", "control_seen", "effect_check")


def divided(
    report: Report,
    name: str,
    weights: Sequence[int],
    window_s: float,
    policy: int = 2,
    command: Sequence[str] = LOAD,
    bar_pct: float = 3.0,
    windows: int = 1,
) -> None:
    """Containers with these weights; the worst error of a share, in per cent of it. Of several windows the first one
    within the bar counts, since a busy host wakes late; the errors of all are reported.
    """
    set_gpu("policy", policy)
    mib = card_mib() // (len(weights) + 1)
    asked = [weight / sum(weights) for weight in weights]
    errors: list[float] = []
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(Box(NAMES[n], mib, weight=weight)) for n, weight in enumerate(weights)]
        loads = [stack.enter_context(load(box, command)) for box in boxes]
        while len(errors) < windows and (not errors or errors[-1] > bar_pct):
            rates = rates_of(loads, window_s, weights)
            shares = [one / sum(rates) for one in rates]
            errors.append(max(abs(got / want - 1) * 100 for got, want in zip(shares, asked, strict=True)))
        stat = gpu_stat()
    good: bool | None = errors[-1] <= bar_pct
    more: dict[str, object] = {}
    if STANDIN and command is not LOAD:
        good, more = None, {"missing": STANDIN_SAYS}
    elif not JUDGED:
        good, more = None, {"missing": "this machine runs in User-Mode Linux: the shares are those of its processors"}
    report.add(
        name,
        ok=good,
        policy=policy,
        asked=weights[1] / weights[0],
        got=round(rates[1] / rates[0], 4),
        error_pct=round(abs(rates[1] / rates[0] / (weights[1] / weights[0]) - 1) * 100, 2),
        worst_share_error_pct=[round(one, 2) for one in errors],
        weights=list(weights),
        works_per_s=[round(one, 1) for one in rates],
        controls={key: stat.get(key) for key in CONTROLS},
        **more,
    )
