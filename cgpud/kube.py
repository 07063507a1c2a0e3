# SPDX-License-Identifier: MIT
"""The client of cgpu-kube's socket: which slice a container of a pod gets. The format is that of the daemon's own.

{"op": "decide", "subject": {"namespace", "pod", "uid", "container"}}  ->  {"ok": true, "grant": {...}}
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from cgpu_common import frames, server
from cgpu_common.errors import Refused
from cgpu_common.python import timeout

SOCKET = Path("/run/cgpu/kube.sock")
ANSWER_WAIT_S = 25.0  # it may ask the API server; cgpu-runtime waits 60 s for all
RETRY_S = 0.2
REPLY_MAX = 1 << 20


class KubeClient:
    """Asks cgpu-kube. Every failure is Refused: without an answer the container does not start."""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path

    async def decide(self, subject: dict[str, str], wait_s: float) -> dict[str, Any]:
        """The grant for a container of a pod. Raises Refused.

        While no cgpu-kube listens, or if it ends before its answer, the request is repeated for `wait_s`: a DaemonSet's
        pod is replaced by an update, and a pod whose restartPolicy is Never would have failed for good.
        """
        reply = await self._ask({"op": "decide", "subject": subject}, wait_s)
        if reply.get("ok") is not True:
            raise Refused(str(reply.get("error") or "cgpu-kube refused the container and gave no reason"))
        grant = reply.get("grant")
        if not isinstance(grant, dict) or grant.get("subject") != subject:
            raise Refused("cgpu-kube answered with a grant for another container")
        return grant

    async def _ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        try:
            while True:
                try:
                    reply = await self._ask_once(request)
                    break
                except ConnectionError:
                    if loop.time() > until:
                        raise
                await asyncio.sleep(RETRY_S)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "timeout"
            raise Refused(
                f"cgpu-kube, which decides the GPU of a pod's container, does not answer on {self._path} ({why}); "
                f"systemctl status cgpu-kube shows its state"
            ) from error
        return reply if isinstance(reply, dict) else {}

    async def _ask_once(self, request: dict[str, Any]) -> Any:
        """Of a server of root, or of the daemon's own user. ConnectionError: none listens, or it has ended."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
            try:
                await loop.sock_connect(sock, str(self._path))
            except OSError as error:
                raise ConnectionError(*error.args) from error
            if not server.is_allowed(server.peer_of(sock)[1]):
                raise OSError("the socket is not one of root")
            async with timeout(ANSWER_WAIT_S):
                return await frames.ask(sock, request, REPLY_MAX)
