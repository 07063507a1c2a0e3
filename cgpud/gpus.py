# SPDX-License-Identifier: MIT
"""The only module that imports pynvml. NVML is opened for one look and closed: kept open it would pin the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgpud.model import MIB, Gpu, KernelGpu, NvmlGpu, SlotWant


class NvmlAbsent(Exception):
    """There is no NVML to ask; the text says why."""


def _normal_pci(text: str) -> str:
    """NVML writes an 8-digit domain, the kernel a 4-digit one."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def _optional(nvml: Any, call: Any, handle: Any) -> Any:
    try:
        return call(handle)
    except nvml.NVMLError:
        return None


def query() -> tuple[NvmlGpu, ...]:
    """Every GPU NVML knows; NvmlAbsent if it cannot be asked. Blocks: call it in a thread."""
    try:
        import pynvml as nvml
    except ImportError as error:
        raise NvmlAbsent(f"python module: {error}") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlAbsent(str(error)) from error
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
            name = _optional(nvml, nvml.nvmlDeviceGetName, handle)
            found.append(
                NvmlGpu(
                    index=index,
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    pci=_normal_pci(_text(pci.busId)) if pci is not None else "",
                    nv_minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
                    total_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB,
                    name=_text(name) if name is not None else "",
                    mig=_mig(nvml, handle),
                )
            )
        return tuple(found)
    except nvml.NVMLError as error:
        raise NvmlAbsent(str(error)) from error
    finally:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass


def _same(kernel: KernelGpu, nvml: NvmlGpu) -> bool:
    """By what cannot be renumbered first. An empty field says nothing."""
    if kernel.uuid and nvml.uuid:
        return kernel.uuid.lower() == nvml.uuid.lower()
    if kernel.pci and nvml.pci:
        return _normal_pci(kernel.pci) == _normal_pci(nvml.pci)
    return kernel.nv_minor == nvml.nv_minor


def _before_attach(nvml: Sequence[NvmlGpu]) -> list[KernelGpu]:
    """The module knows no GPU before its first container. It will number them by PCI address; the answer is checked."""
    ordered = sorted(nvml, key=lambda gpu: gpu.pci)
    return [KernelGpu(n, gpu.uuid, gpu.pci, gpu.nv_minor, 0) for n, gpu in enumerate(ordered)]


def merge(kernel: Sequence[KernelGpu], nvml: Sequence[NvmlGpu]) -> tuple[Gpu, ...]:
    """One list in the order users know, which is NVML's where there is one.

    A GPU that only NVML knows cannot be sliced and is left out; one that only the kernel knows keeps its own number.
    """
    out: list[Gpu] = []
    left = list(kernel) or _before_attach(nvml)
    for seen in sorted(nvml, key=lambda gpu: gpu.index):
        match = next((gpu for gpu in left if _same(gpu, seen)), None)
        if match is not None:
            left.remove(match)
            out.append(_gpu(seen.index, match, seen.total_mib, seen.mig, seen.uuid))
    taken = {gpu.number for gpu in out}
    out.extend(_gpu(gpu.index, gpu, 0, False, "") for gpu in left if gpu.index not in taken)
    return tuple(sorted(out, key=lambda gpu: gpu.number))


def _gpu(number: int, kernel: KernelGpu, total_mib: int, mig: bool, uuid: str) -> Gpu:
    return Gpu(
        number=number,
        index=kernel.index,
        uuid=kernel.uuid or uuid,
        pci=kernel.pci,
        nv_minor=kernel.nv_minor,
        total_mib=total_mib or kernel.total // MIB,
        max_inst=kernel.max_inst,
        free_weight=kernel.free_weight,
        mig=mig,
    )


def of_unknown_size(inventory: Sequence[Gpu]) -> tuple[SlotWant, ...]:
    """The smallest slot on every GPU whose memory size nobody knows."""
    return tuple(SlotWant(gpu.index, gpu.nv_minor, MIB) for gpu in inventory if gpu.total_mib == 0)
