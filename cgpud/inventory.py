# SPDX-License-Identifier: MIT
"""The GPUs of the node, from kernel and NVML, with the settings of the files applied to each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cgpu_common import gpus, log, settings
from cgpu_common.cards import Gpu, NvmlView
from cgpu_common.config import Config
from cgpu_common.errors import CgpuError, KernelMissing, KernelRefused, Refused
from cgpu_common.link import KernelLink
from cgpu_common.model import MIB, KernelGpu, SlotWant
from cgpud.apply import Applier
from cgpud.dependencies import NvmlSource

PROBE_ID = "cgpud-probe"
NVML_FRESH_S = 10.0


class Inventory:
    """Reads the GPUs, and applies the settings that have to be in force before a container is admitted.

    The caller serialises all methods except snapshot(), renew() and close(): they set values.
    """

    def __init__(
        self,
        link: KernelLink,
        nvml: NvmlSource,
        make_cookie: Callable[[], int],
        context_mib: Callable[[int], int] = lambda index: 0,
    ) -> None:
        self.why_unsliced: Callable[[str], str] = lambda uuid: ""  # by UUID: a GPU's MPS server, in words
        self._context_mib = context_mib
        self._link = link
        self._nvml_source = nvml
        self._make_cookie = make_cookie
        self._applier = Applier(link)
        self._log = log.get()
        self._nvml = NvmlView()
        self._nvml_until = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._queried_for: set[str] = set()  # UUIDs of the kernel's GPUs at the last NVML query
        self._nvml_was_absent = False
        self._logged_lost: set[int] = set()  # by NVML's number
        self._logged_unmatched: tuple[str, ...] = ()

    async def refresh(self, config: Config, *, query_nvml: bool = True) -> tuple[Gpu, ...]:
        """Read the GPUs and apply pending settings. Raises KernelMissing.

        Without `query_nvml` the last answer of NVML is used, unless the kernel lists a new GPU or that answer was not
        complete."""
        kernel = await self._link.gpus()
        uuids = {gpu.uuid.lower() for gpu in kernel if gpu.uuid}
        if query_nvml or self._nvml.silent or not uuids <= self._queried_for:
            await self._query_nvml(config.nvml_wait_s)
            self._queried_for = uuids
        inventory = self._merge(kernel)
        if await self._applier.apply_pending(inventory, config):
            inventory = self._merge(await self._link.gpus())
            self._log_unmatched(config, inventory)
        return tuple(self._with_default(gpu, config) for gpu in inventory)

    async def snapshot(self) -> tuple[Gpu, ...]:
        """The kernel's list now with NVML's last answer; sets nothing. Empty without the module."""
        try:
            return self._merge(await self._link.gpus())
        except KernelMissing:
            return ()

    def _merge(self, kernel: Sequence[KernelGpu]) -> tuple[Gpu, ...]:
        found = gpus.merge(kernel, self._nvml.gpus, self._nvml.silent)
        return tuple(replace(gpu, mps=self.why_unsliced(gpu.uuid)) for gpu in found)

    async def for_admission(self, config: Config) -> tuple[Gpu, ...]:
        """The inventory with all values. Where the module has not attached to a GPU, a probe container attaches it.

        NVML, which can take a second, is queried only if its last answer is old: an administrator may change modes.
        """
        inventory = await self.refresh(config, query_nvml=self.is_old() or self._renewal is not None)
        if not inventory and self._nvml.silent:
            raise Refused(f"cgpu_km lists no GPU yet, and NVML does not answer ({self._nvml.silent})")
        unknown = gpus.undiscovered(inventory)
        found = await self._discover(config, unknown, inventory) if unknown else inventory
        return tuple(replace(gpu, context_mib=self._context_mib(gpu.index)) for gpu in found)

    async def _discover(
        self, config: Config, unknown: tuple[SlotWant, ...], inventory: tuple[Gpu, ...]
    ) -> tuple[Gpu, ...]:
        cookie = self._make_cookie()
        try:
            probe = await self._link.create(PROBE_ID, cookie, unknown)
        except KernelRefused as error:
            self._log.warning("cannot read the values of a GPU", reason=str(error))
            return inventory
        try:
            return gpus.without(await self.refresh(config, query_nvml=False), probe)
        finally:
            await self._take_back(cookie)

    async def _take_back(self, cookie: int) -> None:
        try:
            await self._link.destroy(PROBE_ID, cookie)
        except (CgpuError, OSError) as error:  # reconcile finds it by its cookie
            self._log.warning("the kernel did not destroy a container", id=PROBE_ID, error=str(error))

    async def apply_pending(self, config: Config) -> None:
        """Apply settings to GPUs that are new or were reset. After an error the next reconcile retries."""
        try:
            await self.refresh(config, query_nvml=False)
        except KernelMissing:
            pass
        except (CgpuError, OSError) as error:
            self._log.warning("settings not applied", reason=str(error))

    async def reload(self, new: Config, old: Config) -> None:
        try:
            inventory = await self.refresh(new)
            await self._applier.reload(inventory, new, old)
        except KernelMissing:
            self._log.warning("settings wait for the kernel module")
        except (CgpuError, OSError) as error:
            self._log.error("settings not applied", reason=str(error))
        else:
            self._log_unmatched(new, inventory)

    def _with_default(self, gpu: Gpu, config: Config) -> Gpu:
        """The file decides whether there is a default size; its value is the kernel's, so that a live write counts."""
        if gpu.kernel is None or not config.of(gpu).default_memsize_mib:
            return gpu
        return replace(gpu, default_mib=gpu.kernel.default_memsize // MIB)

    def is_old(self) -> bool:
        """Whether the next admission queries NVML."""
        return time.monotonic() > self._nvml_until

    def expire(self) -> None:
        """Let the next admission query NVML, however new its last answer is."""
        self._nvml_until = 0.0

    def renew(self, config: Config) -> None:
        """Query NVML for a container that starts soon, if its last answer is old. That start then waits for the rest of
        the query only."""
        if self.is_old() and self._renewal is None:
            self._renewal = asyncio.create_task(self._ask_nvml(config.nvml_wait_s))
            self._renewal.add_done_callback(self._renewed)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._renewal = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.expire()
            self._log.error("the query of NVML failed", error=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    async def _query_nvml(self, wait_s: float) -> None:
        """A query, or the rest of the one in progress."""
        if self._renewal is not None:
            await asyncio.wait((self._renewal,))
        else:
            await self._ask_nvml(wait_s)

    async def _ask_nvml(self, wait_s: float) -> None:
        self._nvml_until = time.monotonic() + NVML_FRESH_S
        before, self._nvml = self._nvml, await self._nvml_source.query(wait_s)
        if self._nvml.absent and not self._nvml_was_absent:
            self._log.warning(
                "no NVML, using the GPUs of cgpu_km: MIG and compute modes are unknown",
                reason=self._nvml.absent,
            )
            self._nvml_was_absent = True
        if self._nvml.silent and not before.silent:
            self._log.error("NVML does not answer: its GPUs get no new containers", reason=self._nvml.silent)
        elif before.silent and not self._nvml.silent:
            self._log.warning("NVML answers again")
        lost = {gpu.index: gpu.lost for gpu in self._nvml.gpus if gpu.lost}
        for index in lost.keys() - self._logged_lost:
            self._log.warning("a GPU does not answer NVML", gpu=index, reason=lost[index])
        self._logged_lost = set(lost)

    def _log_unmatched(self, config: Config, inventory: tuple[Gpu, ...]) -> None:
        names = settings.unmatched(config.gpus, inventory)
        for name in names:
            if name not in self._logged_unmatched:
                self._log.warning("a table of cgpu.toml matches no GPU of this machine", gpu=name)
        self._logged_unmatched = names
