# SPDX-License-Identifier: MIT
"""cgpu-kube extender as a process: start and stop, TLS, memory, wrong command lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from cluster import NODES, PODS, container, gpu, our_node, pod, simple
from fake_api import FakeApi

PROGRAM = Path(sys.executable).with_name("cgpu-kube")
MEMORY_MAX_KIB = 60 << 10
NODES_COUNT, PODS_COUNT = 200, 2000


def kubeconfig(tmp_path: Path, server: str) -> Path:
    path = tmp_path / "config"
    values = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
    }
    path.write_text(json.dumps(values))
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


async def ready(http: aiohttp.ClientSession, url: str, tls: ssl.SSLContext | bool = True) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with http.get(f"{url}/readyz", ssl=tls) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def test_a_cluster_of_thousands_of_pods_in_60_mb(tmp_path: Path) -> None:
    async def whole() -> None:
        async with FakeApi() as server, aiohttp.ClientSession() as http:
            for number in range(NODES_COUNT):
                server.put(NODES, our_node(f"n{number}", gpu(0, 15), gpu(1, 79)))
            for number in range(PODS_COUNT):
                found = pod(f"p{number}", *(container(f"c{i}", 1 if number % 2 else None) for i in range(3)))
                found["spec"]["nodeName"] = f"n{number % NODES_COUNT}"
                found["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": str(number % 2), "other": "x" * 2000}
                server.put(PODS, found)
            port = free_port()
            process = await asyncio.create_subprocess_exec(
                PROGRAM,
                *("extender", "--listen", f"127.0.0.1:{port}", "--kubeconfig", str(kubeconfig(tmp_path, server.url))),
                stderr=subprocess.PIPE,
            )
            try:
                url = f"http://127.0.0.1:{port}"
                await ready(http, url)
                names = [f"n{number}" for number in range(NODES_COUNT)]
                body = {"Pod": simple("new", 6), "NodeNames": names}
                async with http.post(f"{url}/gpushare-scheduler/filter", json=body) as answer:
                    assert len((await answer.json())["NodeNames"]) == NODES_COUNT
                async with http.get(f"{url}/metrics") as answer:
                    assert 'cgpu_node_gpu_pods{node="n1"} 10.0' in await answer.text()
                used = kib(process.pid)
                print(f"{used / 1024:.1f} MiB with {PODS_COUNT} pods on {NODES_COUNT} nodes")
                assert used <= MEMORY_MAX_KIB
                process.send_signal(signal.SIGTERM)
                _, errors = await asyncio.wait_for(process.communicate(), 20)
                assert process.returncode == 0 and b"Traceback" not in errors
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()

    asyncio.run(whole())


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path) -> None:
    """An authority, and a server's and a client's certificate of it."""
    openssl(
        folder,
        *[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=ca",
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
        ],
    )
    for name in ("server", "client"):
        openssl(folder, *f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr".split())
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        sign = f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
        openssl(folder, *sign.split())


def test_only_clients_of_the_authority(tmp_path: Path) -> None:
    certificates(tmp_path)

    async def whole() -> None:
        async with FakeApi() as server, aiohttp.ClientSession() as http:
            port = free_port()
            process = await asyncio.create_subprocess_exec(
                PROGRAM,
                *("extender", "--listen", f"127.0.0.1:{port}", "--kubeconfig", str(kubeconfig(tmp_path, server.url))),
                *("--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")),
                *("--client-ca", str(tmp_path / "ca.crt")),
            )
            try:
                url = f"https://127.0.0.1:{port}"
                known = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
                known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
                await ready(http, url, known)
                stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
                with pytest.raises(aiohttp.ClientError):
                    await http.get(f"{url}/readyz", ssl=stranger)
            finally:
                process.terminate()
                await process.wait()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["--listen", "here"], 2, "--listen here: not an address and a port"),
        (["--listen", "127.0.0.1:70000"], 2, "not an address and a port"),
        (["--client-ca", "x"], 2, "--client-ca and --tls-key need --tls-cert"),
        (["--tls-cert", "/nonexistent"], 1, "--tls-cert /nonexistent: cannot be used"),
        (["--kubeconfig", "/nonexistent"], 1, "/nonexistent: No such file or directory"),
        ([], 1, "neither a pod's service account nor"),
        (["--listen", "192.0.2.1:39999"], 1, "cannot assign requested address"),
    ],
)
def test_a_wrong_command_line_is_a_sentence(tmp_path: Path, words: list[str], status: int, sentence: str) -> None:
    if "192.0.2.1:39999" in words:
        words = [*words, "--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:1"))]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run([PROGRAM, "extender", *words], capture_output=True, text=True, env=env, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (status, "")
    assert last.startswith("cgpu-kube: error: ") and sentence in last and "Traceback" not in done.stderr
