# SPDX-License-Identifier: MIT
"""Every command below a click group."""

from __future__ import annotations

from collections.abc import Iterator

import click


def leaves(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands, and the groups themselves."""
    yield path, group
    if isinstance(group, click.Group):
        ctx = click.Context(group)
        for name in group.list_commands(ctx):
            child = group.get_command(ctx, name)
            assert child is not None
            yield from leaves(child, (*path, name))
