# SPDX-License-Identifier: MIT
"""`python -m cgpud`: options, log, wiring."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click

from cgpud import config as configuration
from cgpud import log, notify
from cgpud.errors import CgpuError
from cgpud.fakelink import FakeLink
from cgpud.link import KernelLink
from cgpud.loop import Daemon, World
from cgpud.server import Server
from cgpud.store import Store
from cgpud.watch import Facts


def make_link(kind: str) -> KernelLink:
    if kind == "fake":
        return FakeLink()
    from cgpud.netlink import NetlinkLink

    return NetlinkLink()


async def serve(config: configuration.Config, config_path: Path | None, socket: Path, world: World) -> None:
    daemon = Daemon(config, world)
    server = Server(socket, daemon.handle, daemon.unsent)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def reload() -> None:
        try:
            daemon.reload(configuration.load(config_path))
            log.get().info("configuration read again")
        except CgpuError as error:
            log.get().error("configuration kept as it was", reason=str(error))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, reload)

    await daemon.start()
    server.start()
    background = [asyncio.create_task(daemon.run()), asyncio.create_task(notify.keep_alive())]
    notify.send("READY=1")
    log.get().info("ready", socket=str(socket), containers=len(daemon.records))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([stopped, background[0]], return_when=asyncio.FIRST_COMPLETED)
    notify.send("STOPPING=1")
    await server.stop()
    for task in [*background, stopped]:
        task.cancel()
    results = await asyncio.gather(*background, return_exceptions=True)
    await daemon.stop()
    for result in results:
        if isinstance(result, Exception):
            raise result


@click.command()
@click.option("--socket", type=click.Path(path_type=Path), default=Path("/run/cgpu/cgpud.sock"), show_default=True)
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path("/run/cgpu/state"), show_default=True)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Default: /etc/cgpu/cgpu.toml if there.")
@click.option("--kernel", type=click.Choice(["netlink", "fake"]), default="netlink", show_default=True)
@click.option("--log-format", type=click.Choice(log.FORMATS), default="text", show_default=True)
def main(socket: Path, state_dir: Path, config_path: Path | None, kernel: str, log_format: str) -> None:
    """Admit containers to slices of a GPU and follow them to their end."""
    try:
        config = configuration.load(config_path)
        log.configure(log_format, config.log_level)
        if kernel == "fake":
            log.get().warning("fake kernel: nothing is isolated")
        world = World(link=make_link(kernel), store=Store(state_dir), facts=Facts())
        asyncio.run(serve(config, config_path, socket, world))
    except CgpuError as error:
        sys.exit(f"cgpud: {error}")


if __name__ == "__main__":
    main()
