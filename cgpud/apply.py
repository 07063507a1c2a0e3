# SPDX-License-Identifier: MIT
"""Carries what settings.py finds out into the kernel, and says in the log what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cgpud import log, settings
from cgpud.config import Config
from cgpud.errors import KernelRefused
from cgpud.link import KernelLink
from cgpud.model import Gpu


class Applier:
    """Applies the files at start, on reload, and to a GPU whose values the kernel has forgotten."""

    def __init__(self, link: KernelLink) -> None:
        self._link = link
        self._log = log.get()
        self._born: dict[int, int] = {}  # kernel index -> the GPU the files were applied to

    async def catch_up(self, inventory: Iterable[Gpu], config: Config) -> bool:
        """GPUs not seen before, or seen before the module was loaded again. True: something was set."""
        changed = False
        for gpu in inventory:
            if gpu.kernel is None or not gpu.kernel.born or self._born.get(gpu.index) == gpu.kernel.born:
                continue
            changed |= await self._set(gpu, settings.wanted(config.of(gpu)))
            self._born[gpu.index] = gpu.kernel.born
        return changed

    async def reload(self, inventory: Iterable[Gpu], new: Config, old: Config) -> None:
        """Every GPU to what the files say now. What was written live since gives way here."""
        for gpu in inventory:
            if gpu.kernel is not None and gpu.kernel.born:
                await self._set(gpu, settings.target(new.of(gpu), old.of(gpu)))

    async def _set(self, gpu: Gpu, target: Mapping[str, int]) -> bool:
        assert gpu.kernel is not None
        before = settings.live(gpu.kernel)
        changes = {key: value for key, value in target.items() if before[key] != value}
        if not changes:
            return False
        try:
            await self._ask(gpu, changes)
        except KernelRefused as error:
            if len(changes) == 1:
                self._say_refused(gpu, changes, before, error)
                return False
            return await self._one_by_one(gpu, changes, before)
        self._say_set(gpu, changes, before)
        return True

    async def _one_by_one(self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int]) -> bool:
        """One of them is wrong; the others are to be in force all the same."""
        changed = False
        for key, value in changes.items():
            try:
                await self._ask(gpu, {key: value})
            except KernelRefused as error:
                self._say_refused(gpu, {key: value}, before, error)
            else:
                self._say_set(gpu, {key: value}, before)
                changed = True
        return changed

    async def _ask(self, gpu: Gpu, changes: Mapping[str, int]) -> None:
        await self._link.set_gpu(gpu.index, {settings.KERNEL_KEYS[key].attr: value for key, value in changes.items()})

    def _say_set(self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int]) -> None:
        for key, value in changes.items():
            old, new = settings.show(key, before[key]), settings.show(key, value)
            self._log.info("setting changed", gpu=gpu.number, key=key, old=old, new=new)

    def _say_refused(
        self, gpu: Gpu, changes: Mapping[str, int], before: Mapping[str, int], error: KernelRefused
    ) -> None:
        for key, value in changes.items():
            self._log.error(
                "setting refused",
                gpu=gpu.number,
                key=key,
                old=settings.show(key, before[key]),
                wanted=settings.show(key, value),
                reason=str(error),
            )
