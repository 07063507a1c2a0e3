# SPDX-License-Identifier: MIT
"""The daemon stopped and started in the middle of a start: the real cgpu-runtime, the real server, and in place of
runc a program that runs the hooks as runc does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from fakes import Node, eventually

ID = "0123456789abcdef" * 4

# Waits after prepare until the file `go` exists; its container is a sleep.
RUNC = """#!{python}
import json, os, pathlib, subprocess, sys, time
here = pathlib.Path("{here}")
(here / "prepared").touch()
while not (here / "go").exists():
    time.sleep(0.02)
hooks = json.loads(pathlib.Path("config.json").read_text())["hooks"]
init = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
state = json.dumps({{"id": sys.argv[-1], "pid": init.pid, "bundle": os.getcwd()}}).encode()

def run(stage):
    for hook in hooks[stage]:
        if hook["args"][0] == "cgpu-runtime":
            (here / stage).touch()
            subprocess.run(hook["args"], executable=hook["path"], input=state, timeout=hook["timeout"], check=True)

try:
    run("createRuntime")
except subprocess.CalledProcessError:
    init.kill()
    init.wait()
    run("poststop")
    sys.exit(1)
print(init.pid)
"""


class Start:
    """`cgpu-runtime create` of one container."""

    def __init__(self, node: Node, shim: Path, wait_s: int) -> None:
        self.node, self.shim = node, shim
        self.process: asyncio.subprocess.Process
        node.socket = shim / "s"
        (shim / "nodes" / ID[:12]).mkdir(parents=True, exist_ok=True)  # as the module has them
        (shim / "runtime.conf").write_text(f"next = {node.directory}/runc\nwait_s = {wait_s}\n")
        (node.directory / "runc").write_text(RUNC.format(python=sys.executable, here=node.directory))
        (node.directory / "runc").chmod(0o755)

    async def begin(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            str(self.shim / "cgpu-runtime"),
            *("create", ID),
            cwd=self.node.bundle(ID),
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def reached(self, stage: str) -> None:
        await eventually((self.node.directory / stage).exists, stage, 30)

    def go(self) -> None:
        (self.node.directory / "go").touch()

    async def end(self) -> tuple[int | None, str, str]:
        out, err = await self.process.communicate()
        return self.process.returncode, out.decode(), err.decode()


async def is_bound_to(node: Node, pid: int) -> bool:
    (known,) = (await node.ask(op="status"))["containers"]
    return (known["phase"], known["pid"]) == ("bound", pid)


async def test_between_prepare_and_bind(node: Node, shim: Path) -> None:
    """The hook waits, and the next daemon goes on with the container that the last one prepared."""

    start = Start(node, shim, 60)
    async with node.running():
        await start.begin()
        await start.reached("prepared")
        (made,) = node.link.containers.values()
    start.go()
    await start.reached("createRuntime")
    await asyncio.sleep(0.3)  # the hook has failed to connect
    async with node.running():
        assert list(node.link.containers.values()) == [made], "the runtime lives, so the start is under way"
        status, out, err = await start.end()
        assert (status, err) == (0, "")
        assert await is_bound_to(node, int(out))
        os.kill(int(out), signal.SIGKILL)
        await eventually(lambda: not node.link.containers, "and it ends as any other")


async def test_before_prepare(node: Node, shim: Path) -> None:
    start = Start(node, shim, 60)
    start.go()
    await start.begin()
    await asyncio.sleep(0.3)
    async with node.running():
        status, out, _ = await start.end()
        assert status == 0
        assert await is_bound_to(node, int(out))
        os.kill(int(out), signal.SIGKILL)


async def test_a_daemon_that_stays_away(node: Node, shim: Path) -> None:
    """The start fails and no daemon receives its end. The next daemon releases the slice before the lease is over."""

    start = Start(node, shim, 1)
    async with node.running():
        await start.begin()
        await start.reached("prepared")
    start.go()
    status, _, err = await start.end()
    assert status == 1
    assert "does not answer" in err
    assert "releases the slice" in err, "the poststop hook was called"
    assert node.link.containers
    async with node.running():
        assert not node.link.containers
        assert not list((node.directory / "state").glob("*.json"))


async def test_a_runtime_that_dies(node: Node, shim: Path) -> None:
    """It sends nothing and calls no hook: the daemon sees its exit."""

    start = Start(node, shim, 0)
    async with node.running() as daemon:
        await start.begin()
        await start.reached("prepared")
        await daemon.reconcile()
        assert node.link.containers, "the runtime is alive"
        start.process.kill()
        await start.end()
        await eventually(lambda: not node.link.containers, "given back")


async def test_a_runtime_that_dies_after_a_restart(node: Node, shim: Path) -> None:
    """The next daemon watches the runtime that the last one watched."""

    start = Start(node, shim, 0)
    async with node.running():
        await start.begin()
        await start.reached("prepared")
    async with node.running():
        assert node.link.containers
        start.process.kill()
        await start.end()
        await eventually(lambda: not node.link.containers, "given back")


async def test_a_prepare_that_went_down_with_its_daemon(node: Node) -> None:
    """The runtime got no reply and sends its request to the next daemon, which keeps nothing of the first one."""

    async with node.running():
        await node.prepare(ID)
        first = node.cookie(ID)
    async with node.running():
        bundle = node.directory / "bundles" / ID
        assert (await node.ask(op="prepare", id=ID, bundle=str(bundle)))["ok"]
        assert node.cookie(ID) != first
        assert len(node.link.containers) == len(node.daemon.records) == 1
        assert (await node.bind(ID, node.process().pid))["ok"]


@pytest.mark.parametrize("group", [None, "/docker/a"])
async def test_an_answer_that_went_down_with_its_daemon(node: Node, group: str | None) -> None:
    """The hook got no reply to its bind, and sends it again to the next daemon."""

    async with node.running():
        process = await node.start(ID, group)
    async with node.running():
        assert (await node.bind(ID, process.pid)) == {"ok": True}
        assert not (await node.bind(ID, node.process(group).pid))["ok"], "another process is another start"
        assert len(node.daemon.records) == 1
        process.kill()
        process.wait()
        if group:
            node.populate(group, False)
        await eventually(lambda: not node.link.containers, "watched once, released once")
        assert [what for what, _, _ in node.link.calls].count("destroy") == 1


async def test_a_record_of_a_daemon_that_did_not_know_the_runtime(node: Node) -> None:
    """Then the lease decides, as if the runtime were in another pid namespace."""

    async with node.running():
        await node.prepare(ID)
    (path,) = (node.directory / "state").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "process": None}))
    async with node.running() as daemon:
        assert node.link.containers
        node.now += node.config.lease_s + 1
        await daemon.reconcile()
        assert not node.link.containers
