# SPDX-License-Identifier: MIT
"""cgpu nodes: a fleet by Prometheus' API and by kubectl's plugin, its filters, and sources that fail."""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml
from click.testing import CliRunner, Result
from schema import load, validate

from cgpu_cli import fleet, prometheus
from cgpu_cli.main import cgpu
from cgpu_common.exits import CgpuError, Exit
from cgpud import metrics

ROOT = Path(__file__).parents[3]
SCHEMA = load("cgpu-nodes")
GIB = 1 << 30
Series = list[dict[str, Any]]


def sample(metric: str, value: float, instance: str, **labels: object) -> dict[str, Any]:
    named = {"__name__": metric, "job": "cgpu", "instance": instance, **{k: str(v) for k, v in labels.items()}}
    return {"metric": named, "value": [1700000000.0, str(float(value))]}


def node(name: str, gpus: int = 2, *, policy: int = 2, containers: int = 1, draining: int = 0) -> tuple[Series, Series]:
    """Its series, and those of the shares: each GPU has 16 GiB, each container 4, of which it uses 1."""
    out = [
        sample("cgpu_module_loaded", 1, name),
        sample("cgpu_draining", draining, name),
        sample("cgpu_build_info", 1, name, cgpud="0.1.0"),
    ]
    shares = []
    for index in range(gpus):
        at: dict[str, object] = {"gpu": index, "uuid": f"GPU-{name}-{index}"}
        out += [
            sample("cgpu_gpu_info", 1, name, model="Tesla T4", pci="0", minor=index, **at),
            sample("cgpu_gpu_policy", policy, name, **at),
            sample("cgpu_gpu_instances", containers, name, **at),
            sample("cgpu_gpu_max_instances", 20, name, **at),
            sample("cgpu_gpu_free_weight", 20 - containers, name, **at),
            sample("cgpu_gpu_memory_total_bytes", 16 * GIB, name, **at),
            sample("cgpu_gpu_memory_limits_bytes", 4 * GIB * containers, name, **at),
            sample("cgpu_gpu_memory_used_bytes", GIB * containers, name, **at),
        ]
        for number in range(containers):
            own = {"container": f"{index:06x}{number:06x}", **at}
            out += [
                sample("cgpu_container_info", 1, name, container=own["container"], id="a" * 64, name="main",
                       pod=f"p{number}-{name}", namespace="team"),
                sample("cgpu_container_memory_limit_bytes", 4 * GIB, name, **own),
                sample("cgpu_container_memory_used_bytes", GIB, name, **own),
                sample("cgpu_container_weight", 1, name, **own),
                sample("cgpu_container_high_priority", number == 0, name, **own),
                sample("cgpu_container_dying", 0, name, **own),
            ]  # fmt: skip
            shares.append(sample("", 0.25, name, **own))
    return out, shares


class Fake(http.server.ThreadingHTTPServer):
    """Answers the four queries by what they ask for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.samples: Series = []
        self.shares: Series = []
        self.up: Series = []
        self.known: Series = []
        self.body: bytes | None = None
        self.status = 200
        self.queries: list[str] = []
        self.bearers: list[str | None] = []
        self.location = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, found: tuple[Series, Series], name: str, up: int = 1, known: bool = True) -> None:
        self.samples += found[0]
        self.shares += found[1]
        self.up.append(sample("up", up, name))
        self.known += [sample("", 1, name)] if known else []


class Answer(http.server.BaseHTTPRequestHandler):
    server: Fake

    def do_POST(self) -> None:
        words = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        (query,) = words["query"]
        self.server.queries.append(query)
        self.server.bearers.append(self.headers.get("Authorization"))
        if self.server.location and self.path.startswith("/api"):
            self.send_response(self.server.status)
            self.send_header("Location", self.server.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        starts = {"up{": self.server.up, "rate(": self.server.shares, "max_over_time(": self.server.known}
        found = next((series for start, series in starts.items() if query.startswith(start)), self.server.samples)
        data = {"status": "success", "data": {"resultType": "vector", "result": found}}
        body = self.server.body if self.server.body is not None else json.dumps(data).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def nodes(*words: str, columns: int = 140) -> Result:
    return CliRunner(env={"COLUMNS": str(columns), "CGPU_PROMETHEUS": None}).invoke(cgpu, ["nodes", *words])


def listed(*words: str) -> dict[str, Any]:
    result = nodes(*words, "--json")
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    validate(data, SCHEMA)
    return data


@pytest.fixture
def three(fake: Fake) -> Fake:
    fake.add(node("gpu-10", 2, containers=3), "gpu-10")
    fake.add(node("gpu-9", 1, policy=5), "gpu-9")
    fake.add(node("gpu-2", 1, containers=0, draining=1), "gpu-2")
    fake.add(([], []), "gpu-3", up=0)
    return fake


def test_a_line_for_each_node(three: Fake) -> None:
    result = nodes("--prometheus", three.url)
    head, *rows, blank, total = result.stdout.splitlines()
    assert re.split(" {2,}", head) == [one.head for one, _ in fleet.NODES]
    assert [row.split()[0] for row in rows] == ["gpu-2", "gpu-3", "gpu-9", "gpu-10"], "by number, not by letter"
    assert rows[0].split()[1:] == ["draining", "1", "0", "0/16", "16384", "0", "weighted", "0.1.0"]
    assert rows[1].split()[1:] == ["down", "0", "0", "0/0", "-", "0", "-", "-"]
    assert rows[3].split()[1:] == ["ok", "2", "3", "24/32", "4096", "6144", "weighted", "0.1.0"]
    assert (blank, total) == ("", "4 nodes, 4 GPUs, 4 containers, 36 of 64 GiB free, 1 down, 1 draining")
    assert "cgpu_gpu_policy" in three.queries[0] and 'up{job=~"cgpu"}' in three.queries


def test_a_target_that_never_had_cgpu_is_no_node(three: Fake) -> None:
    """role: node has every node of a cluster, and only those with a mode have cgpud. One that is no target any more is
    gone, though it had cgpu an hour ago."""
    three.add(([], []), "control-plane", up=0, known=False)
    three.add(([], []), "web-1", up=1, known=False)
    three.known.append(sample("", 1, "scaled-away"))
    states = {one["name"]: one["state"] for one in listed("--prometheus", three.url, "--match", 'cluster="a"')["nodes"]}
    assert states == {"gpu-2": "draining", "gpu-3": "down", "gpu-9": "ok", "gpu-10": "ok"}
    assert 'max_over_time(cgpu_module_loaded{cluster="a"}[24h])' in three.queries


def test_the_scrape_configuration_keeps_only_nodes_with_a_mode() -> None:
    """Of the page, by the labels that cgpu-kube's DaemonSet goes by, either of them."""
    page = (ROOT / "docs/user/metrics.md").read_text()
    (block,) = re.findall(r"```\n(# prometheus\.yml.*?)```", page, re.S)
    (job,) = yaml.safe_load(block)["scrape_configs"]
    (keep,) = (rule for rule in job["relabel_configs"] if rule.get("action") == "keep")
    text = (ROOT / "deploy/kubernetes/base/node.yaml").read_text()
    (daemon_set,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet")
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    names = []
    for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        (match,) = term["matchExpressions"]
        assert match["operator"] == "Exists"
        names.append("__meta_kubernetes_node_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", match["key"]))
    assert keep["source_labels"] == names
    kept = [bool(re.fullmatch(keep["regex"], ";".join(values))) for values in (("", ""), ("cgpu", ""), ("", "true"))]
    assert kept == [False, True, True]


def test_all_of_them_may_be_down(fake: Fake) -> None:
    for name in ("gpu-1", "gpu-2"):
        fake.add(([], []), name, up=0)
    assert [one["state"] for one in listed("--prometheus", fake.url)["nodes"]] == ["down", "down"]


def test_free_is_what_admission_lets_in(fake: Fake) -> None:
    """Not the total less the limits, of which the driver has a part; a node of before does not say."""
    for name, free in (("gpu-1", 11 * GIB), ("gpu-2", 0), ("old", None)):
        found, shares = node(name, 1)
        at = {"gpu": 0, "uuid": f"GPU-{name}-0"}
        found += [sample("cgpu_gpu_memory_free_bytes", free, name, **at)] if free is not None else []
        fake.add((found, shares), name)
    by_name = {one["name"]: one["gpus"][0]["free_bytes"] for one in listed("--prometheus", fake.url)["nodes"]}
    assert by_name == {"gpu-1": 11 * GIB, "gpu-2": 0, "old": 12 * GIB}
    assert {one["name"] for one in listed("--prometheus", fake.url, "--free", "11GiB")["nodes"]} == {"gpu-1", "old"}
    rows = [row.split() for row in nodes("--prometheus", fake.url).stdout.splitlines()[1:4]]
    assert {row[0]: row[5] for row in rows} == {"gpu-1": "11264", "gpu-2": "0", "old": "12288"}


def test_a_line_for_each_gpu_and_container(three: Fake) -> None:
    rows = nodes("--prometheus", three.url, "--by", "gpus", "--node", "gpu-1*").stdout.splitlines()
    assert rows[1].split() == ["gpu-10", "0", "Tesla", "T4", "weighted", "3/20", "17", "12288/16384", "4096", "3072"]
    words = ("--by", "containers", "--node", "gpu-9", "--node", "gpu-10")
    rows = nodes("--prometheus", three.url, *words).stdout.splitlines()
    assert rows[1].split() == ["gpu-9", "0", "team/p0-gpu-9/main", "1hp", "-", "1024", "4096", "-"]
    assert rows[2].split() == ["gpu-10", "0", "team/p0-gpu-10/main", "1hp", "25.0%", "1024", "4096", "-"]
    assert len(rows) == 1 + 1 + 6 + 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--node", "gpu-?"), ["gpu-2", "gpu-3", "gpu-9"]),
        (("--state", "down", "--state", "draining"), ["gpu-2", "gpu-3"]),
        (("--free", "12GiB"), ["gpu-9"]),
        (("--free", "4GiB"), ["gpu-9", "gpu-10"]),
        (("--pod", "p2-"), ["gpu-10"]),
        (("--pod", "team/p0"), ["gpu-9", "gpu-10"]),
        (("--sort", "free"), ["gpu-2", "gpu-9", "gpu-10", "gpu-3"]),
        (("--sort", "containers"), ["gpu-10", "gpu-9", "gpu-2", "gpu-3"]),
    ],
)
def test_filters_and_order(three: Fake, words: tuple[str, ...], names: list[str]) -> None:
    assert [one["name"] for one in listed("--prometheus", three.url, *words)["nodes"]] == names


def test_json_has_all_of_it(three: Fake) -> None:
    data = listed("--prometheus", three.url)
    assert data["waiting"] is None
    gpu = data["nodes"][3]["gpus"][1]
    assert (gpu["uuid"], gpu["policy"], gpu["free_bytes"]) == (
        "GPU-gpu-10-1", {"number": 2, "name": "weighted"}, 4 * GIB
    )  # fmt: skip
    assert [one["pod"] for one in gpu["containers"]] == ["p0-gpu-10", "p1-gpu-10", "p2-gpu-10"]
    assert gpu["containers"][0] | {"share_pct": 25.0, "highprio": True, "used_bytes": GIB} == gpu["containers"][0]


def test_two_hundred_nodes(fake: Fake) -> None:
    """Of eight GPUs with three containers: less than a few seconds, and each of them is there."""
    for number in range(200):
        fake.add(node(f"n{number}", 8, containers=3), f"n{number}")
    begin = time.process_time()
    rows = nodes("--prometheus", fake.url).stdout.splitlines()
    assert time.process_time() - begin < 20
    assert len(rows) == 1 + 200 + 2
    assert rows[-1] == "200 nodes, 1600 GPUs, 600 containers, 6400 of 25600 GiB free"


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(three: Fake, columns: int) -> None:
    for view in ("nodes", "gpus", "containers"):
        lines = nodes("--prometheus", three.url, "--by", view, columns=columns).stdout.splitlines()
        assert max(map(len, lines)) <= columns, (view, lines)


def test_labels_and_a_token(three: Fake, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert nodes("--prometheus", three.url, "--match", 'cluster="a"', "--token-file", str(token)).exit_code == 0
    assert three.bearers == ["Bearer secret"] * 4
    assert all('cluster="a"' in query for query in three.queries)


def test_every_metric_of_it_is_exported() -> None:
    page = (ROOT / "docs/user/metrics.md").read_text()
    assert [name for name in (*fleet.METRICS, fleet.SHARE) if f"`{name}`" not in page] == []
    names = {f"cgpu_container_{one.metric}" for one in metrics.CONTAINERS} | {"cgpu_gpu_memory_free_bytes"}
    names |= {f"cgpu_gpu_{one.metric}" for one in metrics.GPUS}
    assert {one for one in fleet.METRICS if re.match("cgpu_(gpu|container)_(?!info)", one)} <= names


# ---- a source that fails ----


def refused(*words: str, status: Exit = Exit.REFUSED) -> str:
    return commands.refused(nodes(*words), code=status)


def test_no_source_is_a_usage_error() -> None:
    assert "no source: --prometheus URL" in refused(status=Exit.USAGE)


def test_a_prometheus_that_is_not_there() -> None:
    assert "http://127.0.0.1:1: does not answer: Connection refused" in refused("--prometheus", "http://127.0.0.1:1")
    assert "does not answer" in refused("--prometheus", "http://no.such.host.invalid:9090")
    for bad in ("http://[::1", "http://a b:1", "http://a:99999", "nonsense", "file:///etc/passwd"):
        assert f"--prometheus: '{bad}' is no address of HTTP" in refused("--prometheus", bad, status=Exit.USAGE)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>", "its answer is no JSON (is it a Prometheus?)"),
        (200, b'{"data": 1}', "its answer is no result of a query"),
        (200, b'{"data": {"resultType": "matrix", "result": []}}', "its answer is no result of a query"),
        (200, b'{"data": {"resultType": "vector", "result": [{"metric": {}}]}}', "no result of a query"),
        (200, b"[" * 100000, "its answer is no JSON"),
        (200, b'{"data": {"resultType": "vector", "result": ' + b"[" * 100000, "its answer is no JSON"),
        (400, b'{"status": "error", "error": "parse error: x"}', "HTTP status 400: parse error: x"),
        (400, b'{"error": "\\u001b[2Jgone\\u0007"}', "HTTP status 400: ?[2Jgone?"),
        (400, b"[" * 60000, "HTTP status 400: Bad Request"),
        (401, b"", "HTTP status 401: Unauthorized (--token-file)"),
        (404, b"gone", "HTTP status 404: Not Found (the address of Prometheus itself"),
    ],
)
def test_an_answer_that_is_none(fake: Fake, status: int, body: bytes, sentence: str) -> None:
    fake.status, fake.body = status, body
    error = refused("--prometheus", fake.url)
    assert error.startswith(f"cgpu: error: {fake.url}: ") and sentence in error


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300", "-1"])
@pytest.mark.parametrize("metric", ["cgpu_gpu_policy", "cgpu_gpu_memory_total_bytes", "cgpu_draining"])
def test_a_figure_that_cgpud_never_exports(three: Fake, metric: str, value: str) -> None:
    for one in three.samples:
        if one["metric"]["__name__"] == metric:
            one["value"][1] = value
    assert f"{metric} of gpu-10 is " in refused("--prometheus", three.url)


def test_a_share_that_is_no_number(three: Fake) -> None:
    three.shares[0]["value"][1] = "NaN"
    assert "a series of gpu-10 is nan" in refused("--prometheus", three.url)


def test_a_prometheus_without_cgpud(fake: Fake) -> None:
    assert "has no figures of cgpud" in refused("--prometheus", fake.url, status=Exit.NOT_FOUND)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"-----BEGIN EC PRIVATE KEY-----\nsecret\n-----END EC PRIVATE KEY-----\n",
        b"secret\r\nX-Other: 1",
        b"secret\x00",
        b"secret more",
        "s\u00e9cret".encode(),
        b"\xff\xfesecret",
        b"secret" * 4096,
    ],
)
def test_a_file_that_is_no_token_is_not_shown(three: Fake, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    error = refused("--prometheus", three.url, "--token-file", str(path), status=Exit.USAGE)
    assert f"{path}: has no token: that is one line" in error and "cret" not in error and three.bearers == []


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_takes_the_token_nowhere_else(three: Fake, tmp_path: Path, status: int) -> None:
    token, other = tmp_path / "token", Fake()
    token.write_text("secret\n")
    threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
    three.status, words = status, ("--prometheus", three.url, "--token-file", str(token))
    try:
        for url in (other.url, f"https://127.0.0.1:{three.server_port}"):
            three.location = f"{url}/x"
            assert f"HTTP status {status}: leads to {url}, which is not asked" in refused(*words)
        assert (other.queries, other.bearers) == ([], [])
    finally:
        other.shutdown()
        other.server_close()


def test_a_redirect_within_a_server_keeps_query_and_token(three: Fake) -> None:
    three.status, three.location = 302, "/sub/api/v1/query"
    with pytest.raises(CgpuError, match="HTTP status 302"):  # the fake answers all with this status
        prometheus.Prometheus(three.url, "secret").query("up{}")
    assert three.queries == ["up{}"] * 2 and three.bearers == ["Bearer secret"] * 2


def test_an_error_shows_no_header(three: Fake) -> None:
    """Whatever the token is: the client's own error of a header has its value."""
    with pytest.raises(CgpuError) as error:
        prometheus.Prometheus(three.url, "secret\nmore").query("up")
    assert "secret" not in error.value.line("cgpu")


def test_files_and_patterns_that_fit_nothing(three: Fake) -> None:
    for option in ("--token-file", "--ca-file"):
        error = refused("--prometheus", three.url, option, "/none", status=Exit.USAGE)
        assert f"'{option}': File '/none' does not exist" in error
    no_authority = refused("--prometheus", three.url, "--ca-file", __file__, status=Exit.USAGE)
    assert f"--ca-file: {__file__}: " in no_authority
    error = refused("--prometheus", three.url, "--node", "x*", status=Exit.NOT_FOUND)
    assert "node x*: is none of 4" in error
    refused("--prometheus", three.url, "--free", "6GB", status=Exit.USAGE)


# ---- Kubernetes ----

INSPECTED = {
    "schema_version": 1,
    "nodes": [
        {
            "name": "n1", "address": "10.0.0.7", "mode": "cgpu", "unit": "GiB", "placement": "binpack", "why": "",
            "unplaced_units": 0,
            "gpus": [
                {"index": 0, "units": 15, "allocated_units": 6, "allocated_core_percent": 0, "containers": 1,
                 "why": "", "free_units": 8},
                {"index": 1, "units": 79, "allocated_units": 0, "allocated_core_percent": 0, "containers": 0,
                 "why": "is marked unhealthy by an administrator", "free_units": 0},
            ],
            "pods": [{"name": "small", "namespace": "team", "uid": "u", "units": {"0": 6},
                      "containers": {"main": [0]}}],
        }
    ],
    "devices": [],
    "pending": [{"pod": "team/huge", "note": "", "nodes": {f"n{number}": "60 GiB asked for" for number in range(9)}}],
}  # fmt: skip


def kubectl(tmp_path: Path, text: str | bytes, status: int = 0, error: str | bytes = "") -> str:
    text, error = (one.encode() if isinstance(one, str) else one for one in (text, error))
    path = tmp_path / "kubectl"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:5] == ['inspect', 'cgpu', '-o', 'json']\n"
        f"sys.stderr.buffer.write({error!r})\nsys.stdout.buffer.write({text!r})\nsys.exit({status})\n"
    )
    path.chmod(0o755)
    return str(path)


def test_the_pods_that_wait(three: Fake, tmp_path: Path) -> None:
    program = kubectl(tmp_path, json.dumps(INSPECTED))
    lines = nodes("--kubernetes", "--kubectl", program).stdout.splitlines()
    assert lines[1].split() == ["n1", "ok", "2", "1", "6/94", "8192", "0", "-", "-"], "GPU 1 takes none"
    assert lines[4:] == [
        "waits: team/huge", *(f"  n{number}: 60 GiB asked for" for number in range(3)), "  and 6 more nodes",
    ]  # fmt: skip
    both = listed("--prometheus", three.url, "--kubernetes", "--kubectl", program)
    assert [one["name"] for one in both["nodes"]] == ["gpu-2", "gpu-3", "gpu-9", "gpu-10"]
    assert [one["pod"] for one in both["waiting"]] == ["team/huge"]
    free = listed("--kubernetes", "--kubectl", program, "--free", "8GiB")
    assert [gpu["index"] for gpu in free["nodes"][0]["gpus"]] == [0], "the other one takes no pod"


@pytest.mark.parametrize(
    ("unit", "size"),
    [("GiB", GIB), ("MiB", 1 << 20), ("256MiB", 256 << 20), ("512MiB", 512 << 20), ("1GiB", GIB), ("2GiB", 2 * GIB)],
)
def test_each_unit_is_so_many_bytes(tmp_path: Path, unit: str, size: int) -> None:
    (one,) = INSPECTED["nodes"]  # type: ignore[misc]
    text = json.dumps({**INSPECTED, "nodes": [{**one, "unit": unit}]})  # type: ignore[dict-item]
    (found,) = listed("--kubernetes", "--kubectl", kubectl(tmp_path, text))["nodes"]
    assert [gpu["total_bytes"] for gpu in found["gpus"]] == [15 * size, 79 * size]
    assert found["gpus"][0]["containers"][0]["limit_bytes"] == 6 * size


@pytest.mark.parametrize("unit", ["", "TiB", "GB", "0MiB", "-1GiB", "1.5GiB", "256 MiB", "gib", "9999999MiB", None])
def test_a_unit_that_is_not_known_is_refused(tmp_path: Path, unit: str | None) -> None:
    (one,) = INSPECTED["nodes"]  # type: ignore[misc]
    text = json.dumps({**INSPECTED, "nodes": [{**one, "unit": unit}]})  # type: ignore[dict-item]
    error = refused("--kubernetes", "--kubectl", kubectl(tmp_path, text))
    assert f"its unit {str(unit)!r} is not known: GiB, MiB, or a number of them" in error


@pytest.mark.parametrize(
    ("text", "status", "error", "sentence"),
    [
        ("", 1, 'error: unknown command "inspect" for "kubectl"\n', "kubectl-inspect-cgpu must be in PATH"),
        ("", 1, "x\nUnable to connect to the server\n", "inspect cgpu: Unable to connect to the server"),
        ("{}", 0, "", "its output is of another version"),
        ("no", 0, "", "its output is of another version"),
        ('{"nodes": [], "pending": [{"pod": 1, "note": 2, "nodes": 3}]}', 0, "", "its output is of another version"),
        ("[" * 100000, 0, "", "its output is of another version: it is nested too deeply"),
        (b'{"nodes": "\xff"}', 0, "", "its output is no UTF-8"),
        ("", 1, b"x\n\xff\x1b[2J\x1b]0;title\x07\n", "inspect cgpu: \ufffd?[2J?]0;title?"),
        ("", 3, "", "inspect cgpu: exit status 3"),
    ],
)
def test_a_kubectl_that_fails(
    tmp_path: Path, text: str | bytes, status: int, error: str | bytes, sentence: str
) -> None:
    assert sentence in refused("--kubernetes", "--kubectl", kubectl(tmp_path, text, status, error))


@pytest.mark.parametrize("amount", ["1e400", "NaN", "-1", "1e3", "true", '"x"', "[]", "9" * 400])
def test_an_amount_that_is_none(tmp_path: Path, amount: str) -> None:
    text = json.dumps(INSPECTED).replace('"allocated_units": 6', f'"allocated_units": {amount}')
    error = refused("--kubernetes", "--kubectl", kubectl(tmp_path, text))
    assert "its output is of another version" in error and "is no such amount" in error


def test_a_kubectl_that_cannot_be_run(tmp_path: Path) -> None:
    path = tmp_path / "kubectl"
    path.write_text("nothing\n")
    assert f"{path}: cannot be run: Permission denied (--kubectl PATH)" in refused(
        "--kubernetes", "--kubectl", str(path)
    )
    path.chmod(0o755)
    assert f"{path}: cannot be run: Exec format error" in refused("--kubernetes", "--kubectl", str(path))


def test_no_kubectl() -> None:
    assert "/none: there is no such program" in refused("--kubernetes", "--kubectl", "/none", status=Exit.NOT_FOUND)
