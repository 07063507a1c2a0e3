# SPDX-License-Identifier: MIT
"""The screen of cgpu-smi top: what a key changes, and the lines of a frame. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cgpu_common.model import Slot

from . import cells
from .cells import Cell, grid, or_dash
from .columns import Column, cut, folded, printable, table
from .overview import GPU_NAMES, drift_lines, places, process_lines, title
from .render import mib, percent
from .view import SORTS, View

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
KEPT = 120  # figures of a sparkline
SPARK = 20
SCALES = (5, 10, 25, 50, 100)
UTIL = Column("UTIL, LAST READINGS", drop=3)
GOT_HEAD = "GOT, LAST READINGS"  # with the percentage of a whole block
FILTER_MOST = 64
HELP = "? help  q quit  s sort  / find  g GPU  p procs  o pods  t history"
KEYS = (
    ("?", "this page; any key leaves it"),
    ("q, Ctrl-C", "quit"),
    ("s", f"next order: {', '.join(SORTS)}"),
    ("/", "filter by a part of a name or id; Enter uses it, Esc leaves it, an empty one shows all"),
    ("g", "next GPU, then all again"),
    ("p", "processes, with their part of the multiprocessors (SM) and of memory accesses (MEM), on and off"),
    ("o", "a row for each pod, its containers added up, on and off"),
    ("t", "history: the last 120 readings of each GPU and container, on and off"),
    ("j, k", "ten lines down and up where they do not fit, as page down and page up; the arrows: one line"),
    ("space", "pause, on and off"),
)
COLUMNS = (
    ("ALLOWED", cells.SLOT["allowed"].legend),
    ("GOT, 10s", "part of the last second and of ten in which it could run; -: not measured"),
    ("GOT, UP TO", "the last readings; a whole block is that percentage"),
    ("P99", cells.SLOT["p99"].legend),
    ("REFUSED", cells.SLOT["refused"].legend),
)
ENTER, ESCAPE, BACKSPACE = ("\r", "\n"), "\x1b", ("\x7f", "\b")

Series = Mapping[object, Sequence[float]]


@dataclass(frozen=True)
class State:
    """What the keys have chosen. @gpu: only this one; None: all. @typing: the filter that is being typed."""

    sort: str = "share"
    filter: str = ""
    gpu: int | None = None
    processes: bool = False
    pods: bool = False
    history: bool = False
    paused: bool = False
    typing: str | None = None
    help: bool = False
    first: int = 0  # line of what is below the GPUs
    quit: bool = False


def _next(names: Sequence[object], now: object) -> object:
    return names[(names.index(now) + 1) % len(names)] if now in names else names[0]


def _typed(state: State, key: str) -> State:
    text = state.typing or ""
    if key in ENTER:
        return replace(state, filter=text, typing=None)
    if key == ESCAPE:
        return replace(state, typing=None)
    if key in BACKSPACE:
        return replace(state, typing=text[:-1])
    return replace(state, typing=text + key) if key.isprintable() and len(text) < FILTER_MOST else state


#: What a key scrolls by.
SCROLL = {"j": 10, "k": -10, "↓": 1, "↑": -1}
#: Sequences of a terminal, and the keys that they are here; any other is no key.
SEQUENCES = {"\x1b[B": "↓", "\x1b[A": "↑", "\x1bOB": "↓", "\x1bOA": "↑", "\x1b[6~": "j", "\x1b[5~": "k"}


def keys_of(text: str) -> str:
    """The keys in what a terminal sent."""
    if text.startswith("\x1b") and len(text) > 1:
        return SEQUENCES.get(text, "")
    return text


def press(state: State, key: str, gpus: Sequence[int], lines: int = 0) -> State:
    """The state after one key. A key without a meaning changes nothing. @lines: the most below the GPUs."""
    if state.typing is not None:
        return _typed(state, key)
    if key in SCROLL and not state.help:
        return replace(state, first=max(0, min(state.first + SCROLL[key], lines)))
    found = _chosen(state, key, gpus)
    kept = ("sort", "filter", "gpu", "processes", "pods", "history")
    return found if all(getattr(found, name) == getattr(state, name) for name in kept) else replace(found, first=0)


def _chosen(state: State, key: str, gpus: Sequence[int]) -> State:
    if state.help and key not in ("q", "Q", "\x03", "\x04"):
        return replace(state, help=False)
    match key:
        case "q" | "Q" | "\x03" | "\x04":
            return replace(state, quit=True)
        case "?" | "h":
            return replace(state, help=True)
        case "s":
            return replace(state, sort=str(_next(list(SORTS), state.sort)))
        case "/":
            return replace(state, typing=state.filter)
        case "g":
            choice = _next([None, *gpus], state.gpu)
            return replace(state, gpu=choice if isinstance(choice, int) else None)
        case "p":
            return replace(state, processes=not state.processes)
        case "o":
            return replace(state, pods=not state.pods)
        case "t":
            return replace(state, history=not state.history)
        case " ":
            return replace(state, paused=not state.paused)
        case _:
            return state


class Trail:
    """The latest figures of each GPU and container. Those that are gone are forgotten."""

    def __init__(self) -> None:
        self._series: dict[object, deque[float]] = {}

    def add(self, view: View) -> None:
        now: dict[object, float] = {}
        for gpu in view.snapshot.gpus:
            now[gpu.index] = view.sensors_of(gpu).utilization_pct or 0.0
            now |= {(gpu.index, slot.id): view.rates_of(slot).share_got_pct or 0.0 for slot in gpu.slots}
        self._series = {key: self._series.get(key, deque(maxlen=KEPT)) for key in now}
        for key, value in now.items():
            self._series[key].append(value)

    @property
    def series(self) -> Series:
        return self._series


def spark(values: Sequence[float], width: int, plain: bool = False, most: int = 100) -> str:
    """The last `width` percentages, the newest at the right. @most: that of a whole block."""
    marks = PLAIN if plain else BLOCKS
    shown = list(values)[-width:]
    text = "".join(marks[min(8, max(0 if value <= 0 else 1, round(8 * min(value, most) / most)))] for value in shown)
    return text.rjust(width)


def scale(trails: Iterable[Sequence[float]], width: int) -> int:
    """The percentage of a whole block for these sparklines together: 25 containers have 4 % each."""
    largest = max((value for one in trails for value in list(one)[-width:]), default=100.0)
    return next((one for one in SCALES if largest <= one), SCALES[-1])


def visible(view: View, state: State) -> View:
    """Only what the state shows, in its order."""
    low = (state.typing if state.typing is not None else state.filter).lower()
    order = SORTS[state.sort]
    gpus = [
        replace(
            gpu,
            slots=tuple(
                sorted(
                    (one for one in gpu.slots if low in view.title(one).lower() or low in one.id),
                    key=lambda slot: order(view, slot),
                )
            ),
        )
        for gpu in view.snapshot.gpus
        if state.gpu in (None, gpu.index)
    ]
    return replace(view, snapshot=replace(view.snapshot, gpus=tuple(gpus)), whole=view.whole or view.snapshot)


GPUS = {"uuid": {"drop": 1}, "inst": {"drop": 2}}
SLOTS = ("gpu", "container", "label", "weight", "allowed", "got", "10s", "p99", "spark", "memory", "refused", "state")
CHANGED = {
    "container": {"drop": 2},
    "weight": {"drop": 4},
    "10s": {"drop": 0},
    "p99": {"drop": 3},
    "refused": {"drop": 1},
}


def _help_lines(width: int, height: int) -> list[str]:
    lines = []
    for title_of, rows in (("Keys", KEYS), ("Columns", COLUMNS)):
        lines.append(title_of)
        for word, about in rows:
            lines += folded(about, width, f"  {word:<10} ", " " * 13)
    return [*lines[:height], *[""] * (height - len(lines))]


PODS = (
    Column("GPU", right=True),
    Column("POD", least=8),
    Column("CONTAINERS", right=True, drop=2),
    Column("WEIGHT", right=True),
    Column("GOT", right=True),
    Column("10s", right=True),
    Column(GOT_HEAD, drop=3),
    Column("MEMORY MiB", right=True),
    Column("REFUSED", right=True, drop=1),
)


def _sum(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known: a part is no sum."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _scaled(columns: Sequence[Column], most: int) -> list[Column]:
    return [replace(one, head=f"GOT, UP TO {most}%") if one.head == GOT_HEAD else one for one in columns]


def _scrolled(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], int]:
    """The lines of a table, and how many of them are its head: none where each row takes several lines."""
    lines = table(columns, rows, width)
    return lines, int(len(lines) == len(rows) + 1)


def _pod_lines(view: View, series: Series, width: int, plain: bool) -> tuple[list[str], int]:
    """A row for each pod and GPU; a container of no pod is a row of its own, by its name. In the order of the largest
    share."""
    rows: list[tuple[int, float, list[str], list[float]]] = []
    place = next(number for number, one in enumerate(PODS) if one.head == GOT_HEAD)
    for gpu in view.snapshot.gpus:
        groups: dict[str, list[Slot]] = {}
        for slot in gpu.slots:
            names = view.names_of(slot)
            pod = f"{names.namespace}/{names.pod}" if names.pod else view.title(slot) or view.labels[slot.id]
            groups.setdefault(pod, []).append(slot)
        for pod, slots in groups.items():
            got = _sum([view.rates_of(slot).share_got_pct for slot in slots])
            trails = [series.get((gpu.index, slot.id), ()) for slot in slots]
            last = min(map(len, trails))
            trail = [sum(parts) for parts in zip(*(list(one)[-last:] for one in trails), strict=True)] if last else []
            cells = [
                str(gpu.index),
                pod,
                str(len(slots)),
                str(sum(slot.weight for slot in slots)),
                percent(got),
                percent(_sum([view.rates_of(slot).share_got_10s_pct for slot in slots])),
                "",
                f"{mib(sum(slot.used for slot in slots))}/{mib(sum(slot.limit for slot in slots))}",
                str(sum(slot.stat.get("refused_allocs", 0) for slot in slots)),
            ]
            rows.append((gpu.index, -(got or 0.0), cells, trail))
    most = scale((trail for *_, trail in rows), SPARK)
    for *_, cells, trail in rows:
        cells[place] = spark(trail, SPARK, plain, most)
    return _scrolled(_scaled(PODS, most), [cells for *_, cells, _ in sorted(rows, key=lambda row: row[:2])], width)


def _history_lines(view: View, series: Series, width: int, plain: bool) -> tuple[list[str], int]:
    """Utilisation of each GPU and the share of each container, newest at the right, with the latest figure."""
    named: list[tuple[str, str, Sequence[float], int]] = []
    room = min(KEPT, max(SPARK, width - 28 - 8))
    there = {(gpu.index, slot.id) for gpu in view.snapshot.gpus for slot in gpu.slots}
    most = scale((series.get(key, ()) for key in there), room)
    for gpu in view.snapshot.gpus:
        now = or_dash(view.sensors_of(gpu).utilization_pct, "%")
        named.append((f"GPU {gpu.index}", now, series.get(gpu.index, ()), 100))
        for slot in gpu.slots:
            shown = percent(view.rates_of(slot).share_got_pct)
            name = view.title(slot) or view.labels[slot.id]
            named.append((f"  {name}", shown, series.get((gpu.index, slot.id), ()), most))
    head = f"LAST {room} READINGS; CONTAINERS UP TO {most}%"[:room]
    columns = (Column("", least=8), Column("NOW", right=True), Column(head))
    return _scrolled(columns, [[name, now, spark(values, room, plain, top)] for name, now, values, top in named], width)


def frame(view: View, series: Series, state: State, width: int, height: int, plain: bool = False) -> list[str]:
    """The lines of the screen, at most `height`. Containers that do not fit are counted in the last but one."""
    if state.help:
        return _help_lines(width, height)
    shown = visible(view, state)
    own = {"spark": Cell(UTIL, lambda view, gpu: spark(series.get(gpu.index, ()), SPARK, plain))}
    gpus = [(shown, gpu) for gpu in shown.snapshot.gpus]
    lines = [
        cut(title(view) + ("   PAUSED" if state.paused else "") + ("   DRAINING" if view.draining else ""), width),
        "",
        *table(*grid(cells.GPU | own, (*GPU_NAMES, "spark"), gpus, **GPUS), width),
    ]
    lines += [cut("  " + line, width) for line in drift_lines(shown)]
    if state.history:
        return _screen(state, lines, *_history_lines(shown, series, width, plain), width, height)
    if state.pods:
        return _screen(state, lines, *_pod_lines(shown, series, width, plain), width, height)
    trails = {(gpu.index, slot.id): series.get((gpu.index, slot.id), ()) for _, gpu, slot in places(shown)}
    most = scale(trails.values(), SPARK)
    got = Column(f"GOT, UP TO {most}%", drop=5)
    own = {"spark": Cell(got, lambda view, gpu, slot: spark(trails[gpu.index, slot.id], SPARK, plain, most))}
    body, heads = _scrolled(*grid(cells.SLOT | own, SLOTS, places(shown), **CHANGED), width)
    if state.processes and (found := process_lines(shown, width)):
        body += ["", *found]
    return _screen(state, lines, body, heads, width, height)


LEAST_BODY = 4  # a screen with less room below the GPUs scrolls all of it


def _screen(state: State, head: list[str], body: list[str], heads: int, width: int, height: int) -> list[str]:
    """So many lines, the last one with the state and the keys. What does not fit of @body is scrolled below @head and
    its own first lines, @heads."""
    room = max(1, height - 1)
    top, body = [*head, "", *body[:heads]], body[heads:]
    if room - len(top) < LEAST_BODY:
        top, body = [], [*top, *body]
    space = room - len(top)
    if len(body) > space:
        first = min(state.first, len(body) - space + 1)
        shown = body[first : first + space - 1]
        body = [*shown, cut(f"  lines {first + 1} to {first + len(shown)} of {len(body)} (j, k)", width)]
    lines = [*top, *body]
    return [*lines, *[""] * (room - len(lines)), cut(_status(state), width)][-height:]


def _status(state: State) -> str:
    if state.typing is not None:
        return f"/{printable(state.typing)}_   Enter: use it   Esc: leave it"
    chosen = f"sort: {state.sort}" + (f"   filter: {printable(state.filter)}" if state.filter else "")
    return chosen + (f"   GPU {state.gpu}" if state.gpu is not None else "") + f"   {HELP}"
