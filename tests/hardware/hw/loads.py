# SPDX-License-Identifier: MIT
"""Processes that keep the GPU busy, what they report, and programs that are run to their end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path

from . import stats
from .lever import Lever, LeverError


class LoadError(Exception):
    """A load did not start or ended by itself."""


class Load:
    """One running load with rmlever in it."""

    def __init__(self, argv: list[str], env: dict[str, str], sockets: Path, user: int | None = None):
        self.argv, self.sockets = argv, sockets
        self.points: list[tuple[float, int]] = []
        self.events: dict[str, dict] = {}
        self.requests: list[dict] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._lever: Lever | None = None

    def _read(self) -> None:
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.events[event.get("event", "")] = event
            if event.get("event") == "progress":
                self.points.append((event["monotonic"], event["works"]))
            elif event.get("event") == "request":
                self.requests.append(event)
            elif event.get("event") == "ready":
                self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout_s: float = 60) -> Load:
        self._ready.wait(timeout_s)
        if "ready" not in self.events:
            raise LoadError(f"{Path(self.argv[0]).name} did not start: {self.stop().strip()[:300] or 'no word'}")
        return self

    @property
    def lever(self) -> Lever:
        if self._lever is None:
            self._lever = Lever(self.sockets / f"{self.process.pid}.sock")
        return self._lever

    @property
    def socket(self) -> Path:
        return self.lever.path

    def rate(self, begin: float, end: float) -> float:
        if self.process.poll() is not None:
            raise LoadError(f"a load ended by itself with status {self.process.returncode}")
        return stats.rate(self.points, begin, end)

    def stop(self) -> str:
        """Returns its stderr. No load stays frozen."""
        if self.process.stderr.closed:
            return ""
        if self._lever:
            self._lever.timeout_s = 2
            with contextlib.suppress(LeverError, ValueError):
                self._lever("thaw", restart=1)
            self._lever.close()
            self._lever = None
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self._reader.join(5)
        with self.process.stderr as err, self.process.stdout:
            return err.read()


class Crew:
    """Loads that end together, whatever happens."""

    def __init__(self, start, interval_s: float):
        self._start, self._interval_s = start, interval_s
        self.loads: list[Load] = []

    def add(self, count: int = 1, **options: object) -> list[Load]:
        fresh = []
        for _ in range(count):
            load = self._start(**options)
            self.loads.append(load)
            fresh.append(load)
        for load in fresh:
            load.wait_ready()
        return fresh

    def rates(self, seconds: float, loads: list[Load] | None = None, settle_s: float = 0.3) -> list[float]:
        """Works per second of each from a while after now on."""
        begin = time.monotonic() + settle_s
        time.sleep(settle_s + seconds)
        end = begin + seconds
        chosen = self.loads if loads is None else loads
        patience = time.monotonic() + 10 * self._interval_s + 2
        while time.monotonic() < patience and any(not one.points or one.points[-1][0] < end for one in chosen):
            time.sleep(self._interval_s / 2)
        return [one.rate(begin, end) for one in chosen]

    def stop(self) -> None:
        for load in self.loads:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                load.stop()
        self.loads.clear()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_program(argv: list[str], env: dict[str, str] | None = None, timeout_s: float = 60) -> dict:
    """Status, end of output and time of a program that ends by itself; a missing one is a result too."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    except FileNotFoundError:
        return {"program": Path(argv[0]).name, "status": None, "reason": "not installed"}
    except subprocess.TimeoutExpired:
        return {"program": Path(argv[0]).name, "status": None, "reason": f"no end after {timeout_s:g} s"}
    return {
        "program": Path(argv[0]).name,
        "status": status,
        "stdout": out[-2000:],
        "stderr": err[-1000:],
        "seconds": round(time.monotonic() - began, 3),
    }
