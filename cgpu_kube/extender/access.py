# SPDX-License-Identifier: MIT
"""Who may send the extender what: its `bind` writes to any pod, and `inspect` shows those of every namespace.

A client is known by its certificate of --client-ca (common name: user, organisations: groups), as the API server knows
one, or by a token, which the API server reviews. What it may do is the API server's decision, too: a
SubjectAccessReview of the path, as of the API server's own /metrics. Both answers count for a while, so that a cycle of
the scheduler costs no request. /healthz, /readyz and /version show nothing and are for all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from cgpu_common import log
from cgpu_kube.api import Client
from cgpu_kube.errors import KubeError

FOR_ALL = frozenset({"/healthz", "/readyz", "/version"})
TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUTHENTICATED = "system:authenticated"
#: A yes may be a minute old, as with the API server's own webhooks; a no ends soon after an administrator's mistake.
YES_S, NO_S = 60.0, 5.0
ANSWERS_MAX = 1024
REVIEWS_MAX = 8  # at a time: clients without a right must not take the API server's patience


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Denied(Exception):
    """The HTTP status, and a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def user_of_certificate(found: Mapping[str, Any] | None) -> User | None:
    """Of a verified certificate, as ssl.SSLSocket.getpeercert() has it."""
    fields = [pair for part in (found or {}).get("subject", ()) for pair in part]
    names = [value for key, value in fields if key == "commonName"]
    if len(names) != 1 or not names[0]:
        return None
    groups = tuple(value for key, value in fields if key == "organizationName")
    return User(names[0], (*groups, AUTHENTICATED))


def token_of(header: str) -> str:
    """The token of an Authorization header; "" if there is none. The server bounds the length of a header."""
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


class _Answers:
    """Answers of the API server by key, the last ANSWERS_MAX, each for its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    def get(self, key: Any) -> Any:
        until, answer = self._found.get(key, (0.0, None))
        return answer if self._clock() < until else None

    def put(self, key: Any, answer: Any, seconds: float) -> Any:
        self._found[key] = (self._clock() + seconds, answer)
        self._found.move_to_end(key)
        while len(self._found) > ANSWERS_MAX:
            self._found.popitem(last=False)
        return answer


class Access:
    """`middleware` is aiohttp's: a request that is not allowed reaches no handler, and its body is not read."""

    def __init__(self, api: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._users = _Answers(clock)
        self._decisions = _Answers(clock)
        self._reviews = asyncio.Semaphore(REVIEWS_MAX)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path not in FOR_ALL:
            try:
                await self._check(request)
            except Denied as error:
                log.get().warning("not allowed", peer=request.remote, path=request.path, reason=str(error))
                return web.json_response({"Error": str(error)}, status=error.status)
        return await handler(request)

    async def _check(self, request: web.Request) -> None:
        verb, path = request.method.lower(), request.path
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        try:
            user = user_of_certificate(certificate) or await self._user_of_token(request)
            if not await self._is_allowed(user, verb, path):
                why = f"{user.name} may not {verb} {path}: no role gives it that nonResourceURL"
                raise Denied(403, why)
        except KubeError as error:
            raise Denied(503, f"the API server cannot say who may do this: {error}") from error

    async def _user_of_token(self, request: web.Request) -> User:
        token = token_of(request.headers.get("Authorization", ""))
        if not token:
            raise Denied(401, "neither a client certificate nor a token: nothing is done for an unknown client")
        key = hashlib.sha256(token.encode()).digest()
        user = self._users.get(key)
        if user is None:
            user = await self._review_token(token)
            self._users.put(key, user or False, YES_S if user else NO_S)
        if not user:
            raise Denied(401, "the API server does not know the token")
        assert isinstance(user, User)
        return user

    async def _review_token(self, token: str) -> User | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        async with self._reviews:
            status = (await self._api.create(TOKEN_REVIEW, body)).get("status") or {}
        found = status.get("user") or {}
        if status.get("authenticated") is not True or not found.get("username"):
            return None
        groups = tuple(map(str, found.get("groups") or ()))
        return User(str(found["username"]), groups, str(found.get("uid") or ""), found.get("extra") or {})

    async def _is_allowed(self, user: User, verb: str, path: str) -> bool:
        # What is in @extra may decide, too: a token's scopes are in it.
        extra = hashlib.sha256(json.dumps(dict(user.extra), sort_keys=True).encode()).digest()
        key = (user, extra, verb, path)
        allowed = self._decisions.get(key)
        if allowed is None:
            spec = {
                "user": user.name,
                "groups": list(user.groups),
                "uid": user.uid,
                "extra": dict(user.extra),
                "nonResourceAttributes": {"path": path, "verb": verb},
            }
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            async with self._reviews:
                status = (await self._api.create(ACCESS_REVIEW, body)).get("status") or {}
            allowed = status.get("allowed") is True and status.get("denied") is not True
            self._decisions.put(key, allowed, YES_S if allowed else NO_S)
        return bool(allowed)
