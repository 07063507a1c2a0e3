# SPDX-License-Identifier: MIT
"""The only module that imports pynvml. NVML is opened for each query and closed: open, it would pin the driver.

A call into NVML may never return. The daemon therefore calls answer() in a child process only: see nvml.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cgpu_common import links
from cgpu_common.cards import Gpu, NvmlGpu
from cgpu_common.model import MIB, Container, KernelGpu, ProcessUse, Sensors, SlotWant

#: Between the two samples of GPM, which must be 0.1 s apart at least (nvml.h).
GPM_S = 0.1
PROCESSES_S = 2.0


#: The GPU Operator's driver container has the driver's libraries there, which the host's linker does not know.
DRIVER_ROOT = Path("/run/nvidia/driver")
PCI_DEVICES = Path("/sys/bus/pci/devices")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64")


class NvmlAbsent(Exception):
    """NVML is not available; the text is the reason."""


def _normal_pci(text: str) -> str:
    """With a 4-digit domain, as the kernel writes it; NVML writes 8 digits."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _percent(metric: Any) -> float | None:
    """Each metric has a status of its own; a counter that wrapped around gives no percentage."""
    value = float(metric.value)
    return round(value, 1) if metric.nvmlReturn == 0 and 0 <= value <= 100 else None


class _NvmlReader:
    """Reads the values of one GPU. `lost` is the first error except "not supported"."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self.lost = ""
        self.handle = self._try(nvml.nvmlDeviceGetHandleByIndex, index)

    def _try(self, call: Any, subject: Any) -> Any:
        try:
            return call(subject)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None
        except self._nvml.NVMLError as error:
            self.lost = self.lost or str(error)
            return None

    def required(self, call: Any) -> Any:
        return None if self.handle is None else self._try(call, self.handle)

    def optional(self, call: Any) -> Any:
        """A value that no decision depends on: an error does not make the GPU lost."""
        try:
            return None if self.handle is None else call(self.handle)
        except self._nvml.NVMLError:
            return None

    def confidential(self) -> bool:
        """Whether Confidential Computing is on; of the whole machine, and False where the driver cannot tell."""
        call = getattr(self._nvml, "nvmlSystemGetConfComputeState", None)
        state = None if call is None else self.optional(lambda _: call())
        return state is not None and bool(state.ccFeature)

    def compute_mode(self) -> str:
        """The name of a mode that restricts the use of the GPU, or ""."""
        nvml = self._nvml
        names = {
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive thread",
            nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
            nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive process",
        }
        return names.get(self.required(nvml.nvmlDeviceGetComputeMode), "")

    def peers(self) -> tuple[str, ...]:
        """The other ends of its NVLinks. Of this GPU's own registers: one that does not answer delays no other."""
        nvml, found = self._nvml, []
        for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0)):
            state = self.optional(lambda handle, link=link: nvml.nvmlDeviceGetNvLinkState(handle, link))
            if state is None:  # it has no more of them
                break
            if not state:
                continue
            kind = self.optional(lambda handle, link=link: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                found.append(links.SWITCH)
            elif other := self.optional(lambda handle, link=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)):
                found.append(_normal_pci(_text(other.busId)))
        return tuple(found)

    def sensors(self) -> Sensors:
        nvml = self._nvml
        rates = self.optional(nvml.nvmlDeviceGetUtilizationRates)
        sm, dram = self._active()
        return Sensors(
            utilization_pct=int(rates.gpu) if rates is not None else None,
            temperature_c=self.optional(
                lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            power_mw=self.optional(nvml.nvmlDeviceGetPowerUsage),
            power_limit_mw=self.optional(nvml.nvmlDeviceGetEnforcedPowerLimit),
            memory_utilization_pct=int(rates.memory) if rates is not None else None,
            sm_active_pct=sm,
            dram_active_pct=dram,
            processes=self._processes(),
        )

    def _processes(self) -> tuple[ProcessUse, ...]:
        """The latest sample of each process of the last PROCESSES_S; () where the driver has none."""
        since_us = round((time.time() - PROCESSES_S) * 1e6)
        found = self.optional(lambda handle: self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        latest = {int(one.pid): one for one in sorted(found or (), key=lambda one: int(one.timeStamp))}
        return tuple(ProcessUse(pid, int(one.smUtil), int(one.memUtil)) for pid, one in sorted(latest.items()))

    def _active(self) -> tuple[float | None, float | None]:
        """Of multiprocessors and of the memory's bandwidth, over GPM_S; None: the GPU has no such counters (GPM)."""
        nvml, none = self._nvml, (None, None)
        support = self.optional(nvml.nvmlGpmQueryDeviceSupport)
        if support is None or not support.isSupportedDevice:
            return none
        samples: list[Any] = []
        try:
            for _ in range(2):
                samples.append(nvml.nvmlGpmSampleAlloc())
                nvml.nvmlGpmSampleGet(self.handle, samples[-1])
                if len(samples) == 1:
                    time.sleep(GPM_S)
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
            asked.sample1, asked.sample2 = samples
            for place, metric in enumerate((nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL)):
                asked.metrics[place].metricId = metric
            nvml.nvmlGpmMetricsGet(asked)
        except nvml.NVMLError:
            return none
        finally:
            for one in samples:
                nvml.nvmlGpmSampleFree(one)
        return _percent(asked.metrics[0]), _percent(asked.metrics[1])


def _bridges(address: str) -> tuple[str, ...]:
    """Of PCIe above a device, the root first: as the kernel nests its devices."""
    place = os.path.realpath(PCI_DEVICES / address) if address else ""
    parts = place.split("/")
    return tuple(parts[3:-1]) if parts[1:3] == ["sys", "devices"] else ()


def _read_gpu(nvml: Any, index: int, sensors: bool) -> NvmlGpu:
    reader = _NvmlReader(nvml, index)
    pci = reader.optional(nvml.nvmlDeviceGetPciInfo)
    name = reader.optional(nvml.nvmlDeviceGetName)
    uuid = reader.required(nvml.nvmlDeviceGetUUID)
    minor = reader.required(nvml.nvmlDeviceGetMinorNumber)
    memory = reader.required(nvml.nvmlDeviceGetMemoryInfo)
    mig = reader.required(nvml.nvmlDeviceGetMigMode)
    compute_mode = reader.compute_mode()
    address = _normal_pci(_text(pci.busId)) if pci is not None else ""
    return NvmlGpu(
        index=index,
        uuid=_text(uuid) if uuid is not None else "",
        pci=address,
        nv_minor=int(minor) if minor is not None else -1,
        total_mib=int(memory.total) // MIB if memory is not None else 0,
        name=_text(name) if name is not None else "",
        mig=mig is not None and bool(mig[0]),
        confidential=reader.confidential(),
        used_mib=-(-int(memory.used) // MIB) if memory is not None else None,
        compute_mode=compute_mode,
        lost=reader.lost or ("" if reader.handle is not None else "no handle"),
        peers=reader.peers(),
        bridges=_bridges(address),
        sensors=reader.sensors() if sensors else None,
    )


@contextmanager
def opened() -> Iterator[Any]:
    """NVML, initialised meanwhile. Raises NvmlAbsent."""
    try:
        import pynvml as nvml
    except ImportError as error:
        raise NvmlAbsent(f"python module: {error}") from error
    try:
        _init(nvml)
    except nvml.NVMLError as error:
        raise NvmlAbsent(str(error)) from error
    try:
        yield nvml
    finally:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass


def query(emit: Callable[[int | NvmlGpu], None] = lambda _: None, *, sensors: bool = False) -> tuple[NvmlGpu, ...]:
    """Every GPU that NVML lists. A lost GPU is included, because the numbers of the others do not change.

    Calls `emit` with the number of GPUs, then with each GPU as soon as it is read. A thread reads each GPU, so that
    a GPU that does not answer does not delay the others. Raises NvmlAbsent. Blocks, possibly for ever."""
    with opened() as nvml:
        try:
            return _read_all(nvml, nvml.nvmlDeviceGetCount(), emit, sensors)
        except nvml.NVMLError as error:
            raise NvmlAbsent(str(error)) from error


def _init(nvml: Any) -> None:
    """Raises NVMLError. A library that is loaded is found again by its name, so that of DRIVER_ROOT is loaded first."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        beside = (DRIVER_ROOT / folder / "libnvidia-ml.so.1" for folder in LIBRARIES)
        library = next((path for path in beside if path.exists()), None)
        if library is None:
            raise
        try:
            nvml.CDLL(str(library))
        except OSError as error:
            raise NvmlAbsent(str(error)) from error
        nvml.nvmlInit()


def _read_all(nvml: Any, count: int, emit: Callable[[int | NvmlGpu], None], sensors: bool) -> tuple[NvmlGpu, ...]:
    found: dict[int, NvmlGpu] = {}
    one_at_a_time = threading.Lock()  # guards `found` and emit()

    def read(index: int) -> None:
        gpu = _read_gpu(nvml, index, sensors)
        with one_at_a_time:
            found[index] = gpu
            emit(gpu)

    emit(count)
    threads = [threading.Thread(target=read, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < count:
        raise NvmlAbsent("a GPU could not be read")  # the thread has printed the exception
    return tuple(found[index] for index in range(count))


def answer(*, sensors: bool = False) -> None:
    """The child process of nvml.py: writes the answer of query() to stdout, one JSON object a line."""
    out = os.dup(1)
    os.dup2(2, 1)  # a line that the library prints must not be part of the answer

    def say(key: str, value: Any) -> None:
        os.write(out, json.dumps({key: value}).encode() + b"\n")

    def emit(item: int | NvmlGpu) -> None:
        say("count", item) if isinstance(item, int) else say("gpu", asdict(item))

    try:
        query(emit, sensors=sensors)
    except NvmlAbsent as error:
        say("absent", str(error))
    os.close(out)
    sys.stdout.flush()


def _same(kernel: KernelGpu, nvml: NvmlGpu) -> bool:
    """Compare UUIDs, else PCI addresses, else minors: the first that both views have."""
    if kernel.uuid and nvml.uuid:
        return kernel.uuid.lower() == nvml.uuid.lower()
    if kernel.pci and nvml.pci:
        return _normal_pci(kernel.pci) == _normal_pci(nvml.pci)
    return kernel.nv_minor == nvml.nv_minor


def _before_attach(nvml: Sequence[NvmlGpu]) -> list[KernelGpu]:
    """The GPUs as the module will number them, by PCI address: it lists none before its first container.

    check_grant() verifies the numbers."""
    # NVML also sorts by address, so its index replaces the address if a GPU is lost together with its address.
    named = all(gpu.pci for gpu in nvml)
    ordered = sorted(nvml, key=lambda gpu: (gpu.pci if named else "", gpu.index))
    return [KernelGpu(n, gpu.uuid, gpu.pci, gpu.nv_minor, 0) for n, gpu in enumerate(ordered)]


def merge(kernel: Sequence[KernelGpu], nvml: Sequence[NvmlGpu], silent: str = "") -> tuple[Gpu, ...]:
    """One list with the numbers that users write: NVML's, if there is NVML.

    A GPU that only NVML lists cannot be sliced and is left out. A GPU that only the kernel lists keeps the kernel's
    number, unless NVML has a lost GPU without UUID and address: then they are matched, as they may be the same. It is
    lost if NVML did not answer (`silent` is the reason): it may be in a mode in which it cannot be shared.
    """
    out: list[Gpu] = []
    left = list(kernel) or _before_attach(nvml)
    nameless: list[NvmlGpu] = []
    for seen in sorted(nvml, key=lambda gpu: gpu.index):
        match = next((gpu for gpu in left if _same(gpu, seen)), None)
        if match is not None:
            left.remove(match)
            out.append(_gpu(seen.index, match, seen))
        elif seen.lost and not seen.uuid and not seen.pci:
            nameless.append(seen)
    left.sort(key=lambda gpu: gpu.pci)  # as NVML counts
    out.extend(_gpu(seen.index, gpu, seen) for gpu, seen in zip(left, nameless, strict=False))
    taken = {gpu.number for gpu in out}
    last = nameless[-1] if nameless else None
    rest = [_gpu(gpu.index, gpu, last) for gpu in left[len(nameless) :] if gpu.index not in taken]
    out.extend(replace(gpu, lost=gpu.lost or silent) for gpu in rest)
    return _linked(sorted(out, key=lambda gpu: gpu.number), nvml)


def _linked(found: Sequence[Gpu], nvml: Sequence[NvmlGpu]) -> tuple[Gpu, ...]:
    """The GPUs with the ranks of their links to each other, as far as NVML has both ends."""
    seen = {one.uuid.lower(): one for one in nvml if one.uuid}
    ends = {gpu.nv_minor: seen[gpu.uuid.lower()] for gpu in found if gpu.uuid.lower() in seen}
    if not 2 < len(ends) <= links.GPUS_MAX:  # nothing to choose
        return tuple(found)
    return tuple(replace(gpu, links=_links_of(gpu.nv_minor, ends)) for gpu in found)


def _links_of(minor: int, ends: Mapping[int, NvmlGpu]) -> tuple[tuple[int, int], ...]:
    if minor not in ends:
        return ()
    ranks = ((other, links.rank(ends[minor], end)) for other, end in sorted(ends.items()) if other != minor)
    return tuple((other, rank) for other, rank in ranks if rank)


def own_mib(total_mib: int) -> int:
    """The memory a driver needs for itself and for page tables. The documented fractions divide the whole card (6 and 9
    of 15 GiB), so it is not deducted from the limits."""
    return min(total_mib // 32, 1024)


def _room_mib(total_mib: int, kernel: KernelGpu, nvml: NvmlGpu | None) -> int | None:
    """The memory all containers together can have, from the driver's own figures: the module's, else NVML's."""
    if kernel.driver_free is not None:
        left_mib = (kernel.driver_free + kernel.used) // MIB
    elif nvml is not None and nvml.used_mib is not None and kernel.used == 0:
        left_mib = max(total_mib - nvml.used_mib, 0)
    else:
        return None
    return min(total_mib, left_mib + own_mib(total_mib))


def _gpu(number: int, kernel: KernelGpu, nvml: NvmlGpu | None) -> Gpu:
    total_mib = (nvml.total_mib if nvml else 0) or kernel.total // MIB
    return Gpu(
        number=number,
        index=kernel.index,
        uuid=kernel.uuid or (nvml.uuid if nvml else ""),
        pci=kernel.pci,
        nv_minor=kernel.nv_minor,
        total_mib=total_mib,
        max_inst=kernel.max_inst,
        free_weight=kernel.free_weight,
        mig=nvml is not None and nvml.mig,
        confidential=nvml is not None and nvml.confidential,
        compute_mode=nvml.compute_mode if nvml else "",
        lost=nvml.lost if nvml else "",
        room_mib=_room_mib(total_mib, kernel, nvml),
        overcommit=kernel.overcommit,
        instances=kernel.instances,
        limits=kernel.limits,
        kernel=kernel,
        name=nvml.name if nvml else "",
    )


def without(inventory: Sequence[Gpu], probe: Container) -> tuple[Gpu, ...]:
    """The inventory with the sums that hold after this container has gone."""
    held = {slot.gpu: slot for slot in probe.slots}
    return tuple(
        replace(
            gpu,
            instances=gpu.instances - 1,
            free_weight=gpu.free_weight + held[gpu.index].weight,
            limits=None if gpu.limits is None else gpu.limits - held[gpu.index].limit,
        )
        if gpu.index in held
        else gpu
        for gpu in inventory
    )


def undiscovered(inventory: Sequence[Gpu]) -> tuple[SlotWant, ...]:
    """The smallest slot on every GPU whose values are known only after the module has attached to it.

    Not on a lost GPU: it admits no container, and could make the probe of the others fail. Not in another compute mode
    than DEFAULT, as with MPS: it takes no slice."""
    return tuple(
        SlotWant(gpu.index, gpu.nv_minor, MIB)
        for gpu in inventory
        if not (gpu.lost or gpu.compute_mode or gpu.mps)
        and (gpu.total_mib == 0 or gpu.room_mib is None or gpu.kernel is None or not gpu.kernel.born)
    )
