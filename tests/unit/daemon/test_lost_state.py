# SPDX-License-Identifier: MIT
"""The daemon's files are damaged, or were removed while it runs: no container is stopped, and the daemon goes on."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from fakes import Node, eventually

ID = "0123456789abcdef" * 4


def states(node: Node) -> list[Path]:
    return list((node.directory / "state").glob("*.json"))


def destroys(node: Node) -> list[str]:
    return [container_id for what, container_id, _ in node.link.calls if what == "destroy"]


# ---- damaged ----


@pytest.mark.parametrize(
    "change",
    [
        {"process": {"pid": 1 << 40, "starttime": 1}, "phase": "prepared"},
        {"process": {"pid": 1 << 40, "starttime": 1}},
        {"process": {"pid": -1, "starttime": 1}},
        {"cgroup": {"path": "/docker/a\0b", "inode": 1}},
        {"cookie": -1},
        {"phase": "released"},
        {"phase": "no such"},
    ],
    ids=str,
)
async def test_a_record_that_makes_no_sense(node: Node, change: dict[str, Any]) -> None:
    """The record counts as absent: the daemon starts, and adopts the live container by its cgroup."""

    group = f"/system.slice/docker-{ID}.scope"
    async with node.running():
        await node.start(ID, group)
    (path,) = states(node)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    async with node.running():
        assert set(node.link.containers) == {ID}
        assert not destroys(node)
        assert [record.id for record in node.daemon.records.values()] == [ID], "adopted"
        node.populate(group, False)
        await eventually(lambda: not node.link.containers, "and released as any other")


@pytest.mark.parametrize("content", [b"{", b'{"id":"\xff"}', b"\0", b"[" * 100000, b'{"id":"\\ud800"}'], ids=repr)
async def test_a_file_that_is_no_record(node: Node, content: bytes) -> None:
    (node.directory / "state").mkdir()
    (node.directory / "state/x.json").write_bytes(content)
    async with node.running():
        assert (await node.ask(op="status"))["ok"]
    assert (node.directory / "state/x.json").exists()


# ---- cleared away ----


async def test_the_state_directory_is_gone(node: Node) -> None:
    async with node.running():
        shutil.rmtree(node.directory / "state")
        assert (await node.prepare(ID))["ok"]
        assert len(states(node)) == 1
        assert (node.directory / "state").stat().st_mode & 0o777 == 0o700


async def test_records_are_written_again(node: Node) -> None:
    """The next daemon needs the record of a container that has no cgroup of its own."""

    async with node.running() as daemon:
        process = await node.start(ID)
        shutil.rmtree(node.directory / "state")
        await daemon.reconcile()
        assert len(states(node)) == 1
    async with node.running() as daemon:
        (record,) = daemon.records.values()
        assert record.process is not None
        assert record.process.pid == process.pid


async def test_the_socket_is_gone(node: Node) -> None:
    """With its directory, as after /run was emptied; more than once."""

    node.socket = node.directory / "run/d.sock"
    async with node.running() as daemon:
        for _ in range(2):
            shutil.rmtree(node.socket.parent)
            await daemon.reconcile()
            assert (await node.ask(op="status"))["ok"]
            assert node.socket.stat().st_mode & 0o777 == 0o600
        inode = node.socket.stat().st_ino
        await daemon.reconcile()
        assert node.socket.stat().st_ino == inode, "an existing socket stays"
        assert (await node.prepare(ID))["ok"]
    assert not node.socket.exists()


async def test_the_socket_of_another(node: Node) -> None:
    """The daemon replaces a socket that no process listens on, and keeps one that has a listener."""

    def other() -> socket.socket:
        node.socket.unlink()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(node.socket))
        return sock

    async with node.running() as daemon:
        other().close()
        await daemon.reconcile()
        assert (await node.ask(op="status"))["ok"]
        with other() as living:
            living.listen()
            inode = node.socket.stat().st_ino
            await daemon.reconcile()
            assert node.socket.stat().st_ino == inode
    assert node.socket.stat().st_ino == inode, "not ours to remove"
