# SPDX-License-Identifier: MIT
"""Queries NVML in a child process, because a call into NVML may hang, and a thread that hangs cannot be ended.

A query waits for `wait_s`. After that it returns what is known: GPUs for which NVML has answered, and the others with
the values of the last answer, marked lost. The child gets more time, up to DEADLINE_S, because a first query without
nvidia-persistenced can be slow; then it is killed. After a query without a complete answer, queries do not wait until
there was one again.

There is never more than one child: while one hangs in the kernel, where it cannot be killed, no other one is started,
and the GPUs for which it has answered keep their values.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from cgpu_common.cards import NvmlGpu, NvmlView
from cgpu_common.python import timeout

DEADLINE_S = 60.0
RETRY_S = 10.0  # between the starts of two children, the first of which gave no complete answer
ANSWER_MAX = 1 << 20
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from cgpu_common.gpus import answer; answer(sensors={})"
_ABOVE = str(Path(__file__).resolve().parents[1])
COMMAND = (sys.executable, "-I", "-c", PROGRAM.format(False), _ABOVE)
#: Apart from admission's query: a sensor that hangs does not make a GPU lost to new containers.
SENSORS = (sys.executable, "-I", "-c", PROGRAM.format(True), _ABOVE)


class _Line(msgspec.Struct, frozen=True):
    """One line of the child, which has one of these."""

    count: int | None = None
    gpu: NvmlGpu | None = None
    absent: str | None = None


class _Child:
    """One query. `answered` is set when no more of the answer will come, `gone` when the process has ended."""

    def __init__(self, command: Sequence[str], deadline_s: float) -> None:
        self.count: int | None = None
        self.gpus: dict[int, NvmlGpu] = {}
        self.absent: str | None = None
        self.answered = asyncio.Event()
        self.gone = asyncio.Event()
        self.started = time.monotonic()
        self.error = ""  # why the answer is not complete
        self.is_taken = False  # the whole answer is part of the view
        self._data = b""
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._pipe.close()
            raise
        self._loop.add_reader(self._pipe, self._on_readable)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._timer = self._loop.call_later(deadline_s, self.give_up, f"no answer within {deadline_s:g} s")

    @property
    def is_complete(self) -> bool:
        return self.absent is not None or (self.count is not None and len(self.gpus) == self.count)

    def give_up(self, why: str) -> None:
        """Kill the process. In the kernel it may hang much longer."""
        if not self.is_complete:
            self.error = self.error or why
        self.answered.set()
        self._process.kill()

    def close(self) -> None:
        """Stop using the event loop."""
        self._timer.cancel()
        self._close_pipe()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)

    def _close_pipe(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe)
            self._pipe.close()

    def _on_exit(self) -> None:
        while not self._pipe.closed and self._on_readable():
            pass
        status = self._process.wait()
        self.give_up(f"the query ended with status {status}")
        self.close()
        self.gone.set()

    def _on_readable(self) -> bool:
        """Take what there is of the answer. False: nothing."""
        try:
            data = os.read(self._pipe.fileno(), 65536)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe()
            return False
        self._size += len(data)
        *lines, self._data = (self._data + data).split(b"\n")
        try:
            for line in lines:
                self._take(msgspec.json.decode(line, type=_Line))
        except msgspec.MsgspecError as error:
            self.give_up(f"the query's answer is damaged: {error}")
        if self._size > ANSWER_MAX:
            self.give_up(f"the query's answer is longer than {ANSWER_MAX >> 20} MiB")
        if self.answered.is_set():
            self._close_pipe()
        elif self.is_complete:
            self.answered.set()
        return True

    def _take(self, line: _Line) -> None:
        if line.count is not None:
            self.count = line.count
        if line.gpu is not None:
            self.gpus[line.gpu.index] = replace(line.gpu, read_at=time.monotonic())
        if line.absent is not None:
            self.absent = line.absent


def view_of(child: _Child, before: NvmlView, why: str) -> NvmlView:
    """The view during or after a query. A GPU without an answer is lost if `why` gives a reason; else it stays as it
    was before."""
    if child.absent is not None:
        return NvmlView(absent=child.absent)
    old = {gpu.index: gpu for gpu in before.gpus}
    gpus = []
    for index in range(child.count) if child.count is not None else sorted(old):
        gpu = child.gpus.get(index) or old.get(index) or NvmlGpu(index, "", "", -1, 0, lost="no answer")
        gpus.append(replace(gpu, lost=why) if why and index not in child.gpus else gpu)
    return NvmlView(tuple(gpus), silent="" if child.is_complete else why or before.silent)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await event.wait()
    return event.is_set()


class Nvml:
    """The source of NVML's values. One query at a time; all methods are called from the event loop."""

    def __init__(self, command: Sequence[str] = COMMAND, deadline_s: float = DEADLINE_S) -> None:
        self._command = command
        self._deadline_s = deadline_s
        self._view = NvmlView()
        self._child: _Child | None = None
        self._closed = False

    async def query(self, wait_s: float) -> NvmlView:
        """Returns after `wait_s` at the latest, at once while NVML is known not to answer."""
        self._view = await self._query(0 if self._view.silent else wait_s, wait_s)
        return self._view

    async def _query(self, wait_s: float, slow_s: float) -> NvmlView:
        until = time.monotonic() + wait_s
        last = self._child
        if last is not None and last.answered.is_set() and not last.is_taken:
            return self._take(last, last.error)  # no query has waited for it
        if last is not None and last.is_taken and not await _within(wait_s, last.gone):
            why = last.error or "an earlier query does not end"
            return replace(view_of(last, self._view, last.error), silent=why)
        if self._may_start():
            try:
                self._child = _Child(self._command, self._deadline_s)
            except OSError as error:
                why = f"the query cannot be started: {error.strerror}"
                return NvmlView(tuple(replace(gpu, lost=why) for gpu in self._view.gpus), silent=why)
        child = self._child
        if child is None:
            return self._view
        answered = await _within(until - time.monotonic(), child.answered)
        is_slow = not answered and (wait_s > 0 or time.monotonic() - child.started >= slow_s)
        return self._take(child, child.error or (f"no answer within {slow_s:g} s" if is_slow else ""))

    def _take(self, child: _Child, why: str) -> NvmlView:
        child.is_taken = child.answered.is_set()
        return view_of(child, self._view, why)

    def _may_start(self) -> bool:
        if self._closed or (self._child is not None and not self._child.gone.is_set()):
            return False
        return self._child is None or not self._view.silent or time.monotonic() - self._child.started >= RETRY_S

    def close(self) -> None:
        """End the query in progress; its caller gets a result at once."""
        self._closed = True
        if self._child is not None and not self._child.gone.is_set():
            self._child.give_up("cgpud is stopping")
            self._child.close()
