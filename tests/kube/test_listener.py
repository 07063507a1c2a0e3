# SPDX-License-Identifier: MIT
"""The extender's port beside clients that open connections and say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cgpu_kube.extender import listener as module
from cgpu_kube.extender.listener import Listener
from cgpu_kube.extender.service import self_signed, tls_context

POD, SCHEDULER = "127.0.0.2", "127.0.0.3"  # sources


WAYS = pytest.mark.parametrize("way", ["http", "https"])


@contextlib.asynccontextmanager
async def served(way: str, tmp_path: Path) -> AsyncIterator[str]:
    """Its URL."""
    app = web.Application()

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="here")

    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    server = runner.server
    assert server is not None
    listener = Listener(server, tls_context(*self_signed(tmp_path), "") if way == "https" else None)
    port = listener.start("127.0.0.1", 0)
    try:
        yield f"{way}://127.0.0.1:{port}"
    finally:
        await listener.close()
        await runner.cleanup()


async def get(url: str, source: str) -> str:
    connector = aiohttp.TCPConnector(local_addr=(source, 0), ssl=False)
    async with aiohttp.ClientSession(connector=connector) as http, http.get(url) as answer:
        return await answer.text()


def silent(url: str, source: str, count: int) -> list[socket.socket]:
    port = int(url.rpartition(":")[2])
    return [socket.create_connection(("127.0.0.1", port), source_address=(source, 0)) for _ in range(count)]


async def closed(connections: list[socket.socket]) -> int:
    """How many the server has closed."""
    found = 0
    for one in connections:
        one.setblocking(False)
        try:
            found += one.recv(1) == b""
        except BlockingIOError:
            pass
        except ConnectionResetError:
            found += 1
    return found


async def until_closed(connections: list[socket.socket], count: int) -> None:
    async with asyncio.timeout(10):
        while await closed(connections) < count:
            await asyncio.sleep(0.05)


@WAYS
async def test_a_source_has_so_many_and_others_are_served(way: str, tmp_path: Path) -> None:
    async with served(way, tmp_path) as url:
        many = silent(url, POD, module.SOURCE_MAX + 20)
        await until_closed(many, 20)
        assert await closed(many) == 20
        assert await get(url, SCHEDULER) == "here"
        with pytest.raises(aiohttp.ClientError):
            await get(url, POD)
        for one in many:
            one.close()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await get(url, POD) == "here"
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)


@WAYS
async def test_all_sources_together_are_bounded(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 40)
    async with served(way, tmp_path) as url:
        first, second = silent(url, POD, 30), silent(url, "127.0.0.4", 30)
        await until_closed(second, 20)
        assert (await closed(first), await closed(second)) == (0, 20)
        for one in (*first, *second):
            one.close()


async def test_a_handshake_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 0.3)
    async with served("https", tmp_path) as url:
        many = silent(url, POD, module.SOURCE_MAX)
        await until_closed(many, module.SOURCE_MAX)
        assert await get(url, POD) == "here"
        for one in many:
            one.close()
