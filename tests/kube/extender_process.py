# SPDX-License-Identifier: MIT
"""An extender that is a process of its own."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from fake_api import kubeconfig
from fakes import free_port

PROGRAM = Path(sys.executable).with_name("cgpu-kube")
BIND = "/gpushare-scheduler/bind"


@asynccontextmanager
async def extender(folder: Path, server: str, *words: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, int]]:
    """`cgpu-kube extender` with these options, at the API server of that URL: pid and port. It ends in order."""
    port = free_port()
    with open(folder / "stderr", "w+b") as said:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *("extender", "--listen", f"{host}:{port}", "--kubeconfig", str(kubeconfig(folder, server)), *words),
            stderr=said,
        )
        try:
            yield process.pid, port
        finally:
            process.terminate()
            status = await process.wait()
        said.seek(0)
        text = said.read().decode()
    assert status == 0 and "Traceback" not in text, text


async def ready(
    http: aiohttp.ClientSession,
    url: str,
    tls: ssl.SSLContext | bool = True,
    name: str | None = None,
    seconds: float = 60,
) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                async with http.get(f"{url}/readyz", ssl=tls, server_hostname=name) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def kib(pid: int, what: str = "VmRSS") -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{what}:")[2].split()[0])
