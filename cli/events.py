# SPDX-License-Identifier: MIT
"""cgpu events: the kernel module's events as they happen, one per line, without the daemon."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from cgpu_common import proc
from cgpu_common.app import COUNT, Command
from cgpu_common.exits import CgpuError, Exit, not_permitted
from cgpu_common.kernel_abi import Event
from cgpu_common.output import flush, note, out

from . import daemon
from .columns import printable
from .complete import container_words
from .names import label

if TYPE_CHECKING:
    from cgpu_common.events import LogEntry
    from cgpu_common.link import KernelLink
    from cgpu_common.model import KernelEvent

SCHEMA_VERSION = 1
LOOK_AGAIN_S = 1.0
NAMES_MOST = 4096
LOST = "events were lost; cgpu-smi shows the current state"

#: True: that was the last one.
Report = Callable[[str, str, dict[str, Any]], bool]
KINDS = tuple(event.name.lower() for event in Event)


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


async def _described(link: KernelLink) -> AsyncIterator[tuple[KernelEvent, LogEntry]]:
    """The events with their entries. The containers are read once, so that a change has the values before it."""
    from cgpu_common.errors import KernelRefused
    from cgpu_common.events import Seen

    seen = Seen()

    async def joined() -> None:
        with suppress(KernelRefused):  # a change then has its new values only
            seen.learn(await link.list())

    async for event in link.events(joined):
        yield event, seen.describe(event)


async def stream(link: KernelLink, report: Report, follow: bool) -> None:
    """Report events until one is the last, or until cancelled. Without the module wait, or raise KernelMissing."""
    from cgpu_common.errors import KernelMissing, Resync

    while True:
        try:
            async for _, entry in _described(link):
                if report(entry.level, entry.text, entry.fields):
                    return
        except Resync:
            report("warning", LOST, {"kind": "resync"})
        except KernelMissing:
            if not follow:
                raise
            await asyncio.sleep(LOOK_AGAIN_S)


async def listen(on_event: Callable[[Any, str], None]) -> None:
    """Call `on_event` with each event and its sentence, until cancelled."""
    async for event, entry in _described(open_link()):
        on_event(event, entry.text)


class _Names:
    """The engine's names of containers, each looked up once: an event may be of one that has just ended."""

    def __init__(self, paths: proc.Paths) -> None:
        self._paths = paths
        self._known: dict[str, str | None] = {}

    def of(self, fields: dict[str, Any]) -> str | None:
        container_id = fields.get("id")
        if not isinstance(container_id, str):
            return None
        if container_id not in self._known:
            if len(self._known) >= NAMES_MOST:
                self._known.clear()
            self._known[container_id] = proc.engine_name(self._paths, container_id)
        return self._known[container_id]


@dataclass(frozen=True)
class Wanted:
    """Which events to show. @key: a container by its name, directory or the beginning of its id; None: all."""

    kinds: frozenset[str]
    key: str | None

    def has(self, fields: dict[str, Any], name: str | None) -> bool:
        if fields.get("kind") not in self.kinds and not str(fields.get("kind")).startswith("unknown_"):
            return False
        own = str(fields.get("id", ""))
        return self.key is None or self.key in (name, fields.get("container")) or bool(own and own.startswith(self.key))


def with_name(text: str, fields: dict[str, Any], name: str | None) -> str:
    """The sentence with the id that ps shows, which is not always the directory's name, and the engine's name."""
    known = f"container {fields.get('container')}"
    shown = f"container {label(str(fields['id']))}" if fields.get("id") else known
    return text.replace(known, f"{shown} ({printable(name)})" if name else shown, 1)


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
        note(f"cgpud keeps events from {_when(datetime.fromtimestamp(first, timezone.utc))} on only")
    for row in daemon.rows(answer, "events"):
        at, fields = row.get("time"), row.get("fields")
        if isinstance(at, (int, float)) and isinstance(fields, dict):
            report(at, str(row.get("level")), str(row.get("text")), fields)


@click.command("events", cls=Command)
@click.option(
    "--json", "as_json", is_flag=True, help="One line of JSON per event (docs/reference/cgpu-events.schema.json)."
)
@click.option("-n", "--count", type=COUNT, metavar="N", help="End after N events.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only events of this kind, or of these.")
@click.option("--except", "left_out", type=click.Choice(KINDS), multiple=True, help="None of this kind, e.g. overrun.")
@click.option("--container", "key", metavar="ID", shell_complete=container_words, help="Only events of this container.")
@click.option("--since", metavar="WHEN", help="First those since 10m, 2h, 1d ago, or since a date; cgpud keeps them.")
@click.option("--no-stream", is_flag=True, help="With --since: end after the past events.")
@click.option("--follow", is_flag=True, help="Wait for the module if it is not loaded, or is unloaded.")
@click.make_pass_decorator(proc.Paths)
def events(
    paths: proc.Paths,
    as_json: bool,
    count: int | None,
    kinds: Sequence[str],
    left_out: Sequence[str],
    key: str | None,
    since: str | None,
    no_stream: bool,
    follow: bool,
) -> None:
    """Show events from now on: containers, refusals, overruns, controls, policies, cores."""
    if no_stream and since is None:
        raise click.UsageError("--no-stream goes with --since")
    wanted = Wanted(frozenset(kinds or KINDS) - frozenset(left_out), key)
    names = _Names(paths)
    seen = 0

    def show(at: datetime, level: str, text: str, fields: dict[str, Any]) -> bool:
        """True: it was the last one."""
        nonlocal seen
        if fields.get("kind") == "resync":  # of no kind: what was lost may be of the ones that are wanted
            out(line(as_json, at, level, text, fields))
            return False
        name = names.of(fields)
        if not wanted.has(fields, name) or (count is not None and seen >= count):
            return seen == count
        seen += 1
        out(line(as_json, at, level, with_name(text, fields, name), fields))
        return seen == count

    def report(level: str, text: str, fields: dict[str, Any]) -> bool:
        is_last = show(datetime.now(timezone.utc), level, text, fields)
        flush()
        return is_last

    def report_past(at: float, level: str, text: str, fields: dict[str, Any]) -> None:
        show(datetime.fromtimestamp(at, timezone.utc), level, text, fields)

    if since is not None:
        now = time.time()
        at = parse_since(since, now)
        if at > now:
            raise CgpuError(Exit.USAGE, "usage", f"--since {since} is in the future: no event is later than now", "")
        from cgpu_common.events import NOISY

        past(paths, at, report_past)
        if kinds and wanted.kinds & {one.name.lower() for one in NOISY}:
            note("of these kinds cgpud keeps one a minute for a container and GPU; stat and the metrics count each")
        flush()
        if no_stream or seen == count:
            return
    _run(paths, report, follow)


def _run(paths: proc.Paths, report: Report, follow: bool) -> None:
    from cgpu_common.errors import KernelMissing, KernelRefused

    try:
        asyncio.run(stream(open_link(), report, follow))
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
