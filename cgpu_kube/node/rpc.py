# SPDX-License-Identifier: MIT
"""gRPC on Unix sockets: servers of the kubelet's APIs and calls to the kubelet. No other module imports grpclib."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpclib import GRPCError
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from cgpu_kube.errors import KubeError

PATH_MAX = 107  #: bytes of a Unix socket's name, sockaddr_un of unix(7) without its NUL


class CallFailed(KubeError):
    """A call to the kubelet failed."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method: `handle` takes the request; for a stream it is an asynchronous generator."""

    request: Any  # message class
    handle: Callable[[Any], Awaitable[Any]] | Callable[[Any], AsyncIterator[Any]]
    streams: bool = False


class _Codec(CodecBase):
    """As the library's own, which also wants the class of each answer."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        return message_type.FromString(data)


class _Service:
    def __init__(self, name: str, methods: Mapping[str, Method]) -> None:
        self._found = {f"/{name}/{method}": _handler(one) for method, one in methods.items()}

    def __mapping__(self) -> dict[str, Handler]:
        return self._found


def _handler(method: Method) -> Handler:
    async def unary(stream: Any) -> None:
        await stream.send_message(await method.handle(await stream.recv_message()))  # type: ignore[misc]

    async def several(stream: Any) -> None:
        answers: Any = method.handle(await stream.recv_message())
        async with contextlib.aclosing(answers):
            async for message in answers:
                await stream.send_message(message)

    if method.streams:
        return Handler(several, Cardinality.UNARY_STREAM, method.request, None)
    return Handler(unary, Cardinality.UNARY_UNARY, method.request, None)


class _Server(Server):
    """The library's, whose close() leaves the connections of clients open."""

    def __init__(self, services: list[_Service]) -> None:
        super().__init__(services, codec=_Codec())
        self._protocols: set[H2Protocol] = set()

    def _protocol_factory(self) -> H2Protocol:
        self._protocols = {one for one in self._protocols if not _is_closed(one)}
        protocol = super()._protocol_factory()
        self._protocols.add(protocol)
        return protocol

    async def stop(self) -> None:
        """Calls that run end, and so do connections: for a kubelet their end is the plugin's."""
        self.close()
        await asyncio.sleep(0)  # a connection that was accepted just now
        for one in self._protocols:
            if hasattr(one, "connection"):
                one.connection.close()
        await self.wait_closed()


def _is_closed(protocol: H2Protocol) -> bool:
    return hasattr(protocol, "connection") and protocol.connection.is_closing()


class UnixServer:
    """Services on one socket, which only root can reach."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, Method]]) -> None:
        self.path = path
        self._services = services
        self._server: _Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Serve; a stale socket is replaced. OSError if the path cannot be used."""
        if len(os.fsencode(self.path)) > PATH_MAX:
            raise OSError(f"{self.path}: a socket's name has at most {PATH_MAX} bytes; choose a shorter directory")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            sock.bind(str(self.path))
        except OSError:
            sock.close()
            raise
        finally:
            os.umask(before)  # before anything is awaited: it is the whole process'
        server = _Server([_Service(name, methods) for name, methods in self._services.items()])
        await server.start(sock=sock)
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
            await server.stop()


def inode_of(path: Path) -> int:
    """0: it is not there."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


async def call(path: Path, method: str, request: Any, answer: Any, timeout_s: float = 10.0) -> Any:
    """One call to the server of a socket. Raises CallFailed."""
    channel = Channel(path=str(path), codec=_Codec())
    try:
        return await UnaryUnaryMethod(channel, method, type(request), answer)(request, timeout=timeout_s)
    except GRPCError as error:
        raise CallFailed(f"{path} does not answer {method}: {error.message or error.status.name}") from error
    except Exception as error:  # where the connection ends amid a call, some of h2's, or an AttributeError (0.4.9)
        why = str(error) or type(error).__name__
        raise CallFailed(f"{path} does not answer {method}: {why}") from error
    finally:
        channel.close()
