# SPDX-License-Identifier: MIT
"""The screen of cgpu-smi top: what a key changes, and the lines of a frame. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cgpu_common.tree import Slot, slot_state

from .columns import Column, cut, folded, printable, table
from .names import label
from .overview import GPU_COLUMNS, drift_lines, duration, gpu_row, or_dash, process_lines, title
from .render import ids_of, mib, percent
from .view import SORTS, View

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
KEPT = 120  # figures of a sparkline
SPARK = 20
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
    ("space", "pause, on and off"),
)
COLUMNS = (
    ("ALLOWED", "ceiling while all that have the GPU open have work; -: none"),
    ("GOT, 10s", "part of the last second and of ten in which it could run; -: not measured"),
    ("P99", "99 of 100 waits for a turn were shorter"),
    ("REFUSED", "allocations over the limit"),
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


def press(state: State, key: str, gpus: Sequence[int]) -> State:
    """The state after one key. A key without a meaning changes nothing."""
    if state.typing is not None:
        return _typed(state, key)
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
            now |= {(gpu.index, slot.id): view.rates_of(slot).got_pct or 0.0 for slot in gpu.slots}
        self._series = {key: self._series.get(key, deque(maxlen=KEPT)) for key in now}
        for key, value in now.items():
            self._series[key].append(value)

    @property
    def series(self) -> Series:
        return self._series


def spark(values: Sequence[float], width: int, plain: bool = False) -> str:
    """The last `width` percentages, the newest at the right."""
    marks = PLAIN if plain else BLOCKS
    shown = list(values)[-width:]
    text = "".join(marks[min(8, max(0 if value <= 0 else 1, round(8 * min(value, 100) / 100)))] for value in shown)
    return text.rjust(width)


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


GPUS = (
    *(replace(one, drop={"UUID": 1, "INST": 2}.get(one.head, one.drop)) for one in GPU_COLUMNS),
    Column("UTIL, LAST READINGS", drop=3),
)
SLOTS = (
    Column("GPU", right=True),
    Column("CONTAINER", drop=2),
    Column("NAME", least=12),
    Column("WEIGHT", right=True, drop=4),
    Column("ALLOWED", right=True),
    Column("GOT", right=True),
    Column("10s", right=True),
    Column("P99", right=True, drop=3),
    Column("GOT, LAST READINGS", drop=5),
    Column("MEMORY MiB", right=True),
    Column("REFUSED", right=True, drop=1),
    Column("STATE"),
)


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
    Column("GOT, LAST READINGS", drop=3),
    Column("MEMORY MiB", right=True),
    Column("REFUSED", right=True, drop=1),
)


def _sum(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known: a part is no sum."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _pod_lines(view: View, series: Series, width: int, plain: bool) -> list[str]:
    """A row for each pod and GPU; a container of no pod is a row of its own, by its name. In the order of the largest
    share."""
    rows: list[tuple[int, float, list[str]]] = []
    for gpu in view.snapshot.gpus:
        groups: dict[str, list[Slot]] = {}
        for slot in gpu.slots:
            names = view.names_of(slot)
            pod = f"{names.namespace}/{names.pod}" if names.pod else view.title(slot) or label(slot.id)
            groups.setdefault(pod, []).append(slot)
        for pod, slots in groups.items():
            got = _sum([view.rates_of(slot).got_pct for slot in slots])
            trails = [series.get((gpu.index, slot.id), ()) for slot in slots]
            last = min(map(len, trails))
            trail = [sum(parts) for parts in zip(*(list(one)[-last:] for one in trails), strict=True)] if last else []
            cells = [
                str(gpu.index),
                pod,
                str(len(slots)),
                str(sum(slot.weight for slot in slots)),
                percent(got),
                percent(_sum([view.rates_of(slot).got_10s_pct for slot in slots])),
                spark(trail, SPARK, plain),
                f"{mib(sum(slot.used for slot in slots))}/{mib(sum(slot.memsize for slot in slots))}",
                str(sum(slot.stat.get("refused_allocs", 0) for slot in slots)),
            ]
            rows.append((gpu.index, -(got or 0.0), cells))
    return table(PODS, [cells for *_, cells in sorted(rows, key=lambda row: row[:2])], width)


def _history_lines(view: View, series: Series, width: int, plain: bool) -> list[str]:
    """Utilisation of each GPU and the share of each container, newest at the right, with the latest figure."""
    named: list[tuple[str, str, Sequence[float]]] = []
    for gpu in view.snapshot.gpus:
        now = or_dash(view.sensors_of(gpu).utilization_pct, "%")
        named.append((f"GPU {gpu.index}", now, series.get(gpu.index, ())))
        for slot in gpu.slots:
            shown = percent(view.rates_of(slot).got_pct)
            named.append((f"  {view.title(slot) or label(slot.id)}", shown, series.get((gpu.index, slot.id), ())))
    room = min(KEPT, max(SPARK, width - 28 - 8))
    columns = (Column("", least=8), Column("NOW", right=True), Column(f"LAST {room} READINGS"))
    return table(columns, [[name, now, spark(values, room, plain)] for name, now, values in named], width)


def frame(view: View, series: Series, state: State, width: int, height: int, plain: bool = False) -> list[str]:
    """The lines of the screen, at most `height`. Containers that do not fit are counted in the last but one."""
    if state.help:
        return _help_lines(width, height)
    shown = visible(view, state)
    ids = ids_of(view.snapshot)
    rows = [[*gpu_row(shown, gpu), spark(series.get(gpu.index, ()), SPARK, plain)] for gpu in shown.snapshot.gpus]
    lines = [
        cut(title(view) + ("   PAUSED" if state.paused else "") + ("   DRAINING" if view.draining else ""), width),
        "",
        *table(GPUS, rows, width),
    ]
    lines += [cut("  " + line, width) for line in drift_lines(shown)]
    if state.history:
        return _screen(state, [*lines, "", *_history_lines(shown, series, width, plain)], width, height)
    if state.pods:
        return _screen(state, [*lines, "", *_pod_lines(shown, series, width, plain)], width, height)
    slots = [
        [
            str(gpu.index),
            ids[slot.id],
            shown.title(slot) or label(slot.id),
            f"{slot.weight}{'hp' if slot.highprio else ''}",
            percent(shown.allowed_pct(slot)),
            percent(shown.rates_of(slot).got_pct),
            percent(shown.rates_of(slot).got_10s_pct),
            duration(shown.rates_of(slot).wait_p99_us),
            spark(series.get((gpu.index, slot.id), ()), SPARK, plain),
            f"{mib(slot.used)}/{mib(slot.memsize)}",
            str(slot.stat.get("refused_allocs", 0)),
            slot_state(gpu, slot),
        ]
        for gpu in shown.snapshot.gpus
        for slot in gpu.slots
    ]
    lines += ["", *table(SLOTS, slots, width)]
    if state.processes and (found := process_lines(shown, width)):
        lines += ["", *found]
    return _screen(state, lines, width, height)


def _screen(state: State, lines: list[str], width: int, height: int) -> list[str]:
    """So many lines, the last one with the state and the keys."""
    room = max(1, height - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"  {or_dash(len(lines) - room + 1)} more lines"]
    return [*lines, *[""] * (room - len(lines)), cut(_status(state), width)][-height:]


def _status(state: State) -> str:
    if state.typing is not None:
        return f"/{printable(state.typing)}_   Enter: use it   Esc: leave it"
    chosen = f"sort: {state.sort}" + (f"   filter: {printable(state.filter)}" if state.filter else "")
    return chosen + (f"   GPU {state.gpu}" if state.gpu is not None else "") + f"   {HELP}"
