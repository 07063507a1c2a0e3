# SPDX-License-Identifier: MIT
"""python big_api.py PORT GO PODS: an API server of a large cluster with so many pods, in a process of its own. Pods are
made of one recorded pod's text when they are asked for, so that it has none in memory; 1,000 updates a second once the
file GO is there, of which every tenth ends a pod or starts one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from cluster import gpu, our_node
from fake_api import recorded

from cgpu_kube import annotations as notes

NODES, GPUS = 1000, 8
PER_S = 1000
UID, NAME, NODE, GPU, VERSION, PHASE = "@uid@", "@name@", "@node@", "@gpu@", "@version@", "@phase@"


def template() -> str:
    """As a kubelet leaves a pod: with status, volumes and managed fields, some 10 KiB."""
    found = recorded("pod-gpushare-bound")
    found["metadata"] |= {"name": NAME, "namespace": "default", "uid": UID, "resourceVersion": VERSION}
    texts = notes.write({"main": {0: 1}}, 20, 2 * 10**18)
    texts = {key: text.replace('"0"', f'"{GPU}"') if text.startswith("{") else text for key, text in texts.items()}
    found["metadata"]["annotations"] = texts | {notes.INDEX: GPU}
    found["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {f"f:field-{i}": {} for i in range(150)}}]
    found["spec"]["nodeName"] = NODE
    found["spec"]["containers"] = [
        {
            "name": "main",
            "image": "box",
            "resources": {"limits": {notes.GPU_MEM: "1"}},
            "env": [{"name": "E", "value": "v" * 200}] * 10,
        }
    ]
    found["status"] = {
        "phase": PHASE,
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "x"}}}],
    }
    return json.dumps(found)


#: The template in pieces: what is between two marks, and the marks.
PIECES = re.split(f"({'|'.join((UID, NAME, NODE, GPU, VERSION, PHASE))})", template())


def pod(number: int, version: int, phase: str = "Running") -> str:
    node, rest = number % NODES, number // NODES
    values = {
        UID: f"00000000-0000-0000-0000-{number:012d}",
        NAME: f"deployment-{number:06d}-abcde",
        NODE: f"node-{node:04d}",
        GPU: str(rest % GPUS),
        VERSION: str(version),
        PHASE: phase,
    }
    return "".join([values.get(piece, piece) for piece in PIECES])


def update(number: int, count: int) -> str:
    """Of a pod that runs; of twenty the last two end one and start it again."""
    last = number % 20 == 19
    found = pod((number - last) * 7919 % count, 100 + number, "Succeeded" if number % 20 == 18 else "Running")
    return f'{{"type": "MODIFIED", "object": {found}}}\n'


class Server:
    def __init__(self, go: Path, count: int) -> None:
        self.go, self.count = go, count
        self.fresh: dict[str, Any] = {}
        self.sent = 0  # updates

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/sent":
            return web.json_response(self.sent)
        if request.query.get("watch"):
            return await self.watch(request)
        if path == "/api/v1/nodes":
            nodes = [our_node(f"node-{i:04d}", *(gpu(g, 22, slots=40) for g in range(GPUS))) for i in range(NODES)]
            for one in nodes:
                one["metadata"] |= {"uid": one["metadata"]["name"], "resourceVersion": "5"}
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": nodes})
        if path == "/api/v1/pods":
            start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
            end = min(start + limit, self.count)
            more = json.dumps({"resourceVersion": "10", **({"continue": str(end)} if end < self.count else {})})
            text = f'{{"metadata": {more}, "items": [{",".join(pod(i, 6) for i in range(start, end))}]}}'
            return web.Response(text=text, content_type="application/json")
        if "/pods/" in path:
            name = path.split("/")[6]
            found = self.fresh.get(name)
            if request.method == "PUT":
                self.fresh[name] = await request.json()
            elif request.method == "PATCH":
                found["metadata"]["annotations"] = (await request.json())["metadata"]["annotations"]
            return web.json_response(self.fresh.get(name) or {})
        return web.json_response({"metadata": {"resourceVersion": "10"}, "items": []})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while request.path != "/api/v1/pods" or not self.go.exists():
            await asyncio.sleep(0.05)
        began = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            end = int((time.monotonic() - began) * PER_S)
            try:
                await answer.write("".join(update(number, self.count) for number in range(self.sent, end)).encode())
            except ConnectionError:
                return answer
            self.sent = end


def main() -> None:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", Server(Path(sys.argv[2]), int(sys.argv[3])).handle)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
