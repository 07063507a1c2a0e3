# SPDX-License-Identifier: MIT
"""PURE: what cgpu shows of a GPU and of a container on it: a row for each value.

--json, the columns of the queries, the metrics and the help come from these rows; the schemas and docs/user/metrics.md
are held to them by tests/unit/daemon/test_metrics.py and tests/unit/cli/test_schemas.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from cgpu_common import policies
from cgpu_common.model import MIB, VIDEO_ENGINES, KernelGpu, Slot, slot_state
from cgpu_common.share import allowed_pct


class Unit(NamedTuple):
    """By the end of a field's name. @per: what people's unit has of it; @base: of it in the unit of metrics."""

    name: str
    per: float
    digits: int
    base: float


UNITS = {
    "_bytes": Unit("MiB", MIB, 0, 1),
    "_mib": Unit("MiB", 1, 0, MIB),
    "_pct": Unit("%", 1, 1, 0.01),
    "_us": Unit("us", 1, 0, 1e-6),
    "_ns": Unit("ms", 1_000_000, 0, 1e-9),
    "_mw": Unit("W", 1000, 2, 0.001),
    "_c": Unit("C", 1, 0, 1),
    "_s": Unit("s", 1, 2, 1),
}
NO_UNIT = Unit("", 1, 0, 1)
CEILINGS = policies.names_where("ceilings")


def unit_of(key: str) -> tuple[str, Unit]:
    """The name without its unit, and the unit."""
    end = next((one for one in UNITS if key.endswith(one)), "")
    return key.removesuffix(end), UNITS.get(end, NO_UNIT)


class Figure(NamedTuple):
    """@key: its place in --json, "": it is not there. @query: its name in --query-…, as nvidia-smi has it where it has
    it. @metric: without its prefix; its unit is the base unit of the value's. @value: a line of the stat file, or what
    makes it of (gpu) or (gpu, slot); None: a reader gives it, from two readings, an engine or NVML. @unit: where
    neither key nor line ends with it; @shown: of a query, where nvidia-smi has another."""

    key: str
    query: str
    metric: str
    value: str | Callable[..., Any] | None
    about: str
    unit: str = ""
    shown: str | None = None

    @property
    def measure(self) -> Unit:
        return unit_of(self.unit or self.key or str(self.value))[1]

    @property
    def help(self) -> str:
        return f"{self.about[:1].upper()}{self.about[1:]}."

    def read(self, gpu: KernelGpu, slot: Slot | None = None) -> Any:
        """None: the module has no such line."""
        if isinstance(self.value, str):
            return (gpu.stat if slot is None else slot.stat).get(self.value)
        return self.value and (self.value(gpu) if slot is None else self.value(gpu, slot))

    def sample(self, gpu: KernelGpu, slot: Slot | None = None) -> float | None:
        """The value of the metric; None: without a sample."""
        found = self.read(gpu, slot)
        return None if found is None else found * self.measure.base


def rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def document(figures: Iterable[Figure], gpu: KernelGpu, slot: Slot | None, seen: Mapping[str, Any]) -> dict[str, Any]:
    """The part of --json that these rows are. @seen: by key, what a reader gives. A line that the module lacks is 0."""
    out: dict[str, Any] = {}
    for one in figures:
        folder, _, name = one.key.rpartition("/")
        place = out.setdefault(folder, {}) if folder else out
        found = seen[one.key] if one.key in seen else one.read(gpu, slot)
        place[name] = 0 if found is None and isinstance(one.value, str) else rounded(found)
    return out


def _own(name: str) -> Callable[..., Any]:
    """A field of the slot, or of the GPU."""
    return lambda gpu, slot=None: getattr(gpu if slot is None else slot, name)


def controls(text: str) -> list[str]:
    """Those in a value of N/stat."""
    return [] if text == "none" else text.split(",")


# fmt: off
#: Of a container on a GPU: what each document has, in its order.
SLOT = (
    Figure("id", "id", "", _own("id"), "the full id"),
    Figure("dir", "", "", _own("dir"), "its name under /proc/cgpu_km/N/"),
    Figure("name", "name", "", _own("name"), "the engine's name, where it can be had without the engine"),
    Figure("weight", "weight", "weight", _own("weight"), "slices per round"),
    Figure("highprio", "highprio", "high_priority", _own("highprio"), "1: high priority"),
    Figure("ceiling", "ceiling", "ceiling", _own("ceiling"), f"most slices per round under {CEILINGS}; 0: none"),
    Figure("share_allowed_pct", "share.allowed", "allowed_ratio", allowed_pct,
           "most of its share while all that have opened the GPU have work; none under native"),
    Figure("share_got_pct", "share.got", "", None, "part of the sample in which it could run"),
    Figure("share_estimated", "", "", lambda gpu, _: gpu.facts.estimated, "the hardware decides: not measured (soft)"),
    Figure("memory/used_bytes", "memory.used", "memory_used_bytes", _own("used"), "memory charged"),
    Figure("memory/limit_bytes", "memory.limit", "memory_limit_bytes", _own("limit"), "memory limit"),
    Figure("memory/peak_bytes", "memory.peak", "memory_peak_bytes", "peak_bytes", "most memory charged at a time"),
    Figure("state", "state", "", slot_state, "running, waiting (for its turn), idle, frozen or dying"),
    Figure("opened", "", "opened", _own("opened"), "1: it has a live channel of a graphics, compute or video engine"),
    Figure("pids", "processes", "", None, "processes with memory"),
    Figure("gpu_ns", "", "gpu_seconds_total", "gpu_ns", "time the container could run on the GPU"),
    Figure("wait_ns", "", "wait_seconds_total", "wait_ns",
           "time the container was frozen while it had the GPU open: it was out of turn"),
    Figure("throttled_ns", "", "throttled_seconds_total", "throttled_ns",
           "the part of the wait in which the container's ceiling was used up"),
    Figure("turns", "", "turns_total", "turns", "turns the container had"),
    Figure("overruns", "", "overruns_total", "overruns", "turns that ended more than a tenth of a slice late"),
    Figure("refused_allocs", "refused.allocations", "refused_allocations_total", "refused_allocs",
           "allocations refused for being over the limit"),
    Figure("refused_calls", "refused.calls", "refused_calls_total", "refused_calls", "calls refused by the call table"),
    *(Figure(f"sessions/{name}", f"sessions.{name}", f"{name}_sessions", name,
             f"sessions of {name.upper()}: objects of the {about} in use") for name, about in VIDEO_ENGINES.items()),
)
#: What only cgpu-smi has of it: its pod, and rates, of two readings.
POD = (
    Figure("pod", "pod", "", None, "the pod, where there is one"),
    Figure("namespace", "namespace", "", None, "the pod's namespace"),
)
RATES = (
    Figure("share_got_10s_pct", "share.got_10s", "", None, "part of ten seconds in which it could run"),
    Figure("throttled_pct", "throttled", "", None, "time out of turn, of the time with the GPU open"),
    Figure("throttled_by_ceiling_pct", "throttled.ceiling", "", None, "the part in which its ceiling was used up"),
    Figure("wait_per_turn_us", "wait", "", None, "mean time out of turn before a turn"),
    Figure("wait_p99_us", "wait.p99", "", None, "99 of 100 waits for a turn were shorter, over the sample"),
    Figure("wait_p99_10s_us", "wait.p99_10s", "", None, "the same over ten seconds"),
)
#: What only the metrics have of it.
SLOT_METRICS = (
    Figure("", "", "unsure_seconds_total", "unsure_ns",
           "time in which it is not known whether the container ran: the last control call had failed"),
    Figure("", "", "slow_preemptions_total", "preempt_slow", "freezes held up by the container's kernels"),
    Figure("", "", "failed_control_calls_total", "failed_calls", "freezes and thaws that failed"),
    Figure("", "", "bar1_used_bytes", "bar1_bytes",
           "video memory mapped for the processor, in the GPU's window for that (BAR1)"),
    Figure("", "", "host_memory_limit_bytes", "host_limit_bytes",
           "limit of system memory by the driver, of the whole container; 0: none"),
    Figure("", "", "host_memory_used_bytes", "host_used_bytes",
           "system memory that the driver allocated for the whole container"),
    Figure("", "", "host_memory_refused_total", "host_refused_allocs",
           "allocations of system memory refused for being over that limit"),
    Figure("", "", "running", "running", "1: it may run now"),
    Figure("", "", "enforced", "enforced", "1: working controls hold its share to the policy; 0 under native"),
    Figure("", "", "dying", _own("dying"), "1: destroyed, and its end is not over"),
)
#: Metrics that a pod's container has by the names of pod and container too.
OF_PODS = {
    *("gpu_seconds_total", "wait_seconds_total", "throttled_seconds_total", "refused_allocations_total", "weight"),
    *("opened", "memory_limit_bytes", "memory_used_bytes", "memory_peak_bytes"),
}
#: Of a GPU: what each document has, in its order.
GPU = (
    Figure("index", "index", "", _own("index"), "N of /proc/cgpu_km/N"),
    Figure("name", "name", "", _own("name"), "the model; -: the driver does not tell"),
    Figure("uuid", "uuid", "", _own("uuid"), "the UUID, as nvidia-smi has it"),
    Figure("pci", "pci.bus_id", "", _own("pci"), "the PCI address"),
    Figure("minor", "", "", _own("nv_minor"), "M of the driver's /dev/nvidiaM"),
    Figure("policy/number", "", "policy", _own("policy"), "the policy's number: docs/reference/policies.md"),
    Figure("policy/name", "policy", "", lambda gpu: gpu.facts.name, "the policy's name"),
    Figure("max_inst", "weight.max", "max_instances", _own("max_inst"), "most containers, and slices per round"),
    Figure("free_weight", "weight.free", "free_weight", _own("free_weight"), "slices per round that no container has"),
    Figure("prio_ratio", "prio_ratio", "priority_ratio", _own("prio_ratio"), "quota of high priority", "_pct"),
    Figure("slice_us", "slice", "slice_seconds", _own("slice_us"), "length of a slice of weight 1"),
    Figure("uvm", "", "", _own("uvm_name"), "managed memory: deny or account"),
    Figure("control", "", "", lambda gpu: controls(gpu.control),
           "controls that the driver answers and that were not found ineffective"),
    Figure("control_seen", "", "", lambda gpu: controls(gpu.control_seen),
           "controls that were seen to act since the first container"),
    Figure("memory/used_bytes", "memory.charged", "memory_used_bytes", _own("used"),
           "sum of what the containers are charged, and what is held of destroyed ones"),
    Figure("memory/limits_bytes", "memory.limits", "memory_limits_bytes", lambda gpu: gpu.limits or 0,
           "sum of the containers' limits, and what is held of destroyed ones"),
    Figure("memory/total_bytes", "memory.total", "memory_total_bytes", _own("total"),
           "the card's memory; 0 while not yet known"),
)
#: What only the metrics have of it.
GPU_METRICS = (
    Figure("", "", "instances", "instances", "containers on the GPU, dying ones included"),
    Figure("", "", "memory_ended_bytes", "ended_bytes",
           "part of the memory used that is held of destroyed containers: /proc/cgpu_km/ended"),
    Figure("", "", "memory_driver_used_bytes", "driver_used_bytes",
           "in use by the driver's own account; 0 while no container exists"),
    Figure("", "", "memory_unattributed_bytes", "unattributed_bytes",
           "part of what the driver has in use that no container is charged for"),
    Figure("", "", "memory_context_bytes", "context_bytes", "charge for a context"),
    Figure("", "", "turns_total", "turns", "turns given"),
    Figure("", "", "sched_thread_cpu_seconds_total", "thread_cpu_ns", "CPU time of the scheduler thread"),
    Figure("", "", "control_calls_total", "control_calls", "control calls"),
    Figure("", "", "control_failures_total", "control_failed", "control calls that failed"),
)
#: Of a card, by NVML; in the order of --json.
CARD = (
    Figure("used_bytes", "memory.used", "", None, "in use on the card by all processes and the driver, by NVML"),
    Figure("utilization_pct", "utilization.gpu", "utilization_ratio", None,
           "part of the time in which a kernel ran, by NVML"),
    Figure("temperature_c", "temperature.gpu", "temperature_celsius", None, "of the GPU, by NVML", "", ""),
    Figure("power_mw", "power.draw", "power_watts", None, "drawn, by NVML"),
    Figure("power_limit_mw", "power.limit", "power_limit_watts", None, "in force, by NVML"),
    Figure("memory_utilization_pct", "utilization.memory", "memory_utilization_ratio", None,
           "part of the time in which memory was read or written, by NVML"),
    Figure("sm_active_pct", "sm.active", "sm_active_ratio", None,
           "multiprocessors with work, by NVML's GPM, Hopper and later"),
    Figure("dram_active_pct", "dram.active", "dram_active_ratio", None,
           "used part of the memory's bandwidth, by NVML's GPM, Hopper and later"),
    Figure("lost", "", "", None, "the error, where NVML does not answer for this GPU"),
    Figure("age_s", "", "", None, "of these values, where NVML does not answer now"),
)
#: Of a client of MPS; the key is that of a row of cgpud's answer to `mps`.
MPS = (
    Figure("grant_mib", "", "memory_grant_bytes", None, "given to the container: cooperative, watched"),
    Figure("used_mib", "", "memory_used_bytes", None, "of its processes, by NVML"),
    Figure("overs", "", "over_grant_total", None, "times that it used more than it was given"),
    Figure("ended", "", "ended_total", None, "processes that were ended on the GPU for it"),
)
#: NVML's samples of processes, added up by container; the key is that of a process.
USES = (
    Figure("sm_pct", "", "sm_utilization_ratio", None,
           "part of the time in which a kernel of the container ran, by NVML's latest samples of its processes"),
    Figure("memory_pct", "", "memory_utilization_ratio", None,
           "part of the time in which it read or wrote memory, by the same samples"),
)
# fmt: on
