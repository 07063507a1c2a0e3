# SPDX-License-Identifier: MIT
"""cgpu simulate --cluster: pods on the GPUs of a cluster, and its bad inputs."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands import refused, simulate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpu_cli.sim import cluster
from cgpu_cli.sim.cluster_config import read_plan
from cgpu_common.placement import PLACEMENTS


def clustered(tmp_path: Path, text: str, *words: str, name: str = "c.toml") -> Result:
    path = tmp_path / name
    path.write_text(text)
    return simulate("--cluster", str(path), *words)


NODE = '[[pool]]\nname = "n"\ngpus = [15, 79]\n'


def test_two_pods_on_unequal_gpus(tmp_path: Path) -> None:
    text = NODE + '[[pod]]\nname = "a"\nmemory = 6\n[[pod]]\nname = "b"\nmemory = 60\ncore = 25\n'
    done = clustered(tmp_path, text, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [one["placement"] for one in found["policies"]] == list(PLACEMENTS) and found["simulated"] is True
    pack, spread = found["policies"]
    assert pack["pods"] == [
        {"name": "a", "node": "n-0", "containers": {"c0": {"0": {"units": 6, "core_percent": 0}}}},
        {"name": "b", "node": "n-0", "containers": {"c0": {"1": {"units": 60, "core_percent": 25}}}},
    ]
    assert spread["pods"][0]["containers"] == {"c0": {"1": {"units": 6, "core_percent": 0}}}
    assert pack["pools"][0]["allocated_units"] == 66 and pack["pools"][0]["largest_free_units"] == 19
    # 9 and 19 GiB are free: one further pod of 6 and three; together they would be four.
    assert pack["kinds"][0] == {"name": "a", "count": 1, "placed": 1, "further": 4, "further_if_unfragmented": 4}


@pytest.mark.parametrize(
    ("pool", "pod", "ideal"),
    [
        ("gpus = [80, 80]", "memory = 1\ncore = 50", 4 - 1),
        ("gpus = [80, 80]\nslots = 3", "memory = 1", 6 - 1),
        ("gpus = [80, 80]", "memory = 60\ncore = 25", 1),
        ("gpus = [80, 80]", "memory = 2\ncore = 100\ngpus = 2", 2 - 1),
    ],
)
def test_what_there_is_least_of_bounds_the_ideal(tmp_path: Path, pool: str, pod: str, ideal: int) -> None:
    """Compute and slots did not count: 159 further pods, each with half of a GPU, on two GPUs."""
    done = clustered(tmp_path, f"[[pool]]\n{pool}\n[[pod]]\n{pod}\n", "--placement", "binpack", "--json")
    (kind,) = json.loads(done.output)["policies"][0]["kinds"]
    assert kind["further_if_unfragmented"] == ideal >= kind["further"]


def test_nodes_that_are_alike_are_filled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of each of ten thousand empty nodes was filled pod by pod."""
    calls = []
    real = cluster.place
    monkeypatch.setattr(cluster, "place", lambda *words, **more: calls.append(1) or real(*words, **more))
    values: Any = {"pool": [{"nodes": 10_000, "gpus": [10, 10]}], "pod": [{"memory": 1}]}
    found = cluster.run(read_plan(values), "spread")
    assert found.more == {"pod0": 199_999}
    assert len(calls) < 10_100, "one for each node, and 20 for each kind of rest"


def test_no_room_is_a_result_with_reasons(tmp_path: Path) -> None:
    done = clustered(tmp_path, NODE + '[[pod]]\nname = "a"\ncount = 8\nmemory = 15\n', "--placement", "binpack")
    assert done.exit_code == 7
    assert "binpack: 6 of 8 pods have room; simulated" in done.output
    assert "a-7 has no room:\n  1 nodes: 15 GiB asked for: GPU 0 has 0 of 15 GiB free, GPU 1 has 4 of 79" in done.output


def test_one_placement_that_holds_all_is_enough(tmp_path: Path) -> None:
    text = '[[pool]]\ngpus = [10, 10]\n[[pod]]\nname = "s"\ncount = 2\nmemory = 5\n[[pod]]\nname = "l"\nmemory = 10\n'
    done = clustered(tmp_path, text)
    assert done.exit_code == 0
    assert "binpack: 3 of 3" in done.output and "spread: 2 of 3" in done.output
    assert clustered(tmp_path, text, "--placement", "spread").exit_code == 7


def test_yaml_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is of cgpu-kube")
    toml = clustered(tmp_path, NODE + '[[pod]]\nname = "a"\nmemory = 6\n', "--json")
    yaml = clustered(
        tmp_path, "pool: [{name: n, gpus: [15, 79]}]\npod: [{name: a, memory: 6}]\n", "--json", name="c.yaml"
    )
    assert toml.output == yaml.output != ""


POD = "[[pod]]\nmemory = 6\n"
BOMB = "[&a0 [x, x]" + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)) + "]"


@pytest.mark.parametrize("key", ["order", "seed", "nodes", "unit", "gpus", "name", "memory", "phase", "pool"])
@pytest.mark.parametrize("value", [BOMB, f"{{x: {BOMB}}}", "0x" + 5000 * "f"])
def test_values_without_end_are_a_sentence(tmp_path: Path, key: str, value: str) -> None:
    """The value was printed whole: lists of ten times the list before have 10^29 words."""
    pytest.importorskip("yaml", reason="PyYAML is of cgpu-kube")
    values = {"order": "listed", "seed": "1", "nodes": "1", "unit": "GiB", "gpus": "[9]", "name": "a"}
    values |= {"memory": "1", "phase": "main", "pool": "pool0", key: value}
    text = (
        "order: {order}\nseed: {seed}\npool: [{{nodes: {nodes}, unit: {unit}, gpus: {gpus}}}]\n"
        "pod: [{{name: {name}, pool: {pool}, container: [{{memory: {memory}, phase: {phase}}}]}}]\n"
    )
    assert len(refused(clustered(tmp_path, text.format(**values), name="c.yaml"))) < 300


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no pool ([[pool]])"),
        (NODE, "there is no pod ([[pod]])"),
        ("x = 1\n", "the file has no key 'x'"),
        ("pool = 3\n", "pool is written [[pool]]"),
        ("[[pool]]\n" + POD, "gpus is the list of each GPU's units"),
        ("[[pool]]\ngpus = [0]\n" + POD, "gpus=0 is out of range"),
        ("[[pool]]\ngpus = [-1]\n" + POD, "gpus=-1 is out of range"),
        ("[[pool]]\ngpus = [15]\nunit = 'GB'\n" + POD, "unit='GB'"),
        ("[[pool]]\ngpus = [15]\nnodes = 20000\n" + POD, "nodes=20000 is out of range"),
        (NODE + NODE + POD, "2 of [[pool]] are called 'n'"),
        (NODE + "[[pod]]\nmemory = 0\n", "memory=0 is out of range"),
        (NODE + "[[pod]]\nmemory = -6\n", "memory=-6 is out of range"),
        (NODE + "[[pod]]\nmemory = nan\n", "memory=nan is no number"),
        (NODE + "[[pod]]\nmemory = 6\ncore = 26\n", "core=26 is no multiple of 5"),
        (NODE + "[[pod]]\nmemory = 7\ngpus = 2\n", "memory=7 cannot be divided among 2 GPUs"),
        (NODE + "[[pod]]\nname = 'a'\n", "pod a: either memory, or [[pod.container]] with it"),
        (NODE + "[[pod]]\nmemory = 6\npool = 'x'\n", "is for pool 'x', and there is no such pool"),
        (NODE + "[[pod]]\nmemory = 6\ncount = 100001\n", "count=100001 is out of range"),
        (NODE + "[[pod]]\n[[pod.container]]\nmemory = 6\nphase = 'late'\n", "phase='late'"),
        (NODE + "[[pod]]\n" + "[[pod.container]]\nname = 'c'\nmemory = 6\n" * 2, "2 containers are called 'c'"),
        ("order = 'random'\n" + NODE + POD, "order='random' is no order"),
        ("[[pool]\n", "is no TOML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, sentence: str) -> None:
    refused(clustered(tmp_path, text), sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cluster", "/nonexistent.toml"], "/nonexistent.toml: No such file or directory"),
        (["--cluster", "/nonexistent.yaml"], "/nonexistent.yaml: No such file or directory"),
        (["--cluster", "x", "--policy", "fair"], "--cluster and --policy exclude one another"),
        (["--cluster", "x", "--alone"], "--cluster and --alone exclude one another"),
        (["--cluster", "x", __file__], "--cluster and file exclude one another"),
        (["--placement", "spread"], "--placement is of --cluster"),
    ],
)
def test_bad_command_lines(words: list[str], sentence: str) -> None:
    refused(simulate(*words), sentence)


plans: Any = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["listed", "shuffled"]),
        "seed": st.integers(0, 9),
        "pool": st.lists(
            st.fixed_dictionaries(
                {
                    "nodes": st.integers(1, 4),
                    "gpus": st.lists(st.integers(1, 40), min_size=1, max_size=3),
                    "slots": st.integers(1, 5),
                }
            ),
            min_size=1,
            max_size=3,
        ),
        "pod": st.lists(
            st.fixed_dictionaries({"count": st.integers(1, 12), "memory": st.integers(1, 25)}), min_size=1, max_size=4
        ),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans, st.sampled_from(PLACEMENTS))
def test_sums_stay_within_each_gpu_and_nothing_that_fits_is_left(values: Any, policy: str) -> None:
    plan = read_plan(values)
    found = cluster.run(plan, policy)
    assert len(found.pods) == sum(kind.count for kind in plan.kinds)
    taken: dict[tuple[str, int], int] = defaultdict(int)
    on: dict[tuple[str, int], int] = defaultdict(int)
    for pod in found.pods:
        for index in pod.placement.loads if pod.node and pod.placement else ():
            assert pod.node
            taken[pod.node.name, index] += pod.kind.need.containers[0].units
            on[pod.node.name, index] += 1
    for node in found.nodes:
        for gpu in node.pool.gpus:
            assert taken[node.name, gpu.index] <= gpu.units and on[node.name, gpu.index] <= gpu.slots
    for kind in plan.kinds:
        if any(pod.node is None and pod.kind is kind for pod in found.pods):
            assert found.more[kind.name] == 0, "no pod leaves, so there was no room later either"


def test_hundreds_of_nodes_take_seconds() -> None:
    values: Any = {
        "order": "shuffled",
        "pool": [{"name": "a", "nodes": 300, "gpus": [15, 15]}, {"name": "b", "nodes": 200, "gpus": [15, 79]}],
        "pod": [{"count": 2000, "memory": 3}, {"count": 800, "memory": 10, "core": 50}, {"count": 210, "memory": 60}],
    }
    began = time.process_time()
    cluster.run(read_plan(values), "binpack")
    assert time.process_time() - began < 10
