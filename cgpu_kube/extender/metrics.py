# SPDX-License-Identifier: MIT
"""PURE: the extender's figures for Prometheus (docs/user/kubernetes.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from cgpu_common.placement import NOTHING
from cgpu_kube.ledger import Ledger, Node

PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Scrape:
    """The input of one response."""

    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (verb, result) -> count
    binds: Mapping[str, int] = field(default_factory=dict)
    doubts: int = 0
    watches: Mapping[str, tuple[bool, float]] = field(default_factory=dict)  # resource -> failing, s since an answer
    serves: bool = True


def _requests(scrape: Scrape) -> Iterator[Metric]:
    requests = CounterMetricFamily("cgpu_extender_requests", "Requests of the scheduler.", labels=("verb", "result"))
    for labels, count in sorted(scrape.requests.items()):
        requests.add_metric(labels, count)
    binds = CounterMetricFamily("cgpu_extender_binds", "Binds by their outcome.", labels=("outcome",))
    for outcome, count in sorted(scrape.binds.items()):
        binds.add_metric((outcome,), count)
    yield from (requests, binds)
    yield GaugeMetricFamily(
        "cgpu_extender_unknown_binds", "Reservations whose bind has an unknown result.", value=scrape.doubts
    )


def _serves(scrape: Scrape) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "cgpu_extender_serves", "1: this extender answers the scheduler; 0: it waits for the Lease.", int(scrape.serves)
    )


def _watches(scrape: Scrape) -> Iterator[Metric]:
    failing = GaugeMetricFamily(
        "cgpu_extender_watch_failing", "1: the last request to the API server failed.", labels=("resource",)
    )
    age = GaugeMetricFamily(
        "cgpu_extender_watch_age_seconds", "Since the last answer of the API server.", labels=("resource",)
    )
    for resource, (is_failing, seconds) in sorted(scrape.watches.items()):
        failing.add_metric((resource,), int(is_failing))
        age.add_metric((resource,), seconds)
    yield from (failing, age)


#: Of each node: name, labels of a sample, help.
NODE = {
    "cgpu_node_gpu_units": "Units of memory that the GPU offers.",
    "cgpu_node_gpu_allocated_units": "Units that pods hold.",
    "cgpu_node_gpu_allocated_core_percent": "Compute that pods hold.",
    "cgpu_node_gpu_containers": "GPU containers of pods on it, at most.",
    "cgpu_node_gpu_pods": "Pods of the node that hold GPU memory.",
    "cgpu_node_gpu_unplaced_pods": "Of those, pods whose GPU is not known: counted on each GPU.",
}


class Nodes:
    """The figures of nodes as text, one node after the other: of thousands they take a tenth of a second, in which the
    scheduler's requests must not wait."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in NODE}

    def add(self, ledger: Ledger, node: Node) -> None:
        used = ledger.used(node.name)
        name, unit = _escaped(node.name), _escaped(node.unit)
        for gpu in node.gpus:
            load = used.get(gpu.index, NOTHING)
            where = f'{{gpu="{gpu.index}",node="{name}"'
            self._lines["cgpu_node_gpu_units"].append(f'{where},unit="{unit}"}} {float(gpu.units)}')
            self._lines["cgpu_node_gpu_allocated_units"].append(f'{where},unit="{unit}"}} {float(load.units)}')
            self._lines["cgpu_node_gpu_allocated_core_percent"].append(f"{where}}} {float(load.core)}")
            self._lines["cgpu_node_gpu_containers"].append(f"{where}}} {float(load.slots)}")
        count, unknown = ledger.counts(node.name)
        self._lines["cgpu_node_gpu_pods"].append(f'{{node="{name}"}} {float(count)}')
        self._lines["cgpu_node_gpu_unplaced_pods"].append(f'{{node="{name}"}} {float(unknown)}')

    def families(self) -> Iterator[bytes]:
        for name, lines in self._lines.items():
            head = f"# HELP {name} {NODE[name]}\n# TYPE {name} gauge\n"
            yield (head + "".join(f"{name}{line}\n" for line in lines)).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Once:
    """A collector of prometheus-client."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._scrape)
        yield from _serves(self._scrape)
        yield from _watches(self._scrape)


def text(scrape: Scrape) -> bytes:
    """Without the nodes."""
    return generate_latest(_Once(scrape))
