# SPDX-License-Identifier: MIT
"""The core's decisions on the GPU, carried out by the processes themselves."""

from __future__ import annotations

import json
import subprocess

from .ask import Context, Missing, has_torch, question
from .loads import Load, LoadError, run_program
from .stats import ratio_error, shares, whole_rounds

PREEMPTIVE, WEIGHTED, FIXED = 1, 2, 3
WEIGHTS = ((1, 1), (1, 2), (3, 1))


def conduct_argv(
    context: Context, policy: int, seconds: float, members: list[tuple[Load, int, bool]], *options: str
) -> list[str]:
    """conduct's command line; a member is a load, its weight, and whether it has high priority."""
    argv = [str(context.bin / "conduct"), "--policy", str(policy), "--seconds", str(seconds), *options]
    for load, weight, highprio in members:
        argv.append(f"{load.socket}:{weight}:{len(load.lever.channels())}:1:{int(highprio)}")
    return argv


def conduct(context: Context, crew, policy: int, weights: tuple[int, ...], restart: bool) -> dict:
    """Throughput over the whole rounds nearest to the window, the processes' channels in the core's hands."""
    about_s = 1.5 if context.quick else context.about_s
    max_inst = sum(weights) + 1 if policy == FIXED else 20
    members = [(load, weight, False) for load, weight in zip(crew.loads, weights, strict=True)]
    options = ["--max-inst", str(max_inst), *["--restart"] * restart]
    argv = conduct_argv(context, policy, about_s * 1.15 + 1, members, *options)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=about_s * 2 + 30)
    if done.returncode:
        raise LoadError(f"conduct: {done.stderr.strip()}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    rounds = [e["monotonic"] for e in events if e["event"] == "round"]
    crew.rates(0.2)  # the loads' reports of the last round
    begin, end, count = whole_rounds(rounds, about_s)
    rates = [load.rate(begin, end) for load in crew.loads]
    wanted = [1] * len(weights) if policy == PREEMPTIVE else list(weights)
    result = events[-1]
    cell = {
        "policy": policy,
        "weights": weights,
        "restart": restart,
        "rounds": count,
        "seconds": round(end - begin, 3),
        "work_per_s": [round(one, 2) for one in rates],
        "shares": shares(rates),
        "ratio_error": round(ratio_error(rates, wanted), 4),
        "conduct": result,
    }
    if policy == FIXED:
        cell["cap"] = [round(w / max_inst, 4) for w in weights]
    return cell


def alone(context: Context) -> float:
    with context.crew() as crew:
        crew.add(1)
        return crew.rates(context.window_s)[0]


@question("shares", "sched", 130, (3, 7))
def policies(context: Context) -> dict:
    """Is the ratio under policies 1, 2 and 3 what the weights say, and what does it cost?

    Two saturating loads; the core decides in user space, each process freezes and thaws its own channels. Works over
    whole rounds nearest 10 s, against a load alone and against two loads in the driver's own slicing. With and without
    RESTART_RUNLIST after each hand-over at 1:2.
    """
    solo = alone(context)
    cells = []
    with context.crew() as crew:
        crew.add(2)
        native = crew.rates(context.window_s)
        plans = [(WEIGHTED, (1, 2), True)] if context.quick else [(PREEMPTIVE, (1, 1), True)]
        if not context.quick:
            plans += [(policy, weights, True) for policy in (WEIGHTED, FIXED) for weights in WEIGHTS]
            plans += [(WEIGHTED, (1, 2), False)]
        for policy, weights, restart in plans:
            cell = conduct(context, crew, policy, weights, restart)
            total = sum(cell["work_per_s"])
            cell["aggregate_of_alone"] = round(total / solo, 4)
            cell["aggregate_of_native"] = round(total / sum(native), 4)
            if policy == FIXED:
                cell["got_of_alone"] = [round(one / solo, 4) for one in cell["work_per_s"]]
            cells.append(cell)
    said = "; ".join(
        f"{c['policy']} at {':'.join(map(str, c['weights']))}{'' if c['restart'] else ' no restart'}: "
        f"{100 * c['ratio_error']:.1f} % off, {100 * c['aggregate_of_alone']:.0f} % of alone"
        for c in cells
    )
    return {
        "answer": said,
        "alone_work_per_s": round(solo, 2),
        "native_work_per_s": [round(one, 2) for one in native],
        "cells": cells,
    }


@question("allocation", "sched", 20, (9,))
def allocation(context: Context) -> dict:
    """How much do the scheduler's calls delay another process's allocation?

    300 cuMemAlloc and cuMemFree of 32 MiB by a process of its own: alone, beside two loads, and beside the same two
    under policy 2.
    """
    if context.load != "gpuload":
        raise Missing("the simulated driver has no CUDA")

    def timed() -> dict:
        done = run_program([str(context.bin / "exercise"), "timed"], timeout_s=40)
        if done["status"]:
            raise LoadError(f"exercise timed: {done['stderr'].strip() or done.get('reason')}")
        return json.loads(done["stdout"])

    rows = {"alone": timed()}
    with context.crew() as crew:
        crew.add(2)
        rows["beside two loads"] = timed()
        argv = conduct_argv(context, WEIGHTED, 30, [(load, 1, False) for load in crew.loads], "--restart")
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            rows["under policy 2"] = timed()
        finally:
            process.terminate()
            process.wait(20)
    said = ", ".join(f"{name}: {row['median_us']:.0f}/{row['p99_us']:.0f}" for name, row in rows.items())
    return {"answer": f"median/p99 in us: {said}", "rows": rows}


@question("torch", "torch", 60, (7,))
def torch(context: Context) -> dict:
    """Do the weights hold for PyTorch too?

    Two training loops (resnet50, or a small convolutional net without torchvision), each waiting for its step: alone,
    in the driver's own slicing, under policy 2 at 1:2. Between steps the GPU is idle: what a turn leaves is lost.
    """
    if not has_torch():
        raise Missing("PyTorch is not installed")
    with context.crew(torch=True) as crew:
        (first,) = crew.add(1)
        model = first.events["ready"]["model"]
        solo = crew.rates(context.window_s * 2)[0]
        crew.add(1)
        native = crew.rates(context.window_s * 2)
        cell = conduct(context, crew, WEIGHTED, (1, 2), True)
    total = sum(cell["work_per_s"])
    return {
        "answer": f"{model}: {100 * cell['ratio_error']:.1f} % off at 1:2, {100 * total / solo:.0f} % of alone",
        "model": model,
        "alone_work_per_s": round(solo, 2),
        "native_work_per_s": [round(one, 2) for one in native],
        "cell": cell,
    }
