# SPDX-License-Identifier: MIT
"""The metrics and cgpu events on the real tree and the real module."""

from __future__ import annotations

import json
import threading
import time

import forked
import pytest
from prometheus_client.parser import text_string_to_metric_families
from slicebox import MIB, PROC, Box

from cgpu_common.proc import Paths
from cgpud import metrics
from cgpud.exporter import Reader

pytestmark = [pytest.mark.stock_only, pytest.mark.once]


def scrape(reader: Reader) -> dict[tuple[str, str], float]:
    return parsed(metrics.text(reader.scrape({}, metrics.DaemonFigures()))[0].decode())


def parsed(text: str) -> dict[tuple[str, str], float]:
    """(metric, container or "") -> value; of one GPU's boxes each name is there once."""
    return {
        (sample.name, sample.labels.get("container", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_the_kernels() -> None:
    with Box("a" * 64, 512, weight=3) as box, box.client() as rm:
        assert rm.gpu().alloc_vidmem(10 * MIB)[0] == 0
        found = scrape(Reader(Paths.below()))
        assert found["cgpu_module_loaded", ""] == 1
        assert found["cgpu_container_memory_limit_bytes", box.dir] == 512 * MIB
        assert found["cgpu_container_memory_used_bytes", box.dir] == box.used >= 10 * MIB
        assert found["cgpu_container_weight", box.dir] == 3
        names = {name for name, container in found if container == box.dir}
        expected = {f"cgpu_container_{one.metric}" for one in metrics.CONTAINERS} - {
            "cgpu_container_allowed_ratio"
        }  # native policy
        waits = {f"cgpu_container_turn_wait_seconds_{part}" for part in ("bucket", "count", "sum")}
        assert names == expected | waits | {"cgpu_container_info", "cgpu_container_memory_kind_bytes"}
        assert {f"cgpu_gpu_{one.metric}" for one in metrics.GPUS} <= {name for name, _ in found}
        (PROC / "0/policy").write_text("2\n")
        try:
            assert scrape(Reader(Paths.below()))["cgpu_container_allowed_ratio", box.dir] == 1
        finally:
            (PROC / "0/policy").write_text("5\n")
    assert not any(container for _, container in scrape(Reader(Paths.below())))


def test_a_full_gpu_is_read_in_little_time() -> None:
    boxes: list[Box] = []
    try:
        for n in range(20):
            boxes.append(Box(f"{n:02x}" * 32, 64))  # noqa: PERF401  boxes made before a failure are destroyed
        reader = Reader(Paths.below())
        scrape(reader)
        begun = time.process_time()
        text = metrics.text(reader.scrape({}, metrics.DaemonFigures()))[0].decode()
        took = time.process_time() - begun
        found = parsed(text)
        print(f"{len(boxes)} containers: {took * 1000:.0f} ms of an emulated CPU")
        assert sum(name == "cgpu_container_weight" for name, _ in found) == len(boxes)
        assert took < 5
    finally:
        for box in boxes:
            box.destroy()


def test_the_command_hears_the_module() -> None:
    over = threading.Event()

    def flip() -> None:
        """From here on: the command hears nothing from before it began to listen."""
        policy = PROC / "0/policy"
        while not over.wait(0.2):
            policy.write_text(f"{9 - int(policy.read_text())}\n")  # 4 <-> 5

    writer = threading.Thread(target=flip)
    writer.start()
    try:
        done = forked.command("cgpu", "events", "--json", "-n", "2")
    finally:
        over.set()
        writer.join()
        (PROC / "0/policy").write_text("5\n")
    assert done.returncode == 0, done.stderr
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert [line["kind"] for line in lines] == ["policy"] * 2
    assert {line["gpu"] for line in lines} == {0}
    assert lines[0]["new"] == lines[1]["old"]
