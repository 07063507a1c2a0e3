# SPDX-License-Identifier: MIT
"""cgpu-smi, /proc/cgpu_km, NVML inside and outside of a container, and the metrics agree at one moment."""

from __future__ import annotations

import csv
import json
import sys
import time
from typing import Any

import cuda_box as c
import docker_box as d
import pytest
from docker_box import variables
from prometheus_client.parser import text_string_to_metric_families

from cgpu_common.proc import Paths
from cgpud import metrics
from cgpud.exporter import Reader

pytestmark = pytest.mark.cuda

TRIES = 10
TOOLS = d.REPO / "build/venv/bin"
#: total, used, processes as NVML lists them
INSIDE = """
import json, pynvml as n
n.nvmlInit()
m = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))
print(json.dumps([m.total, m.used]))
"""
OUTSIDE = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
m = n.nvmlDeviceGetMemoryInfo(h)
def value(call):
    try:
        return call()
    except n.NVMLError:
        return None
print(json.dumps({
    "total_bytes": m.total,
    "used_bytes": m.used,
    "uuid": n.nvmlDeviceGetUUID(h),
    "temperature_c": value(lambda: n.nvmlDeviceGetTemperature(h, 0)),
    "power_mw": value(lambda: n.nvmlDeviceGetPowerUsage(h)),
}))
"""


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    c.make_image()


def by_proc(one: d.Box) -> dict[str, Any]:
    lines = (one.dir / "stat").read_text().splitlines()
    stat = {name: int(value) for name, value in (line.split(" ", 1) for line in lines) if value.isdecimal()}
    listed = [line.split() for line in (one.dir / "meminfo").read_text().splitlines() if line.startswith("PID:")]
    return {
        "used": stat["used_bytes"],
        "limit": int((one.dir / "memsize").read_text()),
        "weight": int((one.dir / "weight").read_text()),
        "pids": {int(words[1]): int(words[3]) for words in listed},
    }


def by_smi(one: d.Box) -> tuple[dict[str, Any], dict[str, Any]]:
    data = json.loads(d.must(str(TOOLS / "cgpu-smi"), "--json", "--no-sample"))
    (gpu,) = data["gpus"]
    (box,) = [box for box in gpu["containers"] if box["id"] == one.id]
    found = {
        "used": box["memory"]["used_bytes"],
        "limit": box["memory"]["limit_bytes"],
        "weight": box["weight"],
        "pids": {row["pid"]: row["bytes"] for row in box["pids"]},
    }
    return found, gpu


def by_csv(one: d.Box) -> tuple[int, int]:
    text = d.must(
        str(TOOLS / "cgpu-smi"), "-c", one.id[:12], "--no-sample", "--query-container=memory.used,memory.limit",
        "--format=csv,noheader,nounits",
    )  # fmt: skip
    ((used, limit),) = csv.reader(text.splitlines())
    return int(used), int(limit)


def by_metrics(one: d.Box) -> dict[str, float]:
    text = metrics.text(Reader(Paths.below()).scrape({}, metrics.DaemonFigures()))[0].decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("container") == one.dir.name or sample.name == "cgpu_gpu_memory_total_bytes"
    }


def sensors() -> dict[str, Any]:
    """NVML's part of cgpu-smi. The child that queries NVML takes seconds on an emulated processor."""
    for _ in range(TRIES):
        (gpu,) = json.loads(d.must(str(TOOLS / "cgpu-smi"), "--json", "--no-sample"))["gpus"]
        if gpu["nvml"] is not None and gpu["nvml"]["lost"] is None:
            found: dict[str, Any] = gpu["nvml"]
            return found
        time.sleep(2)
    pytest.fail(f"NVML does not answer: {gpu['nvml']}")


def test_all_agree() -> None:
    """The load has all of its memory, so nothing changes unless a driver's process comes or goes: then again."""
    with c.box(*variables(6, devices=0, weight=3)) as one, c.load(one):
        for _ in range(TRIES):
            before = by_proc(one)
            smi, gpu = by_smi(one)
            as_csv, figures = by_csv(one), by_metrics(one)
            inside = json.loads(c.program(one, "python3", "-c", INSIDE))
            outside = json.loads(d.must(sys.executable, "-c", OUTSIDE))
            if by_proc(one) == before:
                break
        else:
            pytest.fail("the container's memory does not stay the same")
        assert before["pids"], "the load is on the GPU"
        assert smi == before
        assert as_csv == (round(before["used"] / d.MIB), before["limit"] // d.MIB)
        assert figures["cgpu_container_memory_used_bytes"] == before["used"] == sum(before["pids"].values())
        assert figures["cgpu_container_memory_limit_bytes"] == before["limit"]
        assert figures["cgpu_container_weight"] == before["weight"] == 3
        total, used = inside
        assert total == before["limit"]
        # NVML counts the process that asks, which had gone before the second reading.
        assert before["used"] <= used <= before["limit"]
        assert gpu["uuid"] == outside["uuid"]
        assert gpu["memory"]["total_bytes"] == outside["total_bytes"] == figures["cgpu_gpu_memory_total_bytes"]
        own = sensors()
        assert {name: own[name] for name in ("temperature_c", "power_mw")} == {
            name: outside[name] for name in ("temperature_c", "power_mw")
        }
        # The charge has an estimate of a context, which the card need not have taken.
        assert 0 < own["used_bytes"] < outside["total_bytes"]
        names = {row["pid"]: row["name"] for box in gpu["containers"] for row in box["pids"]}
        assert set(names.values()) == {"gpuload"}


def test_before_the_first_container() -> None:
    """The module does not know the memory yet; cgpud's NVML does."""
    data = json.loads(d.must(str(TOOLS / "cgpu-smi"), "--json"))
    (gpu,) = data["gpus"]
    outside = json.loads(d.must(sys.executable, "-c", OUTSIDE))
    assert gpu["memory"]["total_bytes"] == outside["total_bytes"]
    assert sensors()["used_bytes"] is not None
    assert data["interval_s"] is None
