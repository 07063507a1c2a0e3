# SPDX-License-Identifier: MIT
"""cgpu drain: while its mark exists no container gets a slice, also after the daemon's restart. Running ones go on."""

from __future__ import annotations

from fakes import Node

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


async def test_starts_are_refused_until_it_is_over(node: Node) -> None:
    mark = node.directory / "drain"

    async with node.running():
        assert (await node.prepare(ID))["ok"]
        mark.touch()
        reply = await node.prepare(OTHER)
        assert not reply["ok"]
        assert "is being drained" in reply["error"]
        assert "cgpu uncordon" in reply["error"]
        assert [one.id for one in node.link.containers.values()] == [ID], "a container that has its slice keeps it"
        assert (await node.ask(op="status"))["draining"] is True
        assert await node.prepare(OTHER, ("CGPU_DISABLE=1",)) == {"ok": True, "action": "pass"}
    async with node.running():
        assert not (await node.prepare(OTHER))["ok"], "also after a restart"
        mark.unlink()
        assert (await node.prepare(OTHER))["ok"]
        assert (await node.ask(op="status"))["draining"] is False
