# SPDX-License-Identifier: MIT
"""The API server: its address and credentials, and one request after another. Objects are plain JSON.

Credentials of files (a pod's token, the kubelet's certificate) are read again when their file changes: both rotate. So
is a kubeconfig, into which an administrator writes a new token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from cgpu_common import log
from cgpu_kube.errors import KubeError
from cgpu_kube.parts import OBJECT_MAX, WHOLE, Parts, Read, lines

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
REQUEST_TIMEOUT_S = 15.0
PAGE = 200  # objects of one answer to a list, at most
PAGE_BYTES = 4 << 20  # of such an answer, which is in memory as a whole: any tenant can make pods of 1 MiB
CREDENTIALS = {"token", "tokenFile", "client-certificate", "client-certificate-data"}  # of a kubeconfig's user
#: A dead connection is noticed after IDLE + COUNT x INTERVAL: the server's end may be gone without a packet.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

Object = dict[str, Any]


#: Errors of a request without a usable answer. TimeoutError is an OSError; before msgspec 0.20 its errors are no
#: ValueErrors.
_NO_ANSWER = (
    aiohttp.ClientError,
    OSError,
    ValueError,
    msgspec.MsgspecError,
    TypeError,
    KeyError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class NoConfig(KubeError):
    """Where the API server is, or how to log in, is not known."""


class Unreachable(KubeError):
    """The API server did not answer. Whether it carried out a write is not known."""


class TooLong(Unreachable):
    """The answer has more bytes than this request takes."""


class ApiError(KubeError):
    """The API server refused a request: HTTP status, reason and message of its Status object."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message or reason or f"HTTP status {status}")
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def is_gone(self) -> bool:
        """The resourceVersion of a watch or list is too old (410)."""
        return self.status == 410

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


@dataclass(frozen=True)
class Source:
    """The kubeconfig of a Config, its context, and the file's inode and time of change."""

    path: Path
    context: str
    stamp: tuple[int, int]

    def now(self) -> Source:
        """The file as it is now. Raises OSError."""
        found = self.path.stat()
        return replace(self, stamp=(found.st_ino, found.st_mtime_ns))


@dataclass(frozen=True)
class Config:
    """How to reach the API server. Paths are read at use; `token` is used if there is no `token_file`."""

    server: str
    ca_file: Path | None = None
    ca_data: str = ""  # PEM
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    cert_data: str = field(default="", repr=False)  # PEM of certificate and key, in place of the files
    insecure: bool = False
    namespace: str = "default"
    source: Source | None = None


def in_cluster(directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration that every pod has. Raises NoConfig outside of a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = directory / "token"
    if not host or not token.exists():
        raise NoConfig("not in a pod: there is no service account's token; name a kubeconfig file with --kubeconfig")
    try:
        namespace = (directory / "namespace").read_text().strip()
    except OSError:
        namespace = "default"
    shown = f"[{host}]" if ":" in host else host
    return Config(f"https://{shown}:{port}", directory / "ca.crt", token_file=token, namespace=namespace)


def _named(values: Object, kind: str, name: str, path: Path) -> Object:
    """The entry of that name in one of a kubeconfig's lists."""
    for one in values.get(f"{kind}s") or []:
        if isinstance(one, dict) and one.get("name") == name:
            found = one.get(kind)
            return found if isinstance(found, dict) else {}
    raise NoConfig(f"{path} has no {kind} {name!r}")


def _decoded(values: Object, name: str, path: Path) -> str:
    try:
        return base64.b64decode(str(values[name]), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise NoConfig(f"{path}: {name} is not base64 of a PEM text") from None


def from_kubeconfig(path: Path, context: str = "") -> Config:
    """One context of a kubeconfig file, else its current one. Raises NoConfig.

    Programs and plugins that log in (`exec`, `auth-provider`) are not run: services have a token or a certificate.
    """
    import yaml  # costs 2 MiB, and a pod needs none

    try:
        source = Source(path, context, (0, 0)).now()  # before its text: one that changes meanwhile is read again
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise NoConfig(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoConfig(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise NoConfig(f"{path} is no kubeconfig file")
    name = context or str(values.get("current-context") or "")
    if not name:
        raise NoConfig(f"{path} has no current-context; name one with --context")
    chosen = _named(values, "context", name, path)
    cluster = _named(values, "cluster", str(chosen.get("cluster") or ""), path)
    user = _named(values, "user", str(chosen["user"]), path) if chosen.get("user") else {}
    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")):
        raise NoConfig(f"{path}: cluster {chosen.get('cluster')!r} has no server, an https:// address")
    for plugin in ("exec", "auth-provider"):
        if plugin in user and not user.keys() & CREDENTIALS:
            raise NoConfig(f"{path}: user {chosen['user']!r} logs in by {plugin}, which a service cannot; use a token")

    def file(of: Object, key: str) -> Path | None:
        return path.parent / str(of[key]) if of.get(key) else None

    cert, key = file(user, "client-certificate"), file(user, "client-key")
    pem = ""
    if user.get("client-certificate-data"):
        pem = _decoded(user, "client-certificate-data", path)
        pem += "\n" + (_decoded(user, "client-key-data", path) if user.get("client-key-data") else "")
    return Config(
        server.rstrip("/"),
        file(cluster, "certificate-authority"),
        _decoded(cluster, "certificate-authority-data", path) if cluster.get("certificate-authority-data") else "",
        str(user.get("token") or ""),
        file(user, "tokenFile"),
        cert,
        key,
        pem,
        bool(cluster.get("insecure-skip-tls-verify")),
        str(chosen.get("namespace") or "default"),
        source,
    )


def _load_inline(context: ssl.SSLContext, pem: str, key_file: Path | None) -> None:
    """OpenSSL reads certificates and keys from files only: from one without a name, in memory, which ends here."""
    with os.fdopen(os.memfd_create("cgpu-kube"), "w") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", key_file)


def load(kubeconfig: Path | None = None, context: str = "", environ: Mapping[str, str] = os.environ) -> Config:
    """@kubeconfig, else the pod's own, else $KUBECONFIG (its first file), else ~/.kube/config. Raises NoConfig."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context)
    if not context:
        try:
            return in_cluster(environ=environ)
        except NoConfig:
            pass
    first = environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(first) if first else Path(environ.get("HOME", "/root")) / ".kube/config"
    if not path.exists():
        raise NoConfig(f"neither a pod's service account nor {path} is there; name a file with --kubeconfig")
    return from_kubeconfig(path, context)


def _keepalive_socket(address: Any) -> socket.socket:
    family, kind, protocol = address[0], address[1], address[2]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


def end_of_token(token: str) -> int:
    """`exp` of a JSON web token, in seconds of the epoch; 0: of another form, or without an end."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return max(int(found.get("exp") or 0), 0)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return 0


class Client:
    """Requests to one API server. Every method raises ApiError, Unreachable or NoConfig."""

    def __init__(self, config: Config, agent: str = "cgpu-kube") -> None:
        self.config = config
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None
        self._ssl: ssl.SSLContext | bool = True
        self._ssl_of: tuple[float, ...] = ()
        self._source = config.source  # as it was read last

    @property
    def token_ends(self) -> int:
        """When the token of a kubeconfig ends, which an administrator renews; 0: it has none, or no end. Of a pod's
        token the kubelet makes a new one."""
        self._renew()
        return 0 if self.config.token_file is not None else end_of_token(self.config.token)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(socket_factory=_keepalive_socket, limit=32)
        self._session = aiohttp.ClientSession(connector=connector, headers={"User-Agent": self._agent})
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._session is not None:
            await self._session.close()
        self._session = None

    def _renew(self) -> None:
        """Read a kubeconfig again that has changed. What it said before counts until it is whole."""
        try:
            if self._source is None or (now := self._source.now()) == self._source:
                return
        except OSError:
            return  # it is being replaced
        self._source = now
        try:
            self.config, self._ssl_of = from_kubeconfig(now.path, now.context), ()
        except NoConfig as error:
            log.get().warning("the kubeconfig cannot be read again", reason=str(error))
        else:
            log.get().info("the kubeconfig was read again", file=str(now.path))

    def _tls(self) -> ssl.SSLContext | bool:
        """A context of the files as they are now."""
        config = self.config
        if not config.server.startswith("https:"):
            return True
        files = [path for path in (config.ca_file, config.cert_file, config.key_file) if path is not None]
        try:
            stamps = (0.0, *(path.stat().st_mtime for path in files))
            if stamps != self._ssl_of:
                self._ssl, self._ssl_of = self._new_tls(), stamps
        except (OSError, ssl.SSLError) as error:
            raise NoConfig(f"the API server's certificates cannot be read: {error}") from error
        return self._ssl

    def _new_tls(self) -> ssl.SSLContext:
        config = self.config
        context = ssl.create_default_context(
            cafile=str(config.ca_file) if config.ca_file else None, cadata=config.ca_data or None
        )
        if config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if config.cert_data:
            _load_inline(context, config.cert_data, config.key_file)
        elif config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
        return context

    def _headers(self, kind: str) -> dict[str, str]:
        token = self.config.token
        if self.config.token_file is not None:
            try:
                token = self.config.token_file.read_text().strip()
            except OSError as error:
                raise NoConfig(f"the token cannot be read: {error}") from error
        # Compressed, a text of a tenant's is a thousandth of what it is in memory.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if kind:
            headers["Content-Type"] = kind
        return headers

    def _send(self, method: str, path: str, params: Mapping[str, str], body: Any, kind: str, read_s: float) -> Any:
        if self._session is None:
            raise Unreachable("the client is closed")
        self._renew()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=read_s)
        return self._session.request(
            method,
            self.config.server + path,
            params=dict(params),
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers(kind if body is not None else ""),
            ssl=self._tls(),
            timeout=timeout,
            allow_redirects=False,
        )

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        parts: Parts = WHOLE,
        **params: str,
    ) -> Object:
        return self._read(await self._text(method, path, body, kind, params), parts.read_one)

    async def _text(
        self, method: str, path: str, body: Any, kind: str, params: Mapping[str, str], most: int = OBJECT_MAX
    ) -> bytearray:
        text = bytearray()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S * 2):
                async with self._send(method, path, params, body, kind, REQUEST_TIMEOUT_S) as answer:
                    await _check(answer)
                    async for chunk in answer.content.iter_any():
                        text += chunk
                        if len(text) > most:
                            raise TooLong(f"the API server's answer to {method} {path} is longer than {most} bytes")
        except _NO_ANSWER as error:
            raise self._unreachable(error) from error
        return text

    def _read(self, text: bytearray, read: Read) -> Object:
        try:
            found = read(text)
        except _NO_ANSWER as error:
            raise self._unreachable(error) from error
        return found if isinstance(found, dict) else {}

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"the API server {self.config.server} does not answer: {error or type(error).__name__}")

    async def get(self, path: str, parts: Parts = WHOLE, **params: str) -> Object:
        return await self.request("GET", path, parts=parts, **params)

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def replace(self, path: str, body: Object) -> Object:
        return await self.request("PUT", path, body)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        return await self.request("DELETE", path, body)

    async def patch(self, path: str, body: Any, kind: str = MERGE, parts: Parts = WHOLE) -> Object:
        """@parts: what of the answer is decoded."""
        return await self.request("PATCH", path, body, kind, parts)

    async def pages(
        self, path: str, params: Mapping[str, str] | None = None, parts: Parts = WHOLE
    ) -> AsyncIterator[tuple[list[Object], str]]:
        """The objects of a collection, page by page, each page with the resourceVersion of the whole list, which the
        last one decides. @parts: what of an object is decoded. A page has as many objects as PAGE_BYTES take."""
        more: dict[str, str] = {}
        limit = PAGE
        while True:
            query = {**(params or {}), "limit": str(limit), **more}
            most = PAGE_BYTES if limit > 1 else OBJECT_MAX
            try:
                text = await self._text("GET", path, None, "", query, most)
            except TooLong:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            if len(text) < PAGE_BYTES // 4:
                limit = min(limit * 2, PAGE)
            page = self._read(text, parts.read_page)
            del text
            meta = page.get("metadata") or {}
            yield page.get("items") or [], str(meta.get("resourceVersion") or "")
            if not meta.get("continue"):
                return
            more = {"continue": str(meta["continue"])}

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> tuple[list[Object], str]:
        """Every object of a collection, and the resourceVersion of the whole."""
        items: list[Object] = []
        version = ""
        async for found, at in self.pages(path, params):
            items += found
            version = at
        return items, version

    async def watch(
        self,
        path: str,
        version: str,
        params: Mapping[str, str] | None = None,
        timeout_s: int = 300,
        parts: Parts = WHOLE,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Events after @version, as (type, object), bookmarks too, until the server ends the watch. The first is
        ("OPEN", {}), when the server has accepted it.

        An event of type ERROR is raised as ApiError; 410: list again.
        """
        query = {
            **(params or {}),
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        try:
            async with self._send("GET", path, query, None, "", timeout_s + REQUEST_TIMEOUT_S) as answer:
                await _check(answer)
                yield "OPEN", {}
                async for line in lines(answer.content.iter_any()):
                    event = parts.read_event(line)
                    found = event.get("object") or {}
                    if event.get("type") == "ERROR":
                        found = json.loads(line)["object"]
                        raise _api_error(int(found.get("code") or 500), found)
                    yield str(event.get("type")), found
        except _NO_ANSWER as error:
            raise self._unreachable(error) from error


def _api_error(status: int, found: Object, retry_after_s: float | None = None) -> ApiError:
    return ApiError(status, str(found.get("reason") or ""), str(found.get("message") or ""), retry_after_s)


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 300:
        return
    text = await answer.read()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = {"message": text[:200].decode(errors="replace").strip()}
    after = answer.headers.get("Retry-After", "")
    raise _api_error(answer.status, found if isinstance(found, dict) else {}, float(after) if after.isdigit() else None)
