# SPDX-License-Identifier: MIT
"""The answer to `gpus`, and the names in `status`."""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import Card, Library, NVMLError
from fakes import Node

from cgpu_common import gpus
from cgpu_common.cards import NvmlGpu, NvmlView
from cgpu_common.model import MIB, ProcessUse, Sensors
from cgpud import sensors

ID = "0123456789abcdef" * 4


def read(monkeypatch: pytest.MonkeyPatch, *cards: Card, **more: bool) -> tuple[NvmlGpu, ...]:
    monkeypatch.setitem(sys.modules, "pynvml", Library(list(cards)))
    return gpus.query(**more)


def test_sensors_are_read_only_for_a_query_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, Card(0))[0].sensors is None
    assert read(monkeypatch, Card(0), sensors=True)[0].sensors == Sensors(38, 45, 31_250, 70_000, 20)


def test_a_missing_sensor_is_none_and_the_gpu_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = read(monkeypatch, Card(0, Temperature=None, PowerUsage=None), sensors=True)
    assert (found.lost, found.sensors) == ("", Sensors(38, None, None, 70_000, 20))
    (found,) = read(monkeypatch, Card(0, lost="Temperature"), sensors=True)
    assert (found.lost, found.sensors) == ("", Sensors(38, None, None, None, 20))


def test_multiprocessors_and_bandwidth_where_nvml_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By GPM, from Hopper on: two samples, which are given back also where the second half fails."""
    monkeypatch.setattr(gpus, "GPM_S", 0.0)
    for values, want in (
        ({2: 61.23, 10: 30.0}, (61.2, 30.0)),
        ({2: -1.0, 10: 5.0}, (None, 5.0)),
        (NVMLError("Unknown Error"), (None, None)),
    ):
        library = Library([Card(0, gpm=values)])
        monkeypatch.setitem(sys.modules, "pynvml", library)
        (found,) = gpus.query(sensors=True)
        assert found.sensors is not None and library.gpm_samples == 0
        assert (found.sensors.sm_active_pct, found.sensors.dram_active_pct, found.lost) == (*want, "")


def test_the_latest_sample_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(7, 3, 40, 9), (7, 5, 60, 10), (9, 4, 1, 2)]
    samples = [SimpleNamespace(pid=p, timeStamp=at, smUtil=sm, memUtil=mem) for p, at, sm, mem in rows]
    (found,) = read(monkeypatch, Card(0, ProcessUtilization=samples[::-1]), sensors=True)
    assert found.sensors is not None
    assert found.sensors.processes == (ProcessUse(7, 60, 10), ProcessUse(9, 1, 2))
    assert sensors.row(found, 0.0)["processes"][0] == {"pid": 7, "sm_pct": 60, "memory_pct": 10}


class Counting:
    """Counts the queries."""

    def __init__(self) -> None:
        self.queries: list[float] = []

    async def query(self, wait_s: float) -> NvmlView:
        self.queries.append(wait_s)
        await asyncio.sleep(0.01)
        return NvmlView((NvmlGpu(0, "GPU-0", "0000:01:00.0", 0, 15109, "card", used_mib=3, sensors=Sensors(7)),))

    def close(self) -> None:
        pass


async def test_many_clients_share_a_query() -> None:
    source = Counting()
    reader = sensors.SensorReader(source)
    answers = await asyncio.gather(*(reader.answer() for _ in range(20)))
    assert source.queries == [sensors.WAIT_S]
    assert answers[0] == answers[-1]
    (one,) = answers[0]["gpus"]
    assert (one["total_bytes"], one["used_bytes"]) == (15109 * MIB, 3 * MIB)
    assert (one["utilization_pct"], one["temperature_c"]) == (7, None)


def test_a_value_that_nvml_no_longer_answers_for_goes_away() -> None:
    """UTIL stayed at 93 % after the last container had ended, while NVML gave no answer."""
    gpu = NvmlGpu(0, "GPU-0", "0000:01:00.0", 0, 15109, "card", used_mib=3, sensors=Sensors(93, 60), read_at=100.0)
    fresh = sensors.row(gpu, 104.0)
    assert (fresh["utilization_pct"], fresh["used_bytes"], fresh["age_s"], fresh["lost"]) == (93, 3 * MIB, 4, "")
    stale = sensors.row(gpu, 112.0)
    assert (stale["utilization_pct"], stale["temperature_c"], stale["used_bytes"]) == (None, None, None)
    assert (stale["age_s"], stale["lost"], stale["total_bytes"]) == (12, "no answer", 15109 * MIB)


async def test_gpus_over_the_socket(node: Node) -> None:
    node.sensors = lambda: (NvmlGpu(0, "GPU-0", "0000:01:00.0", 0, 15109, "card", sensors=Sensors(38, 45)),)

    async with node.running():
        reply = await node.ask(op="gpus")
        assert (reply["ok"], reply["nvml"]) == (True, "")
        assert [(one["uuid"], one["temperature_c"]) for one in reply["gpus"]] == [("GPU-0", 45)]


async def test_without_nvml_the_answer_has_the_reason(node: Node) -> None:
    async with node.running():
        assert await node.ask(op="gpus") == {"ok": True, "nvml": "none here", "gpus": []}


async def test_status_has_the_pod(node: Node) -> None:
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        (record,) = node.daemon.records.values()
        path = node.directory / "bundles" / record.bundle.rsplit("/", 1)[-1] / "config.json"
        spec = json.loads(path.read_text())
        spec["annotations"] = {
            "io.kubernetes.cri.sandbox-name": "train-7d9f",
            "io.kubernetes.cri.sandbox-namespace": "ml",
            "io.kubernetes.cri.container-name": "main",
        }
        path.write_text(json.dumps(spec))
        (row,) = (await node.ask(op="status"))["containers"]
        assert row["names"] == {"name": "main", "pod": "train-7d9f", "namespace": "ml"}
