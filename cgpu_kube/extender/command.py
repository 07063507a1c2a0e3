# SPDX-License-Identifier: MIT
"""cgpu-kube extender: the command."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
import socket
import ssl
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import click
from aiohttp import web

from cgpu_common import log
from cgpu_common.app import Command
from cgpu_common.exits import CgpuError, Exit
from cgpu_kube.api import Client, Config, load
from cgpu_kube.errors import KubeError
from cgpu_kube.extender.access import Access
from cgpu_kube.extender.listener import Listener
from cgpu_kube.extender.service import Extender, LeaseArgs, self_signed, tls_context

_LISTEN = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<four>[0-9.]*)):(?P<port>[0-9]{1,5})\Z", re.ASCII)


def read_listen(text: str) -> tuple[str, int]:
    found = _LISTEN.match(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise CgpuError(Exit.USAGE, f"--listen {text}", "not an address and a port", "0.0.0.0:39999, or [::]:39999")
    return found["six"] or found["four"] or "0.0.0.0", int(found["port"])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # 127.1, which the resolver reads and this does not
        return False


def check_insecure(address: str, *, insecure: bool, tls: bool) -> None:
    """Raises CgpuError where clients of other machines would be served without being known. @tls: by either option."""
    if insecure and tls:
        raise CgpuError(Exit.USAGE, "usage", "--insecure excludes --tls-cert and --tls-self-signed")
    if insecure and not _is_loopback(address):
        raise CgpuError(
            Exit.USAGE, f"--insecure on {address}", "whoever reaches it could bind pods", "127.0.0.1, [::1]"
        )
    if not insecure and not tls:
        hint = "deploy/kubernetes/certificates makes one; --insecure on 127.0.0.1"
        raise CgpuError(Exit.USAGE, "usage", "--tls-cert is missing: whoever reaches it could bind pods", hint)


def lease_of(text: str, environ: Mapping[str, str] = os.environ) -> LeaseArgs | None:
    """Of NAMESPACE/NAME; "": none. Raises CgpuError."""
    if not text:
        return None
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise CgpuError(Exit.USAGE, f"--lease {text}", "not a namespace and a name", "cgpu-system/cgpu-extender")
    pod = environ.get("POD_NAME", "")
    return LeaseArgs(namespace, name, f"{pod or socket.gethostname()}_{uuid.uuid4()}", pod)


async def serve(
    config: Config,
    where: tuple[str, int],
    tls: ssl.SSLContext | None,
    lease: LeaseArgs | None = None,
    scheduler_port: int = 0,
) -> None:
    """Until SIGTERM or SIGINT."""
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    async with (
        Client(config, "cgpu-kube-extender") as api,
        Extender(api, Access(api) if tls is not None else None, lease=lease, beside=bool(scheduler_port)) as extender,
    ):
        runner = web.AppRunner(extender.app, access_log=None, shutdown_timeout=5.0)
        local = web.AppRunner(extender.local, access_log=None, shutdown_timeout=5.0) if extender.local else None
        await runner.setup()
        assert runner.server is not None  # after setup
        listener = Listener(runner.server, tls)
        try:
            try:
                listener.start(*where)
            except OSError as error:
                what = f"--listen {where[0]}:{where[1]}"
                raise CgpuError(Exit.REFUSED, what, os.strerror(error.errno or 0)) from error
            if local is not None:
                await local.setup()
                await web.TCPSite(local, "127.0.0.1", scheduler_port).start()
            log.get().info("listening", address=where[0], port=where[1], tls=tls is not None, api=config.server)
            # A watch never ends by itself. If one does, by a mistake of ours, a restart is better than an old ledger.
            stop = asyncio.create_task(signalled.wait())
            done, _ = await asyncio.wait({stop, *extender.tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await listener.close()
            for one in filter(None, (runner, local)):
                await one.cleanup()
            if extender.lease is not None:
                await extender.lease.release()


@click.command("extender", cls=Command)
@click.option("--listen", default="0.0.0.0:39999", show_default=True, metavar="ADDRESS:PORT", help="For the scheduler.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: the pod's service account.")
@click.option("--context", default="", help="Of the kubeconfig file.")
@click.option("--tls-cert", type=click.Path(), help="Serve HTTPS with this certificate (PEM). Needed, or --insecure.")
@click.option("--tls-key", type=click.Path(), help="Its key, if it is in another file.")
@click.option(
    "--client-ca", type=click.Path(), help="Know clients by certificates of this authority, as the scheduler."
)
@click.option(
    "--tls-self-signed",
    is_flag=True,
    help="Serve HTTPS with a certificate made at the start, for clients that do not verify it: probes, Prometheus.",
)
@click.option(
    "--scheduler-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Serve a kube-scheduler in the same pod as HTTP on 127.0.0.1 at this port; --listen then has no verb that "
    "binds. 0: not.",
)
@click.option("--insecure", is_flag=True, help="HTTP for all clients, on an address of this machine alone.")
@click.option(
    "--lease",
    default="",
    metavar="NAMESPACE/NAME",
    help="Of several extenders the holder of this Lease serves. Without it this is the only one.",
)
@click.option("--log-format", type=click.Choice(log.FORMATS), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def extender(
    listen: str,
    kubeconfig: Path | None,
    context: str,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
    tls_self_signed: bool,
    scheduler_port: int,
    insecure: bool,
    lease: str,
    log_format: str,
    log_level: str,
) -> None:
    """Answer kube-scheduler's filter, prioritize and bind for pods with aliyun.com/gpu-mem.

    bind decides the GPU and writes it into the pod's annotations, in the forms of both generations of gpushare.
    """
    log.configure(log_format, log_level)
    where = read_listen(listen)
    held = lease_of(lease)
    check_insecure(where[0], insecure=insecure, tls=tls_cert is not None or tls_self_signed)
    if (client_ca or tls_key) and not tls_cert:
        raise CgpuError(Exit.USAGE, "usage", "--client-ca and --tls-key need --tls-cert")
    if tls_cert and tls_self_signed:
        raise CgpuError(Exit.USAGE, "usage", "--tls-self-signed and --tls-cert exclude each other")
    if scheduler_port == where[1]:
        raise CgpuError(Exit.USAGE, f"--scheduler-port {scheduler_port}", "--listen has the same port")
    try:
        with tempfile.TemporaryDirectory() as folder:
            if tls_self_signed:
                tls_cert, tls_key = self_signed(Path(folder))
            tls = tls_context(tls_cert, tls_key or "", client_ca or "") if tls_cert else None
    except (OSError, ssl.SSLError) as error:
        option = "--tls-self-signed" if tls_self_signed else f"--tls-cert {tls_cert}"
        raise CgpuError(Exit.REFUSED, option, f"cannot be used: {error}") from error
    try:
        config = load(kubeconfig, context)
        asyncio.run(serve(config, where, tls, held, scheduler_port))
    except KubeError as error:
        raise CgpuError(Exit.REFUSED, "extender", str(error)) from error
