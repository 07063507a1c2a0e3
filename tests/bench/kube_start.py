# SPDX-License-Identifier: MIT
"""What a pod's container waits for at its start, step by step: cgpu-runtime, cgpud, cgpu-kube. Native, no GPU.

cgpu-runtime and cgpu-kube node are processes of their own; cgpud runs in this one, on the fake kernel, and its steps
are timed. NVML is asked by the child process that a node has. `--idle`: the node had no start for a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/kube"), str(REPO / "tests/unit/daemon")]

from agent_process import Process  # noqa: E402
from fakes import eventually  # noqa: E402
from node_world import container  # noqa: E402

from cgpu_kube import annotations as keys  # noqa: E402
from cgpu_kube.node.agent import RENEW_S  # noqa: E402
from cgpud import bundle, granted, oci  # noqa: E402
from cgpud.nvml import Nvml  # noqa: E402

BAR_MS = 100.0
KUBELET_S = 1.0  # from the binding to the first container: the pod's sandbox
NOW_NS = 1_900_000_000 * 10**9


class Times:
    """Milliseconds by step."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = defaultdict(list)

    def add(self, step: str, began: float) -> None:
        self.of[step].append((time.perf_counter() - began) * 1000)

    def wrap(self, owner: Any, name: str, step: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        async def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return await inner(*args, **more)
            finally:
                self.add(step, began)

        def timed_now(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **more)
            finally:
                self.add(step, began)

        setattr(owner, name, timed if asyncio.iscoroutinefunction(inner) else timed_now)


def build_runtime(place: Path, socket: Path) -> Path:
    """cgpu-runtime that takes this socket and hands over to /bin/true."""
    conf = place / "runtime.conf"
    conf.write_text("next = /bin/true\n")
    nodes = place / "nodes"
    nodes.mkdir()
    defines = {"CGPU_SOCKET_PATH": socket, "CGPU_CONF_PATH": conf, "CGPU_NODES_PATH": nodes}
    magic = subprocess.run(["stat", "-f", "-c", "0x%t", nodes], capture_output=True, text=True, check=True).stdout
    flags = " ".join(f'-D{name}=\\"{path}\\"' for name, path in defines.items())
    flags += f" -DCGPU_NODES_MAGIC={magic.strip()}"
    words = ["make", "-s", "-C", REPO / "cgpud/runtime", f"OUT={place}", f"CPPFLAGS={flags}"]
    subprocess.run(words, check=True)
    return place / "cgpu-runtime"


async def measure(place: Path, starts: int, idle: bool) -> Times:
    world, times = Process(place), Times()
    world.node.nvml = Nvml()
    runtime = build_runtime(place, world.node.socket)
    async with world.running():
        await eventually(lambda: world.kubelet.allocatable(keys.GPU_MEM) == 94, "the offer", 60)
        daemon = world.node.daemon
        make = daemon.deps.link.create

        async def create(container_id: str, cookie: int, slots: Any) -> Any:
            made = await make(container_id, cookie, slots)
            (place / "nodes" / made.dir).mkdir(exist_ok=True)
            return made

        daemon.deps.link.create = create
        await asyncio.sleep(1)
        await one(world, runtime, 0, Times(), idle)  # the first has the probe
        for owner, name, step in (
            (daemon, "prepare", " prepare"),
            (bundle, "read", "  read config.json"),
            (granted, "find", "  decide, with cgpu-kube"),
            (daemon.inventory, "for_admission", "  read the GPUs"),
            (daemon.inventory._nvml_source, "query", "   NVML"),
            (daemon.deps.link, "create", "  create"),
            (oci, "edit", "  edit"),
            (bundle, "write", "  write config.json"),
        ):
            times.wrap(owner, name, step)
        for number in range(1, starts + 1):
            await one(world, runtime, number, times, idle)
    return times


async def one(world: Process, runtime: Path, number: int, times: Times, idle: bool) -> None:
    """A pod from the extender's annotation to the next runtime, and its end."""
    if idle:
        world.node.daemon.inventory.expire()
        await asyncio.sleep(RENEW_S)
    notes = keys.write({"main": {1: 6}}, 80, NOW_NS)
    pod = world.pod(f"p{number}", container(mem=6), annotations=notes)
    container_id = world.bundle(pod, "main", await world.allocate(pod, "main"))
    await asyncio.sleep(KUBELET_S)
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        str(runtime), "create", "--bundle", str(world.directory / "d/bundles" / container_id), container_id
    )
    assert await process.wait() == 0
    times.add("cgpu-runtime", began)
    await world.end(container_id)
    world.kubelet.free(f"p{number}")


async def bare(starts: int) -> float:
    """A process alone, which the runtime needs anyway."""
    found = []
    for _ in range(starts):
        began = time.perf_counter()
        await (await asyncio.create_subprocess_exec("/bin/true")).wait()
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--idle", action="store_true", help="no start in the minute before each")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        times = asyncio.run(measure(Path(name), args.starts, args.idle))
    alone = asyncio.run(bare(args.starts))
    print(f"{'':28}{'median':>9}{'worst':>9}  ms")
    for step, found in [("a process alone", [alone]), *sorted(times.of.items(), key=lambda item: order(item[0]))]:
        print(f"{step:28}{statistics.median(found):9.1f}{max(found):9.1f}")
    added = statistics.median(times.of["cgpu-runtime"]) - alone
    print(f"a start adds {added:.1f} ms (bar {BAR_MS:.0f})")
    return 0 if added <= BAR_MS else 1


def order(step: str) -> int:
    steps = [
        "cgpu-runtime",
        " prepare",
        "  read c",
        "  decide",
        "  read the",
        "   NVML",
        "  create",
        "  edit",
        "  write",
    ]
    return next(place for place, one in enumerate(steps) if step.startswith(one))


if __name__ == "__main__":
    sys.exit(main())
