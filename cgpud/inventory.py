# SPDX-License-Identifier: MIT
"""The GPUs of the node as kernel and NVML have them, with the files' settings in force on each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from cgpud import gpus, log, settings
from cgpud.apply import Applier
from cgpud.config import Config
from cgpud.errors import CgpuError, KernelMissing, KernelRefused
from cgpud.link import KernelLink
from cgpud.model import MIB, Gpu, NvmlGpu, SlotWant

PROBE_ID = "cgpud-probe"
NVML_FRESH_S = 10.0


class Inventory:
    """Looking, and the settings that have to be in force before anybody is admitted by what was seen.

    The caller serialises what sets: all but glance().
    """

    def __init__(
        self, link: KernelLink, nvml: Callable[[], tuple[NvmlGpu, ...]], make_cookie: Callable[[], int]
    ) -> None:
        self._link = link
        self._ask = nvml
        self._make_cookie = make_cookie
        self._applier = Applier(link)
        self._log = log.get()
        self._nvml: tuple[NvmlGpu, ...] = ()
        self._nvml_until = 0.0
        self._asked_about: set[str] = set()  # GPUs that the kernel had when NVML was asked, by UUID
        self._said_no_nvml = False
        self._said_lost: set[int] = set()  # by NVML's number
        self._said_unmatched: tuple[str, ...] = ()

    async def look(self, config: Config, *, ask_nvml: bool = True) -> tuple[Gpu, ...]:
        """Raises KernelMissing. Without `ask_nvml` its last word does, unless the kernel has a GPU that is new."""
        kernel = await self._link.gpus()
        uuids = {gpu.uuid.lower() for gpu in kernel if gpu.uuid}
        if ask_nvml or not uuids <= self._asked_about:
            await self._ask_nvml()
            self._asked_about = uuids
        inventory = gpus.merge(kernel, self._nvml)
        if await self._applier.catch_up(inventory, config):
            inventory = gpus.merge(await self._link.gpus(), self._nvml)
            self._say_unmatched(config, inventory)
        return tuple(self._with_default(gpu, config) for gpu in inventory)

    async def glance(self) -> tuple[Gpu, ...]:
        """As last seen by NVML, now by the kernel; nothing is set. No GPU without the module."""
        try:
            return gpus.merge(await self._link.gpus(), self._nvml)
        except KernelMissing:
            return ()

    async def for_admission(self, config: Config) -> tuple[Gpu, ...]:
        """Everything known of every GPU. Only an attached module knows it all, and it attaches with a container.

        NVML, which can take a second, is asked when its last word is old: modes change by an administrator's hand.
        """
        inventory = await self.look(config, ask_nvml=time.monotonic() > self._nvml_until)
        unknown = gpus.to_learn(inventory)
        return await self._learn(config, unknown, inventory) if unknown else inventory

    async def _learn(
        self, config: Config, unknown: tuple[SlotWant, ...], inventory: tuple[Gpu, ...]
    ) -> tuple[Gpu, ...]:
        cookie = self._make_cookie()
        try:
            probe = await self._link.create(PROBE_ID, cookie, unknown)
        except KernelRefused as error:
            self._log.warning("cannot learn about a GPU", reason=str(error))
            return inventory
        try:
            return gpus.without(await self.look(config, ask_nvml=False), probe)
        finally:
            await self._take_back(cookie)

    async def _take_back(self, cookie: int) -> None:
        try:
            await self._link.destroy(PROBE_ID, cookie)
        except (CgpuError, OSError) as error:  # ours by its cookie: reconcile finds it
            self._log.warning("the kernel did not destroy a container", id=PROBE_ID, error=str(error))

    async def catch_up(self, config: Config) -> None:
        """Settings of GPUs that are new, or that the kernel has forgotten; what goes wrong waits for the next look."""
        try:
            await self.look(config, ask_nvml=False)
        except KernelMissing:
            pass
        except (CgpuError, OSError) as error:
            self._log.warning("settings not applied", reason=str(error))

    async def reload(self, new: Config, old: Config) -> None:
        try:
            inventory = await self.look(new)
            await self._applier.reload(inventory, new, old)
        except KernelMissing:
            self._log.warning("settings wait for the kernel module")
        except (CgpuError, OSError) as error:
            self._log.error("settings not applied", reason=str(error))
        else:
            self._say_unmatched(new, inventory)

    def _with_default(self, gpu: Gpu, config: Config) -> Gpu:
        """The file says whether there is one; how much is the kernel's word, so that a live write counts."""
        if gpu.kernel is None or not config.of(gpu).default_memsize_mib:
            return gpu
        return replace(gpu, default_mib=gpu.kernel.default_memsize // MIB)

    async def _ask_nvml(self) -> None:
        self._nvml_until = time.monotonic() + NVML_FRESH_S
        try:
            self._nvml = await asyncio.to_thread(self._ask)
        except gpus.NvmlAbsent as error:
            self._nvml = ()
            if not self._said_no_nvml:
                self._log.warning(
                    "no NVML, using what cgpu_km knows of the GPUs: MIG mode and compute modes are not seen",
                    reason=str(error),
                )
            self._said_no_nvml = True
        lost = {gpu.index: gpu.lost for gpu in self._nvml if gpu.lost}
        for index in lost.keys() - self._said_lost:
            self._log.warning("a GPU does not answer NVML", gpu=index, reason=lost[index])
        self._said_lost = set(lost)

    def _say_unmatched(self, config: Config, inventory: tuple[Gpu, ...]) -> None:
        names = settings.unmatched(config.gpus, inventory)
        for name in names:
            if name not in self._said_unmatched:
                self._log.warning("a table of cgpu.toml is for no GPU of this machine", gpu=name)
        self._said_unmatched = names
