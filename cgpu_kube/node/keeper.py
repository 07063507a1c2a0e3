# SPDX-License-Identifier: MIT
"""The device plugins in a process that outlives the agent's.

A kubelet refuses a pod for good if its devices are not there at the moment it comes, and they are gone with the process
that serves the plugin's socket. What that process answers needs no knowledge of the cluster: a list of devices, and a
promise. So `cgpu-kube node` is two processes. The first one, Keeper, serves the sockets and starts the second one, the
agent. If the agent is killed, the kubelet keeps its devices, a container of a pod that comes waits for its decision
(kube_wait_s of cgpu.toml), and the next agent finds its registrations as they are.

What ends one of them must not end both: an agent that hangs is ended by the first process, not by systemd's watchdog,
which ends the unit. An agent that grows ends at a limit of its own (yield_memory()), not at the container's, under
which the kernel ends all of a container at once. Of the two the kernel takes the agent where it may choose.

Between the two is a pair of sockets with a line of JSON for each message:

  to the keeper   {"offer": resource, "name", "apart", "devices": [[id, healthy], …], "spread",
                   "links": {UUID: {UUID: rank}}}
                  {"alive": true}, each BEAT_S
                  {"register" or "stop": resource, "number": n, "kubelet": [inode, ctime]}
  to the agent    {"state": {resource: [streams, is_taken, registrations, kubelet, inode of the socket]}}
                  {"done": n, "error": sentence or ""}
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from resource import RLIMIT_DATA, RLIMIT_STACK, getrlimit, setrlimit
from typing import Any

from cgpu_common import log as logging
from cgpu_common import notify
from cgpu_kube.errors import KubeError
from cgpu_kube.node.host import Device
from cgpu_kube.node.plugin import AnyPlugin, KubeletId, Offered, Plugin, socket_of

LINE_MAX = 16 << 20  # devices of a node
AGAIN_S = 0.2  # from the end of an agent to the next one; doubled each time
AGAIN_MAX_S = 10.0
LIVED_S = 60.0  # then the next end is the first one again
BEAT_S = 5.0
HUNG_S = 30.0  # without a line: the agent hangs
OWN_MIB = 48  # of the limit of memory: the first process (24 MiB of its own), and what the kernel counts for both
LEAST_MIB = 64  # for the agent, which takes 36 MiB of its own, and as a DRA driver 50
STACK_MIB = 2  # of a thread of grpc: a stack counts in full, whatever is used of it
OOM_ADJ = 100  # how much likelier the kernel's choice is the agent, in thousandths of the memory
OPTION = "--kept-by"


class KeeperGone(KubeError):
    """The process that serves the plugins has ended; the agent ends, too."""


# ---- the process that serves the sockets ----


class Keeper:
    """The plugins that an agent has offered. They stay as they are between two agents."""

    def __init__(self, directory: Path, hung_s: float = HUNG_S) -> None:
        """@directory: of the kubelet's plugins. @hung_s: without a line of an agent."""
        self.plugins: dict[str, Plugin] = {}
        self._directory = directory
        self._hung_s = hung_s
        self._writer: asyncio.StreamWriter | None = None  # to the agent
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> bool:
        """An agent, until its end of the pair is closed. False: it hangs, and is to be ended."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=LINE_MAX)
        self._writer = writer
        self._report()
        try:
            while True:
                async with asyncio.timeout(self._hung_s):
                    line = await reader.readline()
                if not line.endswith(b"\n"):  # one that is killed may leave a part of a line
                    return True
                self._act(json.loads(line))
        except TimeoutError:
            return False
        except ConnectionError:
            return True  # it was killed
        finally:
            self._writer = None
            writer.transport.abort()

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def _report(self) -> None:
        found = {
            name: [one.streams, one.is_taken, one.registrations, one.kubelet, one.inode]
            for name, one in self.plugins.items()
        }
        self._send({"state": found})

    def _act(self, message: dict[str, Any]) -> None:
        if "alive" in message:
            return
        if "offer" in message:
            name = str(message["offer"])
            if name not in self.plugins:
                more = {"on_change": self._report, "apart": message["apart"]}
                self.plugins[name] = Plugin(self._directory, name, message["name"], **more)
            self.plugins[name].spread, self.plugins[name].links = message["spread"], message["links"]
            self.plugins[name].offer([(one, healthy) for one, healthy in message["devices"]])
            return
        task = asyncio.create_task(self._answer(message))  # a kubelet that hangs holds no offer up
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: dict[str, Any]) -> None:
        error, plugin = "", self.plugins.get(message.get("register") or message["stop"])
        try:
            if plugin is not None and "register" in message:
                inode, ctime = message["kubelet"]
                await plugin.register((inode, ctime))
            elif plugin is not None:
                await plugin.stop()
        except (OSError, KubeError) as failed:
            error = str(failed)
        self._report()
        self._send({"done": message["number"], "error": error})

    async def stop(self) -> None:
        for plugin in self.plugins.values():
            await plugin.stop()


async def keep(directory: Path, limit: int = 0) -> int:
    """Serve, with an agent of this program's own arguments that is started again whenever it is killed or fails, until
    SIGTERM or SIGINT, which it gets, too. Returns the exit status: that of an agent that ends before it has offered
    anything, as for an option that is wrong, is this program's. @limit: of memory, as check_memory() has it."""
    if limit:  # for the agent, which reads it at its start; the stack of this process has 132 kB
        setrlimit(RLIMIT_STACK, (STACK_MIB << 20, getrlimit(RLIMIT_STACK)[1]))
    loop, keeper, log = asyncio.get_running_loop(), Keeper(directory, HUNG_S), logging.get()
    agents: list[asyncio.subprocess.Process] = []
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        stopping.set()
        for agent in agents:
            if agent.returncode is None:
                agent.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    wait_s = AGAIN_S
    alive = asyncio.create_task(notify.keep_alive())  # to systemd, of this process
    try:
        while True:
            began = time.monotonic()
            ours, theirs = socket.socketpair()
            with theirs:
                words = [*sys.orig_argv[1:], OPTION, str(theirs.fileno())]
                # A session of its own: the signals of a terminal come here, and are passed on.
                more: dict[str, Any] = {
                    "pass_fds": (theirs.fileno(),),
                    "start_new_session": True,
                }
                agents[:] = [await asyncio.create_subprocess_exec(sys.executable, *words, **more)]
            if stopping.is_set():  # before it was there to get the signal
                stop(signal.SIGTERM)
            if not await keeper.serve(ours):
                log.error("the agent hangs, and is ended", silent_s=HUNG_S)
                agents[0].kill()
            status = await agents[0].wait()
            if stopping.is_set() or not keeper.plugins:
                return max(status, 0) if stopping.is_set() or status >= 0 else 128 - status
            wait_s = AGAIN_S if time.monotonic() - began > LIVED_S else wait_s
            log.error("the agent has ended; the kubelet keeps its devices", status=status, next_s=wait_s)
            try:
                async with asyncio.timeout(wait_s):
                    await stopping.wait()
                return 0
            except TimeoutError:
                wait_s = min(2 * wait_s, AGAIN_MAX_S)
    finally:
        alive.cancel()
        await keeper.stop()


def check_memory(limit: int) -> None:
    """@limit: bytes, of both processes; 0: none. Raises KubeError."""
    least = OWN_MIB + LEAST_MIB
    if 0 < limit < least << 20:
        raise KubeError(
            f"--memory-limit is {limit >> 20} MiB, and both processes need {least}: raise the limit of the container"
        )


# ---- in the agent ----


def yield_memory(limit: int) -> None:
    """The agent ends before both processes have reached @limit, and before the first one where the kernel chooses. A
    request for memory beyond it fails, which ends the agent."""
    with contextlib.suppress(OSError):  # of a /proc that cannot be written: the agent is the larger one all the same
        adj = Path("/proc/self/oom_score_adj")
        adj.write_text(str(min(int(adj.read_text()) + OOM_ADJ, 1000)))
    if limit:
        given = limit - (OWN_MIB << 20)
        setrlimit(RLIMIT_DATA, (given, given))


class Link:
    """The agent's end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._plugins: dict[str, KeptPlugin] = {}
        self._state: dict[str, list[Any]] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}

    @classmethod
    async def connect(cls, fd: int) -> Link:
        """With the registrations of the last agent, if there was one. Raises KeeperGone."""
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd), limit=LINE_MAX)
        link = cls(reader, writer)
        await link._read()
        return link

    async def run(self) -> None:
        """Raises KeeperGone when the other process has ended."""
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                await self._read()
        finally:
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            self.send({"alive": True})
            await asyncio.sleep(BEAT_S)

    async def _read(self) -> None:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line:
            raise KeeperGone("the process that serves the device plugins has ended")
        message = json.loads(line)
        if "done" in message:
            waiting = self._waiting.pop(message["done"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message["error"])
            return
        self._state = message["state"]
        for name, plugin in self._plugins.items():
            plugin.update(self._state.get(name))

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask(self, **message: Any) -> None:
        """Raises KubeError with the sentence."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.send({**message, "number": number})
        if error := await answer:
            raise KubeError(error)

    def plugin(
        self,
        directory: Path,
        resource: str,
        name: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        apart: bool = False,
    ) -> AnyPlugin:
        found = self._plugins[resource] = KeptPlugin(self, directory, resource, name, on_change, apart)
        found.update(self._state.get(resource))
        return found


class KeptPlugin(Offered):
    """A Plugin of the other process, with its state as last reported."""

    is_kept = True

    def __init__(
        self, link: Link, directory: Path, resource: str, name: str, on_change: Callable[[], None], apart: bool
    ) -> None:
        super().__init__(resource, on_change)
        self._inode = 0
        self._path = socket_of(directory, name)
        self._link = link
        self._name = name
        self._apart = apart
        self._sent: dict[str, object] = {}

    def update(self, state: Sequence[Any] | None) -> None:
        if state is None:
            return
        self.streams, self.is_taken, self.registrations, kubelet, self._inode = state
        self.kubelet = (kubelet[0], kubelet[1]) if kubelet else None
        self._on_change()

    @property
    def is_there(self) -> bool:
        try:
            return self._inode != 0 and self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def offer(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.healthy = sum(is_healthy for _, is_healthy in devices)
        offered = {"devices": self.devices, "spread": self.spread, "links": self.links}
        if self._sent != offered:
            self._sent = offered
            self._link.send({"offer": self.resource, **offered, "name": self._name, "apart": self._apart})

    async def register(self, kubelet: KubeletId) -> None:
        await self._link.ask(register=self.resource, kubelet=kubelet)

    async def stop(self) -> None:
        await self._link.ask(stop=self.resource)
