# SPDX-License-Identifier: MIT
"""Does the share move, and what does a call cost?"""

from __future__ import annotations

from .ask import Context, question
from .lever import status_text, took_us
from .loads import Load
from .stats import figures, shares

DEFAULT_US = 1024
LEVERS = ("freeze", "thaw", "restart", "timeslice", "preempt")


def set_slices(loads: list[Load], slices_us: list[int], restart: bool) -> list[str]:
    said = [status_text(load.lever("timeslice", us=us)) for load, us in zip(loads, slices_us, strict=True)]
    if restart:
        said.append(status_text(loads[0].lever("restart")))
    return said


@question("timeslice", "levers", 45, (4,))
def timeslice(context: Context) -> dict:
    """Does SET_TIMESLICE move the share, alone and with RESTART_RUNLIST, among 2 to 4 processes?

    Throughput per process with timeslices in proportion 1:1, 2:1, 4:1, 8:1 (1 is 1024 us), first without the restart,
    then with it.
    """
    cells = []
    proportions = [(1, 1), (4, 1)] if context.quick else [(1, 1), (2, 1), (4, 1), (8, 1), (2, 1, 1), (4, 2, 1, 1)]
    for proportion in proportions:
        with context.crew() as crew:
            loads = crew.add(len(proportion))
            wanted = [DEFAULT_US * part for part in proportion]
            row = {"asked": proportion, "timeslice_us": wanted}
            for name, restart in (("alone", False), ("with_restart", True)):
                row[f"status_{name}"] = set_slices(loads, wanted, restart)
                rates = crew.rates(context.window_s)
                row[f"shares_{name}"] = shares(rates)
                row[f"work_per_s_{name}"] = round(sum(rates), 1)
            row["reads_back_us"] = [load.lever("timeslices")["timeslice_us"] for load in loads]
            cells.append(row)
    said = [
        f"{':'.join(map(str, c['asked']))} alone {c['shares_alone']}, restarted {c['shares_with_restart']}"
        for c in cells
    ]
    return {"answer": "; ".join(said), "cells": cells}


@question("disable", "levers", 35, (3, 17))
def disable(context: Context) -> dict:
    """Does DISABLE_CHANNELS stop a process by itself, or only with RESTART_RUNLIST or PREEMPT?

    Two loads, the first freezes its own channels in each way; works per second of both while it is frozen and after
    the thaw.
    """
    ways = {
        "freeze": [("freeze", {})],
        "freeze, restart": [("freeze", {"restart": 1})],
        "only scheduling": [("freeze", {"only": 1})],
        "only scheduling, preempt": [("freeze", {"only": 1}), ("preempt", {})],
        "only scheduling, restart": [("freeze", {"only": 1, "restart": 1})],
    }
    cells = {}
    with context.crew() as crew:
        first, _ = crew.add(2)
        for name, calls in ways.items():
            before = crew.rates(context.window_s)  # each time: neighbouring windows are compared
            answers = [first.lever(verb, **options) for verb, options in calls]
            frozen = crew.rates(context.window_s)
            thaw = first.lever("thaw", restart=1 if "restart" in name else 0)
            after = crew.rates(context.window_s)
            cells[name] = {
                "status": [status_text(one) for one in answers],
                "us": [us for one in answers for us in took_us(one)],
                "thaw_status": status_text(thaw),
                "work_per_s_before": before,
                "work_per_s_frozen": frozen,
                "work_per_s_thawed": after,
                "stops": frozen[0] < before[0] / 10,
                "neighbour_has_all": frozen[1] > 1.6 * before[1],
                "comes_back": after[0] > before[0] / 2,
            }
            first.lever("thaw", restart=1)
    said = ", ".join(f"{name}: {'stops' if c['stops'] else 'runs on'}" for name, c in cells.items())
    return {"answer": said, "ways": cells}


@question("preempt", "levers", 15, ())
def preempt(context: Context) -> dict:
    """What does PREEMPT of its TSG do to a process's share?

    Two loads; the first preempts itself every 2 ms.
    """
    with context.crew() as crew:
        first, _ = crew.add(2)
        before = crew.rates(context.window_s)
        n = int(context.window_s / 0.003)
        answers = first.lever("preempt", n=n, gap_us=2000)
        begin, end = answers["begin_ns"] / 1e9, answers["end_ns"] / 1e9
        crew.rates(0.2)  # their reports of that time
        during = [load.rate(begin, end) for load in crew.loads]
    return {
        "answer": f"{status_text(answers)}; shares {shares(before)} before, {shares(during)} during",
        "status": status_text(answers),
        "us": figures(took_us(answers), "us"),
        "shares_before": shares(before),
        "shares_during": shares(during),
    }


def latencies(load: Load, calls: int) -> dict:
    """Each lever so often on a load's own objects. pulse alternates freeze and thaw."""
    found = {}
    gap = {"gap_us": 200}
    for verb, options in {"timeslice": {"us": DEFAULT_US}, "restart": {}, "preempt": {}}.items():
        done = load.lever(verb, n=calls, **options, **gap)
        found[verb] = {"status": status_text(done), "failed": done["failed"], **figures(took_us(done), "us")}
    done = load.lever("pulse", n=calls, **gap)
    each = max(1, done["calls"] // (2 * calls))  # calls to a freeze: 64 channels go into one
    for name, offset in (("freeze", 0), ("thaw", 1)):
        took = [us for i, us in enumerate(took_us(done)) if i // each % 2 == offset]
        found[name] = {"status": status_text(done), "failed": done["failed"], **figures(took, "us")}
    load.lever("thaw", restart=1)
    return found


@question("latency", "levers", 60, (5,))
def latency(context: Context) -> dict:
    """How long does a lever call take, in the middle and in the tail, by channels and by TSGs under load?

    1,000 calls of each lever by one load: with 1 to 64 channels in one process, then beside up to 5 others. freeze and
    thaw name all its graphics channels in one call.
    """
    by_channels, by_tsgs = [], []
    for streams in (1, 8) if context.quick else (1, 8, 32, 64):
        with context.crew() as crew:
            (load,) = crew.add(1, streams=streams, depth=4)
            count = len(load.lever.channels())
            calls = context.calls if streams in (1, 64) else context.calls // 4
            by_channels.append({"streams": streams, "channels": count, **latencies(load, calls)})
    for processes in (2,) if context.quick else (2, 4, 6):
        with context.crew() as crew:
            load, *_ = crew.add(processes)
            calls = context.calls if processes == 6 else context.calls // 4
            by_tsgs.append({"processes": processes, **latencies(load, calls)})
    one = by_channels[0]
    said = [f"{name} {one[name]['median']:.0f}/{one[name]['p99']:.0f}" for name in LEVERS if one[name]["n"]]
    return {
        "answer": f"median/p99 in us with 1 stream: {', '.join(said)}",
        "by_channels": by_channels,
        "by_processes": by_tsgs,
    }


@question("overrun", "levers", 45, (8,))
def overrun(context: Context) -> dict:
    """Does DISABLE_CHANNELS wait for a long kernel to end, or is the kernel preempted?

    Freezes and thaws of a load by itself whose kernels take 1, 10, 100 and 1000 ms: what a call takes, and whether the
    works go on afterwards.
    """
    rows = []
    for kernel_us in (1000, 100_000) if context.quick else (1000, 10_000, 100_000, 1_000_000):
        with context.crew() as crew:
            (load,) = crew.add(1, kernel_us=kernel_us, depth=4)
            n = 10 if context.quick else 30
            done = load.lever("pulse", n=n, hold_us=5000, gap_us=20_000)
            each = max(1, done["calls"] // (2 * n))
            took = took_us(done)
            seconds = max(context.window_s, 3 * kernel_us / 1e6)
            rows.append(
                {
                    "kernel_us": kernel_us,
                    "status": status_text(done),
                    "freeze_us": figures([us for i, us in enumerate(took) if i // each % 2 == 0], "us"),
                    "thaw_us": figures([us for i, us in enumerate(took) if i // each % 2 == 1], "us"),
                    "work_per_s_afterwards": crew.rates(seconds)[0],
                }
            )
    said = "; ".join(
        f"{row['kernel_us'] / 1000:g} ms: {row['freeze_us']['median']:.0f}/{row['freeze_us']['max']:.0f}"
        for row in rows
    )
    return {"answer": f"freeze median/max in us with kernels of {said}", "rows": rows}
