# SPDX-License-Identifier: MIT
"""cgpu events: the kernel module's events as they happen, one per line, without the daemon."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from cgpu_common import proc
from cgpu_common.app import COUNT, Command
from cgpu_common.exits import CgpuError, Exit, not_permitted
from cgpu_common.output import flush, note, out

from . import daemon

if TYPE_CHECKING:
    from cgpu_common.link import KernelLink

SCHEMA_VERSION = 1
LOOK_AGAIN_S = 1.0
LOST = "events were lost; cgpu status shows the current state"

Report = Callable[[str, str, dict[str, Any]], None]


def open_link() -> KernelLink:
    from cgpu_common.netlink import NetlinkLink  # the import would double the start-up time of other commands

    return NetlinkLink()


def _when(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(as_json: bool, at: datetime, level: str, text: str, fields: dict[str, Any]) -> str:
    when = _when(at)
    if as_json:
        return json.dumps({"schema_version": SCHEMA_VERSION, "time": when, "level": level, "text": text, **fields})
    return f"{when} {level:<7} {text}"


async def stream(link: KernelLink, report: Report, count: int | None, follow: bool) -> None:
    """Report `count` events, or until cancelled. Without the module: wait (`follow`) or raise KernelMissing."""
    from cgpu_common.errors import KernelMissing, Resync
    from cgpu_common.events import describe

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


async def listen(on_event: Callable[[Any, str], None]) -> None:
    """Call `on_event` with each event and its sentence, until cancelled."""
    from cgpu_common.events import describe

    async for event in open_link().events():
        on_event(event, describe(event).text)


UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str, now: float) -> float:
    """'90s', '10m', '2h', '1d' ago, '@1772442847', or a date such as 2026-03-02T09:14:07, local time
    unless it has a zone. Seconds since 1970."""
    number, unit = text[:-1], text[-1:]
    if unit in UNITS_S and number.isascii() and number.isdecimal() and len(number) <= 9:
        return now - int(number) * UNITS_S[unit]
    if text.startswith("@") and text[1:].isascii() and text[1:].isdecimal() and len(text) <= 12:
        return float(text[1:])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise CgpuError(
            Exit.USAGE, "usage", f"--since: {text!r} is no time", "90s, 10m, 2h, 1d, @1772442847 or 2026-03-02T09:14:07"
        ) from None


def past(paths: proc.Paths, since: float, report: Callable[[float, str, str, dict[str, Any]], None]) -> None:
    """Report what cgpud has received since then. CgpuError: there is no answer."""
    answer = daemon.request(paths, "events", since=since)
    if answer is None or not isinstance(answer.get("events"), list):
        raise CgpuError(
            Exit.REFUSED, "events --since", "cgpud, which keeps past events, does not answer",
            "systemctl start cgpud; without --since the kernel's events are shown from now on",
        )  # fmt: skip
    first = answer.get("complete_from")
    if isinstance(first, (int, float)) and first > since:
        note(f"cgpud has all events from {_when(datetime.fromtimestamp(first, timezone.utc))} on only")
    for row in daemon.rows(answer, "events"):
        at, fields = row.get("time"), row.get("fields")
        if isinstance(at, (int, float)) and isinstance(fields, dict):
            report(at, str(row.get("level")), str(row.get("text")), fields)


@click.command("events", cls=Command)
@click.option(
    "--json", "as_json", is_flag=True, help="One line of JSON per event (docs/reference/cgpu-events.schema.json)."
)
@click.option("-n", "--count", type=COUNT, metavar="N", help="End after N events.")
@click.option("--since", metavar="WHEN", help="First those since 10m, 2h, 1d ago, or since a date; cgpud keeps them.")
@click.option("--no-stream", is_flag=True, help="With --since: end after the past events.")
@click.option("--follow", is_flag=True, help="Wait for the module if it is not loaded, or is unloaded.")
@click.make_pass_decorator(proc.Paths)
def events(
    paths: proc.Paths, as_json: bool, count: int | None, since: str | None, no_stream: bool, follow: bool
) -> None:
    """Show events from now on: containers, refusals, overruns, controls, policies, cores."""
    if no_stream and since is None:
        raise click.UsageError("--no-stream goes with --since")
    seen = 0

    def report(level: str, text: str, fields: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        out(line(as_json, datetime.now(timezone.utc), level, text, fields))
        flush()

    def report_past(at: float, level: str, text: str, fields: dict[str, Any]) -> None:
        nonlocal seen
        if count is None or seen < count:
            seen += 1
            out(line(as_json, datetime.fromtimestamp(at, timezone.utc), level, text, fields))

    if since is not None:
        past(paths, parse_since(since, time.time()), report_past)
        flush()
        if no_stream or seen == count:
            return
    _run(paths, report, None if count is None else count - seen, follow)


def _run(paths: proc.Paths, report: Report, count: int | None, follow: bool) -> None:
    from cgpu_common.errors import KernelMissing, KernelRefused

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
