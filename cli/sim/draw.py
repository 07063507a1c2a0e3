# SPDX-License-Identifier: MIT
"""The time line of a GPU, as text and as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..columns import cells as cells_of
from ..columns import folded, shorten
from .gpu import Stretch
from .model import MS, S, in_digits
from .requests import Request

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
# Okabe and Ito's colours, distinguishable with any colour vision.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")


def cover(line: Sequence[Stretch], client: int, window_ms: tuple[float, float], cells: int) -> list[float]:
    """The fraction of each cell in which the client ran."""
    begin, end = (round(ms * MS) for ms in window_ms)
    width = max(1.0, (end - begin) / cells)
    found = [0.0] * cells
    for one in line:
        if one.client != client:
            continue
        left, right = max(one.begin_ns, begin) - begin, min(one.end_ns, end) - begin
        cell = int(left / width)
        while left < right and cell < cells:
            stop = min(right, (cell + 1) * width)
            found[cell] += one.part * (stop - left) / width
            left, cell = stop, cell + 1  # type: ignore[assignment]
    return found


def merged(line: Sequence[Stretch], window_ms: tuple[float, float]) -> list[Stretch]:
    """As finely as it can be drawn: a client's next stretch after a gap of 1/5000 of the window joins the last one."""
    most_ns = (window_ms[1] - window_ms[0]) * MS / 5000
    found: list[Stretch] = []
    for one in line:
        last = found[-1] if found else None
        if last is None or last.client != one.client or one.begin_ns - last.end_ns > most_ns:
            found.append(one)
            continue
        ran = last.part * (last.end_ns - last.begin_ns) + one.part * (one.end_ns - one.begin_ns)
        found[-1] = Stretch(one.client, last.begin_ns, one.end_ns, ran / (one.end_ns - last.begin_ns))
    return found


def time_line(
    line: Sequence[Stretch], names: Sequence[str], window_ms: tuple[float, float], width: int, plain: bool = False
) -> list[str]:
    """A row per client; the height of a block is the fraction of its cell. Below them the scale of the blocks."""
    marks = PLAIN if plain else BLOCKS
    shown = [shorten(name, max(8, width // 3)) for name in names]
    label = max([2, *map(cells_of, shown)])
    cells = max(20, width - label - 2)
    begin, end = f"{in_digits(window_ms[0])} ms", f"{in_digits(window_ms[1])} ms"
    rows = [f"{'':<{label}}  {begin}{end:>{max(1, cells - len(begin))}}"]
    for client, name in enumerate(shown):
        parts = cover(line, client, window_ms, cells)
        blocks = "".join(marks[min(8, max(part > 0, round(8 * part)))] for part in parts)
        rows.append((name + " " * (label - cells_of(name) + 2) + blocks).rstrip())
    return [*rows, *folded(f"{marks[1]} to {marks[8]}: a little to all of a cell, blank: none", width)]


NAME_MOST = 40
LETTER = 6.3  # width of a letter of 11 pixels, about
LEGEND_MOST = 12


@dataclass(frozen=True)
class Mark:
    """A change at a moment: a vertical line with a number, and a line in the legend."""

    at_ms: float
    text: str


@dataclass(frozen=True)
class _Area:
    """A part of the drawing with a scale of time."""

    left: float
    top: float
    width: float
    height: float
    window_ms: tuple[float, float]

    def x(self, ms: float) -> float:
        begin, end = self.window_ms
        return self.left + min(1.0, max(0.0, (ms - begin) / max(1e-6, end - begin))) * self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def colour(number: int) -> str:
    """The first are distinguishable with any colour vision; after them the same ones, lighter and darker."""
    base, turn = COLOURS[number % len(COLOURS)], number // len(COLOURS)
    if not turn:
        return base
    towards, part = (255, 0.35) if turn % 2 else (0, 0.3)
    part = min(0.75, part * ((turn + 1) // 2))
    parts = [round(int(base[i : i + 2], 16) * (1 - part) + towards * part) for i in (1, 3, 5)]
    return "#" + "".join(f"{one:02x}" for one in parts)


def _text(x: float, y: float, text: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'


def ticks(window_ms: tuple[float, float], most: int = 10) -> list[float]:
    """Round times within the window, 1, 2 or 5 times a power of ten apart."""
    begin, end = window_ms
    span = end - begin
    if span <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.ceil(begin / step - 1e-9)
    return [round(number * step, 9) for number in range(first, math.floor(end / step + 1e-9) + 1)]


def _axis(area: _Area) -> list[str]:
    """The scale below the area, and a line through it at each tick."""
    found = [
        f'<line x1="{area.left}" y1="{area.bottom}" x2="{area.left + area.width}" y2="{area.bottom}" stroke="#888"/>'
    ]
    in_seconds = area.window_ms[1] - area.window_ms[0] >= 10_000
    for ms in ticks(area.window_ms):
        x = area.x(ms)
        found.append(f'<line x1="{x:.1f}" y1="{area.top}" x2="{x:.1f}" y2="{area.bottom + 4}" stroke="#0002"/>')
        found.append(_text(x, area.bottom + 16, in_digits(ms / 1000 if in_seconds else ms), ' text-anchor="middle"'))
    unit = "s" if in_seconds else "ms"
    found.append(_text(area.left + area.width + 26, area.bottom + 16, unit))
    return found


def _names(names: Sequence[str], area: _Area, lane: float) -> list[str]:
    """A row with its name for each client; every second one is darker."""
    found = []
    for client, name in enumerate(names):
        y = area.top + client * lane
        fill = "#f3f3f3" if client % 2 == 0 else "#e9e9e9"
        found.append(f'<rect x="{area.left}" y="{y:.1f}" width="{area.width}" height="{lane:.1f}" fill="{fill}"/>')
        found.append(
            f"<g><title>{escape(name)}</title>"
            f'<rect x="{area.left - 12}" y="{y + lane / 2 - 4:.1f}" width="8" height="8" fill="{colour(client)}"/>'
            + _text(area.left - 17, y + lane / 2 + 4, shorten(name, NAME_MOST), ' text-anchor="end"')
            + "</g>"
        )
    return found


def _stretches(line: Sequence[Stretch], area: _Area, lane: float) -> list[str]:
    found = []
    for one in line:
        x, end = area.x(one.begin_ns / MS), area.x(one.end_ns / MS)
        height = max(0.5, (lane - 3) * one.part)
        y = area.top + (one.client + 1) * lane - 1.5 - height
        found.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(end - x, 0.05):.2f}" height="{height:.1f}" '
            f'fill="{colour(one.client)}"/>'
        )
    return found


def _requests(seen: Sequence[Sequence[Request]], area: _Area, lane: float) -> list[str]:
    """A line below the lane from each arrival to the end of the last kernel, with a mark at the arrival."""
    begin, end = (ms * MS for ms in area.window_ms)
    found = []
    for client, requests in enumerate(seen):
        y = area.top + (client + 1) * lane - 1.5
        for one in requests:
            if one.end_ns <= begin or one.arrival_ns >= end:
                continue
            mark = f"M{area.x(one.arrival_ns / MS):.2f} {y - 4:.1f}V{y:.1f}H{area.x(one.end_ns / MS):.2f}"
            found.append(f'<path class="request" d="{mark}" fill="none" stroke="#222"/>')
    return found


def _shares(buckets: Sequence[Sequence[int]], area: _Area) -> list[str]:
    """Shares per 100 ms as stacked areas, with a scale in percent."""
    count = len(buckets[0])
    below = [0.0] * count
    found = [f'<rect x="{area.left}" y="{area.top}" width="{area.width}" height="{area.height}" fill="#f3f3f3"/>']
    for client, one in enumerate(buckets):
        above = [low + ns / (S / 10) for low, ns in zip(below, one, strict=True)]
        there, back = [], []
        for i in range(count):
            x0, x1 = area.left + area.width * i / count, area.left + area.width * (i + 1) / count
            there += [f"{x:.1f},{area.top + area.height * (1 - min(1.0, above[i])):.1f}" for x in (x0, x1)]
            back += [f"{x:.1f},{area.top + area.height * (1 - min(1.0, below[i])):.1f}" for x in (x0, x1)]
        points = " ".join([*there, *reversed(back)])
        found.append(f'<polygon points="{points}" fill="{colour(client)}"/>')
        below = above
    for percent in (0, 25, 50, 75, 100):
        y = area.top + area.height * (1 - percent / 100)
        found.append(
            f'<line x1="{area.left - 4}" y1="{y:.1f}" x2="{area.left + area.width}" y2="{y:.1f}" stroke="#0002"/>'
        )
        found.append(_text(area.left - 8, y + 4, f"{percent} %", ' text-anchor="end"'))
    return found


def _marks(marks: Sequence[Mark], area: _Area) -> list[str]:
    """A dashed line with its number for each mark within the area."""
    found = []
    for number, one in enumerate(marks, 1):
        if not area.window_ms[0] <= one.at_ms <= area.window_ms[1]:
            continue
        x = area.x(one.at_ms)
        found.append(
            f'<line class="mark" x1="{x:.1f}" y1="{area.top - 4}" x2="{x:.1f}" y2="{area.bottom}" stroke="#c00" '
            'stroke-dasharray="4 3"/>'
        )
        found.append(_text(x, area.top - 6, str(number), ' text-anchor="middle" fill="#c00"'))
    return found


def _legend(marks: Sequence[Mark], left: float, top: float) -> list[str]:
    lines = [f"{number}  at {in_digits(one.at_ms)} ms: {one.text}" for number, one in enumerate(marks, 1)]
    if len(lines) > LEGEND_MOST:
        lines = [*lines[: LEGEND_MOST - 1], f"and {len(lines) - LEGEND_MOST + 1} more"]
    return [_text(left, top + 15 * number, line, ' fill="#c00"') for number, line in enumerate(lines)]


def svg(
    title: str,
    names: Sequence[str],
    line: Sequence[Stretch],
    window_ms: tuple[float, float],
    buckets: Sequence[Sequence[int]],
    requests: Sequence[Sequence[Request]] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """The time line with requests, and below it the shares of the whole run. Marks are in both."""
    left = max(110.0, 26 + LETTER * min(NAME_MOST, max((len(name) for name in names), default=0)))
    width, lane = 860.0, 26.0 if len(names) <= 8 else 16.0
    lanes = _Area(left, 56.0, width, lane * max(1, len(names)), window_ms)
    body = [
        _text(left, 22, title, ' font-size="14"'),
        *([] if names else [_text(left + 8, lanes.top + lane / 2 + 4, "no container was on this GPU")]),
        *_names(names, lanes, lane),
        *_stretches(line, lanes, lane),
        *_requests(requests, lanes, lane),
        *_axis(lanes),
        *_marks(marks, lanes),
    ]
    bottom = lanes.bottom + 30
    if buckets and buckets[0]:
        shares = _Area(left, lanes.bottom + 56, width, 110.0, (0.0, 100.0 * len(buckets[0])))
        body += [*_shares(buckets, shares), *_axis(shares), *_marks(marks, shares)]
        body.append(_text(left, shares.top - 18, "share of the GPU, per 100 ms"))
        bottom = shares.bottom + 30
    body += _legend(marks, left, bottom + 10)
    total = bottom + (15 * min(len(marks), LEGEND_MOST) + 10 if marks else 0)
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 52:.0f}" height="{total:.0f}" {style}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>"]) + "\n"
