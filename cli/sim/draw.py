# SPDX-License-Identifier: MIT
"""The time line of a GPU, as text and as SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .gpu import Stretch
from .model import MS, S
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
            found[cell] += (stop - left) / width
            left, cell = stop, cell + 1  # type: ignore[assignment]
    return found


def time_line(
    line: Sequence[Stretch], names: Sequence[str], window_ms: tuple[float, float], width: int, plain: bool = False
) -> list[str]:
    """A row per client; the height of a block is the fraction of its cell."""
    marks = PLAIN if plain else BLOCKS
    label = max([2, *(len(name) for name in names)])
    cells = max(20, width - label - 2)
    begin, end = f"{window_ms[0]:g} ms", f"{window_ms[1]:g} ms"
    rows = [f"{'':<{label}}  {begin}{end:>{max(1, cells - len(begin))}}"]
    for client, name in enumerate(names):
        parts = cover(line, client, window_ms, cells)
        rows.append(f"{name:<{label}}  " + "".join(marks[min(8, round(8 * part))] for part in parts).rstrip())
    return rows


def _text(x: float, y: float, text: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'


def _axis(left: float, top: float, width: float, window_ms: tuple[float, float]) -> list[str]:
    found = [f'<line x1="{left}" y1="{top}" x2="{left + width}" y2="{top}" stroke="#888"/>']
    for tick in range(11):
        x, ms = left + width * tick / 10, window_ms[0] + (window_ms[1] - window_ms[0]) * tick / 10
        found.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 4}" stroke="#888"/>')
        found.append(_text(x, top + 16, f"{ms:g}" + (" ms" if tick == 10 else ""), ' text-anchor="middle"'))
    return found


def _lanes(line: Sequence[Stretch], names: Sequence[str], window_ms: tuple[float, float], left: float, top: float,
           width: float, lane: float) -> list[str]:  # fmt: skip
    begin, span = window_ms[0] * MS, max(1.0, (window_ms[1] - window_ms[0]) * MS)
    found = []
    for client, name in enumerate(names):
        y = top + client * lane
        found.append(f'<rect x="{left}" y="{y:.1f}" width="{width}" height="{lane - 3:.1f}" fill="#f3f3f3"/>')
        found.append(_text(left - 8, y + lane / 2 + 3, name, ' text-anchor="end"'))
    for one in line:
        x, wide = left + (one.begin_ns - begin) / span * width, (one.end_ns - one.begin_ns) / span * width
        colour = COLOURS[one.client % len(COLOURS)]
        y = top + one.client * lane
        found.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(wide, 0.05):.2f}" height="{lane - 3:.1f}" fill="{colour}"/>'
        )
    return found


def _requests(seen: Sequence[Sequence[Request]], window_ms: tuple[float, float], left: float, top: float,
              width: float, lane: float) -> list[str]:  # fmt: skip
    """A line below the lane from each arrival to the end of the last kernel, with a mark at the arrival."""
    begin, span = window_ms[0] * MS, max(1.0, (window_ms[1] - window_ms[0]) * MS)
    found = []
    for client, requests in enumerate(seen):
        y = top + (client + 1) * lane - 1.5
        for one in requests:
            if one.end_ns <= begin or one.arrival_ns >= begin + span:
                continue
            x = [left + min(1.0, max(0.0, (ns - begin) / span)) * width for ns in (one.arrival_ns, one.end_ns)]
            mark = f"M{x[0]:.2f} {y - 4:.1f}V{y:.1f}H{x[1]:.2f}"
            found.append(f'<path class="request" d="{mark}" fill="none" stroke="#222"/>')
    return found


def _shares(buckets: Sequence[Sequence[int]], left: float, top: float, width: float, height: float) -> list[str]:
    """Shares per 100 ms as stacked areas."""
    count = len(buckets[0])
    below = [0.0] * count
    found = [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="#f3f3f3"/>']
    for client, one in enumerate(buckets):
        above = [low + ns / (S / 10) for low, ns in zip(below, one, strict=True)]
        there, back = [], []
        for i in range(count):
            x0, x1 = left + width * i / count, left + width * (i + 1) / count
            there += [f"{x:.1f},{top + height * (1 - min(1.0, above[i])):.1f}" for x in (x0, x1)]
            back += [f"{x:.1f},{top + height * (1 - min(1.0, below[i])):.1f}" for x in (x0, x1)]
        points = " ".join([*there, *reversed(back)])
        found.append(f'<polygon points="{points}" fill="{COLOURS[client % len(COLOURS)]}"/>')
        below = above
    return found


def svg(
    title: str,
    names: Sequence[str],
    line: Sequence[Stretch],
    window_ms: tuple[float, float],
    buckets: Sequence[Sequence[int]],
    requests: Sequence[Sequence[Request]] = (),
) -> str:
    """The time line with requests, and below it the shares of the whole run."""
    left, width, lane = 110.0, 860.0, 26.0 if len(names) <= 8 else 14.0
    top, bottom = 44.0, 44.0 + lane * len(names)
    shares_top, height = bottom + 44.0, 110.0
    whole_ms = (0.0, 100.0 * len(buckets[0])) if buckets else (0.0, 0.0)
    body = [
        _text(left, 22, title, ' font-size="14"'),
        *_lanes(line, names, window_ms, left, top, width, lane),
        *_requests(requests, window_ms, left, top, width, lane),
        *_axis(left, bottom, width, window_ms),
    ]
    if buckets and buckets[0]:
        body += _shares(buckets, left, shares_top, width, height)
        body.append(_text(left - 8, shares_top + 10, "share", ' text-anchor="end"'))
        body += _axis(left, shares_top + height, width, whole_ms)
    total = shares_top + height + 30
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="{total:.0f}" {style}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>"]) + "\n"
