# SPDX-License-Identifier: MIT
"""cgpu trace: which container ran when, for some seconds, from N/C/stat and the module's events."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import click

from cgpu_common import proc
from cgpu_common.app import Command, FloatRange, OutFile
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.figures import rounded
from cgpu_common.output import note, result
from cgpu_common.proc import Paths

from . import change
from .admin import as_json_option, pass_paths
from .columns import Column, printable, table
from .complete import gpu_words
from .names import labels
from .render import percent
from .samples import MS, Recording, Seen, Track, buckets, spans, steps, trace
from .simulate import check_outputs, svg_target, write_all
from .terminal import width
from .words import GPU

RESCAN_S = 0.5
HEAD = (Column("GPU", right=True), Column("CONTAINER", least=8), Column("SHARE", right=True),
        Column("TURNS", right=True), Column("WAITED ms", right=True))  # fmt: skip


class _Files:
    """The stat files of containers, kept open: reading one again costs a system call."""

    def __init__(self, paths: Paths, gpus: set[int]) -> None:
        self._paths, self._gpus = paths, gpus
        self._open: dict[tuple[int, str], tuple[int, Track]] = {}
        self.tracks: list[Track] = []
        self.titles: dict[int, str] = {}

    def scan(self) -> None:
        """Open the files of new containers."""
        snapshot = proc.read_tree(self._paths)
        for gpu in snapshot.gpus:
            if gpu.index not in self._gpus:
                continue
            shown = labels(gpu.slots)
            self.titles[gpu.index] = f"GPU {gpu.index} {printable(gpu.name)}, policy {gpu.facts.name}"
            for slot in gpu.slots:
                key = (gpu.index, slot.id)
                if key in self._open:
                    self._open[key][1].under(not gpu.facts.limits)
                    continue
                try:
                    fd = os.open(self._paths.proc / str(gpu.index) / slot.dir / "stat", os.O_RDONLY)
                except OSError:
                    continue
                track = Track(gpu.index, slot.id, printable(shown[slot.id]), slot.weight, slot.highprio, slot.name)
                track.under(not gpu.facts.limits)
                self._open[key] = fd, track
                self.tracks.append(track)

    def read(self) -> None:
        """One reading of each container. One that is gone is closed."""
        for key, (fd, track) in list(self._open.items()):
            try:
                text = os.pread(fd, 8192, 0).decode(errors="replace")
            except OSError:
                text = ""
            at_ns = time.monotonic_ns()
            if not text:
                os.close(fd)
                del self._open[key]
                continue
            stat = proc.parse_stat(text)
            track.add(at_ns, {name: int(value) for name, value in stat.items() if value.isdecimal()})

    def close(self) -> None:
        for fd, _ in self._open.values():
            os.close(fd)
        self._open = {}


class _Listener:
    """The module's events meanwhile, where this process may receive them."""

    def __init__(self, live: bool) -> None:
        self.seen: list[Seen] = []
        self.error = "" if live else "a copied tree"
        if live:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        import asyncio

        from .events import listen

        def on_event(event: Any, text: str) -> None:
            gpu = event.gpu.index if event.gpu is not None else None
            self.seen.append(Seen(time.monotonic_ns(), gpu, text))

        try:
            asyncio.run(listen(on_event))
        except Exception as err:
            self.error = str(err) or type(err).__name__


def record(paths: Paths, gpus: set[int], seconds: float, every_s: float) -> Recording:
    """Read for so long. The real time between two readings depends on the machine and the number of containers."""
    files, listener = _Files(paths, gpus), _Listener(paths.proc == proc.LIVE)
    files.scan()  # the first reading is the begin of the picture, not the search for containers
    scanned = time.monotonic()
    begin = time.monotonic_ns()
    try:
        while (now := time.monotonic_ns()) - begin < seconds * 1e9:
            if time.monotonic() - scanned >= RESCAN_S:
                files.scan()
                scanned = time.monotonic()
            files.read()
            time.sleep(max(0.0, every_s - (time.monotonic_ns() - now) / 1e9))
    finally:
        files.close()
    end = time.monotonic_ns()
    events = [one for one in listener.seen if begin <= one.at_ns <= end]
    if listener.error:
        note(f"no events in the trace: {listener.error}")
    return Recording(begin, end, files.tracks, files.titles, events)


def _svg(found: Recording, gpu: int) -> str:
    from .sim import draw  # with the simulator's types
    from .sim.gpu import Stretch

    tracks = found.of(gpu)
    stretches = [
        Stretch(place, begin - found.begin_ns, end - found.begin_ns, part)
        for place, track in enumerate(tracks)
        for begin, end, part in steps(track)
    ]
    length_ms = (found.end_ns - found.begin_ns) / MS
    count = int(length_ms // 100)
    marks = [
        draw.Mark(round((one.at_ns - found.begin_ns) / MS, 1), one.text)
        for one in found.events
        if one.gpu in (None, gpu)
    ]
    names = [track.name for track in tracks]
    shares = [buckets(track, found.begin_ns, count) for track in tracks]
    every = f"sampled every {found.period_us / 1000:.1f} ms, the height is the part of it" if found.period_us else ""
    title = "; ".join(filter(None, (found.titles[gpu], every)))
    return draw.svg(title, names, stretches, (0.0, length_ms), shares, marks=marks)


def _json(found: Recording) -> dict[str, Any]:
    return {
        "seconds": round((found.end_ns - found.begin_ns) / 1e9, 3),
        "period_us": rounded(found.period_us),
        "gpus": [
            {
                "index": gpu,
                "containers": [
                    {
                        "id": track.id,
                        "name": track.engine_name,
                        "weight": track.weight,
                        "share_got_pct": rounded(track.share_pct),
                        "turns": track.turns_seen,
                        "wait_ns": track.waited_ns,
                        "readings": len(track.at_ns),
                        "ran": [
                            {
                                "from_ms": round((begin - found.begin_ns) / MS, 3),
                                "to_ms": round((end - found.begin_ns) / MS, 3),
                                "ran_pct": round(100 * part, 1),
                            }
                            for begin, end, part in spans(track)
                        ],
                    }
                    for track in found.of(gpu)
                ],
            }
            for gpu in sorted(found.titles)
        ],
        "events": [
            {"at_ms": round((one.at_ns - found.begin_ns) / MS, 3), "gpu": one.gpu, "text": one.text}
            for one in found.events
        ],
    }


def _text(found: Recording) -> str:
    rows = [
        [str(track.gpu), track.name, percent(track.share_pct), str(track.turns_seen), f"{track.waited_ns / MS:.1f}"]
        for track in found.tracks
    ]
    if not found.tracks:
        return "no container shared a GPU"
    every = f"{(found.period_us or 0) / 1000:.1f} ms"
    lines = [*table(HEAD, rows, width()), f"sampled every {every}: a slice shorter than two readings is not resolved"]
    return "\n".join(lines)


@click.command("trace", cls=Command)
@click.option("--gpu", type=GPU, metavar="GPU", multiple=True, shell_complete=gpu_words, help="Only this GPU.")
@click.option("--seconds", type=FloatRange(0.05, 600), default=2.0, show_default=True, metavar="S",
              help="How long.")  # fmt: skip
@click.option("--every-ms", type=FloatRange(0.5, 1000), default=2.0, show_default=True, metavar="MS",
              help="Between two readings, as far as the machine is fast enough.")  # fmt: skip
@click.option("--perfetto", type=OutFile(),
              help="Write a trace for ui.perfetto.dev; cgpu simulate --trace plays it back.")  # fmt: skip
@click.option("--svg", type=OutFile(),
              help="Draw the time line; a second GPU into FILE-1.")  # fmt: skip
@as_json_option
@pass_paths
def trace_command(
    paths: Paths,
    gpu: tuple[int, ...],
    seconds: float,
    every_ms: float,
    perfetto: Path | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Record which container ran when.

    The kernel has no event for each slice: this reads the running times of all containers every few milliseconds. How
    long each one ran between two readings is exact, when within that time is not known; slices shorter than two
    readings are not resolved. The module's events (changes, refusals, overruns) are in the trace as marks.
    """
    for one in gpu:
        change.gpu_dir(paths, one)
    there = {found.index for found in proc.read_tree(paths, brief=True).gpus}
    wanted = set(gpu) or there
    if not wanted:
        raise CgpuError(Exit.NOT_FOUND, "trace", "the module has found no GPU yet", "cgpu doctor")
    check_outputs(svg, len(wanted), perfetto)
    found = record(paths, wanted, seconds, every_ms / 1000)
    about = {"sampled": True, "period_us": found.period_us}
    files = [(perfetto, trace(found, about))] if perfetto else []
    files += [(svg_target(svg, place), _svg(found, one)) for place, one in enumerate(sorted(found.titles)) if svg]
    written = write_all(files)
    text = "\n".join([_text(found), *(f"wrote {path}" for path in written)])
    result(as_json, _json(found) | {"files": [str(path) for path in written]}, text)
