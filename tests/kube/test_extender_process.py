# SPDX-License-Identifier: MIT
"""cgpu-kube extender as a process: start and stop, TLS, memory, wrong command lines."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from cluster import NODES, PODS, container, gpu, our_node, pod, simple
from extender_process import BIND, PROGRAM, extender, kib, ready
from fake_api import FakeApi, kubeconfig

from cgpu_kube.main import kube

MEMORY_MAX_KIB = 60 << 10
NODES_COUNT, PODS_COUNT = 200, 2000
CERTIFICATES = Path(__file__).parents[2] / "deploy/kubernetes/certificates"
LOCAL = ["--insecure", "--listen", "127.0.0.1:39999"]


async def test_a_cluster_of_thousands_of_pods_in_60_mb(server: FakeApi, tmp_path: Path) -> None:
    for number in range(NODES_COUNT):
        server.put(NODES, our_node(f"n{number}", gpu(0, 15), gpu(1, 79)))
    for number in range(PODS_COUNT):
        found = pod(f"p{number}", *(container(f"c{i}", 1 if number % 2 else None) for i in range(3)))
        found["spec"]["nodeName"] = f"n{number % NODES_COUNT}"
        found["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": str(number % 2), "other": "x" * 2000}
        server.put(PODS, found)
    async with extender(tmp_path, server.url, "--insecure") as (pid, port), aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}"
        await ready(http, url)
        names = [f"n{number}" for number in range(NODES_COUNT)]
        body = {"Pod": simple("new", 6), "NodeNames": names}
        async with http.post(f"{url}/gpushare-scheduler/filter", json=body) as answer:
            assert len((await answer.json())["NodeNames"]) == NODES_COUNT
        async with http.get(f"{url}/metrics") as answer:
            assert 'cgpu_node_gpu_pods{node="n1"} 10.0' in await answer.text()
        used = kib(pid)
        print(f"{used / 1024:.1f} MiB with {PODS_COUNT} pods on {NODES_COUNT} nodes")
        assert used <= MEMORY_MAX_KIB


async def test_large_pods_of_a_tenant_end_no_extender(server: FakeApi, tmp_path: Path) -> None:
    """100 pods of 1 MiB, which ask for no GPU: together more than what it may take, of its container's 256 MiB."""
    server.put(NODES, our_node("n0", gpu(0, 15)))
    for number in range(100):
        found = pod(f"p{number}", container("main", None))
        found["spec"]["containers"][0]["args"] = ["x" * (1 << 20)]
        server.put(PODS, found)
    async with extender(tmp_path, server.url, "--insecure") as (pid, port), aiohttp.ClientSession() as http:
        await ready(http, f"http://127.0.0.1:{port}")
        used = kib(pid, "VmHWM")
        print(f"{used / 1024:.1f} MiB at most")
        assert used <= MEMORY_MAX_KIB + (20 << 10)


async def test_clients_by_certificate_and_by_token(server: FakeApi, tmp_path: Path) -> None:
    """With the files of deploy/kubernetes/certificates, as the scheduler and a pod would come."""
    for name in ("tls", "others"):
        subprocess.run([CERTIFICATES, tmp_path / name], check=True, capture_output=True)
    files = tmp_path / "tls"

    def context(client: Path | None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=str(files / "ca.crt"))
        if client is not None:
            found.load_cert_chain(client / "client.crt", client / "client.key")
        return found

    server.rules = {("system:kube-scheduler", "post", BIND), ("viewer", "get", "/metrics")}
    server.users["t"] = {"username": "viewer", "groups": []}
    own = {"--tls-cert": "tls.crt", "--tls-key": "tls.key", "--client-ca": "ca.crt"}
    words = [word for option, name in own.items() for word in (option, str(files / name))]
    async with extender(tmp_path, server.url, *words) as (_, port), aiohttp.ClientSession() as http:
        url, name = f"https://127.0.0.1:{port}", "cgpu-extender.cgpu-system.svc"
        await ready(http, url, context(None), name)

        async def status(method: str, path: str, client: Path | None, **headers: str) -> int:
            where = {"ssl": context(client), "server_hostname": name, "headers": headers}
            async with http.request(method, url + path, **where) as answer:
                return answer.status

        assert await status("POST", BIND, None) == 401
        assert await status("POST", BIND, files) == 400, "allowed, and no JSON"
        assert await status("GET", "/metrics", files) == 403
        assert await status("GET", "/metrics", None, Authorization="Bearer t") == 200
        assert await status("POST", BIND, None, Authorization="Bearer t") == 403
        with pytest.raises(aiohttp.ClientError):
            await status("POST", BIND, tmp_path / "others")


def test_a_second_run_renews_the_pairs_of_one_authority(tmp_path: Path) -> None:
    for _ in range(2):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        done = subprocess.run([CERTIFICATES, tmp_path, "other"], check=True, capture_output=True, text=True)
        assert "kubectl -n other create secret generic cgpu-extender-tls" in done.stdout
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["ca.crt"] == after["ca.crt"] and before["tls.crt"] != after["tls.crt"]
    assert {path.stat().st_mode & 0o77 for path in tmp_path.iterdir()} == {0}
    for name in ("tls", "client"):
        verify = ["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / f"{name}.crt"]
        assert subprocess.run(verify, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["--listen", "here"], 2, "--listen here: not an address and a port"),
        (["--listen", "127.0.0.1:70000"], 2, "not an address and a port"),
        ([*LOCAL, "--client-ca", "x"], 2, "--client-ca and --tls-key need --tls-cert"),
        (["--insecure", "--listen", "0.0.0.0:39999"], 2, "--insecure on 0.0.0.0: whoever reaches it could bind pods"),
        (["--insecure", "--listen", "127.1:39999"], 2, "whoever reaches it could bind pods"),
        (["--insecure", "--listen", "[::]:39999"], 2, "whoever reaches it could bind pods"),
        (["--insecure", "--tls-cert", "x"], 2, "--insecure excludes --tls-cert and --tls-self-signed"),
        (["--insecure", "--listen", "127.0.0.1:1", "--tls-self-signed"], 2, "--insecure excludes --tls-cert"),
        (["--tls-self-signed", "--tls-cert", "x"], 2, "exclude each other"),
        (["--tls-self-signed", "--scheduler-port", "39999"], 2, "--listen has the same port"),
        (["--listen", "127.0.0.1:39999"], 2, "--tls-cert is missing: whoever reaches it could bind pods"),
        (["--tls-cert", "/nonexistent"], 1, "--tls-cert /nonexistent: cannot be used"),
        ([*LOCAL, "--kubeconfig", "/nonexistent"], 1, "/nonexistent: No such file or directory"),
        (LOCAL, 1, "neither a pod's service account nor"),
    ],
)
def test_a_wrong_command_line_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], status: int, sentence: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    done = CliRunner().invoke(kube, ["extender", *words], prog_name="cgpu-kube")
    last = done.stderr.splitlines()[-1]
    assert (done.exit_code, done.stdout) == (status, "")
    assert last.startswith("cgpu-kube: error: ") and sentence in last and "Traceback" not in done.stderr


def test_an_address_of_another_machine_is_a_sentence(tmp_path: Path) -> None:
    subprocess.run([CERTIFICATES, tmp_path], check=True, capture_output=True)
    words = ["--listen", "192.0.2.1:39999", "--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:1"))]
    words += ["--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")]
    done = subprocess.run([PROGRAM, "extender", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "cgpu-kube: error: --listen 192.0.2.1:39999: Cannot assign requested address"
    )
