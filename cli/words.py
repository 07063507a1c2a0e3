# SPDX-License-Identifier: MIT
"""A GPU on the command line: its number, its UUID or a beginning of it, or its PCI address."""

from __future__ import annotations

import click

from cgpu_common.exits import CgpuError
from cgpu_common.proc import Paths, no_module, read_node

from .names import GpuNames, choose_gpu


def there(paths: Paths) -> list[GpuNames]:
    """The GPUs of the tree. CgpuError: the module is not loaded."""
    try:
        folders = [path for path in paths.proc.iterdir() if path.name.isdecimal()]
    except OSError:
        raise no_module(paths) from None
    found = []
    for path in sorted(folders, key=lambda path: int(path.name)):
        try:
            found.append(GpuNames(int(path.name), read_node(path / "uuid").strip(), read_node(path / "pci").strip()))
        except CgpuError:  # it has just gone
            continue
    return found


class GpuWord(click.IntRange):
    """A parameter whose value is the number of a GPU. A number is not looked up: the command does it."""

    def _describe_range(self) -> str:
        """Nothing: click's help has the range of a number, and a UUID or an address is no number."""
        return ""

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int) or (value.isascii() and value.lstrip("-").isdecimal()):
            return int(super().convert(int(value), param, ctx))
        if "," in value:
            self.fail(f"{value!r} is more than one GPU: give the option again for each", param, ctx)
        if value.startswith("-") or ctx is None:
            self.fail(f"{value!r} is no GPU: a number, a UUID or its beginning, or a PCI address", param, ctx)
        paths = ctx.find_object(Paths)
        assert paths is not None
        return choose_gpu(value, there(paths))


GPU = GpuWord(0)
