# SPDX-License-Identifier: MIT
"""The dashboards by Grafana's own types, and every query of theirs evaluated by Prometheus on cgpud's figures."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_tree import ID1, ID2, Tree, inst_line, write
from grafana import Board, faults
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_server import Family, Server, serving
from test_metrics import GPU_STAT, SLOT_STAT

from cgpu_common.proc import Paths
from cgpud import metrics
from cgpud.exporter import Reader

PAGES = Path(__file__).resolve().parents[3] / "docs/user/grafana"
BOARDS: dict[str, Board] = {name: json.loads((PAGES / f"{name}.json").read_text()) for name in ("cgpu", "cluster")}
CARD: dict[str, Any] = {"uuid": "GPU-00000000-1111-2222-3333-444455556666", "utilization_pct": 30}
CARD |= {"processes": [{"pid": 19772, "sm_pct": 21, "memory_pct": 7}]}
FIGURES = metrics.DaemonFigures({"refused": 3}, {"sliced": 5, "unsliced": 1, "refused": 2}, True, {0: 2}, (CARD,))
#: The extender's, the agent's, kube-state-metrics' and those of MPS, of which test_extender, test_monitoring and
#: test_metrics hold names and labels.
OTHERS = """\
cgpu_node_gpu_units{node="a",gpu="0",unit="GiB"} 15
cgpu_node_gpu_units{node="b",gpu="0",unit="GiB"} 15
cgpu_node_gpu_allocated_units{node="a",gpu="0",unit="GiB"} 14
cgpu_node_gpu_allocated_units{node="b",gpu="0",unit="GiB"} 6
cgpu_node_gpu_pods{node="a"} 1
cgpu_node_gpu_pods{node="b"} 1
cgpu_node_gpu_unplaced_pods{node="a"} 0
cgpu_node_gpu_unplaced_pods{node="b"} 0
cgpu_extender_watch_failing{resource="pods"} 0
cgpu_extender_unknown_binds 0
cgpu_extender_binds_total{outcome="bound"} 4
cgpu_extender_requests_total{verb="filter",result="ok"} 9
cgpu_node_agent_ready{node="a"} 1
cgpu_node_agent_ready{node="b"} 1
cgpu_node_agent_decisions_total{node="a",result="granted"} 3
cgpu_mps_container_memory_used_bytes{namespace="ml",pod="mps-0",container="main",gpu="0"} 1000
cgpu_mps_container_memory_grant_bytes{namespace="ml",pod="mps-0",container="main",gpu="0"} 2000
cgpu_mps_ended_total{result="killed"} 1
kube_pod_info{namespace="ml",pod="train-0",node="a",created_by_name="train",instance="state"} 1
kube_pod_info{namespace="ml",pod="serve-0",node="b",created_by_name="serve",instance="state"} 1
"""
#: Series that a query of both nodes gives, where that is not one for each of the four containers or the two GPUs.
SERIES = {
    "cgpu_module_loaded": 2,
    "cgpu_draining": 2,
    "cgpu_gpu_control_latency_seconds": 4,  # p50 and p99
    "cgpu_admissions_total": 6,  # three results
    "cgpu_kernel_events_total": 2,
}
VARIABLES = {"$__rate_interval": "1m", "$node": ".*", "$gpu": ".*", "$namespace": ".*", "${datasource}": "p"}


def scrape(root: Path, pod: str) -> str:
    """A node with one GPU, a container of a pod and one of Docker."""
    tree = Tree(root)
    write(tree.proc / "version", "0.1.0")
    tree.gpu(0, stat=GPU_STAT)
    stat = SLOT_STAT.replace("enforced 1", "enforced 0")  # a panel shows these alone
    tree.slot(0, ID1, stat=stat)
    tree.slot(0, ID2, stat=stat, weight=2)
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7))
    write(root / f"var/lib/docker/containers/{ID2}/config.v2.json", json.dumps({"Name": "/gpu_test2"}))
    names = {"container-name": "main", "image-name": "image", "sandbox-name": pod, "sandbox-namespace": "ml"}
    annotations = {f"io.kubernetes.cri.{key}": value for key, value in names.items()}
    write(root / "bundle/config.json", json.dumps({"annotations": annotations}))
    reading = Reader(Paths.below(str(root))).scrape({ID1: str(root / "bundle")}, FIGURES)
    return metrics.text(reading, "text/plain")[0].decode()


def figures(texts: Mapping[str, str]) -> dict[str, Family]:
    """Instance -> its text, as Prometheus keeps it after a scrape of each."""
    found: dict[str, Family] = {}
    for instance, text in texts.items():
        for family in parse(text):
            for sample in family.samples:
                kind = "counter" if sample.name.endswith("_total") else family.type
                labels = {"instance": instance, "job": "cgpu"} | sample.labels
                found.setdefault(sample.name, (kind, {}))[1][tuple(labels.items())] = sample.value
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("prometheus")
    texts = {f"{name}:9400": scrape(folder / name, pod) for name, pod in (("a", "train-0"), ("b", "serve-0"))}
    with serving(folder, figures(texts | {"extender:80": OTHERS})) as server:
        yield server


def filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


TARGETS = [
    pytest.param(panel, target, id=f"{name}: {panel['title']} {target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize(("panel", "target"), TARGETS)
def test_every_query_draws_something(server: Server, panel: Board, target: Board) -> None:
    query = target["expr"]
    assert "$" not in filled(query), "a variable that the dashboard does not define"
    found = server.series(filled(query))
    assert found and all(len(values) == 6 and values[-1] == values[-1] for _, values in found), "gaps, or no number"
    wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    if "cgpu_container_info" in query:
        (ours, docker) = ([labels for labels, _ in found if labels["container"] == one[:12]] for one in (ID1, ID2))
        assert all(wanted <= labels.keys() for labels in ours), "of a pod every label of the legend"
        assert all(wanted - {"pod", "namespace"} <= labels.keys() for labels in docker)
        assert len(ours) == len(docker) == 2, "one of each node"
        return
    assert all(wanted <= labels.keys() for labels, _ in found), found
    legends = [tuple(labels.get(name) for name in sorted(wanted)) for labels, _ in found]
    assert len(set(legends)) == len(legends), "two lines with one legend"
    name = re.findall(r"cgpu_\w+", query)[0]
    if "instance" in wanted:
        assert len(found) == SERIES.get(name, 2), found


def test_the_variables_offer_the_nodes(server: Server) -> None:
    offered = {}
    for board in BOARDS.values():
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                match, label = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]).groups()  # type: ignore[union-attr]
                offered[one["name"]] = server.label_values(label, filled(match))
    assert offered == {"node": ["a:9400", "b:9400"], "gpu": ["0"], "namespace": ["ml"]}


@pytest.mark.parametrize("name", BOARDS)
def test_it_is_what_grafana_reads(name: str) -> None:
    assert faults(BOARDS[name]) == []


def _panel(board: Board) -> Any:
    return next(panel for panel in board["panels"] if panel["type"] == "timeseries")


MISTAKES: dict[str, Callable[[Board], object]] = {
    "legendFromat": lambda board: _panel(board)["targets"][0].update(legendFromat="x"),
    "drawStlye": lambda board: (
        _panel(board)["fieldConfig"]["defaults"].setdefault("custom", {}).update(drawStlye="line")
    ),
    "unit": lambda board: _panel(board)["fieldConfig"]["defaults"].update(unit=5),
    "grid_pos": lambda board: _panel(board)["gridPos"].update(w="12"),
    "'quary'": lambda board: board["templating"]["list"][0].update(type="quary"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    board = copy.deepcopy(BOARDS["cgpu"])
    MISTAKES[mistake](board)
    (fault,) = faults(board)
    assert mistake in fault


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert 0 <= x < 24 and (x, y) not in taken, (panel["title"], taken.get((x, y)))
                taken[x, y] = panel["title"]
    assert len(taken) == 24 * (1 + max(y for _, y in taken)), "no hole"
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_the_policy_is_shown_by_its_name() -> None:
    """Of the metric: a new policy changes no dashboard."""
    (panel,) = (one for one in BOARDS["cgpu"]["panels"] if one["title"] == "Policy")
    assert panel["options"]["textMode"] == "name"
    (target,) = panel["targets"]
    assert "cgpu_gpu_info" in target["expr"] and "{{policy}}" in target["legendFormat"]
