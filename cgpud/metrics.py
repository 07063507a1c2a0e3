# SPDX-License-Identifier: MIT
"""PURE: a snapshot of /proc/cgpu_km as metrics. A test compares them with the table in docs/user/metrics.md.

The series of a container end with it, so their number is bounded by that of the containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

from cgpu_common import waits
from cgpu_common.model import MIB, VIDEO_ENGINES, KernelGpu, Slot, Snapshot
from cgpu_common.share import allowed_pct

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


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a GPU or of a container on a GPU; without a sample where `value` is None."""

    name: str
    help: str
    value: Callable[..., float | None]

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")

    def family(self, labels: tuple[str, ...]) -> Any:
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=labels)


def _stat(name: str, scale: float = 1) -> Callable[[KernelGpu, Slot], float | None]:
    return lambda _gpu, slot: slot.stat[name] * scale if name in slot.stat else None


def _gpu_stat(name: str, scale: float = 1) -> Callable[[KernelGpu], float | None]:
    return lambda gpu: gpu.stat[name] * scale if name in gpu.stat else None


def _allowed(gpu: KernelGpu, slot: Slot) -> float | None:
    percent = allowed_pct(gpu, slot)
    return None if percent is None else percent / 100


NS, US = 1e-9, 1e-6

SLOT_FIGURES = (
    Figure("cgpu_container_gpu_seconds_total", "Time the container could run on the GPU.", _stat("gpu_ns", NS)),
    Figure(
        "cgpu_container_wait_seconds_total",
        "Time the container was frozen while it had the GPU open: it was out of turn.",
        _stat("wait_ns", NS),
    ),
    Figure(
        "cgpu_container_throttled_seconds_total",
        "The part of the wait in which the container's ceiling was used up.",
        _stat("throttled_ns", NS),
    ),
    Figure(
        "cgpu_container_unsure_seconds_total",
        "Time in which it is not known whether the container ran: the last control call had failed.",
        _stat("unsure_ns", NS),
    ),
    Figure("cgpu_container_turns_total", "Turns the container had.", _stat("turns")),
    Figure("cgpu_container_overruns_total", "Turns that ended more than a tenth of a slice late.", _stat("overruns")),
    Figure(
        "cgpu_container_slow_preemptions_total", "Freezes held up by the container's kernels.", _stat("preempt_slow")
    ),
    Figure("cgpu_container_failed_control_calls_total", "Freezes and thaws that failed.", _stat("failed_calls")),
    Figure(
        "cgpu_container_refused_allocations_total",
        "Allocations refused for being over the limit.",
        _stat("refused_allocs"),
    ),
    Figure("cgpu_container_refused_calls_total", "Calls refused by the call table.", _stat("refused_calls")),
    Figure("cgpu_container_memory_limit_bytes", "Memory limit.", lambda _gpu, slot: slot.limit),
    Figure("cgpu_container_memory_used_bytes", "Memory charged.", _stat("used_bytes")),
    Figure("cgpu_container_memory_peak_bytes", "Most memory charged at a time.", _stat("peak_bytes")),
    Figure(
        "cgpu_container_bar1_used_bytes",
        "Video memory mapped for the processor, in the GPU's window for that (BAR1).",
        _stat("bar1_bytes"),
    ),
    *(
        Figure(
            f"cgpu_container_{kind}_sessions", f"Sessions of {kind.upper()}: objects of the video engine.", _stat(kind)
        )
        for kind in VIDEO_ENGINES
    ),
    Figure(
        "cgpu_container_host_memory_limit_bytes",
        "Limit of system memory by the driver, of the whole container; 0: none.",
        _stat("host_limit_bytes"),
    ),
    Figure(
        "cgpu_container_host_memory_used_bytes",
        "System memory that the driver allocated for the whole container.",
        _stat("host_used_bytes"),
    ),
    Figure(
        "cgpu_container_host_memory_refused_total",
        "Allocations of system memory refused for being over that limit.",
        _stat("host_refused_allocs"),
    ),
    Figure("cgpu_container_weight", "Slices per round.", lambda _gpu, slot: slot.weight),
    Figure("cgpu_container_ceiling", "Most slices per round under burst; 0: none.", lambda _gpu, slot: slot.ceiling),
    Figure("cgpu_container_high_priority", "1: high priority.", lambda _gpu, slot: int(slot.highprio)),
    Figure(
        "cgpu_container_allowed_ratio",
        "Most of its share while all with the GPU open have work; absent under the native policy.",
        _allowed,
    ),
    Figure("cgpu_container_running", "1: it may run now.", _stat("running")),
    Figure(
        "cgpu_container_opened", "1: it has a live channel of a graphics, compute or video engine.", _stat("opened")
    ),
    Figure("cgpu_container_enforced", "1: working controls hold it to its policy.", _stat("enforced")),
    Figure("cgpu_container_dying", "1: destroyed, and its end is not over.", lambda _gpu, slot: int(slot.dying)),
)

#: Those of a pod's containers once more, by the pod.
POD_FIGURES = tuple(
    Figure(figure.name.replace("cgpu_", "cgpu_pod_", 1), figure.help, figure.value)
    for figure in SLOT_FIGURES
    if figure.name.removeprefix("cgpu_container_")
    in {
        *("gpu_seconds_total", "wait_seconds_total", "throttled_seconds_total"),
        *("refused_allocations_total", "weight", "opened"),
        *("memory_limit_bytes", "memory_used_bytes", "memory_peak_bytes"),
    }
)

GPU_FIGURES = (
    Figure("cgpu_gpu_policy", "By number: docs/reference/policies.md.", lambda gpu: gpu.policy),
    Figure("cgpu_gpu_slice_seconds", "Length of a slice of weight 1.", lambda gpu: gpu.slice_us * US),
    Figure("cgpu_gpu_priority_ratio", "Quota of high priority.", lambda gpu: gpu.prio_ratio / 100),
    Figure("cgpu_gpu_instances", "Containers on the GPU, dying ones included.", _gpu_stat("instances")),
    Figure("cgpu_gpu_max_instances", "Most containers, and slices per round.", lambda gpu: gpu.max_inst),
    Figure("cgpu_gpu_free_weight", "Slices per round that no container has.", lambda gpu: gpu.free_weight),
    Figure("cgpu_gpu_memory_total_bytes", "The card's memory; 0 while not yet known.", _gpu_stat("total_bytes")),
    Figure(
        "cgpu_gpu_memory_limits_bytes",
        "Sum of the containers' limits, and what is held of destroyed ones.",
        _gpu_stat("limits_bytes"),
    ),
    Figure(
        "cgpu_gpu_memory_used_bytes",
        "Sum of what the containers are charged, and what is held of destroyed ones.",
        _gpu_stat("used_bytes"),
    ),
    Figure(
        "cgpu_gpu_memory_ended_bytes",
        "Part of it that is held of destroyed containers: /proc/cgpu_km/ended.",
        _gpu_stat("ended_bytes"),
    ),
    Figure(
        "cgpu_gpu_memory_driver_used_bytes",
        "In use by the driver's own account; 0 while no container exists.",
        _gpu_stat("driver_used_bytes"),
    ),
    Figure(
        "cgpu_gpu_memory_unattributed_bytes",
        "Part of it that no container is charged for.",
        _gpu_stat("unattributed_bytes"),
    ),
    Figure("cgpu_gpu_memory_context_bytes", "Charge for a context.", _gpu_stat("context_bytes")),
    Figure("cgpu_gpu_turns_total", "Turns given.", _gpu_stat("turns")),
    Figure(
        "cgpu_gpu_sched_thread_cpu_seconds_total", "CPU time of the scheduler thread.", _gpu_stat("thread_cpu_ns", NS)
    ),
    Figure("cgpu_gpu_control_calls_total", "Control calls.", _gpu_stat("control_calls")),
    Figure("cgpu_gpu_control_failures_total", "Control calls that failed.", _gpu_stat("control_failed")),
)


#: NVML's values of the whole card: metric, its help, the key of a row, what a value is multiplied by.
SENSORS = (
    ("cgpu_gpu_utilization_ratio", "Part of the time in which a kernel ran, by NVML.", "utilization_pct", 0.01),
    (
        "cgpu_gpu_memory_utilization_ratio",
        "Part of the time in which memory was read or written, by NVML.",
        "memory_utilization_pct",
        0.01,
    ),
    ("cgpu_gpu_sm_active_ratio", "Multiprocessors with work, by NVML's GPM.", "sm_active_pct", 0.01),
    ("cgpu_gpu_dram_active_ratio", "Used part of the memory's bandwidth, by NVML's GPM.", "dram_active_pct", 0.01),
    ("cgpu_gpu_temperature_celsius", "Of the GPU, by NVML.", "temperature_c", 1),
    ("cgpu_gpu_power_watts", "Drawn, by NVML.", "power_mw", 0.001),
    ("cgpu_gpu_power_limit_watts", "In force, by NVML.", "power_limit_mw", 0.001),
)
WAITS_HELP = "Waits for a turn; each ended in one."


def _waits(name: str, labels: tuple[str, ...], places: Iterable[tuple[Slot, tuple[str, ...]]]) -> Metric:
    """The histogram; without a sample of a module that has none."""
    family = HistogramMetricFamily(name, WAITS_HELP, labels=labels)
    for slot, values in places:
        found = waits.of_stat(slot.stat)
        if found is not None:
            buckets = [(f"{ns * NS:g}", float(count)) for ns, count in found.below]
            family.add_metric(values, [*buckets, ("+Inf", float(found.count))], found.sum_ns * NS)
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


def _of_slots(snapshot: Snapshot) -> Iterator[Metric]:
    places = _slot_places(snapshot)
    for figure in SLOT_FIGURES:
        family = figure.family(SLOT_LABELS)
        for gpu, slot, labels in places:
            value = figure.value(gpu, slot)
            if value is not None:
                family.add_metric(labels, value)
        yield family
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
    for figure in POD_FIGURES:
        family = figure.family(POD_LABELS)
        for gpu, slot, labels in known_pods:
            value = figure.value(gpu, slot)
            if value is not None:
                family.add_metric(labels, value)
        yield family
    waiting = [(slot, labels) for _, slot, labels in known_pods]
    yield _waits("cgpu_pod_container_turn_wait_seconds", POD_LABELS, waiting)
    yield _memory("cgpu_pod_container_memory_kind_bytes", POD_LABELS, known_pods)


def _of_gpus(snapshot: Snapshot) -> Iterator[Metric]:
    places = [(gpu, (str(gpu.index), gpu.uuid)) for gpu in snapshot.gpus]
    for figure in GPU_FIGURES:
        family = figure.family(GPU_LABELS)
        for gpu, labels in places:
            value = figure.value(gpu)
            if value is not None:
                family.add_metric(labels, value)
        yield family
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
                latency.add_metric((*labels, percentile), gpu.stat[name] * US)
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
    rows = {gpu.index: sensors_of(daemon, gpu) for gpu in snapshot.gpus}
    for name, about, key, scale in SENSORS:
        family = GaugeMetricFamily(name, about, labels=GPU_LABELS)
        for gpu in snapshot.gpus:
            value = rows[gpu.index].get(key)
            if value is not None:
                family.add_metric((str(gpu.index), gpu.uuid), value * scale)
        yield family


#: NVML's samples of processes, added up by container: metric without its prefix, help, key of a process.
USES = (
    (
        "container_sm_utilization_ratio",
        "Part of the time in which a kernel of the container ran, by NVML's latest samples of its processes.",
        "sm_pct",
    ),
    (
        "container_memory_utilization_ratio",
        "Part of the time in which it read or wrote memory, by the same samples.",
        "memory_pct",
    ),
)


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
    kinds = (
        ("cgpu_", SLOT_LABELS, _slot_places(snapshot)),
        ("cgpu_pod_", POD_LABELS, _pod_places(scrape, snapshot)),
    )
    for prefix, labels, places in kinds:
        for name, about, key in USES:
            family = GaugeMetricFamily(prefix + name, about, labels=labels)
            for gpu, slot, values in places:
                if (value := _use(scrape, gpu, slot, rows[gpu.index], key)) is not None:
                    family.add_metric(values, value)
            yield family


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


#: Of containers that are clients of MPS: metric, its help, the key of a row, what a value is multiplied by.
MPS = (
    ("cgpu_mps_container_memory_grant_bytes", "Given to the container: cooperative, watched.", "grant_mib", MIB),
    ("cgpu_mps_container_memory_used_bytes", "Of its processes, by NVML.", "used_mib", MIB),
    ("cgpu_mps_container_over_grant_total", "Times that it used more than it was given.", "overs", 1),
    ("cgpu_mps_container_ended_total", "Processes that were ended on the GPU for it.", "ended", 1),
)


def _of_mps(daemon: DaemonFigures) -> Iterator[Metric]:
    """Without a sample where NVML gives no answer."""
    for name, about, key, scale in MPS:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, about, labels=MPS_LABELS)
        for row in daemon.mps:
            namespace, _, pod = _utf8(row["pod"]).partition("/")
            labels = (namespace, pod, _utf8(row["container"]), _utf8(row["id"]), row["uuid"])
            if row[key] is not None:
                family.add_metric(labels, row[key] * scale)
        yield family
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
