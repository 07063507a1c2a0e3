# SPDX-License-Identifier: MIT
"""Bounds of files, requests, connections, waits and ids; access to the state; user namespaces."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Node, read_reply
from structlog.testing import capture_logs

from cgpu_common import netlink, server
from cgpu_common.errors import KernelRefused, Refused
from cgpud import oci
from cgpud.store import Store

ID = "0123456789abcdef" * 4
MIB = 1 << 20


# ---- bundles ----


async def test_a_config_of_no_size(node: Node) -> None:
    """The file is sparse, so it costs the test nothing. The daemon would need as much memory as the file is long."""

    path = node.bundle(ID) / "config.json"
    os.truncate(path, 16 * MIB + 1)
    async with node.running():
        assert await node.again(ID) == {"ok": False, "error": f"{path} is larger than 16 MiB"}


async def test_a_config_of_the_most(node: Node) -> None:
    path = node.bundle(ID) / "config.json"
    path.write_bytes(path.read_bytes().ljust(16 * MIB))
    async with node.running():
        assert (await node.again(ID))["ok"]


# ---- requests ----


def answer_to(path: Path, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Send data and nothing after it. Return the reply, and the next byte: none if the connection is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        try:
            sock.sendall(data)
        except BrokenPipeError:
            pass  # cgpud replied and closed before all was sent: the reply is there
        reply = read_reply(sock)
        try:
            return reply, sock.recv(1)
        except ConnectionResetError:
            return reply, b""


@pytest.mark.parametrize("size", [64 * 1024 + 1, 0xFFFFFFFF])
async def test_a_head_that_announces_more(node: Node, size: int) -> None:
    """Refused by its head; the daemon does not wait for the announced bytes."""

    async with node.running():
        reply, rest = await asyncio.to_thread(answer_to, node.socket, struct.pack(">I", size))
        assert reply["error"] == f"cgpud did not understand the request: a request of {size} bytes"
        assert rest == b"", "closed"


async def test_the_largest_request(node: Node) -> None:
    body = json.dumps({"op": "status"}).encode().ljust(64 * 1024)
    async with node.running():
        reply, _ = await asyncio.to_thread(answer_to, node.socket, struct.pack(">I", len(body)) + body)
        assert reply["ok"]


@pytest.mark.parametrize("half", [b"", b"\0\0", struct.pack(">I", 100) + b'{"op": "sta'], ids=["none", "head", "body"])
async def test_half_a_request(node: Node, monkeypatch: pytest.MonkeyPatch, half: bytes) -> None:
    """After the timeout the sender gets an error and its connection is closed."""
    assert server.READ_TIMEOUT_S <= 60
    monkeypatch.setattr(server, "READ_TIMEOUT_S", 0.1)

    async with node.running():
        with capture_logs() as lines:
            reply, rest = await asyncio.to_thread(answer_to, node.socket, half)
        assert {"event": "bad request", "log_level": "warning", "error": "timeout"} in lines
        assert reply["error"].startswith("cgpud did not understand the request:")
        assert rest == b"", "closed"


async def test_connections_that_say_nothing(node: Node) -> None:
    """A connection above the maximum is closed unread. When the others are closed, requests are served again."""
    assert server.CONNECTIONS_MAX <= 256  # with a descriptor each, of 1024

    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(5)
        sock.connect(str(node.socket))
        return sock

    def idle() -> Iterator[socket.socket]:
        for _ in range(server.CONNECTIONS_MAX):
            yield connect()

    async with node.running():
        open_ones = await asyncio.to_thread(lambda: list(idle()))
        one_more = await asyncio.to_thread(connect)
        try:
            assert await asyncio.to_thread(one_more.recv, 1) == b""
        finally:
            for sock in (*open_ones, one_more):
                sock.close()
        for _ in range(100):
            try:
                assert (await node.ask(op="status"))["ok"]
                return
            except (OSError, struct.error):  # cgpud has not seen all of them close yet
                await asyncio.sleep(0.02)
        raise AssertionError("never served again")


# ---- the kernel's answers ----


class Silent:
    """A socket of a module that hangs."""

    prid = 33

    def __init__(self) -> None:
        self.closed = False

    async def nlm_request(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True


async def test_a_module_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request ends, also one that waits for an earlier one. A late answer finds a closed socket."""
    assert netlink.TIMEOUT_S <= 60
    monkeypatch.setattr(netlink, "TIMEOUT_S", 0.3)
    opened: list[Silent] = []

    async def open_silent() -> Silent:
        opened.append(Silent())
        return opened[-1]

    monkeypatch.setattr(netlink, "_open", open_silent)

    link = netlink.NetlinkLink()
    asked = (
        link.list(),
        link.gpus(),
        link.create(ID, 1, ()),
        link.destroy(ID, 1),
        *(link.list() for _ in range(8)),
    )
    async with asyncio.timeout(3):  # one after the other they would take 3.6 s
        answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, KernelRefused)
        assert answer.code == errno.ETIMEDOUT
        assert "did not answer" in str(answer)
    assert opened
    assert all(sock.closed for sock in opened)


# ---- ids ----


@pytest.mark.parametrize(
    "container_id",
    ["", "x" * 129, "é" * 65, "a\nb", "a\0b", "a\x1b[2J", "a\u202eb", "a\u2028b", "\x7f"],
    ids=["empty", "long", "long in bytes", "newline", "nul", "escape", "right to left", "separator", "delete"],
)
async def test_ids_that_are_refused(node: Node, container_id: str) -> None:
    """The kernel has room for 128 bytes, and ids are in logs and in tables."""

    async with node.running():
        reply = await node.ask(op="prepare", id=container_id, bundle=str(node.bundle("b")))
        assert reply == {"ok": False, "error": "the container id must be 1 to 128 printable bytes"}
        assert not node.link.calls
        assert not node.daemon.records


@pytest.mark.parametrize("container_id", ["x", "x" * 128, "é" * 64])
async def test_ids_that_are_taken(node: Node, container_id: str) -> None:
    async with node.running():
        assert (await node.ask(op="prepare", id=container_id, bundle=str(node.bundle("b"))))["ok"]
        assert list(node.link.containers) == [container_id]


# ---- the state, and namespaces ----


def test_the_state_is_roots(tmp_path: Path) -> None:
    """The mode does not depend on the umask: only the unit sets 0077."""
    before = os.umask(0)
    try:
        Store(tmp_path / "state").open()
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("key", ["uidMappings", "gidMappings"])
def test_either_map_is_a_user_namespace(node: Node, key: str) -> None:
    node.bundle(ID)
    spec = node.spec(ID)
    options = oci.Options(hook_path="/usr/bin/cgpu-runtime", allow_privileged=True, legacy_hook_config=None)
    oci.check_isolation(spec, options)
    spec["linux"][key] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    with pytest.raises(Refused, match="user namespace"):
        oci.check_isolation(spec, options)
