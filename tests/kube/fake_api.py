# SPDX-License-Identifier: MIT
"""An API server: collections in memory, with versions, watches, preconditions and the faults of real ones.

The objects that tests put there are those that a kube-apiserver 1.36.2 returned (data/). Semantics are those of that
server: one version counter, DELETED for an object that leaves a watch's selector, 410 below the compacted version, 409
with its own words, the Binding subresource with preconditions and annotations. Not there: validation, defaults,
strategic merge of lists.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

DATA = Path(__file__).parent / "data"
Object = dict[str, Any]
#: (type, object) as sent -> what is sent instead: nothing, twice, later.
Fault = Callable[[str, Object], list[tuple[float, str, Object]]]

_PATH = re.compile(
    r"/(?P<root>api/v1|apis/[^/]+/[^/]+)(/namespaces/(?P<ns>[^/]+))?/(?P<plural>[a-z]+)(/(?P<name>[^/]+)(/(?P<sub>[a-z]+))?)?$"
)


def recorded(name: str) -> Any:
    """An object that Kubernetes 1.36.2 returned."""
    return json.loads((DATA / f"{name}.json").read_text())


def kubeconfig(folder: Path, server: str, **user: object) -> Path:
    """The file `config`: of that URL, and that user."""
    path = folder / "config"
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(values))  # JSON is YAML
    return path


#: What kubectl finds by discovery: group version -> (plural, kind, namespaced, short names).
RESOURCES = {
    "v1": [
        ("pods", "Pod", True, ["po"]),
        ("nodes", "Node", False, ["no"]),
        ("configmaps", "ConfigMap", True, ["cm"]),
    ],
    "coordination.k8s.io/v1": [("leases", "Lease", True, [])],
    "resource.k8s.io/v1": [
        ("resourceslices", "ResourceSlice", False, []),
        ("resourceclaims", "ResourceClaim", True, []),
        ("deviceclasses", "DeviceClass", False, []),
    ],
}


def discovery(path: str) -> Object | None:
    """The answers from which kubectl learns the names of resources."""
    groups = [version for version in RESOURCES if "/" in version]
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = [{"groupVersion": name, "version": name.partition("/")[2]} for name in groups]
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": one["groupVersion"].partition("/")[0], "versions": [one], "preferredVersion": one}
                for one in found
            ],
        }
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in RESOURCES:
        return None
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": namespaced,
            "shortNames": short,
            "verbs": ["get", "list", "watch"],
        }
        for plural, kind, namespaced, short in RESOURCES[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = recorded("conflict") | {"message": message, "reason": reason, "code": code, "details": {}}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def field_of(found: Object, path: str) -> str:
    value: Any = found
    for word in path.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def selects(selector: str, found: Object) -> bool:
    for term in filter(None, selector.split(",")):
        path, sign, value = re.split(r"(!=|==?)", term, maxsplit=1)
        if (field_of(found, path) == value) == (sign == "!="):
            return False
    return True


class FakeApi:
    """`async with FakeApi() as api:`; `api.url` is its address. Everything runs in the caller's event loop."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        self.events: list[tuple[int, str, str, Object | None, Object]] = []  # version, collection, type, old, new
        self.requests: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self.before: Callable[[str, str], Any] | None = None  # of each request: may raise Refusal, or sleep
        self.token = ""
        self.users: dict[str, Object] = {}  # token -> the user of a TokenReview
        self.rules: set[tuple[str, str, str]] = set()  # (user or group, verb, path): nonResourceURLs
        self.allows: Callable[[Object], bool] = lambda _spec: True  # of an access review; as well as the rules
        self.reviews: list[Object] = []
        self.bookmark_s = 60.0
        self.gone_as_event = True
        self.bindings: list[tuple[str, str, str]] = []  # namespace, pod, node
        self._uids = itertools.count(1)
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._watches: set[asyncio.Task[Any]] = set()

    # ---- for tests ----

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FakeApi:
        await self.up()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen again, on the same port."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Close every connection; further ones are refused."""
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    def end_watches(self) -> None:
        for task in self._watches:
            task.cancel()

    def compact(self) -> None:
        """A watch from before now is 410."""
        self.compacted = self.version
        self.events.clear()

    def put(self, collection: str, found: Object) -> Object:
        """Create or replace, as another client would."""
        meta = found.setdefault("metadata", {})
        key = (meta.get("namespace", ""), meta["name"])
        old = self.objects.setdefault(collection, {}).get(key)
        return self._store(collection, key, old, copy.deepcopy(found))

    def remove(self, collection: str, namespace: str, name: str) -> None:
        old = self.objects[collection].pop((namespace, name))
        self.version += 1
        last = merged(old, {"metadata": {"resourceVersion": str(self.version)}})
        self._log(collection, "DELETED", old, last)

    def get(self, collection: str, namespace: str, name: str) -> Object | None:
        return self.objects.get(collection, {}).get((namespace, name))

    def label_namespace(self, name: str, labels: dict[str, str]) -> None:
        self.put("api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})

    def pods(self) -> dict[tuple[str, str], Object]:
        return self.objects.get("api/v1/pods", {})

    # ---- storage ----

    def _store(self, collection: str, key: tuple[str, str], old: Object | None, new: Object) -> Object:
        self.version += 1
        meta = new["metadata"]
        meta["resourceVersion"] = str(self.version)
        if old is not None:
            meta["uid"] = old["metadata"]["uid"]
        meta.setdefault("uid", f"00000000-0000-0000-0000-{next(self._uids):012d}")
        meta.setdefault("creationTimestamp", "2026-11-22T15:13:47Z")
        self.objects[collection][key] = new
        self._log(collection, "MODIFIED" if old else "ADDED", old, new)
        return new

    def _log(self, collection: str, kind: str, old: Object | None, new: Object) -> None:
        self.events.append((self.version, collection, kind, old, new))
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- HTTP ----

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        try:
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            # First: a write whose client has gone by then takes effect all the same, as in a real one.
            body = json.loads(await request.read() or "null")
            if self.before is not None:
                done = self.before(request.method, request.path)
                if asyncio.iscoroutine(done):
                    await done
            if (names := discovery(request.path)) is not None:
                return web.json_response(names)
            found = _PATH.match(request.path)
            if found is None:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            where = found.groupdict()
            collection = f"{where['root']}/{where['plural']}"
            self.objects.setdefault(collection, {})
            if request.query.get("watch") == "true":
                return await self._watch(request, collection, where["ns"])
            return web.json_response(self._answer(request, collection, where, body))
        except Refusal as refusal:
            return web.json_response(refusal.body, status=refusal.code)

    def _answer(self, request: web.Request, collection: str, where: dict[str, str], body: Any) -> Object:
        key = (where["ns"] or "", where["name"] or "")
        if request.method == "POST" and where["plural"] in ("tokenreviews", "subjectaccessreviews"):
            return self._review(where["plural"], body)
        if request.method == "POST" and where["sub"] == "binding":
            return self._bind(collection, key, body)
        if where["name"] is None and request.method == "GET":
            return self._list(request, collection, where["ns"])
        if request.method == "POST":
            meta = body["metadata"]
            if "generateName" in meta and not meta.get("name"):
                meta["name"] = f"{meta['generateName']}{self.version:05}"
            name = (key[0], meta["name"])
            if name in self.objects[collection]:
                raise Refusal(409, "AlreadyExists", f'{where["plural"]} "{name[1]}" already exists')
            body["metadata"].pop("resourceVersion", None)
            return self._store(collection, name, None, body)
        old = self.objects[collection].get(key)
        if old is None:
            raise Refusal(404, "NotFound", f'{where["plural"]} "{key[1]}" not found')
        if request.method == "GET":
            return old
        if request.method == "DELETE":
            self._check(where["plural"], old, ((body or {}).get("preconditions") or {}))
            self.remove(collection, *key)
            return {"kind": "Status", "status": "Success"}
        given = body.get("metadata") or {}
        self._check(where["plural"], old, given)
        new = body if request.method == "PUT" else merged(old, body)
        return self._store(collection, key, old, copy.deepcopy(new))

    def _review(self, plural: str, body: Object) -> Object:
        self.reviews.append(body)
        spec = body["spec"]
        if plural == "tokenreviews":
            user = self.users.get(spec["token"])
            return {**body, "status": {"authenticated": True, "user": user} if user else {"error": "invalid token"}}
        asked = spec["nonResourceAttributes"]
        names = {spec["user"], *spec["groups"]}
        allowed = any((name, asked["verb"], asked["path"]) in self.rules for name in names) and self.allows(spec)
        return {**body, "status": {"allowed": allowed}}

    @staticmethod
    def _check(plural: str, old: Object, given: Object) -> None:
        meta = old["metadata"]
        if given.get("uid") not in (None, "", meta["uid"]):
            raise Refusal(
                409,
                "Conflict",
                f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {meta['uid']}",
            )
        if given.get("resourceVersion") not in (None, "", meta["resourceVersion"]):
            message = recorded("conflict")["message"].replace("resourceslices.resource.k8s.io", plural)
            raise Refusal(409, "Conflict", message.replace("n1-cgpu.io", meta["name"]))

    def _bind(self, collection: str, key: tuple[str, str], body: Object) -> Object:
        old = self.objects[collection].get(key)
        if old is None:
            raise Refusal(404, "NotFound", f'pods "{key[1]}" not found')
        self._check("pods", old, body.get("metadata") or {})
        if old["spec"].get("nodeName"):
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on pods/binding "{key[1]}": pod {key[1]} is '
                f'already assigned to node "{old["spec"]["nodeName"]}"',
            )
        if old["metadata"].get("deletionTimestamp"):
            raise Refusal(409, "Conflict", f"pod {key[1]} is being deleted, cannot be assigned to a host")
        annotations = (body.get("metadata") or {}).get("annotations") or {}
        node = body["target"]["name"]
        new = merged(old, {"spec": {"nodeName": node}, "metadata": {"annotations": annotations}})
        self._store(collection, key, old, new)
        self.bindings.append((*key, node))
        return {"kind": "Status", "status": "Success", "code": 201}

    def _list(self, request: web.Request, collection: str, namespace: str | None) -> Object:
        selector = request.query.get("fieldSelector", "")
        found = [
            one
            for (where, _name), one in sorted(self.objects[collection].items())
            if namespace in (None, where) and selects(selector, one)
        ]
        start = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or 0) or len(found) or 1
        meta: Object = {"resourceVersion": str(self.version)}
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        version = collection.rpartition("/")[0].removeprefix("apis/").removeprefix("api/")
        kinds = {plural: kind for plural, kind, *_ in RESOURCES.get(version, [])}
        kind = kinds.get(collection.rpartition("/")[2], "Thing")
        items = [{"kind": kind, "apiVersion": version, **one} for one in found[start : start + limit]]
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": meta, "items": items}

    # ---- watch ----

    async def _watch(self, request: web.Request, collection: str, namespace: str | None) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            at = int(request.query.get("resourceVersion") or self.version)
            gone = Refusal(410, "Expired", f"too old resource version: {at} ({self.compacted})")
            if at < self.compacted and not self.gone_as_event:
                raise gone
            await answer.prepare(request)
            if at < self.compacted:
                await self._send(answer, "ERROR", gone.body)
                return answer
            seconds = float(request.query.get("timeoutSeconds") or 1800)
            async with asyncio.timeout(seconds):
                await self._stream(answer, at, collection, namespace, request.query.get("fieldSelector", ""))
        except (TimeoutError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._watches.discard(task)
        return answer

    async def _stream(
        self, answer: web.StreamResponse, at: int, collection: str, namespace: str | None, selector: str
    ) -> None:
        later: list[tuple[float, str, Object]] = []
        loop = asyncio.get_running_loop()
        bookmark = loop.time() + self.bookmark_s
        while True:
            for version, where, kind, old, new in [event for event in self.events if event[0] > at]:
                at = version
                if where != collection or namespace not in (None, new["metadata"].get("namespace", "")):
                    continue
                sent = self._seen_through(selector, kind, old, new)
                if sent is None:
                    continue
                for delay_s, word, found in self.fault(sent, new) if self.fault else [(0.0, sent, new)]:
                    if delay_s:
                        later.append((loop.time() + delay_s, word, found))
                    else:
                        await self._send(answer, word, found)
            for one in [one for one in later if one[0] <= loop.time()]:
                later.remove(one)
                await self._send(answer, one[1], one[2])
            if loop.time() >= bookmark:
                bookmark = loop.time() + self.bookmark_s
                await self._send(answer, "BOOKMARK", {"metadata": {"resourceVersion": str(at)}})
            wait = min([bookmark, *(one[0] for one in later)]) - loop.time()
            changed = self._changed
            if self.version > at and any(event[0] > at for event in self.events):
                continue
            try:
                async with asyncio.timeout(max(0.0, wait)):
                    await changed.wait()
            except TimeoutError:
                pass

    @staticmethod
    def _seen_through(selector: str, kind: str, old: Object | None, new: Object) -> str | None:
        """The type of an event as a watch with that selector gets it."""
        before = old is not None and selects(selector, old)
        after = kind != "DELETED" and selects(selector, new)
        if before and after:
            return "MODIFIED"
        if after:
            return "ADDED"
        return "DELETED" if before else None

    @staticmethod
    async def _send(answer: web.StreamResponse, kind: str, found: Object) -> None:
        await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")
