# SPDX-License-Identifier: MIT
"""Commands to NVIDIA's MPS control daemons, and the samples of their clients' memory.

A command is a run of nvidia-cuda-mps-control with the daemon's pipe directory and the command as its input. Samples
come from one child for all GPUs, which keeps NVML open: a query for each would start an interpreter twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import msgspec

from cgpu_common import mps
from cgpu_common.python import timeout

ANSWER_S = 15.0  # it answers nothing while it ends a client
END_S = 5.0  # the server waits for what the client has in flight
PRIVILEGED = "control_privileged"
FIRST_S = 30.0  # for the first sample: an interpreter starts, and NVML opens the driver
SILENT_S = 5.0  # without another one, the use of clients is not known
KILLED_S = 1.0
LINE_MAX = 1 << 20
_ABOVE = str(Path(__file__).resolve().parents[1])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from cgpu_common.mps_nvml import {0}; {0}(*sys.argv[2:])"


class ControlFailed(Exception):
    """The control daemon did not do what was requested; the text is the reason."""


class Ready(msgspec.Struct, frozen=True):
    """READY: what cgpud --mps knows of its GPU."""

    clients: int  # the most of the GPU
    driver: str
    by_cgroup: bool = False  # NVML limits the memory of a cgroup
    life: str = ""  # another one: the control daemon was started again


class Process(msgspec.Struct, frozen=True, array_like=True):
    pid: int
    mib: int | None
    is_server: bool = False


class Sample(msgspec.Struct, frozen=True):
    """The processes of one GPU, and its compute mode."""

    uuid: str
    processes: tuple[Process, ...] = ()
    exclusive: bool = False
    error: str = ""


async def run(words: Collection[str], text: str, env: dict[str, str], wait_s: float) -> str:
    """The output of a program with this input. Raises ControlFailed."""
    name = Path(next(iter(words))).name
    given, end = os.pipe()
    try:
        os.write(end, text.encode())  # of a line, which fits: a child that ends without reading breaks no pipe
    finally:
        os.close(end)
    try:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **env},
        )
    except OSError as error:
        raise ControlFailed(f"{name} cannot be run: {error.strerror}") from error
    finally:
        os.close(given)
    try:
        async with timeout(wait_s):
            out, _ = await child.communicate()
    except TimeoutError:
        raise ControlFailed(f"no answer within {wait_s:g} s") from None
    finally:
        await _ended(child)
    said = out.decode(errors="replace").strip()
    if child.returncode:
        raise ControlFailed(said.splitlines()[-1] if said else f"{name} ended with status {child.returncode}")
    return said


async def _ended(child: asyncio.subprocess.Process) -> None:
    """Kill the child. In a call of NVML it may hang much longer: it is not waited for then."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        with contextlib.suppress(TimeoutError):
            async with timeout(KILLED_S):
                await child.wait()


class Control:
    """The control daemons of this machine. A test replaces it."""

    def __init__(self, root: Path = Path(mps.ROOT)) -> None:
        self.root = root

    def directory(self, uuid: str) -> Path:
        return self.root / uuid

    def ready(self, uuid: str) -> Ready | None:
        """None: the GPU has no control daemon that answers."""
        try:
            return msgspec.json.decode((self.directory(uuid) / mps.READY).read_bytes(), type=Ready)
        except (OSError, msgspec.MsgspecError):
            return None

    def serving(self) -> frozenset[str]:
        """The GPUs whose control daemon answers."""
        return frozenset(path.parent.name for path in self.root.glob(f"*/{mps.READY}"))

    async def ask(self, uuid: str, command: str, wait_s: float = ANSWER_S) -> str:
        """Raises ControlFailed."""
        pipe = {f"{mps.PREFIX}PIPE_DIRECTORY": str(self.directory(uuid) / "pipe")}
        return await run((mps.PROGRAM,), command + "\n", pipe, wait_s)

    async def check(self, uuid: str) -> None:
        """Raises ControlFailed unless the control daemon answers."""
        said = await self.ask(uuid, "get_default_active_thread_percentage")
        try:
            float(said.splitlines()[-1])
        except (IndexError, ValueError):
            raise ControlFailed(f"{said[:120]!r} is no percentage") from None

    async def servers(self, uuid: str) -> list[int]:
        return [int(word) for word in (await self.ask(uuid, "get_server_list")).split() if word.isdecimal()]

    async def set_limit(self, uuid: str, mib: int) -> None:
        """The limit of clients that have none in their environment, or a larger one. Raises ControlFailed."""
        said = await self.ask(uuid, f"set_default_device_pinned_mem_limit 0 {mib}M")
        for server in await self.servers(uuid):
            said = said or await self.ask(uuid, f"set_device_pinned_mem_limit {server} 0 {mib}M")
        if said:
            raise ControlFailed(f"a limit of {mib} MiB: {said.splitlines()[0]}")

    async def end(self, uuid: str, pid: int) -> None:
        """End one client. Raises ControlFailed."""
        said = "no server runs"
        try:
            async with timeout(END_S):  # of all: the control daemon may be busy with another client's end
                for server in await self.servers(uuid):
                    said = await self.ask(uuid, f"terminate_client {server} {pid}")
                    if said == "0":
                        return
        except TimeoutError:
            said = f"no answer within {END_S:g} s"
        raise ControlFailed(said.splitlines()[0] if said else "no answer")

    def has_privileged(self, uuid: str) -> bool:
        """Has the control daemon a socket for privileged commands?"""
        return (self.directory(uuid) / "pipe" / PRIVILEGED).exists()

    async def limit_cgroup(self, uuid: str, directory: str, mib: int) -> None:
        """Limit the GPU's memory of a cgroup, by the driver. The unit's program does it: cgpud has neither the
        capability nor a cgroup tree that it may write. Raises ControlFailed."""
        body = json.dumps({"directory": directory, "bytes": mib << 20}).encode()
        try:
            async with timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self.directory(uuid) / mps.LIMITS)
                try:
                    writer.write(body + b"\n")
                    said = (await reader.readline()).decode(errors="replace").strip()
                finally:
                    writer.close()
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise ControlFailed(f"{mps.unit(uuid)} does not answer: {error or 'timeout'}") from error
        if said != "ok":
            raise ControlFailed(said or f"{mps.unit(uuid)} gave no answer")

    async def samples(self, uuids: Collection[str]) -> AsyncIterator[Sample]:
        """A sample of each GPU, each period. Raises ControlFailed when there are none any more."""
        words = (sys.executable, "-I", "-c", _PROGRAM.format("report"), _ABOVE, *sorted(uuids))
        try:
            child = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_MAX
            )
        except OSError as error:
            raise ControlFailed(f"the query of NVML cannot be started: {error.strerror}") from error
        assert child.stdout is not None
        wait_s = FIRST_S
        try:
            while True:
                async with timeout(wait_s):
                    line = await child.stdout.readline()
                wait_s = SILENT_S
                if not line:
                    raise ControlFailed(f"the query of NVML ended with status {await child.wait()}")
                yield msgspec.json.decode(line, type=Sample)
        except TimeoutError:
            raise ControlFailed(f"NVML has not answered for {wait_s:g} s") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise ControlFailed(f"the answer of NVML is damaged: {error}") from error
        finally:
            await _ended(child)
