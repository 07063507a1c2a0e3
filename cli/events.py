# SPDX-License-Identifier: MIT
"""cgpu events: the kernel module's events as they happen, one per line, without the daemon."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from . import proc
from .errors import CgpuError, Exit, not_permitted
from .output import out

if TYPE_CHECKING:
    from cgpud.link import KernelLink

SCHEMA_VERSION = 1
LOOK_AGAIN_S = 1.0
LOST = "events were lost; cgpu status shows the current state"

Report = Callable[[str, str, dict[str, Any]], None]


def open_link() -> KernelLink:
    from cgpud.netlink import NetlinkLink  # the import would double the start-up time of other commands

    return NetlinkLink()


def line(as_json: bool, at: datetime, level: str, text: str, fields: dict[str, Any]) -> str:
    when = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if as_json:
        return json.dumps({"schema_version": SCHEMA_VERSION, "time": when, "level": level, "text": text, **fields})
    return f"{when} {level:<7} {text}"


async def stream(link: KernelLink, report: Report, count: int | None, follow: bool) -> None:
    """Report `count` events, or until cancelled. Without the module: wait (`follow`) or raise KernelMissing."""
    from cgpud.errors import KernelMissing, Resync
    from cgpud.events import describe

    seen = 0
    while True:
        try:
            async for event in link.events():
                entry = describe(event)
                report(entry.level, entry.text, entry.fields)
                seen += 1
                if seen == count:
                    return
        except Resync:
            report("warning", LOST, {"kind": "resync"})
        except KernelMissing:
            if not follow:
                raise
            await asyncio.sleep(LOOK_AGAIN_S)


@click.command("events")
@click.option(
    "--json", "as_json", is_flag=True, help="One line of JSON per event (docs/reference/cgpu-events.schema.json)."
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="End after N events.")
@click.option("--follow", is_flag=True, help="Wait for the module if it is not loaded, or is unloaded.")
@click.make_pass_decorator(proc.Paths)
def events(paths: proc.Paths, as_json: bool, count: int | None, follow: bool) -> None:
    """Show events from now on: containers, refusals, overruns, controls, policies, cores."""
    from cgpud.errors import KernelMissing, KernelRefused

    def report(level: str, text: str, fields: dict[str, Any]) -> None:
        out(line(as_json, datetime.now(UTC), level, text, fields))

    try:
        asyncio.run(stream(open_link(), report, count, follow))
    except KernelMissing:
        if not proc.is_loaded(paths):
            raise proc.no_module(paths, "events") from None
        raise CgpuError(
            Exit.NOT_PERMITTED, "events", "not seen from this network namespace", "be in the host's"
        ) from None
    except KernelRefused as error:
        raise CgpuError(Exit.REFUSED, "events", str(error)) from None
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise not_permitted("events") from None
        raise
