# SPDX-License-Identifier: MIT
"""`python -m cgpud`: options, log, wiring."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click

from cgpu_common import config as configuration
from cgpu_common import log, notify, toolkit
from cgpu_common.errors import CgpuError, Refused
from cgpu_common.link import KernelLink
from cgpu_common.pages import located
from cgpu_common.proc import Paths
from cgpu_common.server import Server
from cgpu_common.versions import package_version
from cgpud import mps_unit
from cgpud.dependencies import Dependencies
from cgpud.exporter import Exporter
from cgpud.fakelink import FakeLink
from cgpud.loop import Daemon
from cgpud.store import Store
from cgpud.watch import Facts

FINAL = 2  # of --mps: systemd does not start the unit again


def make_link(kind: str) -> KernelLink:
    if kind == "fake":
        return FakeLink()
    from cgpu_common.netlink import NetlinkLink

    return NetlinkLink()


async def serve(
    config: configuration.Config, config_path: Path | None, socket: Path, deps: Dependencies, log_format: str
) -> None:
    daemon = Daemon(config, deps)
    server = Server(socket, daemon.handle, daemon.undelivered)
    deps.restore_socket = server.restore_socket
    exporter = Exporter(daemon, Paths.below())
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def reload() -> None:
        notify.reloading()
        try:
            config = configuration.load(config_path)
        except CgpuError as error:
            log.get().error("configuration kept as it was", reason=str(error))
            notify.ready(f"configuration kept as it was: {error}")
            return
        log.configure(log_format, config.log_level)
        await daemon.reload(config)
        await exporter.move(config.metrics, config.metrics_tls)
        log.get().info("configuration read again")
        notify.ready()

    reloads: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def on_stop() -> None:
        stopping.set()
        if not server.started:  # the daemon's own start may wait for them; a request that does so later is answered
            deps.nvml.close()
            deps.sensors.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)

    await daemon.start()
    server.start()
    await exporter.move(config.metrics, config.metrics_tls)
    background = [asyncio.create_task(daemon.run()), asyncio.create_task(notify.keep_alive())]
    notify.ready()
    log.get().info("ready", socket=str(socket), containers=len(daemon.records))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([stopped, background[0]], return_when=asyncio.FIRST_COMPLETED)
    notify.send("STOPPING=1")
    log.get().info("stopping", containers=len(daemon.records))
    await server.stop()
    await exporter.stop()
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
@click.version_option(package_version(), prog_name="cgpud", message="%(prog)s %(version)s")
@click.option("--check", is_flag=True, help="Check the configuration, report its first error, and exit.")
@click.option("--mps", metavar="UUID", help="Serve NVIDIA's MPS on this GPU instead: the unit cgpu-mps@UUID.")
def main(
    socket: Path, state_dir: Path, config_path: Path | None, kernel: str, log_format: str, check: bool, mps: str | None
) -> None:
    """Admit containers to slices of a GPU and follow them to their end."""
    try:
        if mps is not None:
            log.configure(log_format, "info")
            sys.exit(mps_unit.serve(mps))
        config = configuration.load(config_path)
        if check:
            return
        log.configure(log_format, config.log_level)
        if kernel == "fake":
            log.get().warning("fake kernel: nothing is isolated")
        if toolkit.found() is None:
            log.get().warning(toolkit.MISSING, hint=located("docs/user/install.md §2"))
        deps = Dependencies(
            link=make_link(kernel),
            store=Store(state_dir),
            facts=Facts(),
            draining=(socket.parent / "drain").exists,
        )
        asyncio.run(serve(config, config_path, socket, deps, log_format))
    except CgpuError as error:
        head = "<3>" if log.is_journal(2) else ""  # of an error, for journalctl -p err
        print(f"{head}cgpud: {error}", file=sys.stderr)
        sys.exit(FINAL if mps is not None and isinstance(error, Refused) else 1)


if __name__ == "__main__":
    main()
