# SPDX-License-Identifier: MIT
"""/metrics over a tree of plain files: its series, how it is served, and the pages that describe it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from fake_tree import ID1, ID2, MIB, Tree, inst_line, waits, write
from fakes import Node, eventually
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from structlog.testing import capture_logs

from cgpu_common import figures
from cgpu_common.proc import Paths
from cgpud import http, metrics
from cgpud.exporter import Exporter, Reader

ROOT = Path(__file__).resolve().parents[3]

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
UUID = "GPU-00000000-1111-2222-3333-444455556666"
SLOT_STAT = (
    "gpu_ns 1500000000\nwait_ns 250000000\nturns 30\noverruns 1\nrunning 1\nopened 1\n"
    f"limit_bytes {6043 * MIB}\nused_bytes {256 * MIB}\npeak_bytes {512 * MIB}\nrefused_allocs 3\nrefused_calls 4\n"
    "enforced 1\nunsure_ns 1000000\nfailed_calls 5\npreempt_slow 6\n"
    "wait_lt_100000 4\nwait_lt_200000 10\nwaits 12\nwaits_ns 3000000\nthrottled_ns 125000000\n"
    f"bar1_bytes {8 * MIB}\nhost_limit_bytes {512 * MIB}\nhost_used_bytes {64 * MIB}\nhost_refused_allocs 7\n"
    f"used_data_bytes {160 * MIB}\nused_context_bytes {64 * MIB}\nused_managed_bytes {24 * MIB}\n"
    f"used_imported_bytes {6 * MIB}\nused_tables_bytes {2 * MIB}\n"
    "nvdec 3\nnvdec_floor 11\nnvdec_left 228\nnvenc 2\nnvjpg 0\nofa 1"
)
GPU_STAT = (
    f"total_bytes {15109 * MIB}\nlimits_bytes {14101 * MIB}\nused_bytes {768 * MIB}\ninstances 2\n"
    "control freeze\ncontrol_p50_us 250\ncontrol_p99_us 5200\ncontrol_max_us 9000\ncontrol_calls 1000\n"
    "control_failed 2\n"
    f"turns 99\nthread_cpu_ns 2000000000\ncontext_bytes {32 * MIB}\ndriver_used_bytes {900 * MIB}\n"
    f"unattributed_bytes {132 * MIB}\nended_bytes {4 * MIB}"
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root")
    write(tree.proc / "version", "0.1.0")
    tree.gpu(0, stat=GPU_STAT)
    tree.slot(0, ID1, stat=SLOT_STAT)
    tree.slot(0, ID2, stat=SLOT_STAT, weight=2)
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7, "dying"))
    write(tree.root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps({"Name": "/gpu_test1"}))
    return tree


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    path = tmp_path / "bundle"
    annotations = {
        "io.kubernetes.cri.container-name": "train",
        "io.kubernetes.cri.image-name": 'a "b"\\c:1',
        "io.kubernetes.cri.sandbox-name": "train-0",
        "io.kubernetes.cri.sandbox-namespace": "ml",
    }
    write(path / "config.json", json.dumps({"annotations": annotations}))
    return str(path)


def paths(tree: Tree) -> Paths:
    return Paths.below(str(tree.root))


#: Something of each kind.
CARD = {
    "uuid": UUID, "pci": "", "utilization_pct": 38, "memory_utilization_pct": 20, "sm_active_pct": 61.5,
    "dram_active_pct": 30.0, "temperature_c": 45, "power_mw": 31_250, "power_limit_mw": 70_000,
    "processes": [{"pid": 19772, "sm_pct": 21, "memory_pct": 7}],
}  # fmt: skip
CLIENT = {"id": "c" * 64, "pod": "team/p", "container": "main", "uuid": UUID, "grant_mib": 2048, "used_mib": 3000}
CLIENT |= {"overs": 2, "ended": 1}
FIGURES = metrics.DaemonFigures(
    {"refused": 3},
    {"sliced": 5, "unsliced": 1, "refused": 2},
    True,
    {0: 2},
    (CARD,),
    (CLIENT,),
    True,
    {"ended": 1},
    {0: 108 * MIB},
)
NOTHING = metrics.DaemonFigures()


def scrape(tree: Tree, bundles: dict[str, str] | None = None, figures: metrics.DaemonFigures = NOTHING) -> bytes:
    return metrics.text(Reader(paths(tree)).scrape(bundles or {}, figures), "application/openmetrics-text")[0]


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(text.decode())
        for sample in family.samples
    }


def value(found: Samples, metric: str, **labels: str) -> float:
    return found[metric, tuple(sorted(labels.items()))]


SLOT = {"container": ID1[:12], "gpu": "0", "uuid": UUID}
EXPECTED = {
    "gpu_seconds_total": 1.5,
    "wait_seconds_total": 0.25,
    "throttled_seconds_total": 0.125,
    "unsure_seconds_total": 0.001,
    "turns_total": 30,
    "overruns_total": 1,
    "slow_preemptions_total": 6,
    "failed_control_calls_total": 5,
    "refused_allocations_total": 3,
    "refused_calls_total": 4,
    "memory_limit_bytes": 6043 * MIB,
    "memory_used_bytes": 256 * MIB,
    "memory_peak_bytes": 512 * MIB,
    "bar1_used_bytes": 8 * MIB,
    "nvdec_sessions": 3,
    "nvenc_sessions": 2,
    "nvjpg_sessions": 0,
    "ofa_sessions": 1,
    "host_memory_limit_bytes": 512 * MIB,
    "host_memory_used_bytes": 64 * MIB,
    "host_memory_refused_total": 7,
    "weight": 1,
    "ceiling": 0,
    "high_priority": 0,
    "allowed_ratio": 1,  # the only one that is not dying
    "running": 1,
    "opened": 1,
    "enforced": 1,
    "dying": 0,
}
GPU_EXPECTED = {
    "policy": 2,
    "slice_seconds": 0.005,
    "priority_ratio": 0.8,
    "instances": 2,
    "max_instances": 20,
    "free_weight": 17,
    "memory_total_bytes": 15109 * MIB,
    "memory_limits_bytes": 14101 * MIB,
    "memory_used_bytes": 768 * MIB,
    "memory_ended_bytes": 4 * MIB,
    "memory_driver_used_bytes": 900 * MIB,
    "memory_unattributed_bytes": 132 * MIB,
    "memory_context_bytes": 32 * MIB,
    "turns_total": 99,
    "sched_thread_cpu_seconds_total": 2,
    "control_calls_total": 1000,
    "control_failures_total": 2,
}


def test_every_figure(tree: Tree) -> None:
    found = samples(scrape(tree, figures=FIGURES))
    assert {f"cgpu_container_{name}" for name in EXPECTED} == {
        f"cgpu_container_{one.metric}" for one in metrics.CONTAINERS
    }
    assert {f"cgpu_gpu_{name}" for name in GPU_EXPECTED} == {f"cgpu_gpu_{one.metric}" for one in metrics.GPUS}
    for name, expected in EXPECTED.items():
        assert value(found, f"cgpu_container_{name}", **SLOT) == pytest.approx(expected), name
    for name, expected in GPU_EXPECTED.items():
        assert value(found, f"cgpu_gpu_{name}", gpu="0", uuid=UUID) == pytest.approx(expected), name
    kinds = {"data": 160, "context": 64, "managed": 24, "imported": 6, "tables": 2}
    for kind, mib in kinds.items():
        assert value(found, "cgpu_container_memory_kind_bytes", kind=kind, **SLOT) == mib * MIB
    assert sum(kinds.values()) == 256
    assert value(found, "cgpu_container_dying", **(SLOT | {"container": ID2[:12]})) == 1
    assert value(found, "cgpu_gpu_control_available", gpu="0", uuid=UUID, control="freeze") == 1
    assert value(found, "cgpu_gpu_control_available", gpu="0", uuid=UUID, control="timeslice") == 0
    assert value(found, "cgpu_gpu_control_latency_seconds", gpu="0", uuid=UUID, percentile="99") == pytest.approx(
        0.0052
    )
    assert value(found, "cgpu_kernel_events_total", kind="refused") == 3
    assert value(found, "cgpu_module_loaded") == 1
    assert [value(found, "cgpu_admissions_total", result=name) for name in ("sliced", "unsliced", "refused")] == [
        5,
        1,
        2,
    ]
    assert value(found, "cgpu_draining") == 1
    assert value(found, "cgpu_gpu_settings_drift", gpu="0", uuid=UUID) == 2
    assert value(found, "cgpu_gpu_memory_free_bytes", gpu="0", uuid=UUID) == 108 * MIB


def use_of(tree: Tree, bundle: str, **card: object) -> dict[str, list[float]]:
    """Metric without its prefix -> the values of the first container, of the second one, and of the first one's pod."""
    figures = metrics.DaemonFigures(sensors=({**CARD, **card},))
    found = samples(scrape(tree, {ID1: bundle}, figures))
    pod = {"namespace": "ml", "pod": "train-0", "container": "train", "gpu": "0", "uuid": UUID}
    wanted = {}
    for name in ("container_sm_utilization_ratio", "container_memory_utilization_ratio"):
        keys = [(f"cgpu_{name}", SLOT), (f"cgpu_{name}", SLOT | {"container": ID2[:12]}), (f"cgpu_pod_{name}", pod)]
        wanted[name] = [found[key, tuple(sorted(labels.items()))] for key, labels in keys if (
            key, tuple(sorted(labels.items()))) in found]  # fmt: skip
    return wanted


def process(pid: int, sm: int, memory: int) -> dict[str, int]:
    return {"pid": pid, "sm_pct": sm, "memory_pct": memory}


def test_what_nvml_samples_of_processes_is_their_containers(tree: Tree, bundle: str) -> None:
    """Their processes are those of meminfo; one outside of containers is nobody's."""
    write(tree.proc / "0" / ID1[:12] / "meminfo", f"Free: 1\nPID: 100 Mem: {MIB}\nPID: 101 Mem: {MIB}")
    write(tree.proc / "0" / ID2[:12] / "meminfo", f"Free: 1\nPID: 200 Mem: {MIB}")
    rows = [process(100, 30, 10), process(101, 15, 5), process(200, 20, 8), process(999, 35, 30)]
    found = use_of(tree, bundle, processes=rows)
    assert found["container_sm_utilization_ratio"] == pytest.approx([0.45, 0.2, 0.45])
    assert found["container_memory_utilization_ratio"] == pytest.approx([0.15, 0.08, 0.15])
    # Samples of other moments: no container has more than the whole.
    found = use_of(tree, bundle, processes=[process(100, 70, 60), process(101, 60, 60)])
    assert found["container_sm_utilization_ratio"] == [1, 0, 1]


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({"processes": []}, []),  # the GPU works, and the driver has no samples: not known
        ({"processes": [], "utilization_pct": 0}, [0, 0, 0]),
        ({"processes": [], "utilization_pct": None}, []),
        ({"processes": [process(999, 40, 1)]}, [0, 0, 0]),
    ],
)
def test_no_sample_is_no_zero(tree: Tree, bundle: str, card: dict[str, object], expected: list[float]) -> None:
    assert use_of(tree, bundle, **card)["container_sm_utilization_ratio"] == expected


def test_a_container_that_goes_meanwhile_has_no_processes(tree: Tree, bundle: str) -> None:
    (tree.proc / "0" / ID1[:12] / "meminfo").unlink()
    rows = [process(19772, 40, 1)]
    assert use_of(tree, bundle, processes=rows)["container_sm_utilization_ratio"] == [0, 0.4, 0]


def test_waits_are_a_histogram(tree: Tree, bundle: str) -> None:
    found = samples(scrape(tree, {ID1: bundle}))
    pod = {"namespace": "ml", "pod": "train-0", "container": "train", "gpu": "0", "uuid": UUID}
    for name, labels in (("cgpu_container", SLOT), ("cgpu_pod_container", pod)):
        name += "_turn_wait_seconds"
        buckets = {le: value(found, f"{name}_bucket", le=le, **labels) for le in ("0.0001", "0.0002", "+Inf")}
        assert buckets == {"0.0001": 4, "0.0002": 10, "+Inf": 12}
        assert value(found, f"{name}_count", **labels) == 12
        assert value(found, f"{name}_sum", **labels) == pytest.approx(0.003)


def test_who_is_who(tree: Tree, bundle: str) -> None:
    found = samples(scrape(tree, {ID2: bundle}))
    assert value(found, "cgpu_container_info", container=ID1[:12], id=ID1, name="gpu_test1") == 1
    labels = {"name": "train", "image": 'a "b"\\c:1', "pod": "train-0", "namespace": "ml"}
    assert value(found, "cgpu_container_info", container=ID2[:12], id=ID2, **labels) == 1


def test_series_of_pods_have_the_labels_of_kube_state_metrics(tree: Tree, bundle: str) -> None:
    found = samples(scrape(tree, {ID1: bundle}))
    of_pods = {name: dict(labels) for name, labels in found if name.startswith("cgpu_pod_")}
    waits = {f"cgpu_pod_container_turn_wait_seconds_{part}" for part in ("bucket", "count", "sum")}
    kinds = {"cgpu_pod_container_memory_kind_bytes"}
    assert of_pods.keys() - waits - kinds == {f"cgpu_pod_container_{one.metric}" for one in metrics.PODS}
    assert len(of_pods) == 9 + 3 + 1
    for labels in of_pods.values():
        labels.pop("le", None)
        labels.pop("kind", None)
    assert set(map(str, of_pods.values())) == {str(next(iter(of_pods.values())))}
    labels = {"namespace": "ml", "pod": "train-0", "container": "train", "gpu": "0", "uuid": UUID}
    assert value(found, "cgpu_pod_container_memory_used_bytes", **labels) == 256 * MIB
    assert value(found, "cgpu_pod_container_memory_kind_bytes", kind="context", **labels) == 64 * MIB
    assert value(found, "cgpu_pod_container_gpu_seconds_total", **labels) == pytest.approx(1.5)
    # The one that is dying has no series: a container of the same name may have taken its place.
    assert not [name for name, _ in samples(scrape(tree, {ID2: bundle})) if name.startswith("cgpu_pod_")]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_half_a_surrogate_is_a_question_mark(tree: Tree, tmp_path: Path, accept: str) -> None:
    annotations = {"io.kubernetes.cri.image-name": "x\ud800", "io.kubernetes.cri.container-name": "\udfff"}
    write(tmp_path / "b/config.json", json.dumps({"annotations": annotations}))
    write(tree.root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps({"Name": "/\ud800"}))
    text = metrics.text(Reader(paths(tree)).scrape({ID2: str(tmp_path / "b")}, NOTHING), accept)[0].decode()
    (other,) = (line for line in text.splitlines() if line.startswith("cgpu_container_info{") and ID1 in line)
    (one,) = (line for line in text.splitlines() if line.startswith("cgpu_container_info{") and ID2 in line)
    assert 'name="?"' in other
    assert 'image="x?"' in one and 'name="?"' in one


def test_docker_says_name_and_image(tree: Tree) -> None:
    file = tree.root / f"var/lib/docker/containers/{ID1}/config.v2.json"
    write(file, json.dumps({"Name": "/gpu_test1", "Config": {"Image": "train:1"}}))
    found = samples(scrape(tree))
    assert value(found, "cgpu_container_info", container=ID1[:12], id=ID1, name="gpu_test1", image="train:1") == 1
    for junk in ("[" * 100000, "[]", "{", "7"):
        write(file, junk)
        assert value(samples(scrape(tree)), "cgpu_container_info", container=ID1[:12], id=ID1) == 1


def test_both_formats_say_the_same(tree: Tree) -> None:
    look = Reader(paths(tree)).scrape({}, NOTHING)
    body, kind = metrics.text(look)
    assert kind.startswith("text/plain; version=0.0.4")
    plain = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_plain(body.decode())
        for sample in family.samples
    }
    assert plain == samples(metrics.text(look, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")[0])


def test_what_is_gone_is_not_shown(tree: Tree) -> None:
    reader = Reader(paths(tree))
    assert ID2[:12] in str(metrics.text(reader.scrape({}, NOTHING))[0])
    shutil.rmtree(tree.proc / "0" / ID2[:12])  # between the list and its files
    text = metrics.text(reader.scrape({}, NOTHING))[0].decode()
    assert "cgpu_container_weight" in text
    assert not re.search(rf'cgpu_container_\w+{{container="{ID2[:12]}",gpu', text)
    tree.listed(inst_line(ID1, 1))
    assert ID2[:12] not in metrics.text(reader.scrape({}, NOTHING))[0].decode()


def test_a_module_that_says_less(tree: Tree) -> None:
    """An older module: a value that it does not print is left out, not 0."""
    write(tree.proc / "0" / ID1[:12] / "stat", "gpu_ns 1\nused_bytes 5")
    found = samples(scrape(tree))
    assert ("cgpu_container_enforced", tuple(sorted(SLOT.items()))) not in found
    assert ("cgpu_container_turn_wait_seconds_count", tuple(sorted(SLOT.items()))) not in found
    assert value(found, "cgpu_container_memory_used_bytes", **SLOT) == 5


def test_without_the_module(tree: Tree) -> None:
    shutil.rmtree(tree.proc)
    found = samples(scrape(tree))
    assert value(found, "cgpu_module_loaded") == 0
    assert not any(name.startswith(("cgpu_gpu", "cgpu_container")) for name, _ in found)


def full_node(tree: Tree, gpus: int = 8, each: int = 25) -> None:
    lines = []
    for gpu in range(gpus):
        tree.gpu(gpu, stat=GPU_STAT)
        for n in range(each):
            number = gpu * each + n
            container = f"{number + 0xABC000000000:012x}" + "0" * 52
            tree.slot(gpu, container, stat=SLOT_STAT.partition("wait_lt_")[0] + waits({6: 90, 17: 10}, 101))
            lines.append(inst_line(container, number, gpus=f"{gpu}:{number}"))
    shutil.rmtree(tree.proc / "0" / ID1[:12])
    shutil.rmtree(tree.proc / "0" / ID2[:12])
    tree.listed(*lines)


def test_two_hundred_containers_are_cheap(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    full_node(tree)
    reader = Reader(paths(tree))
    reader.scrape({}, NOTHING)
    begun = time.process_time()
    body, _ = metrics.text(reader.scrape({}, NOTHING))
    took = time.process_time() - begun
    with capsys.disabled():
        print(f"\n200 containers on 8 GPUs: {took * 1000:.0f} ms of CPU, {len(body) >> 10} KiB")
    assert len(re.findall(rb"^cgpu_container_weight{", body, re.M)) == 200
    assert took < 1.0


# ---- over HTTP ----


async def talk(sock: socket.socket, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


async def test_served_on_a_unix_socket(tree: Tree, node: Node, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"

    async with node.running() as daemon:
        exporter = Exporter(daemon, paths(tree))
        await exporter.move(f"unix:{path}")
        assert path.stat().st_mode & 0o777 == 0o600
        answer = await talk(connect(path), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Connection: close" in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"cgpu_module_loaded 1.0" in body
        wants = b"GET /metrics?a=b HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n"
        assert (await talk(connect(path), wants)).endswith(b"# EOF\n")
        await exporter.move("")
        assert not path.exists()


async def test_starts_are_counted_by_their_result(tree: Tree, node: Node) -> None:
    off = ("CGPU_DISABLE=true", "ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15")
    bad = ("ALIYUN_COM_GPU_MEM_CONTAINER=x", "ALIYUN_COM_GPU_MEM_DEV=15")
    async with node.running() as daemon:
        replies = [
            await node.prepare("a"),
            *[await node.prepare(n, e) for n, e in (("b", off), ("c", bad), ("d", bad))],
        ]
        assert [reply["ok"] for reply in replies] == [True, True, False, False]
        assert dict(daemon.admissions) == {"sliced": 1, "unsliced": 1, "refused": 2}
        text, _ = await Exporter(daemon, paths(tree)).page("")
    assert b'cgpu_admissions_total{result="refused"} 2.0' in text


async def test_moved_and_refused_on_an_address(tree: Tree, node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
        taken, port = other.getsockname()[1], free.getsockname()[1]
        free.close()
        async with node.running() as daemon:
            exporter = Exporter(daemon, paths(tree))
            with capture_logs() as lines:
                await exporter.move(f"127.0.0.1:{taken}")
            assert [line["event"] for line in lines if line["log_level"] == "error"] == ["metrics are not served"]
            await exporter.move(f"127.0.0.1:{port}")
            sock = socket.create_connection(("127.0.0.1", port))
            assert b"200 OK" in await talk(sock, b"GET /metrics HTTP/1.0\r\n\r\n")
            await exporter.stop()
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics SPDY/3\r\n\r\n", b"400"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"y" * 20000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_nothing_else_is_answered(tmp_path: Path, request_: bytes, status: bytes) -> None:
    async def never(_accept: str) -> tuple[bytes, str]:
        raise AssertionError("it was looked at")

    server = http.HttpServer(never)
    await server.start(http.Unix(str(tmp_path / "s")))
    assert (await talk(connect(tmp_path / "s"), request_)).split(b" ")[1] == status
    await server.stop()


async def test_time_and_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.5)
    path = tmp_path / "s"

    async def page(_accept: str) -> tuple[bytes, str]:
        return b"x", "text/plain"

    server = http.HttpServer(page)
    await server.start(http.Unix(str(path)))
    idle = [await asyncio.open_connection(sock=connect(path)) for _ in range(http.CONNECTIONS_MAX)]
    await eventually(lambda: server.open == http.CONNECTIONS_MAX, "all are open")
    with contextlib.suppress(ConnectionResetError):
        assert await talk(connect(path), b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    for reader, writer in idle:  # half a request, and no more
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    await eventually(lambda: server.open == 0, "all are closed")
    assert b"200" in await talk(connect(path), b"GET /metrics HTTP/1.1\r\n\r\n")
    await server.stop()


async def test_a_page_that_fails_is_an_answer(tmp_path: Path) -> None:
    async def page(_accept: str) -> tuple[bytes, str]:
        raise ValueError("broken")

    server = http.HttpServer(page)
    await server.start(http.Unix(str(tmp_path / "s")))
    with capture_logs():
        answer = await talk(connect(tmp_path / "s"), b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"ValueError: broken" in answer
    await server.stop()


# ---- the pages ----


def exported(tree: Tree, bundle: str) -> dict[str, tuple[str, set[str]]]:
    """Name of a series -> type, labels."""
    found: dict[str, tuple[str, set[str]]] = {}
    text = scrape(tree, {ID1: bundle, ID2: bundle}, FIGURES).decode()
    for family in parse_openmetrics(text):
        for sample in family.samples:
            name = family.name if family.type == "histogram" else sample.name
            labels = found.setdefault(name, (family.type, set()))[1]
            labels |= set(sample.labels) - {"le"}
    return found


def test_the_page_is_what_is_exported(tree: Tree, bundle: str) -> None:
    text = (ROOT / "docs/user/metrics.md").read_text()
    rows = re.findall(r"^\| ((?:`cgpu_\w+` ?)+) \| (\w+) \|([^|]*)\| (.*) \|$", text, re.M)
    page = [
        (name, kind, labels, about) for names, kind, labels, about in rows for name in re.findall(r"`(\w+)`", names)
    ]
    assert len({name for name, *_ in page}) == len(page)
    there = {name: (kind, set(filter(None, labels.replace(",", " ").split()))) for name, kind, labels, _ in page}
    assert there == exported(tree, bundle)
    said = {name: about for name, *_, about in page}
    own = {"cgpu_container_": (*metrics.CONTAINERS, *figures.USES), "cgpu_gpu_": (*metrics.GPUS, *figures.CARD)}
    known = {prefix + one.metric: one.about for prefix, rows in own.items() for one in rows if one.metric}
    known |= {f"cgpu_mps_container_{one.metric}": one.about for one in figures.MPS}
    assert {name: said[name][: len(about)] for name, about in known.items()} == known


def test_what_the_card_measures(tree: Tree) -> None:
    gpu = {"gpu": "0", "uuid": UUID}
    found = samples(scrape(tree, figures=FIGURES))
    assert value(found, "cgpu_gpu_utilization_ratio", **gpu) == pytest.approx(0.38)
    assert value(found, "cgpu_gpu_sm_active_ratio", **gpu) == pytest.approx(0.615)
    assert value(found, "cgpu_gpu_power_watts", **gpu) == pytest.approx(31.25)
    for rows in ((), ({**CARD, "uuid": "GPU-other"},), ({**CARD, "temperature_c": None, "power_mw": None},)):
        text = scrape(tree, figures=metrics.DaemonFigures(sensors=rows)).decode()
        assert "cgpu_gpu_temperature_celsius{" not in text and "cgpu_gpu_power_watts{" not in text


def test_clients_of_mps(tree: Tree) -> None:
    client = {"namespace": "team", "pod": "p", "container": "main", "id": "c" * 64, "uuid": UUID}
    found = samples(scrape(tree, figures=FIGURES))
    expected = {
        "memory_grant_bytes": 2048 << 20,
        "memory_used_bytes": 3000 << 20,
        "over_grant_total": 2,
        "ended_total": 1,
    }
    for name, wanted in expected.items():
        assert value(found, f"cgpu_mps_container_{name}", **client) == wanted, name
    assert value(found, "cgpu_mps_ended_total", result="ended") == 1
    assert value(found, "cgpu_mps_watched") == 0
    unknown = metrics.DaemonFigures(mps=({**CLIENT, "used_mib": None},))
    assert "cgpu_mps_container_memory_used_bytes{" not in scrape(tree, figures=unknown).decode()


def test_names_are_by_convention(tree: Tree, bundle: str) -> None:
    for name, (kind, _) in exported(tree, bundle).items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert (kind == "info") == name.endswith("_info"), name
        assert not re.search(r"_(ns|us|ms|mib|percent|pct)(_|$)", name), name


#: What Prometheus adds to every series.
OF_THE_SCRAPE = {"instance", "job"}


def check_queries(queries: list[str], there: dict[str, tuple[str, set[str]]]) -> None:
    for query in queries:
        query = query.replace("_seconds_bucket", "_seconds")  # of a histogram
        names = set(re.findall(r"\bcgpu_\w+", query))
        assert names and names <= set(there), query
        for name, labels in re.findall(r"(cgpu_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*[=!]", labels)) <= there[name][1] | OF_THE_SCRAPE, query
        counted = re.findall(r"(?:rate|increase)\((cgpu_\w+)", query)
        assert all(name.endswith("_total") or there[name][0] == "histogram" for name in counted), query


def test_the_lines_of_the_dashboard_name_their_node() -> None:
    """That its queries draw something: test_dashboards.py, by a Prometheus."""
    board = json.loads((ROOT / "docs/user/grafana/cgpu.json").read_text())
    legends = [
        target["legendFormat"]
        for panel in board["panels"]
        for target in panel["targets"]
        if panel["type"] == "timeseries"
    ]
    assert all("{{instance}}" in legend for legend in legends), "two nodes have the same GPU numbers"


ALERTS = ROOT / "deploy/helm/cgpu/files/cgpu.rules.yml"
RECORDS = ROOT / "docs/user/grafana/dcgm.rules.yml"


@pytest.mark.parametrize("rules", [ALERTS, RECORDS], ids=lambda path: path.stem)
def test_the_rules_ask_for_what_exists(tree: Tree, bundle: str, rules: Path) -> None:
    text = rules.read_text()
    queries = re.findall(r"^ +expr: (?:>-\n +)?(.+(?:\n {10}.+)?)$", text, re.M)
    assert len(queries) == text.count("expr:") > 6
    check_queries(queries, exported(tree, bundle))


def tried_by_promtool(name: str) -> str:
    """The cases of the rules, which hold."""
    promtool = ROOT / "build/prometheus/promtool"
    if not promtool.exists():
        pytest.fail("scripts/setup-prometheus has not run: make setup-test runs it")
    series = Path(__file__).with_name(f"{name}.rules.test.yml")
    done = subprocess.run([promtool, "test", "rules", series], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return series.read_text()


def test_dcgms_names_have_dcgms_units() -> None:
    cases = tried_by_promtool("dcgm")
    records = re.findall(r"record: (\w+)", RECORDS.read_text())
    assert len(records) == 9 and all(name in cases for name in records)


def test_the_rules_fire_as_meant() -> None:
    cases = tried_by_promtool("cgpu")
    rules = set(re.findall(r"alert: (\w+)", ALERTS.read_text()))
    assert rules == set(re.findall(r"alertname: (\w+)\n +exp_alerts", cases)), "each fires once"
