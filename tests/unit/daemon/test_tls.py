# SPDX-License-Identifier: MIT
"""/metrics by TLS: for clients with a certificate, within the same bounds, with certificates that are renewed."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from fakes import Node, eventually, free_port
from structlog.testing import capture_logs

from cgpu_common.accepting import source
from cgpu_common.address import Tcp
from cgpu_common.errors import CgpuError
from cgpu_common.proc import Paths
from cgpud import http, tls
from cgpud.exporter import Exporter

ROOT = Path(__file__).parents[3]
NAME = "cgpu-metrics"
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def certificates(folder: Path) -> Path:
    """As an administrator makes them."""
    script = ROOT / "deploy/kubernetes/certificates"
    done = subprocess.run([script, "--metrics", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def kept(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("second", ["--metrics", ""])
@pytest.mark.parametrize("left", [("ca.crt", "ca.key", "tls.crt", "tls.key"), ("tls.crt", "tls.key")])
def test_the_two_authorities_are_never_one(tmp_path: Path, second: str, left: tuple[str, ...]) -> None:
    """The scheduler's certificate would read all metrics. @left: in the directory; the authority may be elsewhere."""
    script, folder = ROOT / "deploy/kubernetes/certificates", tmp_path / "pki"
    first = "" if second else "--metrics"
    subprocess.run([script, *filter(None, (first, folder))], capture_output=True, check=True)
    for path in folder.iterdir():
        if path.name not in left:
            path.unlink()
    before = kept(folder)
    done = subprocess.run([script, *filter(None, (second, folder))], capture_output=True, text=True, check=False)
    names = ("cgpu-extender", "cgpu-metrics") if second else ("cgpu-metrics", "cgpu-extender")
    of, wanted = (f"{name}-ca" if "ca.crt" in left else name for name in names)
    assert done.returncode == 1 and kept(folder) == before
    assert f"{folder / left[0]} is not of CN={wanted} (CN={of}): use another directory" in done.stderr


def test_a_certificate_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing\n")
    script = ROOT / "deploy/kubernetes/certificates"
    done = subprocess.run([script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{tmp_path}/ca.crt is not of CN=cgpu-extender-ca" in done.stderr
    assert kept(tmp_path) == {"ca.crt": b"nothing\n"}


def test_keys_are_their_owners_only(tmp_path: Path) -> None:
    """Also a key that is renewed, whatever the mode of the former one."""
    for _ in range(2):
        certificates(tmp_path)
        keys = sorted(tmp_path.glob("*.key"))
        assert [one.name for one in keys] == ["ca.key", "client.key", "tls.key"]
        assert {one.stat().st_mode & 0o777 for one in keys if one.name != "ca.key"} == {0o600}
        for one in keys:
            one.chmod(0o644)
    (tmp_path / "ca.crt").unlink()
    certificates(tmp_path)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.glob("*.key")} == {0o600}
    assert {one.name for one in tmp_path.iterdir()} == {
        f"{n}.{k}" for n in ("ca", "client", "tls") for k in ("key", "crt")
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("made") / "pki")


def client(folder: Path, pair: Path | None) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if pair is not None:
        found.load_cert_chain(pair / "client.crt", pair / "client.key")
    return found


async def scrape(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1", local: str = "") -> bytes:
    """All of the answer; SSLError or ConnectionError: refused, which TLS 1.3 says at the first read only."""
    at = (local, 0) if local else None
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname="cgpu-metrics" if context else None, local_addr=at
    )
    writer.write(REQUEST)
    try:
        return await reader.read()
    finally:
        writer.close()


async def page(_accept: str) -> tuple[bytes, str]:
    return b"x", "text/plain"


async def test_a_client_with_a_certificate_and_no_other(made: Path, tmp_path: Path) -> None:
    other = certificates(tmp_path / "other")

    port, server = free_port(), http.HttpServer(page)
    await server.start(Tcp("0.0.0.0", port), tls.context(str(made)))
    assert (await scrape(port, client(made, made))).endswith(b"\r\n\r\nx")
    for pair in (None, other):
        try:
            answer = await scrape(port, client(made, pair))
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b"", pair
    with pytest.raises(ssl.SSLCertVerificationError):
        await scrape(port, client(other, other))
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(REQUEST)
        assert b"200" not in await asyncio.to_thread(plain.recv, 100)
    await eventually(lambda: not server.by_source, "all are closed")
    assert (await scrape(port, client(made, made))).endswith(b"x")
    await server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port))


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return socket.has_dualstack_ipv6()


async def test_a_client_that_leaves_early_is_no_error(made: Path) -> None:
    """Python 3.11.2 fails when a TLS transport that is closed is ended: a traceback for each such client."""
    left: list[dict[str, object]] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, what: left.append(what))
    port, server = free_port(), http.HttpServer(page)
    await server.start(Tcp("127.0.0.1", port), tls.context(str(made)))
    for _ in range(3):
        assert (await scrape(port, client(made, made))).endswith(b"x")
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(made, made), server_hostname=NAME)
        writer.close()
    await eventually(lambda: not server.by_source, "all are closed")
    gc.collect()
    await asyncio.sleep(0)
    await server.stop()
    assert left == []


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6, and so no [::]")
async def test_every_address_is_one_of_ipv4_too(made: Path) -> None:
    port, server = free_port(), http.HttpServer(page)
    await server.start(Tcp("::", port), tls.context(str(made)))
    for host in ("127.0.0.1", "::1"):
        assert (await scrape(port, client(made, made), host)).endswith(b"\r\n\r\nx"), host
    await server.stop()


async def test_connections_without_a_certificate_are_bounded(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have so many places of their own, end soon, and take none of those that are served."""
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 86400)

    port, server = free_port(), http.HttpServer(page)
    await server.start(Tcp("0.0.0.0", port), tls.context(str(made)))
    idle = [await idle_from(f"127.0.1.{number}", port) for number in range(1, http.HANDSHAKES_MAX + 5)]
    await eventually(lambda: server.by_source.total() == http.HANDSHAKES_MAX, "all places are taken")
    assert (await asyncio.wait_for(scrape(port, client(made, made)), 20)).endswith(b"x")
    await eventually(lambda: not server.by_source, "each of them ended by itself")
    for one in idle:
        one.close()
    await server.stop()


async def idle_from(host: str, port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    return writer


@pytest.mark.parametrize("by_tls", [True, False], ids=["TLS", "TCP"])
async def test_one_address_takes_no_place_of_another(made: Path, monkeypatch: pytest.MonkeyPatch, by_tls: bool) -> None:
    """Its connections above the limit are closed, and another one's is served while they are there."""
    for name in ("HANDSHAKE_TIMEOUT_S", "READ_TIMEOUT_S"):
        monkeypatch.setattr(http, name, 86400)

    port, server = free_port(), http.HttpServer(page)
    await server.start(Tcp("0.0.0.0", port), tls.context(str(made)) if by_tls else None)
    idle = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.1.1", 0)) for _ in range(40)]
    context = client(made, made) if by_tls else None
    assert (await asyncio.wait_for(scrape(port, context), 20)).endswith(b"x")
    await eventually(lambda: server.by_source == {"127.0.1.1": http.SOURCE_MAX}, "it has its places")
    for reader, _ in idle[http.SOURCE_MAX :]:
        try:
            assert await asyncio.wait_for(reader.read(), 20) == b""
        except ConnectionError:
            pass
    for _, writer in idle:
        writer.close()
    await eventually(lambda: not server.by_source, "its places are free")
    await server.stop()


async def test_what_is_served_is_bounded_too(made: Path) -> None:
    wait = asyncio.Event()

    async def late(_accept: str) -> tuple[bytes, str]:
        await wait.wait()
        return b"x", "text/plain"

    port, server = free_port(), http.HttpServer(late)
    await server.start(Tcp("0.0.0.0", port), tls.context(str(made)))
    per, context = http.SOURCE_MAX, client(made, made)
    sources = [f"127.0.1.{1 + number // per}" for number in range(http.CONNECTIONS_MAX)]
    asking = [asyncio.create_task(scrape(port, context, local=one)) for one in sources]
    await eventually(lambda: server.open == http.CONNECTIONS_MAX, "all places are taken")
    try:
        assert await scrape(port, context, local="127.0.2.1") == b""
    except (ssl.SSLError, ConnectionError):
        pass
    assert server.open == http.CONNECTIONS_MAX
    wait.set()
    assert all(one.endswith(b"x") for one in await asyncio.gather(*asking))
    await server.stop()


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_source_is_what_a_host_has(host: str, counted: str) -> None:
    assert source(host) == counted


async def test_a_renewed_pair_is_taken_and_a_bad_one_is_not(node: Node, tmp_path: Path) -> None:
    folder = certificates(tmp_path / "pki")

    async def presented(port: int) -> bytes:
        context = client(folder, folder)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="cgpu-metrics")
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        return found

    port = free_port()
    where = f"127.0.0.1:{port}"
    async with node.running() as daemon:
        exporter = Exporter(daemon, Paths.below(str(tmp_path)))
        await exporter.move(where, str(folder))
        server, first = exporter._server, await presented(port)
        await exporter.move(where, str(folder))
        assert exporter._server is server, "nothing has changed"
        certificates(folder)
        await exporter.move(where, str(folder))
        second = await presented(port)
        assert second != first
        good = (folder / "tls.crt").read_bytes()
        (folder / "tls.crt").write_bytes(good[: len(good) // 2])  # as a copy is that is under way
        with capture_logs() as lines:
            await exporter.move(where, str(folder))
        (line,) = (one for one in lines if one["log_level"] == "error")
        assert line["event"] == "metrics are served as before" and str(folder / "tls.crt") in line["reason"]
        assert await presented(port) == second
        (folder / "tls.crt").unlink()
        certificates(folder)
        await exporter.move(where, str(folder))
        assert await presented(port) not in (first, second), "the next reload takes the whole one"
        await exporter.stop()


async def test_bad_certificates_serve_nothing_at_first_nor_in_place_of_no_tls(node: Node, tmp_path: Path) -> None:
    port = free_port()
    where = f"127.0.0.1:{port}"
    async with node.running() as daemon:
        exporter = Exporter(daemon, Paths.below(str(tmp_path)))
        for _ in range(2):
            with capture_logs() as lines:
                await exporter.move(where, str(tmp_path))
            (line,) = (one for one in lines if one["log_level"] == "error")
            assert line["event"] == "metrics are not served" and str(tmp_path / "tls.crt") in line["reason"]
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", port))
            await exporter.move(where)
            socket.create_connection(("127.0.0.1", port)).close()
        await exporter.stop()


@pytest.mark.parametrize("name", tls.FILES)
def test_the_bad_file_is_named(made: Path, tmp_path: Path, name: str) -> None:
    for one in tls.FILES:
        (tmp_path / one).write_bytes((made / one).read_bytes())
    (tmp_path / name).unlink()
    with pytest.raises(CgpuError, match=f"{tmp_path / name}.*No such file"):
        tls.context(str(tmp_path))
