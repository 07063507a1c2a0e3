# SPDX-License-Identifier: MIT
"""PURE: the extender's figures for Prometheus (docs/user/kubernetes.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from cgpu_common.placement import NOTHING
from cgpu_kube.ledger import Ledger

PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Scrape:
    """The input of one response."""

    ledger: Ledger
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (verb, result) -> count
    binds: Mapping[str, int] = field(default_factory=dict)
    doubts: int = 0
    watches: Mapping[str, tuple[bool, float]] = field(default_factory=dict)  # resource -> failing, s since an answer


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


def _nodes(scrape: Scrape) -> Iterator[Metric]:
    labels = ("node", "gpu", "unit")
    size = GaugeMetricFamily("cgpu_node_gpu_units", "Units of memory that the GPU offers.", labels=labels)
    taken = GaugeMetricFamily("cgpu_node_gpu_allocated_units", "Units that pods hold.", labels=labels)
    core = GaugeMetricFamily("cgpu_node_gpu_allocated_core_percent", "Compute that pods hold.", labels=labels[:2])
    count = GaugeMetricFamily("cgpu_node_gpu_containers", "GPU containers of pods on it, at most.", labels=labels[:2])
    pods = GaugeMetricFamily("cgpu_node_gpu_pods", "Pods of the node that hold GPU memory.", labels=("node",))
    unknown = GaugeMetricFamily(
        "cgpu_node_gpu_unplaced_pods", "Of those, pods whose GPU is not known: counted on each GPU.", labels=("node",)
    )
    for node in sorted(scrape.ledger.nodes.values(), key=lambda node: node.name):
        used, held = scrape.ledger.used(node.name), scrape.ledger.held(node.name)
        for gpu in node.gpus:
            load = used.get(gpu.index, NOTHING)
            where = (node.name, str(gpu.index))
            size.add_metric((*where, node.unit), gpu.units)
            taken.add_metric((*where, node.unit), load.units)
            core.add_metric(where, load.core)
            count.add_metric(where, load.slots)
        pods.add_metric((node.name,), len(held))
        unknown.add_metric((node.name,), sum(one.gpus is None for one in held))
    yield from (size, taken, core, count, pods, unknown)


class _Once:
    """A collector of prometheus-client."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._scrape)
        yield from _watches(self._scrape)
        yield from _nodes(self._scrape)


def text(scrape: Scrape) -> bytes:
    return generate_latest(_Once(scrape))
