# SPDX-License-Identifier: MIT
"""`python -m cgpud`: options, log, wiring."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from cgpu_common import config as configuration
from cgpu_common import dumpable, exits, log, notify, toolkit
from cgpu_common.errors import CgpuError, Refused
from cgpu_common.link import KernelLink
from cgpu_common.output import note, out
from cgpu_common.pages import located
from cgpu_common.proc import Paths
from cgpu_common.server import Server
from cgpu_common.versions import package_version
from cgpud import mps_unit
from cgpud.dependencies import Dependencies
from cgpud.exporter import Exporter
from cgpud.loop import Daemon
from cgpud.store import Store
from cgpud.watch import Facts

FINAL = 2  # of --mps: systemd does not start the unit again


def make_link() -> KernelLink:
    from cgpu_common.netlink import NetlinkLink

    return NetlinkLink()


async def serve(
    config: configuration.Config, config_path: Path | None, socket: Path, deps: Dependencies, log_format: str
) -> None:
    daemon = Daemon(config, deps)
    server = Server(socket, daemon.handle, daemon.undelivered, lambda pid: daemon.deps.facts.cgroup_path(pid))
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


def checked(path: Path) -> str:
    """A line for each file of the configuration, all of which are valid."""
    files = (path, *sorted(path.with_name(path.name + ".d").glob("*.toml")))
    return "\n".join(f"{one}: valid" for one in files if one.exists()) or f"{path}: no file, the defaults hold"


class _Program(click.Command):
    """Reports a wrong command line in the form of every command of cgpu: one line, with the help as its hint."""

    def main(self, *args: Any, **more: Any) -> NoReturn:
        try:
            code = super().main(*args, **(more | {"standalone_mode": False}))
        except click.UsageError as err:
            note(
                exits.CgpuError(exits.Exit.USAGE, "usage", err.format_message().rstrip("."), "cgpud --help").line(
                    "cgpud"
                )
            )
            sys.exit(int(exits.Exit.USAGE))
        sys.exit(code if isinstance(code, int) else 0)


@click.command(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--socket", type=click.Path(path_type=Path), default=Path("/run/cgpu/cgpud.sock"), show_default=True)
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path("/run/cgpu/state"), show_default=True)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Default: /etc/cgpu/cgpu.toml if there.")
@click.option("--log-format", type=click.Choice(log.FORMATS), default="text", show_default=True)
@click.version_option(package_version(), prog_name="cgpud", message="%(prog)s %(version)s")
@click.option(
    "--check",
    is_flag=True,
    help="Check the configuration, report its first error, and exit. On a terminal: also name the valid files.",
)
@click.option("--mps", metavar="UUID", help="Serve NVIDIA's MPS on this GPU instead: the unit cgpu-mps@UUID.")
def main(
    socket: Path, state_dir: Path, config_path: Path | None, log_format: str, check: bool, mps: str | None
) -> None:
    """Admit containers to slices of a GPU and follow them to their end."""
    try:
        if not check:
            dumpable.clear()
        if mps is not None:
            log.configure(log_format, "info")
            sys.exit(mps_unit.serve(mps))
        config = configuration.load(config_path)
        if check:
            if sys.stdout.isatty():  # scripts and units read the exit status
                out(checked(config_path or configuration.DEFAULT_PATH))
            return
        log.configure(log_format, config.log_level)
        if toolkit.found() is None:
            log.get().warning(toolkit.MISSING, hint=located("docs/user/install.md §2"))
        deps = Dependencies(
            link=make_link(),
            store=Store(state_dir),
            facts=Facts(),
            draining=(socket.parent / "drain").exists,
        )
        asyncio.run(serve(config, config_path, socket, deps, log_format))
    except CgpuError as error:
        head = "<3>" if log.is_journal(2) else ""  # of an error, for journalctl -p err
        note(f"{head}cgpud: {error}")
        sys.exit(FINAL if mps is not None and isinstance(error, Refused) else 1)
    except PermissionError as error:  # of the start: what runs later reports its own
        if os.geteuid() == 0 or error.filename is None:
            raise
        sys.exit(f"cgpud: {error.filename}: {error.strerror} (be root on the host)")


if __name__ == "__main__":
    main()
