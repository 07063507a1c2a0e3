# SPDX-License-Identifier: MIT
"""The client and the watcher against the API server of the tests, with its faults."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import random
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from fake_api import FakeApi, Refusal, kubeconfig, recorded
from fakes import eventually
from structlog.testing import capture_logs

from cgpu_kube import api as kube
from cgpu_kube import watch
from cgpu_kube.mirror import version_of

PODS = "/api/v1/pods"
SERVER = "https://10.0.0.1:6443"


def pod(name: str, **labels: str) -> dict:
    return {"metadata": {"namespace": "d", "name": name, "labels": labels}, "spec": {"containers": []}}


def quick() -> watch.Backoff:
    backoff = watch.Backoff()
    slow = backoff.next_s
    backoff.next_s = lambda at_least=None: slow(at_least) / 50  # type: ignore[method-assign]
    return backoff


async def same(watcher: watch.Watcher, server: FakeApi) -> None:
    """The mirror has what the server has."""

    def versions(objects: Iterable[dict]) -> set[tuple[str, int]]:
        return {(one["metadata"]["name"], version_of(one)) for one in objects}

    await eventually(lambda: versions(watcher.objects) == versions(server.pods().values()), "the same objects", 10)


class Following:
    """A watcher that runs."""

    def __init__(self, client: kube.Client, **options: object) -> None:
        self.failures: list[str] = []
        self.watcher = watch.Watcher(
            client, PODS, backoff=quick(), on_failure=lambda why, _s: self.failures.append(why), **options
        )

    async def __aenter__(self) -> Following:
        self._task = asyncio.create_task(self.watcher.run())
        await asyncio.wait_for(self.watcher.synced.wait(), 10)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_list_of_many_pages_and_the_events_after_it(server: FakeApi, client: kube.Client) -> None:
    for number in range(kube.PAGE * 2 + 3):
        server.put("api/v1/pods", pod(f"p{number}"))
    async with Following(client) as one:
        assert len(one.watcher.objects) == kube.PAGE * 2 + 3
        server.put("api/v1/pods", pod("new"))
        server.remove("api/v1/pods", "d", "p7")
        await same(one.watcher, server)
        assert one.watcher.relists == 1


async def test_a_page_has_no_more_objects_than_its_bytes_take(server: FakeApi, client: kube.Client) -> None:
    """Pods of 1 MiB, which any tenant can make, among small ones."""
    for number in range(1000):
        server.put("api/v1/pods", pod(f"p{number:04}", text="x" * (1 << 20 if 300 <= number < 330 else 10)))
    pages = [items async for items, _ in client.pages(PODS)]
    assert [one["metadata"]["name"] for page in pages for one in page] == [f"p{n:04}" for n in range(1000)]
    assert max(len(json.dumps(page)) for page in pages) <= kube.PAGE_BYTES
    assert len(pages[0]) == kube.PAGE and len(pages[-2]) > kube.PAGE / 4, "few requests where objects are small"
    assert len(server.requests) < 60


async def test_the_largest_object_of_a_list_and_of_a_watch(server: FakeApi, client: kube.Client) -> None:
    """etcd takes 1.5 MiB, and the API server writes each < of it as six bytes."""
    server.put("api/v1/pods", pod("a", text="x" * (9 << 20)))
    async with Following(client) as one:
        server.put("api/v1/pods", pod("b", text="x" * (9 << 20)))
        server.put("api/v1/pods", pod("c"))
        await same(one.watcher, server)
        assert one.watcher.relists == 1 and one.failures == []
        assert (await client.get("/api/v1/namespaces/d/pods/b"))["metadata"]["name"] == "b"


async def test_an_answer_that_is_too_long_is_a_sentence(server: FakeApi, client: kube.Client) -> None:
    server.put("api/v1/pods", pod("a", text="x" * (11 << 20)))
    for path in (PODS, "/api/v1/namespaces/d/pods/a"):
        with pytest.raises(kube.TooLong, match=rf"answer to GET {path} is longer than \d+ bytes"):
            await (client.list(path) if path == PODS else client.get(path))


@pytest.mark.parametrize("as_event", [True, False])
async def test_410_lists_again_and_finds_what_was_deleted(server: FakeApi, client: kube.Client, as_event: bool) -> None:
    server.gone_as_event = as_event
    server.put("api/v1/pods", pod("a"))
    server.put("api/v1/pods", pod("b"))
    async with Following(client) as one:
        await eventually(lambda: any(path == PODS for _, path in server.requests[1:]), "seen", 10)
        await server.down()
        server.remove("api/v1/pods", "d", "a")
        server.compact()
        await server.up()
        await same(one.watcher, server)
        assert one.watcher.relists == 2


async def test_an_api_server_that_was_restored_from_a_backup(server: FakeApi, client: kube.Client) -> None:
    """Its versions begin again below those that were seen, and pods of the backup are back."""
    server.put("api/v1/pods", pod("a", of="backup"))
    server.put("api/v1/pods", pod("b"))
    backup = copy.deepcopy((server.version, server.objects))
    async with Following(client, relist_s=0.3) as one:
        for number in range(20):
            server.put("api/v1/pods", pod("a", of=f"later{number}"))
        server.put("api/v1/pods", pod("c"))
        server.remove("api/v1/pods", "d", "b")
        await same(one.watcher, server)
        await server.down()
        server.version, server.objects = backup
        server.events.clear()
        await server.up()
        await same(one.watcher, server)
        assert one.watcher.objects.get("d", "a")["metadata"]["labels"] == {"of": "backup"}
        listed = one.watcher.relists
        server.put("api/v1/pods", pod("new"))
        await same(one.watcher, server)
        assert int(one.watcher._version) == server.version and listed


async def test_a_watch_that_ends_resumes_without_a_list(server: FakeApi, client: kube.Client) -> None:
    async with Following(client) as one:
        for number in range(5):
            server.put("api/v1/pods", pod(f"p{number}"))
            await same(one.watcher, server)
            server.end_watches()
        server.put("api/v1/pods", pod("last"))
        await same(one.watcher, server)
        assert one.watcher.relists == 1


@pytest.mark.parametrize("where", ["keep", "on_change"])
@pytest.mark.parametrize("fault", [OverflowError("cannot convert float infinity to integer"), KeyError("x")], ids=repr)
async def test_an_object_that_cannot_be_read_is_skipped(
    server: FakeApi, client: kube.Client, where: str, fault: Exception
) -> None:
    """In the list and in the watch: the others are there, the process goes on, and the log names one a minute."""
    seen: list[str] = []

    def look(found: dict) -> dict:
        name = found["metadata"]["name"]
        if name.startswith("bad"):
            raise fault
        seen.append(name)
        return found

    options: dict = {"keep": look} if where == "keep" else {"on_change": lambda _old, new: look(new)}
    for name in ("a", "bad-1", "b"):
        server.put("api/v1/pods", pod(name))
    with capture_logs() as lines:
        async with Following(client, **options) as following:
            await eventually(lambda: {"a", "b"} <= set(seen), "seen", 10)
            server.put("api/v1/pods", pod("bad-2"))
            server.put("api/v1/pods", pod("c"))
            await eventually(lambda: "c" in seen, "seen", 10)
            assert following.watcher.skipped == 2 and not following.failures
    (line,) = [line for line in lines if line["event"] == "an object was skipped"]
    assert line["object"] == "d/bad-1"


async def test_bookmarks_move_the_version(server: FakeApi, client: kube.Client) -> None:
    server.bookmark_s = 0.05
    async with Following(client) as one:
        for number in range(5):
            server.put("api/v1/nodes", {"metadata": {"name": f"n{number}"}})
        await eventually(lambda: one.watcher._version == str(server.version), "seen", 10)


async def test_the_api_server_is_away(server: FakeApi, client: kube.Client) -> None:
    """Tries come less and less often, reports say why, and nothing is forgotten meanwhile."""
    server.put("api/v1/pods", pod("a"))
    async with Following(client) as one:
        await server.down()
        await eventually(lambda: len(one.failures) > 4, "seen", 10)
        assert one.watcher.failing and len(one.watcher.objects) == 1
        assert all("does not answer" in why or "ended a watch at once" in why for why in one.failures)
        server.put("api/v1/pods", pod("b"))
        await server.up()
        await same(one.watcher, server)
        assert not one.watcher.failing


def test_ten_minutes_away_are_few_tries() -> None:
    backoff = watch.Backoff(lambda: 0.5)
    waits = [backoff.next_s() for _ in range(40)]
    assert waits[0] < 0.2 and waits == sorted(waits) and waits[-1] <= 30
    spent, tries = 0.0, 0
    while spent < 600:
        spent += waits[min(tries, 39)]
        tries += 1
    assert tries < 40
    assert watch.Backoff().next_s(at_least_s=7) >= 7
    assert watch.Backoff().next_s(at_least_s=7000) <= 30


async def test_refusals_are_retried(server: FakeApi, client: kube.Client) -> None:
    tries = []

    def before(method: str, path: str) -> None:
        tries.append(path)
        if len(tries) < 4:
            raise Refusal(429, "TooManyRequests", "the server is busy")

    server.before = before
    async with Following(client) as one:
        assert one.failures == ["the server is busy"] * 3
        assert not one.watcher.failing


@pytest.mark.parametrize("seed", range(8))
async def test_late_doubled_and_missing_events(server: FakeApi, client: kube.Client, seed: int) -> None:
    chance = random.Random(seed)

    def fault(kind: str, found: dict) -> list[tuple[float, str, dict]]:
        way = chance.choice(["good", "good", "twice", "late", "missing"])
        if way == "missing":
            return []
        return [(0.03 if way == "late" else 0.0, kind, found)] * (2 if way == "twice" else 1)

    server.fault = fault
    seen: dict[str, str] = {}

    def change(old: dict | None, new: dict | None) -> None:
        if old is not None:
            assert seen.pop(old["metadata"]["name"]) == old["metadata"]["uid"]
        if new is not None:
            seen[new["metadata"]["name"]] = new["metadata"]["uid"]

    async with Following(client, relist_s=0.3, on_change=change) as one:
        for _ in range(60):
            name = chance.choice("abcdef")
            if ("d", name) in server.pods() and chance.random() < 0.4:
                server.remove("api/v1/pods", "d", name)
            else:
                server.put("api/v1/pods", pod(name))
            if chance.random() < 0.1:
                server.end_watches()
            if chance.random() < 0.05:
                server.compact()
            await asyncio.sleep(0.005)
        await same(one.watcher, server)
        assert set(seen) == {name for _, name in server.pods()}


async def test_errors_are_those_of_the_server(server: FakeApi, client: kube.Client) -> None:
    found = server.put("api/v1/pods", pod("a"))
    with pytest.raises(kube.ApiError) as missing:
        await client.get(f"{PODS}/x")
    assert missing.value.is_missing
    where = "/api/v1/namespaces/d/pods/a"
    with pytest.raises(kube.ApiError, match="the object has been modified") as conflict:
        await client.patch(where, {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}})
    assert conflict.value.is_conflict and conflict.value.reason == recorded("conflict")["reason"]
    done = await client.patch(where, {"metadata": {"uid": found["metadata"]["uid"], "labels": {"a": "b"}}})
    assert done["metadata"]["labels"] == {"a": "b"}
    await client.delete(where, {"preconditions": {"uid": found["metadata"]["uid"]}})
    assert server.pods() == {}


async def test_an_answer_that_never_comes(
    server: FakeApi, client: kube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "REQUEST_TIMEOUT_S", 0.1)

    server.before = lambda _method, _path: asyncio.sleep(30)
    with pytest.raises(kube.Unreachable, match="does not answer"):
        await client.get(PODS)


# ---- configuration ----


def test_a_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, SERVER, token="secret")
    more = f'"{SERVER}", "certificate-authority": "ca.crt"'
    path.write_text(path.read_text().replace('"default"', '"team"').replace(f'"{SERVER}"', more))
    config = kube.load(path)
    assert (config.server, config.token, config.namespace) == (SERVER, "secret", "team")
    assert config.ca_file == tmp_path / "ca.crt"
    assert "secret" not in repr(config)
    pem = base64.b64encode(b"PEM").decode()
    config = kube.load(kubeconfig(tmp_path, SERVER, **{"client-certificate-data": pem, "client-key-data": pem}))
    assert config.cert_data == "PEM\nPEM" and "PEM" not in repr(config)


async def test_an_inline_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL takes certificate and key, and neither the disk nor a descriptor has them afterwards."""
    key, cert, temporary = tmp_path / "key", tmp_path / "cert", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=u", "-days", "1"]
    subprocess.run([*words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    both = {"client-certificate-data": cert, "client-key-data": key}
    user = {name: base64.b64encode(path.read_bytes()).decode() for name, path in both.items()}
    found = kubeconfig(tmp_path, "https://127.0.0.1:1", **user)
    loaded: list[str] = []
    take = ssl.SSLContext.load_cert_chain

    def note(self: ssl.SSLContext, certfile: str, keyfile: str | None = None) -> None:
        loaded.append(certfile)
        take(self, certfile, keyfile)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", note)
    async with kube.Client(kube.load(found)) as client:
        with pytest.raises(kube.Unreachable):
            await client.get(PODS)
    (name,) = loaded
    assert name.startswith("/proc/self/fd/") and not list(temporary.iterdir())
    open_ones = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not [one for one in open_ones if "memfd:cgpu-kube" in str(one)]
    broken = {**user, "client-key-data": base64.b64encode(b"no key").decode()}
    async with kube.Client(kube.load(kubeconfig(tmp_path, "https://127.0.0.1:1", **broken))) as client:
        with pytest.raises(kube.NoConfig, match="certificates cannot be read"):
            await client.get(PODS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "No such file or directory"),
        ("a: [", "is no YAML"),
        ("[]", "is no kubeconfig file"),
        ("{}", "has no current-context"),
        ('{"current-context": "c"}', "has no context 'c'"),
        (
            (
                '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}],'
                ' "clusters": [{"name": "k", "cluster": {"server": "ftp://x"}}]}'
            ),
            "has no server",
        ),
    ],
)
def test_a_bad_kubeconfig_is_a_sentence(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(kube.NoConfig, match=sentence):
        kube.load(path)


def test_a_login_program_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(kube.NoConfig, match="logs in by exec, which a service cannot"):
        kube.load(kubeconfig(tmp_path, SERVER, exec={"command": "touch", "args": [str(tmp_path / "ran")]}))
    with pytest.raises(kube.NoConfig, match="is not base64"):
        kube.load(kubeconfig(tmp_path, SERVER, **{"client-certificate-data": "?"}))


def test_in_a_pod(tmp_path: Path) -> None:
    for name, text in {"token": "secret", "namespace": "kube-system", "ca.crt": ""}.items():
        (tmp_path / name).write_text(text)
    config = kube.in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert (config.server, config.namespace, config.token_file) == (
        "https://[fd00::1]:443",
        "kube-system",
        tmp_path / "token",
    )
    with pytest.raises(kube.NoConfig, match="not in a pod"):
        kube.in_cluster(tmp_path, {})
    with pytest.raises(kube.NoConfig, match="neither a pod's service account nor"):
        kube.load(environ={"HOME": str(tmp_path)})


async def test_a_token_that_rotates_is_read_again(server: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"

    server.token = "first"
    async with kube.Client(kube.Config(server.url, token_file=token)) as client:
        with pytest.raises(kube.NoConfig, match="the token cannot be read"):
            await client.get(PODS)
        token.write_text("first\n")
        await client.get(PODS)
        server.token = "second"
        with pytest.raises(kube.ApiError, match="Unauthorized"):
            await client.get(PODS)
        token.write_text("second\n")
        await client.get(PODS)


async def test_a_kubeconfig_with_a_new_token_is_read_again(server: FakeApi, tmp_path: Path) -> None:
    """As deploy/kubernetes/node-kubeconfig writes one: into the file, or a new file in its place."""
    server.token = ends = "x.eyJleHAiOiAyMDAwMDAwMDAwfQ.y"
    path = kubeconfig(tmp_path, server.url, token="first")
    async with kube.Client(kube.load(path)) as client:
        with pytest.raises(kube.ApiError, match="Unauthorized"):
            await client.get(PODS)
        assert client.token_ends == 0
        path.write_text(path.read_text()[:20])
        with pytest.raises(kube.ApiError, match="Unauthorized"):
            await client.get(PODS)  # it is not whole yet
        kubeconfig(tmp_path, server.url, token=ends)
        assert client.token_ends == 2000000000
        await client.get(PODS)
        server.token = "third"
        path.unlink()
        with pytest.raises(kube.ApiError, match="Unauthorized"):
            await client.get(PODS)
        (tmp_path / "new").mkdir()
        kubeconfig(tmp_path / "new", server.url, token="third").rename(path)
        await client.get(PODS)


async def test_a_missing_certificate_is_a_sentence(tmp_path: Path) -> None:
    async with kube.Client(kube.Config("https://127.0.0.1:1", ca_file=tmp_path / "none")) as client:
        with pytest.raises(kube.NoConfig, match="certificates cannot be read"):
            await client.get(PODS)


async def test_a_list_and_an_event_are_kept_alike(server: FakeApi, client: kube.Client) -> None:
    """@keep is no projection: a second pass over its result would lose what the first one has moved."""

    def keep(found: dict) -> dict:
        meta = found.get("metadata") or {}
        names = ("name", "uid", "namespace", "resourceVersion")
        return {"metadata": {key: meta[key] for key in names}, "labels": meta.get("labels")}

    server.put("api/v1/pods", pod("a", k="1"))
    async with Following(client, keep=keep) as one:
        assert one.watcher.objects.get("d", "a")["labels"] == {"k": "1"}
        server.put("api/v1/pods", pod("b", k="2"))
        await eventually(lambda: one.watcher.objects.get("d", "b") is not None, "seen")
        assert one.watcher.objects.get("d", "b")["labels"] == {"k": "2"}
