# SPDX-License-Identifier: MIT
"""Questions, the budget of time they share, and what one is given to work with."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import loads, machine


class Missing(Exception):
    """What the question needs is not here."""


class TooLong(BaseException):
    """The question had more than its time. Nothing within it takes this for a fault of its own."""


@dataclass(frozen=True)
class Question:
    """One row of the results."""

    name: str
    group: str
    asks: str
    method: str
    seconds: float  # what it takes, about
    rows: tuple[int, ...]  # of docs/develop/hardware.md
    run: Callable[[Context], dict]


QUESTIONS: list[Question] = []


def question(name: str, group: str, seconds: float, rows: tuple[int, ...] = ()):
    """The function's docstring is what it asks, then how, with an empty line between."""

    def keep(run: Callable[[Context], dict]) -> Callable[[Context], dict]:
        asks, _, method = (run.__doc__ or "").partition("\n\n")
        asks, method = (" ".join(text.split()) for text in (asks, method))
        QUESTIONS.append(Question(name, group, asks, method, seconds, rows, run))
        return run

    return keep


@dataclass
class Context:
    """What a question works with."""

    load: str  # gpuload or simload
    bin: Path
    quick: bool  # shorter windows and fewer calls, for a test of the scripts
    facts: dict
    out: Path  # of the results
    kernel_us: float = 1000
    depth: int = (
        0  # of the queue; 0: 32, and 256 where a window is short, so that a load kept off the CPU does not run dry
    )
    about_s: float = 10.0
    interval_s: float = 0.05
    work: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="cgpu-gpu-")))
    _iterations: dict[float, int] = field(default_factory=dict)
    _plain: dict[str, dict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.depth = self.depth or (256 if self.quick else 32)
        self.work.chmod(0o777)  # a load of another user has its socket there, and finds what it runs
        here = self.work / "bin"
        here.mkdir()
        for name in machine.BUILT:
            if (self.bin / name).exists():
                shutil.copy(self.bin / name, here / name)
        self.bin = here

    @property
    def window_s(self) -> float:
        return 0.7 if self.quick else 1.5

    @property
    def calls(self) -> int:
        return 30 if self.quick else 1000

    def preload(self, **env: str) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.bin / "librmlever.so"), "RMLEVER_DIR": str(self.work), **env}

    def iterations(self, kernel_us: float) -> list[str]:
        """gpuload measures a kernel's length once, on an idle GPU; the others are told."""
        if self.load != "gpuload":
            return []
        if kernel_us not in self._iterations:
            argv = [str(self.bin / "gpuload"), "--json", "--calibrate", "--kernel-us", str(kernel_us)]
            done = loads.run_program(argv)
            if done["status"] != 0:
                raise loads.LoadError(f"gpuload --calibrate: {done.get('reason') or done['stderr'].strip()}")
            self._iterations[kernel_us] = json.loads(done["stdout"])["iterations"]
        return ["--iterations", str(self._iterations[kernel_us])]

    def argv(self, **options: object) -> list[str]:
        """A load's command line; True is an option without a value."""
        wanted = {"kernel_us": self.kernel_us, "depth": self.depth, **options}
        words = [str(self.bin / self.load), "--json"]
        for name, value in wanted.items():
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        idle = any(options.get(name) for name in ("hold", "no_context", "info"))
        return words + ([] if idle else self.iterations(float(wanted["kernel_us"])))

    def start(self, user: int | None = None, **options: object) -> loads.Load:
        wanted = {"seconds": 0, "interval": self.interval_s, **options}
        env = {**os.environ, **self.preload(), "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        return loads.Load(self.argv(**wanted), env, self.work, user)

    def start_torch(self, *words: str) -> loads.Load:
        argv = [*TORCH, "--json", "--seconds", "0", "--interval", str(self.interval_s), *words]
        return loads.Load(argv, {**os.environ, **self.preload()}, self.work)

    def crew(self, torch: bool = False) -> loads.Crew:
        return loads.Crew(self.start_torch if torch else self.start, self.interval_s)

    def programs(self) -> dict[str, list[str]]:
        """What asks the driver for its state here, by name."""
        if self.facts["simulated"]:
            return {
                "load": self.argv(seconds=0.3),
                "info": self.argv(info=True),
                "simsmi": [str(self.bin / "simsmi")],
            }
        found = {"load": self.argv(seconds=0.3), "info": self.argv(info=True)}
        found["nvidia-smi"] = ["nvidia-smi"]
        found["nvidia-smi-q"] = ["nvidia-smi", "-q", "-d", "MEMORY,UTILIZATION"]
        if has_torch():
            found["torch"] = [*TORCH, "--seconds", "2", "--json"]
        return found

    def plain(self, name: str) -> dict:
        """What becomes of the program as it is; it is run once."""
        if name not in self._plain:
            self._plain[name] = loads.run_program(self.programs()[name], timeout_s=30)
        return self._plain[name]

    def close(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


TORCH = [sys.executable, str(machine.GPU / "load/torchload.py")]


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


class Budget:
    """Seconds for everything. The clock is given, so that it can be any."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._clock, self._end = clock, clock() + seconds

    @property
    def left_s(self) -> float:
        return self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        """Not begun if it would probably not end in time."""
        return self.left_s >= seconds


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TooLong in the main thread after so many seconds."""

    def ring(*_: object) -> None:
        raise TooLong(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _head(one: Question, context: Context) -> dict:
    """What every result begins with, asked or not."""
    return {
        "question": one.name,
        "group": one.group,
        "asks": one.asks,
        "method": one.method,
        "rows": list(one.rows),
        "load": context.load,
        **{key: context.facts[key] for key in ("simulated", "driver", "card", "kernel", "date")},
    }


def answer(one: Question, context: Context, limit_s: float) -> dict:
    """The question's result; whatever goes wrong is in it."""
    began = time.monotonic()
    result = _head(one, context)
    try:
        with at_most(limit_s):
            numbers = one.run(context)
        result.update(state="measured", answer=numbers.pop("answer", ""), numbers=numbers)
    except Missing as error:
        result.update(state="missing", reason=str(error))
    except TooLong as error:
        result.update(state="too long", reason=str(error))
    except Exception as error:  # one question's fault is that question's result
        result.update(state="failed", reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-2000:])
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def not_reached(one: Question, context: Context, why: str) -> dict:
    return _head(one, context) | {"state": "not reached", "reason": why, "seconds": 0.0}
