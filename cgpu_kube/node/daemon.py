# SPDX-License-Identifier: MIT
"""Both sockets between cgpud and cgpu-kube: requests to cgpud, and the server that cgpud asks for decisions."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from cgpu_common import frames, server, wire
from cgpu_common.errors import CgpuError
from cgpu_kube.errors import KubeError

CGPUD = Path("/run/cgpu/cgpud.sock")
TIMEOUT_S = 30.0
REPLY_MAX = 16 << 20


class DaemonAway(KubeError):
    """cgpud does not answer."""


class Cgpud:
    """Requests to cgpud, one connection each."""

    def __init__(self, path: Path = CGPUD) -> None:
        self._path = path

    async def ask(self, op: str, **more: Any) -> dict[str, Any]:
        """The answer of an operation. Raises DaemonAway, or KubeError with cgpud's sentence."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
                    await asyncio.get_running_loop().sock_connect(sock, str(self._path))
                    reply = await frames.ask(sock, {"op": op, **more}, REPLY_MAX)
        except (OSError, ValueError) as error:
            raise DaemonAway(
                f"cgpud does not answer on {self._path} ({error or 'timeout'}); systemctl status cgpud shows its state"
            ) from error
        if not isinstance(reply, dict) or reply.get("ok") is not True:
            raise KubeError(str((reply or {}).get("error") or "cgpud refused a request"))
        return reply


Decide = Callable[[Mapping[str, str]], Awaitable[dict[str, Any]]]


class DecisionServer:
    """cgpud's questions: {"op": "decide", "subject": {…}}. `decide` returns the grant or raises KubeError."""

    def __init__(self, path: Path, decide: Decide, log: Any) -> None:
        self._decide = decide
        self._log = log
        self.results: Counter[str] = Counter()  # granted, refused
        self._server = server.Server(path, self._handle, self._undelivered)

    def start(self) -> bool:
        """False: another process serves the socket. Raises KubeError if it cannot be made."""
        try:
            self._server.start()
        except server.Taken:
            return False
        except (CgpuError, OSError) as error:
            raise KubeError(str(error)) from error
        return True

    def restore(self) -> bool:
        """Make the socket again if /run was cleared. False: another process serves it by now."""
        try:
            self._server.restore()
        except server.Taken:
            return False
        except (CgpuError, OSError) as error:
            self._log.error("the socket is gone and cannot be made again", reason=str(error))
        return True

    async def stop(self) -> None:
        await self._server.stop()

    async def _undelivered(self, _request: server.Request) -> None:
        """cgpud has gone: it asks again when the container starts again."""

    async def _handle(self, request: server.Request) -> dict[str, Any]:
        subject = request.message.subject
        try:
            if request.message.op != "decide" or not isinstance(subject, dict):
                raise KubeError(f"there is no operation {request.message.op[:32]!r}")
            names = {key: str(subject.get(key) or "")[:512] for key in ("namespace", "pod", "uid", "container")}
            if not all(names.values()):
                raise KubeError("a container is named by namespace, pod, uid and container")
            grant = await self._decide(names)
            self.results["granted"] += 1
            return {"ok": True, "grant": grant}
        except KubeError as error:
            self.results["refused"] += 1
            self._log.warning("refused", subject=subject, reason=str(error))
            return wire.refusal(str(error))
        except Exception as error:
            self.results["refused"] += 1
            self._log.exception("internal error", subject=subject)
            return wire.refusal(f"cgpu-kube has an internal error: {type(error).__name__}: {error}")
