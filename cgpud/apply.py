# SPDX-License-Identifier: MIT
"""Writes the differences that settings.py finds to the kernel, and logs each result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cgpu_common import log, settings
from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.errors import KernelRefused
from cgpu_common.link import KernelLink


class Applier:
    """Applies the configuration at start, on reload, and to a GPU that the kernel has reset to its defaults."""

    def __init__(self, link: KernelLink) -> None:
        self._link = link
        self._log = log.get()
        self._born: dict[int, int] = {}  # kernel index -> `born` of the GPU when the files were applied

    async def apply_pending(self, inventory: Iterable[Gpu], config: Config) -> bool:
        """Apply the files to GPUs that are new since the last call. True: a value was changed."""
        changed = False
        for gpu in inventory:
            if gpu.kernel is None or not gpu.kernel.born or self._born.get(gpu.index) == gpu.kernel.born:
                continue
            changed |= await self._set(gpu, settings.configured(config.of(gpu)))
            self._born[gpu.index] = gpu.kernel.born
        return changed

    async def reload(self, inventory: Iterable[Gpu], new: Config, old: Config) -> None:
        """Apply the changed files to every GPU. They overwrite values written by hand meanwhile."""
        for gpu in inventory:
            if gpu.kernel is not None and gpu.kernel.born:
                await self._set(gpu, settings.desired(new.of(gpu), old.of(gpu)))

    async def _set(self, gpu: Gpu, desired: Mapping[str, int]) -> bool:
        assert gpu.kernel is not None
        before = settings.current(gpu.kernel)
        changes = {key: value for key, value in desired.items() if before[key] != value}
        if not changes:
            return False
        try:
            await self._request(gpu, changes)
        except KernelRefused as error:
            if len(changes) == 1:
                self._log_refused(gpu, changes, before, error)
                return False
            return await self._one_by_one(gpu, changes, before)
        self._log_set(gpu, changes, before)
        return True

    async def _one_by_one(self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int]) -> bool:
        """The kernel refused the values together: apply each by itself, so that only the bad one is missing."""
        changed = False
        for key, value in changes.items():
            try:
                await self._request(gpu, {key: value})
            except KernelRefused as error:
                self._log_refused(gpu, {key: value}, before, error)
            else:
                self._log_set(gpu, {key: value}, before)
                changed = True
        return changed

    async def _request(self, gpu: Gpu, changes: Mapping[str, int]) -> None:
        await self._link.set_gpu(gpu.index, {settings.KERNEL_KEYS[key].attr: value for key, value in changes.items()})

    def _log_set(self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int]) -> None:
        for key, value in changes.items():
            old, new = settings.format_value(key, before[key]), settings.format_value(key, value)
            self._log.info("setting changed", gpu=gpu.number, key=key, old=old, new=new)

    def _log_refused(
        self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int], error: KernelRefused
    ) -> None:
        for key, value in changes.items():
            self._log.error(
                "setting refused",
                gpu=gpu.number,
                key=key,
                old=settings.format_value(key, before[key]),
                wanted=settings.format_value(key, value),
                reason=str(error),
            )
