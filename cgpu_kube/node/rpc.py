# SPDX-License-Identifier: MIT
"""gRPC on Unix sockets: servers of the kubelet's APIs and calls to the kubelet. The only module that imports grpc."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from cgpu_kube.errors import KubeError

MESSAGE_MAX = 16 << 20
PATH_MAX = 107  #: bytes of a Unix socket's name, sockaddr_un of unix(7) without its NUL


@functools.cache
def _hold_runtime() -> None:
    """Keep grpc's event thread until the process ends.

    grpc ends the thread with the last server or channel and starts it with the next. The end can wait forever in
    the event loop's thread: seen with grpcio 1.85.3, the poller in epoll_wait and the loop in its join.
    """
    aio.init_grpc_aio()


class CallFailed(KubeError):
    """A call to the kubelet failed."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method: `handle` takes the request; for a stream it is an asynchronous generator."""

    request: Any  # message class
    handle: Callable[[Any], Awaitable[Any]] | Callable[[Any], AsyncIterator[Any]]
    streams: bool = False


def _handler(method: Method) -> Any:
    async def unary(request: Any, _context: Any) -> Any:
        return await method.handle(request)  # type: ignore[misc]

    async def stream(request: Any, _context: Any) -> Any:
        async for message in method.handle(request):  # type: ignore[union-attr]
            yield message

    def write(message: Any) -> bytes:
        return bytes(message.SerializeToString())

    make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
    return make(
        stream if method.streams else unary,
        request_deserializer=method.request.FromString,
        response_serializer=write,
    )


class UnixServer:
    """Services on one socket, which only root can reach."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, Method]]) -> None:
        self.path = path
        self._services = services
        self._server: Any = None
        self._inode = 0

    async def start(self) -> None:
        """Serve; a stale socket is replaced. OSError if the path cannot be used."""
        if len(os.fsencode(self.path)) > PATH_MAX:
            raise OSError(f"{self.path}: a socket's name has at most {PATH_MAX} bytes; choose a shorter directory")
        _hold_runtime()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        server = aio.server(options=[("grpc.max_send_message_length", MESSAGE_MAX), ("grpc.so_reuseport", 0)])
        for name, methods in self._services.items():
            table = {method: _handler(one) for method, one in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, table),))
        before = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix://{self.path}")  # makes the socket
        except RuntimeError as error:
            raise OSError(f"{self.path}: {error}") from error
        finally:
            os.umask(before)  # before anything is awaited: it is the whole process'
        try:
            await server.start()
        except RuntimeError as error:
            raise OSError(f"{self.path}: {error}") from error
        self._server, self._inode = server, self.path.stat().st_ino

    @property
    def is_there(self) -> bool:
        """Is the socket still this server's? The kubelet removes every socket of its directory when it starts."""
        return self._server is not None and inode_of(self.path) == self._inode

    @property
    def is_replaced(self) -> bool:
        """Is there a socket of another server now?"""
        return self._server is not None and inode_of(self.path) not in (0, self._inode)

    @property
    def inode(self) -> int:
        return self._inode if self._server is not None else 0

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)


def inode_of(path: Path) -> int:
    """0: it is not there."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


async def call(path: Path, method: str, request: Any, answer: Any, timeout_s: float = 10.0) -> Any:
    """One call to the server of a socket. Raises CallFailed."""
    options = [("grpc.max_receive_message_length", MESSAGE_MAX), ("grpc.enable_http_proxy", 0)]
    _hold_runtime()
    try:
        async with aio.insecure_channel(f"unix://{path}", options=options) as channel:
            run = channel.unary_unary(
                method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
            return await run(request, timeout=timeout_s)
    except aio.AioRpcError as error:
        raise CallFailed(f"{path} does not answer {method}: {error.details() or error.code().name}") from error
