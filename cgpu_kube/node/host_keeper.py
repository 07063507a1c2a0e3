# SPDX-License-Identifier: MIT
"""`cgpu-kube keep`: the device plugins in a unit of the host, which outlives the agent's pod and is there before the
kubelet.

After a boot a kubelet admits the pods of before it, each once, before it has started the agent's. What it needs then,
the list of devices, is in a journal: the last offer of each resource. The unit registers it whenever no agent acts; a
container that starts waits for the agent's decision all the same, so a promise of before the boot grants nothing.
An agent that acts has the word: what it offers is offered, and it says when to register.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

import click

from cgpu_common import dumpable, notify
from cgpu_common import log as logging
from cgpu_common.errors import CgpuError
from cgpu_common.files import write_file
from cgpu_common.server import open_socket
from cgpu_kube.errors import KubeError
from cgpu_kube.node.keeper import HUNG_S, LINE_MAX, Keeper, greeting
from cgpu_kube.node.kubelet import POLL_S, Registrar
from cgpu_kube.node.plugin import AnyPlugin, Plugin
from cgpu_kube.node.rpc import inode_of
from cgpu_kube.node.turn import Turn

JOURNAL, LOCK = "offers.json", "keeper.lock"
AGENT_LOCK = "agent.lock"  # of an agent, also of one whose sockets are its own
LOOK_S = 0.5
#: Without an agent that acts, from its end or from the start of this process: then nothing is offered until one does.
#: Longer than any update; a node whose agent was removed for good promises nothing for ever.
PROMISE_S = 900.0
_KEYS = {"offer": str, "name": str, "apart": bool, "spread": bool, "links": dict, "devices": list}


class HostKeeper(Keeper):
    """run() serves until it is cancelled."""

    def __init__(
        self, directory: Path, state: Path, path: Path, poll_s: float = POLL_S, promise_s: float = PROMISE_S
    ) -> None:
        """@directory: of the kubelet's plugins. @path: of its own socket, which agents connect to."""
        super().__init__(directory, 2 * HUNG_S)  # the first process of an agent that hangs ends it before
        self._log = logging.get()
        self._state = state
        self._path = path
        self._inode = 0
        self._server: asyncio.Server | None = None
        self._turn = Turn(state / LOCK)
        self._agent_turn = Turn(state / AGENT_LOCK)
        self._offers: dict[str, dict[str, Any]] = {}  # the last one of each resource, as in the journal
        self._written = ""
        self._is_unwritten = False  # the last attempt has failed
        self._changed = asyncio.Event()  # an offer
        self._acting: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.StreamWriter] = set()  # to agents that have said so
        self._promise_s = promise_s
        self._since = time.monotonic()  # no agent has acted
        self._registrar = Registrar(directory, self._log, lambda _resource: None, poll_s)
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Raises KubeError or OSError: it cannot serve."""
        if not self._turn.take():
            raise KubeError(f"another `cgpu-kube keep` serves: {self._turn.path} is its lock")
        self._read()
        registering = asyncio.create_task(self._registrar.run())
        try:
            while True:
                if inode_of(self._path) != self._inode or not self._inode:  # at first, and when /run was cleared
                    await self._listen()
                self._decide()
                self.started.set()
                if registering.done():
                    registering.result()
                self._changed.clear()
                await self._write()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()
        finally:
            registering.cancel()
            if self._server is not None:
                self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            if inode_of(self._path) == self._inode:
                self._path.unlink(missing_ok=True)
            await self._write()
            await self.stop()
            self._turn.give()

    async def _listen(self) -> None:
        if self._server is not None:
            self._server.close()
        try:
            sock = open_socket(self._path)  # root's alone: an offer makes a node's devices
        except CgpuError as error:
            raise KubeError(str(error)) from error
        self._server = await asyncio.start_unix_server(self._connected, sock=sock, limit=LINE_MAX)
        self._inode = inode_of(self._path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._send(greeting(self._directory), writer)
        try:
            await self.serve_streams(reader, writer)
        except (ValueError, KeyError, TypeError) as error:  # a line that is none of an agent's
            self._log.error("an agent's line is not understood", error=f"{type(error).__name__}: {error}")
            writer.transport.abort()
        finally:
            self._serving.discard(writer)
            if writer in self._acting:
                self._acting.discard(writer)
                self._since = time.monotonic()
                self._decide()

    # ---- the journal ----

    def _read(self) -> None:
        """A file that is no journal promises nothing."""
        path = self._state / JOURNAL
        try:
            text = path.read_text()
            found = [_checked(one) for one in json.loads(text)["offers"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log.error("the journal of offers is not read", path=str(path), reason=str(error))
            return
        self._written = text
        for one in found:
            self._offers[one["offer"]] = one
            super().offer(one)
        self._log.info("devices of before", resources=[one["offer"] for one in found if one["devices"]])

    async def _write(self) -> None:
        text = json.dumps({"offers": list(self._offers.values())})
        if not self._offers or text == self._written:
            return
        try:
            await asyncio.to_thread(write_file, self._state / JOURNAL, text, 0o600)
        except OSError as error:
            if not self._is_unwritten:
                self._log.error("the journal of offers is not written", reason=str(error))
            self._is_unwritten = True
        else:
            self._written, self._is_unwritten = text, False

    # ---- agents ----

    def _act(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "offer" in message or "register" in message:
            self._acting.add(writer)
            self._decide()
        if "serves" in message:
            (self._serving.add if message["serves"] is True else self._serving.discard)(writer)
            self._decide()
        super()._act(message, writer)

    def offer(self, message: dict[str, Any]) -> None:
        super().offer(message)
        self._offers[str(message["offer"])] = message
        self._changed.set()

    def changed(self) -> None:
        super().changed()
        self._registrar.wake()

    async def stop_plugin(self, plugin: Plugin) -> None:
        """The devices stay without the agent: this process is for that."""

    # ---- without one that acts ----

    def _decide(self) -> None:
        """Which plugins this process registers by itself: all that have devices, unless an agent does."""
        for plugin in self.plugins.values():
            plugin.is_kept = True  # registrations that are there are taken over
        if self._acting or self._another_serves():
            self._registrar.plugins = []
            self._registrar.forget()
            return
        if time.monotonic() - self._since > self._promise_s and any(one.devices for one in self.plugins.values()):
            self._log.warning("no agent has come: nothing is offered until one does", after_s=self._promise_s)
            for plugin in self.plugins.values():
                plugin.offer([])
        wanted: list[AnyPlugin] = [one for one in self.plugins.values() if one.devices or one.registrations]
        if wanted != self._registrar.plugins:
            self._registrar.plugins = wanted
            self._registrar.wake()

    def _another_serves(self) -> bool:
        """An agent with sockets of its own: two plugins of a resource would take it from each other. One of this
        process may be connected and wait for its end."""
        if self._serving:
            return False
        try:
            return not self._agent_turn.is_free()
        except OSError:
            return False


def _checked(found: Any) -> dict[str, Any]:
    """An offer of the journal. Raises ValueError."""
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in _KEYS.items()):
        raise ValueError("an entry is no offer")
    if not all(isinstance(one, list) and [type(part) for part in one] == [str, bool] for one in found["devices"]):
        raise ValueError("an entry has devices that are none")
    return {key: found[key] for key in _KEYS}


async def serve(keeper: HostKeeper) -> None:
    """Until SIGTERM or SIGINT."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    work = asyncio.create_task(keeper.run())
    alive = asyncio.create_task(notify.keep_alive())
    started = asyncio.create_task(keeper.started.wait())
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({work, started}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            notify.ready()
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (alive, started, stopped, work):
            task.cancel()
        await asyncio.gather(work, return_exceptions=True)


_Path = click.Path(path_type=Path)


@click.command()
@click.option("--kubelet-dir", type=_Path, default=Path("/var/lib/kubelet"), show_default=True)
@click.option("--keeper", type=_Path, default=Path("/run/cgpu/keeper.sock"), show_default=True)
@click.option("--state-dir", type=_Path, default=Path("/var/lib/cgpu/kube"), show_default=True)
@click.option("--log-format", type=click.Choice(logging.FORMATS), default="text", show_default=True)
def keep(kubelet_dir: Path, keeper: Path, state_dir: Path, log_format: str) -> None:
    """Keep this node's devices with the kubelet while the agent is away, and from before it after a boot."""
    dumpable.clear()
    logging.configure(log_format, "info")
    try:
        asyncio.run(serve(HostKeeper(kubelet_dir / "device-plugins", state_dir, keeper)))
    except (KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error
