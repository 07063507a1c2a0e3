# SPDX-License-Identifier: MIT
"""PURE: a snapshot of /proc/cgpu_km as metrics. A test compares them with the table in docs/user/metrics.md.

The series of a container end with it, so their number is bounded by that of the containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from cgpu_common import figures, waits
from cgpu_common.figures import Figure
from cgpu_common.model import KernelGpu, Slot, Snapshot

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

GPU_LABELS = ("gpu", "uuid")
SLOT_LABELS = ("container", *GPU_LABELS)
#: As kube-state-metrics names them, so that series join without label_replace: here `container` is its name in the pod.
POD_LABELS = ("namespace", "pod", "container", *GPU_LABELS)
MPS_LABELS = ("namespace", "pod", "container", "id", "uuid")  # the first three are empty outside of Kubernetes
CONTROLS = ("freeze", "timeslice")


@dataclass(frozen=True, slots=True)
class DaemonFigures:
    """What the daemon itself counts and knows."""

    kernel_events: Mapping[str, int] = field(default_factory=dict)
    admissions: Mapping[str, int] = field(default_factory=dict)  # starts by result
    draining: bool = False
    drift: Mapping[int, int] = field(default_factory=dict)  # GPU index -> settings that differ from cgpu.toml
    sensors: Sequence[Mapping[str, Any]] = ()  # NVML's values, the rows of the answer to `gpus`
    mps: Sequence[Mapping[str, Any]] = ()  # the rows of the answer to `mps`
    mps_blind: bool = False
    mps_ended: Mapping[str, int] = field(default_factory=dict)  # clients, by result
    free: Mapping[int, int] = field(default_factory=dict)  # GPU index -> bytes that one more container may have


@dataclass(frozen=True, slots=True)
class Scrape:
    """The input of one response."""

    snapshot: Snapshot | None  # None: the module is not loaded
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # container id -> name, image, pod, namespace
    #: Of GPUs that NVML has samples of: (GPU index, directory of a slot) -> the processes that hold its memory.
    processes: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    daemon: DaemonFigures = field(default_factory=DaemonFigures)
    version: str = ""


CONTAINERS = [one for one in (*figures.SLOT, *figures.SLOT_METRICS) if one.metric]
PODS = [one for one in CONTAINERS if one.metric in figures.OF_PODS]  # those of a pod's containers once more, by the pod
GPUS = [one for one in (*figures.GPU, *figures.GPU_METRICS) if one.metric]

#: Values of the labels, and what gives the value of a figure; None: no sample.
Row = tuple[tuple[str, ...], Callable[[Figure], float | None]]


def _series(prefix: str, rows: Sequence[Figure], labels: tuple[str, ...], places: Sequence[Row]) -> Iterator[Metric]:
    for one in rows:
        if one.metric:
            kind = CounterMetricFamily if one.metric.endswith("_total") else GaugeMetricFamily
            family = kind(prefix + one.metric, one.help, labels=labels)
            for values, sample in places:
                if (found := sample(one)) is not None:
                    family.add_metric(values, found)
            yield family


def _of_row(row: Mapping[str, Any]) -> Callable[[Figure], float | None]:
    """The value that a row of the daemon has."""
    return lambda one: None if row.get(one.key) is None else row[one.key] * one.measure.base


WAITS_HELP = "Waits for a turn; each ended in one."


def _waits(name: str, labels: tuple[str, ...], places: Iterable[tuple[Slot, tuple[str, ...]]]) -> Metric:
    """The histogram; without a sample of a module that has none."""
    family = HistogramMetricFamily(name, WAITS_HELP, labels=labels)
    for slot, values in places:
        found = waits.of_stat(slot.stat)
        if found is not None:
            buckets = [(f"{ns * 1e-9:g}", float(count)) for ns, count in found.below]
            family.add_metric(values, [*buckets, ("+Inf", float(found.count))], found.sum_ns * 1e-9)
    return family


MEMORY_KINDS = ("data", "context", "managed", "imported", "tables")


def _memory(name: str, labels: tuple[str, ...], places: Iterable[Place]) -> Metric:
    """The charged memory by kind; without a sample of a module that has none."""
    family = GaugeMetricFamily(name, "What the memory is charged for.", labels=(*labels, "kind"))
    for _, slot, values in places:
        for kind in MEMORY_KINDS:
            if (found := slot.stat.get(f"used_{kind}_bytes")) is not None:
                family.add_metric((*values, kind), found)
    return family


Place = tuple[KernelGpu, Slot, tuple[str, ...]]  #: with the labels


def _slot_places(snapshot: Snapshot) -> list[Place]:
    return [(gpu, slot, (slot.dir, str(gpu.index), gpu.uuid)) for gpu in snapshot.gpus for slot in gpu.slots]


def _rows(places: Iterable[Place]) -> list[Row]:
    return [(labels, partial(Figure.sample, gpu=gpu, slot=slot)) for gpu, slot, labels in places]


def _of_slots(snapshot: Snapshot) -> Iterator[Metric]:
    places = _slot_places(snapshot)
    yield from _series("cgpu_container_", CONTAINERS, SLOT_LABELS, _rows(places))
    yield _waits("cgpu_container_turn_wait_seconds", SLOT_LABELS, [(slot, labels) for _, slot, labels in places])
    yield _memory("cgpu_container_memory_kind_bytes", SLOT_LABELS, places)


def _pod_places(scrape: Scrape, snapshot: Snapshot) -> list[Place]:
    """Those of containers in pods."""
    places = []
    for gpu in snapshot.gpus:
        for slot in gpu.slots:
            known = scrape.labels.get(slot.id, {})
            found = [_utf8(known.get(label, "")) for label in ("namespace", "pod", "name")]
            if all(found) and not slot.dying:  # its successor in the pod has the same names
                places.append((gpu, slot, (*found, str(gpu.index), gpu.uuid)))
    return list({place[2]: place for place in places}.values())


def _of_pods(scrape: Scrape, snapshot: Snapshot) -> Iterator[Metric]:
    known_pods = _pod_places(scrape, snapshot)
    yield from _series("cgpu_pod_container_", PODS, POD_LABELS, _rows(known_pods))
    waiting = [(slot, labels) for _, slot, labels in known_pods]
    yield _waits("cgpu_pod_container_turn_wait_seconds", POD_LABELS, waiting)
    yield _memory("cgpu_pod_container_memory_kind_bytes", POD_LABELS, known_pods)


def _of_gpus(snapshot: Snapshot) -> Iterator[Metric]:
    places = [(gpu, (str(gpu.index), gpu.uuid)) for gpu in snapshot.gpus]
    rows: list[Row] = [(labels, partial(Figure.sample, gpu=gpu)) for gpu, labels in places]
    yield from _series("cgpu_gpu_", GPUS, GPU_LABELS, rows)
    info = InfoMetricFamily("cgpu_gpu", "The GPU.", labels=GPU_LABELS)
    control = GaugeMetricFamily("cgpu_gpu_control_available", "1: the control works.", labels=(*GPU_LABELS, "control"))
    latency = GaugeMetricFamily(
        "cgpu_gpu_control_latency_seconds",
        "How long a control call took: percentiles 50 and 99 of the latest 128, and 100 of all.",
        labels=(*GPU_LABELS, "percentile"),
    )
    for gpu, labels in places:
        card = {"pci": gpu.pci, "model": gpu.name, "minor": str(gpu.nv_minor)}
        info.add_metric(labels, card | {"policy": gpu.facts.name})
        for name in CONTROLS:
            control.add_metric((*labels, name), int(name in gpu.control.split(",")))
        for percentile, name in (("50", "control_p50_us"), ("99", "control_p99_us"), ("100", "control_max_us")):
            if name in gpu.stat:
                latency.add_metric((*labels, percentile), gpu.stat[name] * 1e-6)
    yield from (info, control, latency)


def sensors_of(daemon: DaemonFigures, gpu: KernelGpu) -> Mapping[str, Any]:
    """NVML's row of the GPU; {}: it has none."""
    for key, own in (("uuid", gpu.uuid), ("pci", gpu.pci)):
        for row in daemon.sensors:
            if str(row.get(key, "")).lower() == own.lower():
                return row
    return {}


def _of_sensors(daemon: DaemonFigures, snapshot: Snapshot) -> Iterator[Metric]:
    """Without a sample where the card does not measure it, or NVML gives no answer."""
    rows = [((str(gpu.index), gpu.uuid), _of_row(sensors_of(daemon, gpu))) for gpu in snapshot.gpus]
    yield from _series("cgpu_gpu_", figures.CARD, GPU_LABELS, rows)


def _use(scrape: Scrape, gpu: KernelGpu, slot: Slot, row: Mapping[str, Any], key: str) -> float | None:
    """None: the driver has no samples of processes, though the GPU works. Samples of two processes can be of other
    moments, so their sum can exceed the whole."""
    samples: dict[int, int] = {one["pid"]: one[key] for one in row.get("processes") or ()}
    if not samples and row.get("utilization_pct") != 0:
        return None
    own = scrape.processes.get((gpu.index, slot.dir), ())
    return min(sum(samples.get(pid, 0) for pid in own), 100) / 100


def _of_use(scrape: Scrape, snapshot: Snapshot) -> Iterator[Metric]:
    rows = {gpu.index: sensors_of(scrape.daemon, gpu) for gpu in snapshot.gpus}

    def of(gpu: KernelGpu, slot: Slot) -> Callable[[Figure], float | None]:
        return lambda one: _use(scrape, gpu, slot, rows[gpu.index], one.key)

    own = [(labels, of(gpu, slot)) for gpu, slot, labels in _slot_places(snapshot)]
    pods = [(labels, of(gpu, slot)) for gpu, slot, labels in _pod_places(scrape, snapshot)]
    yield from _series("cgpu_container_", figures.USES, SLOT_LABELS, own)
    yield from _series("cgpu_pod_container_", figures.USES, POD_LABELS, pods)


def _utf8(text: str) -> str:
    """Replace lone surrogates, which JSON can contain: they would make the whole response fail."""
    return text.encode(errors="replace").decode()


def _of_containers(scrape: Scrape, snapshot: Snapshot) -> Iterator[Metric]:
    info = InfoMetricFamily("cgpu_container", "The container, as its engine names it.", labels=("container",))
    for container in snapshot.containers:
        labels = {label: _utf8(value) for label, value in scrape.labels.get(container.id, {}).items()}
        info.add_metric((container.dir,), {"id": container.id, **labels})
    yield info


def _of_daemon(daemon: DaemonFigures) -> Iterator[Metric]:
    admissions = CounterMetricFamily(
        "cgpu_admissions_total", "Container starts with cGPU variables or a grant, by result.", labels=("result",)
    )
    for result, count in sorted(daemon.admissions.items()):
        admissions.add_metric((result,), count)
    yield admissions
    yield GaugeMetricFamily("cgpu_draining", "1: new slices are refused (cgpu drain).", value=int(daemon.draining))


def _of_mps(daemon: DaemonFigures) -> Iterator[Metric]:
    """Without a sample where NVML gives no answer."""
    rows = []
    for row in daemon.mps:
        namespace, _, pod = _utf8(row["pod"]).partition("/")
        rows.append(((namespace, pod, _utf8(row["container"]), _utf8(row["id"]), row["uuid"]), _of_row(row)))
    yield from _series("cgpu_mps_container_", figures.MPS, MPS_LABELS, rows)
    watched = "1: what clients of MPS use is known."
    yield GaugeMetricFamily("cgpu_mps_watched", watched, value=int(not daemon.mps_blind))
    ended = CounterMetricFamily("cgpu_mps_ended_total", "Processes over a grant, by result.", labels=("result",))
    for result, count in sorted(daemon.mps_ended.items()):
        ended.add_metric((result,), count)
    yield ended


def _by_index(name: str, about: str, values: Mapping[int, int], snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily(name, about, labels=GPU_LABELS)
    for gpu in snapshot.gpus:
        if gpu.index in values:
            family.add_metric((str(gpu.index), gpu.uuid), values[gpu.index])
    return family


def families(scrape: Scrape) -> Iterator[Metric]:
    yield GaugeMetricFamily("cgpu_module_loaded", "1: cgpu_km is loaded.", value=int(scrape.snapshot is not None))
    module = {"module": scrape.snapshot.module} if scrape.snapshot is not None else {}
    yield InfoMetricFamily("cgpu_build", "Versions.", value={"cgpud": scrape.version, **module})
    events = CounterMetricFamily(
        "cgpu_kernel_events_total", "Events received from the module; resync: some were lost.", labels=("kind",)
    )
    for kind, count in sorted(scrape.daemon.kernel_events.items()):
        events.add_metric((kind,), count)
    yield events
    yield from _of_daemon(scrape.daemon)
    yield from _of_mps(scrape.daemon)
    if scrape.snapshot is not None:
        drift, free, there = scrape.daemon.drift, scrape.daemon.free, scrape.snapshot
        yield _by_index("cgpu_gpu_settings_drift", "Settings whose value differs from cgpu.toml.", drift, there)
        yield _by_index("cgpu_gpu_memory_free_bytes", "Largest limit that one more container gets.", free, there)
        yield from _of_containers(scrape, scrape.snapshot)
        yield from _of_slots(scrape.snapshot)
        yield from _of_pods(scrape, scrape.snapshot)
        yield from _of_gpus(scrape.snapshot)
        yield from _of_sensors(scrape.daemon, scrape.snapshot)
        yield from _of_use(scrape, scrape.snapshot)


class _Once:
    """A collector of prometheus-client."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        return families(self._scrape)


def text(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """Body and content type: OpenMetrics if the client accepts it."""
    if "application/openmetrics-text" in accept:
        return openmetrics_text(_Once(scrape)), OPENMETRICS  # type: ignore[no-untyped-call]
    return plain_text(_Once(scrape)), PLAIN
