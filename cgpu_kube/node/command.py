# SPDX-License-Identifier: MIT
"""`cgpu-kube node`: options, log, wiring of both its processes. The first one imports little: it stays small."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cgpu_common import dumpable, notify
from cgpu_common import log as logging
from cgpu_kube.errors import KubeError
from cgpu_kube.node import host, keeper

if TYPE_CHECKING:
    from cgpu_kube import api
    from cgpu_kube.node.agent import Agent
    from cgpu_kube.node.settings import Settings

_Path = click.Path(path_type=Path)


PREPARED_S = 20.0  # for cgpud's first answer: a kubelet that is ordered after the unit starts then


async def _report(agent: Agent) -> None:
    """systemd starts the kubelet after this: pods of before a reboot are refused if their devices are not there."""
    try:
        async with asyncio.timeout(PREPARED_S):
            await agent.prepared.wait()
    except TimeoutError:
        logging.get().warning("the kubelet may start before this node's GPUs are known", reason=agent.unready)
    notify.ready()


async def serve(settings: Settings, config: api.Config, port: int, kept_by: int) -> None:
    """The agent, until SIGTERM or SIGINT; a second one ends it at once. @kept_by: descriptor of the socket to the
    process that serves the device plugins. Raises KeeperGone if that has ended."""
    from cgpu_kube import api
    from cgpu_kube.node import figures, probe
    from cgpu_kube.node.agent import Agent
    from cgpu_kube.node.link import Link

    loop = asyncio.get_running_loop()
    link = await Link.connect(kept_by)
    async with api.Client(config, "cgpu-kube/node") as client:
        agent = Agent(settings, client, link.plugin)
        agent.turn.on_change = link.say_serving
        work = asyncio.create_task(agent.run())
        linked = asyncio.create_task(link.run())
        linked.add_done_callback(lambda _: work.cancel())
        leaving: list[asyncio.Task[None]] = []

        async def leave() -> None:
            logging.get().info("stopping")
            await agent.leave()
            work.cancel()

        def signalled() -> None:
            if leaving:
                work.cancel()
            leaving.append(asyncio.create_task(leave()))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        report = asyncio.create_task(_report(agent))
        try:
            async with probe.served(port, lambda: agent.unready, lambda: figures.text(agent.figures)):
                await work
        except asyncio.CancelledError:
            if linked.done():
                linked.result()
        finally:
            for task in (report, *leaving, linked, work):
                task.cancel()


@click.command()
@click.option("--node-name", envvar="NODE_NAME", help="Name of the node [NODE_NAME]; else the host's name.")
@click.option("--kubeconfig", type=_Path, help="How to reach the API server; else the pod's service account.")
@click.option(
    "--memory-unit",
    type=click.Choice(list(host.UNITS)),
    default=host.GIB,
    show_default=True,
    help="Of aliyun.com/gpu-mem. MiB: 256 MiB, or so many that no GPU has more than 512 units.",
)
@click.option(
    "--overcommit",
    type=click.IntRange(100, 1000),
    default=100,
    show_default=True,
    help="Percent of a GPU's memory that the mode share offers.",
)
@click.option("--kubelet-dir", type=_Path, default=Path("/var/lib/kubelet"), show_default=True)
@click.option("--cgpud", type=_Path, default=Path("/run/cgpu/cgpud.sock"), show_default=True)
@click.option("--socket", type=_Path, default=Path("/run/cgpu/kube.sock"), show_default=True)
@click.option(
    "--keeper",
    "host_keeper",
    type=_Path,
    default=Path("/run/cgpu/keeper.sock"),
    show_default=True,
    help="Socket of the host's `cgpu-kube keep`; where it is there, that serves the kubelet's sockets.",
)
@click.option("--state-dir", type=_Path, default=Path("/var/lib/cgpu/kube"), show_default=True)
@click.option("--cdi-dir", type=_Path, default=Path("/var/run/cdi"), show_default=True)
@click.option(
    "--cdi-enabled",
    is_flag=True,
    help="The node's containerd 1.7 has enable_cdi = true: without it such a node prepares no claim.",
)
@click.option(
    "--probe-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="HTTP of /healthz and /readyz, for the kubelet's probes, and of /metrics; 0: none.",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(min=0),
    envvar="MEMORY_LIMIT",
    default=0,
    metavar="BYTES",
    help="Of both processes, as the container's [MEMORY_LIMIT]: the agent ends before they reach it. 0: none.",
)
@click.option(keeper.OPTION, type=int, hidden=True)
@click.option("--log-format", type=click.Choice(logging.FORMATS), default="text", show_default=True)
def node(
    node_name: str | None,
    kubeconfig: Path | None,
    memory_unit: str,
    overcommit: int,
    kubelet_dir: Path,
    cgpud: Path,
    socket: Path,
    host_keeper: Path,
    state_dir: Path,
    cdi_dir: Path,
    cdi_enabled: bool,
    probe_port: int,
    memory_limit: int,
    kept_by: int | None,
    log_format: str,
) -> None:
    """Offer this node's GPUs to Kubernetes, as device plugin or DRA driver."""
    logging.configure(log_format, "info")
    dumpable.clear()
    try:
        keeper.check_memory(memory_limit)
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    if kept_by is None:
        of_kubelet = [kubelet_dir / name for name in ("device-plugins", "plugins_registry", "pod-resources")]
        mounts = (*of_kubelet, kubelet_dir / "plugins/cgpu.io", cgpud.parent, socket.parent, state_dir, cdi_dir)
        status = asyncio.run(keeper.keep(of_kubelet[0], memory_limit, host_keeper, mounts))
        click.get_current_context().exit(status)
    keeper.yield_memory(memory_limit)
    from cgpu_kube import api
    from cgpu_kube.node.settings import Settings

    settings = Settings(
        node=node_name or os.uname().nodename,
        kubelet=kubelet_dir,
        cgpud=cgpud,
        socket=socket,
        state=state_dir,
        cdi=cdi_dir,
        cdi_enabled=cdi_enabled,
        unit=memory_unit,
        overcommit=overcommit,
    )
    try:
        asyncio.run(serve(settings, api.load(kubeconfig), probe_port, kept_by))
    except (KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error
