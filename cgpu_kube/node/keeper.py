# SPDX-License-Identifier: MIT
"""The device plugins in a process that outlives the agent's.

A kubelet refuses a pod for good if its devices are not there at the moment it comes, and they are gone with the process
that serves the plugin's socket. What that process answers needs no knowledge of the cluster: a list of devices, and a
promise. So `cgpu-kube node` is two processes. The first one, Keeper, serves the sockets and starts the second one, the
agent. If the agent is killed, the kubelet keeps its devices, a container of a pod that comes waits for its decision
(kube_wait_s of cgpu.toml), and the next agent finds its registrations as they are.

Where the host has `cgpu-kube keep` (host_keeper.py), that serves the sockets, and the first process passes the agent's
lines on (Relay): then the devices outlive the agent's pod, too, and are there before the kubelet after a boot.

What ends one of them must not end both: an agent that hangs is ended by the first process, not by systemd's watchdog,
which ends the unit. An agent that grows ends at a limit of its own (yield_memory()), not at the container's, under
which the kernel ends all of a container at once. Of the two the kernel takes the agent where it may choose.

Between the two is a pair of sockets with a line of JSON for each message:

  to the keeper   {"offer": resource, "name", "apart", "devices": [[id, healthy], …], "spread",
                   "links": {UUID: {UUID: rank}}}
                  {"alive": true, "serves": it has the agents' lock}, each BEAT_S and when that changes
                  {"register" or "stop": resource, "number": n, "kubelet": [inode, ctime]}
  from the host's keeper first, to the first process alone
                  {"protocol": 1, "directory": [device, inode of the kubelet's plugins]}
  to the agent    {"state": {resource: [streams, is_taken, registrations, kubelet, inode of the socket]}}
                  {"done": n, "error": sentence or ""}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from resource import RLIMIT_DATA, RLIMIT_STACK, getrlimit, setrlimit
from typing import Any

from cgpu_common import log as logging
from cgpu_common import notify
from cgpu_kube.errors import KubeError
from cgpu_kube.node.plugin import Plugin

LINE_MAX = 16 << 20  # devices of a node
AGAIN_S = 0.2  # from the end of an agent to the next one; doubled each time
AGAIN_MAX_S = 10.0
LIVED_S = 60.0  # then the next end is the first one again
BEAT_S = 10.0
HUNG_S = 30.0  # without a line: the agent hangs
HOST_S = 10.0  # between looks for the host's keeper
MOUNTS_S = 5.0  # between looks at directories that are mounted from the host
HOST_WAIT_S = 10.0  # for one that was there, and may be starting again
OWN_MIB = 48  # of the limit of memory: the first process (24 MiB of its own), and what the kernel counts for both
LEAST_MIB = 64  # for the agent, which takes 36 MiB of its own, and as a DRA driver 50
STACK_MIB = 2  # of a thread: a stack counts in full, whatever is used of it
OOM_ADJ = 100  # how much likelier the kernel's choice is the agent, in thousandths of the memory
OPTION = "--kept-by"
PROTOCOL = 1  # with the host's keeper, which an update of the agent does not restart

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


# ---- the process that serves the sockets ----


class Keeper:
    """The plugins that agents have offered. They stay as they are between two agents."""

    def __init__(self, directory: Path, hung_s: float = HUNG_S) -> None:
        """@directory: of the kubelet's plugins. @hung_s: without a line of an agent."""
        self.plugins: dict[str, Plugin] = {}
        self._directory = directory
        self._hung_s = hung_s
        self._writers: set[asyncio.StreamWriter] = set()  # to agents
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> bool:
        """An agent, until its end of the pair is closed. False: it hangs, and is to be ended."""
        return await self.serve_streams(*await asyncio.open_connection(sock=sock, limit=LINE_MAX))

    async def serve_streams(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._writers.add(writer)
        self.report()
        try:
            while True:
                async with asyncio.timeout(self._hung_s):
                    line = await reader.readline()
                if not line.endswith(b"\n"):  # one that is killed may leave a part of a line
                    return True
                self._act(json.loads(line), writer)
        except TimeoutError:
            return False
        except ConnectionError:
            return True  # it was killed
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _send(self, message: dict[str, Any], *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            writer.write(json.dumps(message).encode() + b"\n")

    def report(self) -> None:
        found = {
            name: [one.streams, one.is_taken, one.registrations, one.kubelet, one.inode]
            for name, one in self.plugins.items()
        }
        self._send({"state": found}, *self._writers)

    def _act(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "alive" in message:
            return
        if "offer" in message:
            self.offer(message)
            return
        # A kubelet that hangs holds no offer up.
        task = asyncio.create_task(self._answer(message, int(message["number"]), writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def offer(self, message: dict[str, Any]) -> None:
        name = str(message["offer"])
        if name not in self.plugins:
            more = {"on_change": self.changed, "apart": message["apart"]}
            self.plugins[name] = Plugin(self._directory, name, message["name"], **more)
        self.plugins[name].spread, self.plugins[name].links = message["spread"], message["links"]
        self.plugins[name].offer([(one, healthy) for one, healthy in message["devices"]])

    def changed(self) -> None:
        """A kubelet has taken a plugin's list, or its stream has ended."""
        self.report()

    async def _answer(self, message: dict[str, Any], number: int, writer: asyncio.StreamWriter) -> None:
        error, plugin = "", self.plugins.get(message.get("register") or message["stop"])
        try:
            if plugin is not None and "register" in message:
                inode, ctime = message["kubelet"]
                await plugin.register((inode, ctime))
            elif plugin is not None:
                await self.stop_plugin(plugin)
        except (OSError, KubeError) as failed:
            error = str(failed)
        self.report()
        self._send({"done": number, "error": error}, *{writer} & self._writers)

    async def stop_plugin(self, plugin: Plugin) -> None:
        """For an agent that leaves."""
        await plugin.stop()

    async def stop(self) -> None:
        for plugin in self.plugins.values():
            await plugin.stop()

    async def hand_over(self) -> None:
        """The host's keeper serves from now on. A kubelet from 1.25 on takes the end of any stream of a resource for
        the end of its plugin: ours end before that one's begin."""
        await self.stop()
        self.plugins.clear()


class Relay:
    """An agent of this process whose plugins are the host's keeper's."""

    def __init__(self, host: Streams, hung_s: float) -> None:
        self._reader, self._writer = host
        self._hung_s = hung_s
        self.has_offered = False

    async def serve(self, sock: socket.socket) -> bool:
        """As Keeper.serve(). The end of the host's keeper is the end of the agent's stream, which ends it."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=LINE_MAX)
        down = asyncio.create_task(self._pass_down(writer))
        try:
            while True:
                async with asyncio.timeout(self._hung_s):
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    return True
                self.has_offered = self.has_offered or "offer" in json.loads(line)
                self._writer.write(line)
                await self._writer.drain()
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            down.cancel()
            for one in (writer, self._writer):
                one.transport.abort()

    async def _pass_down(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while found := await self._reader.read(1 << 16):
                writer.write(found)
                await writer.drain()
        writer.transport.abort()


def greeting(directory: Path) -> dict[str, Any]:
    """The first line of the host's keeper. Another kubelet's devices, or another protocol, are no use to an agent."""
    try:
        found = directory.stat()
    except OSError:
        return {"protocol": PROTOCOL, "directory": None}
    return {"protocol": PROTOCOL, "directory": [found.st_dev, found.st_ino]}


async def host_streams(path: Path | None, directory: Path, seconds: float = 0.0) -> Streams | None:
    """To the host's keeper. None: none serves, also after @seconds, or it is of another kubelet or version."""
    end = time.monotonic() + seconds
    while path is not None:
        try:
            streams = await asyncio.open_unix_connection(path, limit=LINE_MAX)
        except OSError:
            if time.monotonic() >= end:
                break
        else:
            if await _greets(streams[0], directory):
                return streams
            streams[1].transport.abort()
            break
        await asyncio.sleep(AGAIN_S)
    return None


async def _greets(reader: asyncio.StreamReader, directory: Path) -> bool:
    wanted = greeting(directory)
    try:
        async with asyncio.timeout(HOST_S):
            return wanted["directory"] is not None and json.loads(await reader.readline()) == wanted
    except (TimeoutError, ConnectionError, ValueError):
        return False


async def _is_host_there(path: Path | None, directory: Path) -> bool:
    if (found := await host_streams(path, directory)) is None:
        return False
    found[1].transport.abort()
    return True


async def _wait_for_host(path: Path, directory: Path, agent: asyncio.subprocess.Process) -> None:
    """Ends the agent in order when the host's keeper has come: the next one's plugins are that one's."""
    while not await _is_host_there(path, directory):
        await asyncio.sleep(HOST_S)
    logging.get().info("the host's keeper serves from now on")
    if agent.returncode is None:
        agent.terminate()


def gone(directories: Iterable[Path]) -> Path | None:
    """One that was deleted on the host. A container's mount of it stays, and never leads to one that was made again
    under the name: nothing can be made in it, and no kubelet is there."""
    for one in directories:
        with contextlib.suppress(OSError):
            if one.stat().st_nlink == 0:
                return one
    return None


async def _until_gone(directories: Iterable[Path]) -> None:
    while (found := gone(directories)) is None:
        await asyncio.sleep(MOUNTS_S)
    hint = "this process ends: a pod's next container has the one that is there then"
    logging.get().error("a directory of the host was deleted", path=str(found), hint=hint)


async def keep(directory: Path, limit: int = 0, host: Path | None = None, mounts: Iterable[Path] = ()) -> int:
    """Serve, with an agent of this program's own arguments that is started again whenever it is killed or fails, until
    SIGTERM or SIGINT, which it gets, too. Returns the exit status: that of an agent that ends before it has offered
    anything, as for an option that is wrong, is this program's. @limit: of memory, as check_memory() has it. @host:
    socket of the host's keeper, which serves in the place of this process wherever it is there. @mounts: directories of
    the host; without one of them this ends in order, with 1."""
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
    mounted = asyncio.create_task(_until_gone(tuple(mounts)))
    mounted.add_done_callback(lambda task: None if task.cancelled() else stop(signal.SIGTERM))
    wait_s, has_offered, had_host = AGAIN_S, False, False
    alive = asyncio.create_task(notify.keep_alive())  # to systemd, of this process
    try:
        while True:
            began = time.monotonic()
            streams = await host_streams(host, directory, HOST_WAIT_S if had_host and not stopping.is_set() else 0.0)
            had_host = streams is not None
            if streams:
                await keeper.hand_over()
            server: Keeper | Relay = Relay(streams, HUNG_S) if streams else keeper
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
            comes = asyncio.create_task(_wait_for_host(host, directory, agents[0])) if host and not streams else None
            is_done = await server.serve(ours)
            try:
                async with asyncio.timeout(HUNG_S if is_done else 0):
                    status = await agents[0].wait()
            except TimeoutError:
                log.error("the agent hangs, and is ended", silent_s=HUNG_S)
                agents[0].kill()
                status = await agents[0].wait()
            if comes is not None:
                comes.cancel()
            has_offered = has_offered or bool(keeper.plugins) or (isinstance(server, Relay) and server.has_offered)
            if mounted.done():
                return 1
            if stopping.is_set() or not has_offered:
                return max(status, 0) if stopping.is_set() or status >= 0 else 128 - status
            wait_s = AGAIN_S if time.monotonic() - began > LIVED_S else wait_s
            # At once: no lock of an agent keeps the host's keeper from registering now.
            is_handed = bool(keeper.plugins) and await _is_host_there(host, directory)
            pause_s = 0.0 if is_handed else wait_s
            say = log.error if status else log.info
            say("the agent has ended; the next one is started", status=status, next_s=pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
                return int(mounted.done())
            except TimeoutError:
                wait_s = min(2 * wait_s, AGAIN_MAX_S)
    finally:
        alive.cancel()
        mounted.cancel()
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
