# SPDX-License-Identifier: MIT
"""`cgpu-kube install`: the work, again and again; the node's condition, log, probes, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from cgpu_common import log as logging
from cgpu_common.exits import Exit
from cgpu_kube import api
from cgpu_kube.errors import KubeError
from cgpu_kube.installer import host
from cgpu_kube.installer.act import Acting
from cgpu_kube.installer.host import Programs, StepFailed
from cgpu_kube.installer.plan import CONDITION, DONE, FAILED, GONE, KEPT, Refused
from cgpu_kube.node import probe

AGAIN_S = 60.0  # a node that is drained gets its module within that time; and what was removed by hand comes back
TERMINATION = Path("/dev/termination-log")  # the kubelet shows its last words in the pod's status
TERMINATION_MAX = 4096


@dataclass(frozen=True)
class State:
    """What the node's condition says. @holds: installed, and all of it in effect."""

    holds: bool
    reason: str
    message: str
    failed: bool = False


def attempt(acting: Acting, removing: bool) -> State:
    """One round."""
    try:
        if removing:
            acting.remove()
            return State(False, GONE, "cgpu is not on the node")
        plan = acting.install()
    except Refused as error:
        return State(False, error.reason, str(error), failed=True)
    except StepFailed as error:
        return State(False, FAILED, str(error), failed=True)
    except OSError as error:
        return State(False, FAILED, f"{error.filename or 'the host'}: {error.strerror or error}", failed=True)
    return State(not plan.kept, KEPT if plan.kept else DONE, plan.kept or "cgpu is installed and set up")


async def publish(client: api.Client, node: str, state: State, changed: bool) -> None:
    """The condition. Raises KubeError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": CONDITION,
        "status": "True" if state.holds else "False",
        "reason": state.reason,
        "message": state.message[:1024],
        "lastHeartbeatTime": now,
        **({"lastTransitionTime": now} if changed else {}),
    }
    await client.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}, api.STRATEGIC)


class Service:
    """Rounds until SIGTERM, or until one fails: the kubelet starts the program again, later each time."""

    def __init__(self, acting: Acting, removing: bool, node: str, config: api.Config | None) -> None:
        self._acting, self._removing, self._node, self._config = acting, removing, node, config
        self._log = logging.get()
        self.state: State | None = None
        self._published: State | None = None

    def unready(self) -> str:
        return "" if self.state is not None and not self.state.failed else "not installed"

    async def round(self) -> State:
        state = await asyncio.to_thread(attempt, self._acting, self._removing)
        if state != self.state:
            log = self._log.error if state.failed else self._log.info
            log(state.message, reason=state.reason)
        self.state = state
        if self._config is not None and state != self._published:
            await self._publish(state)
        return state

    async def _publish(self, state: State) -> None:
        """A node without a working API server is installed all the same."""
        assert self._config is not None
        before = self._published
        try:
            async with api.Client(self._config, "cgpu-kube/install") as client:
                await publish(client, self._node, state, before is None or before.holds != state.holds)
            self._published = state
        except (KubeError, OSError) as error:
            self._log.warning("the node's condition is not written", reason=str(error))

    async def run(self, port: int, once: bool) -> State:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        async with probe.served(port, self.unready):
            while True:
                state = await self.round()
                if once or state.failed or ended.is_set():
                    return state
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await ended.wait()
                    return state


@click.command("install")
@click.option("--remove", "removing", is_flag=True, help="Remove what this command has installed.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/host"),
    show_default=True,
    help="Where the host's root is mounted.",
)
@click.option(
    "--node-name", envvar="NODE_NAME", help="Of the node's condition [NODE_NAME]; without one none is written."
)
@click.option("--no-engine", "by_hand", is_flag=True, help="Leave the engine's file as it is: it is set up by hand.")
@click.option("--once", is_flag=True, help="End after the work, instead of looking again every minute.")
@click.option("--probe-port", type=click.IntRange(0, 65535), default=0, show_default=True, help="HTTP; 0: none.")
@click.option("--log-format", type=click.Choice(logging.FORMATS), default="text", show_default=True)
@click.pass_context
def install(
    ctx: click.Context,
    removing: bool,
    root: Path,
    node_name: str | None,
    by_hand: bool,
    once: bool,
    probe_port: int,
    log_format: str,
) -> None:
    """Bring module, daemon and runtime to the node, from a pod that has the host's root."""
    logging.configure(log_format, "info")
    try:
        image = host.image()
    except OSError as error:
        raise click.ClickException(
            f"{error.filename}: {error.strerror}; this is not the node installer's image"
        ) from None
    try:
        config = api.load() if node_name else None
        service = Service(Acting(Programs(root), image, by_hand=by_hand), removing, node_name or "", config)
        state = asyncio.run(service.run(probe_port, once))
    except (KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if state.failed:
        if TERMINATION.exists():
            TERMINATION.write_text(f"{state.reason}: {state.message}"[:TERMINATION_MAX])
        ctx.exit(int(Exit.REFUSED))
