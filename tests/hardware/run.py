#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a machine with a GPU what only hardware can tell: README.md. One question, a group, or `all` within a budget."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hw import ask, jsontext, levers, machine, memory, probes, sched, serve, traces

#: What must be asked first if time is short.
ORDER = ("probes", "serve", "levers", "sched", "memory", "traces", "torch")
#: Importing them is what makes the questions.
MODULES = (probes, serve, levers, sched, memory, traces)


def questions() -> list[ask.Question]:
    return sorted(ask.QUESTIONS, key=lambda one: ORDER.index(one.group))


def choose(what: str) -> list[ask.Question]:
    return [one for one in questions() if what in ("all", one.name, one.group)]


def parse(arguments: list[str]) -> argparse.Namespace:
    names = ["all", "list", *ORDER, *(one.name for one in questions())]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=names, metavar="WHAT", help=f"one of: {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="directory of the results (default results/<date>-<gpu>-<driver>)")
    parser.add_argument("--budget-s", type=float, default=500, help="seconds for everything (default 500)")
    parser.add_argument("--load", choices=("gpuload", "simload"), help="default: simload on the simulated driver")
    parser.add_argument("--bin", type=Path, default=machine.REPO / "build/gpu", help="where the programs are or go")
    parser.add_argument("--quick", action="store_true", help="short windows and few calls: a test of the scripts")
    parser.add_argument("--kernel-us", type=float, default=1000)
    return parser.parse_args(arguments)


def slug(number: int, one: ask.Question) -> str:
    return f"{number:02d}-{one.name}.json"


def write(path: Path, result: dict) -> None:
    path.write_text(jsontext.text(result))


def run(chosen: list[ask.Question], context: ask.Context, budget: ask.Budget, out: Path) -> list[dict]:
    """Each question's result, written when it is there: a run that is cut off leaves what it had."""
    results = []
    for one in chosen:
        need = one.seconds * (0.4 if context.quick else 1)
        if budget.allows(need):
            result = ask.answer(one, context, min(budget.left_s, 3 * one.seconds + 20))
        else:
            result = ask.not_reached(one, context, f"{budget.left_s:.0f} s were left, it takes about {need:.0f}")
        results.append(result)
        write(out / slug(questions().index(one), one), result)
        said = result.get("answer") or result.get("reason")
        print(f"{one.name}: {result['state']} in {result['seconds']} s: {said}", flush=True)
    return results


def main(arguments: list[str]) -> int:
    """0 if every question that was begun was measured."""
    options = parse(arguments)
    if options.what == "list":
        for one in questions():
            print(f"{one.group:<8}{one.name:<16}{one.seconds:>5.0f} s  {one.asks}")
        return 0
    if not Path("/dev/nvidiactl").exists():
        print("run: no /dev/nvidiactl: there is no NVIDIA driver here", file=sys.stderr)
        return 2
    facts = machine.describe()
    out = options.out or machine.GPU / "results" / machine.results_name(facts)
    out.mkdir(parents=True, exist_ok=True)
    if said := machine.build(options.bin):
        print(f"run: not everything could be built: {said}", file=sys.stderr)
    load = options.load or ("simload" if facts["simulated"] else "gpuload")
    budget = ask.Budget(options.budget_s)
    context = ask.Context(load, options.bin.resolve(), options.quick, facts, out.resolve(), options.kernel_us)
    try:
        results = run(choose(options.what), context, budget, out)
    finally:
        context.close()
    states = {result["question"]: result["state"] for result in results}
    write(out / "run.json", {**facts, "arguments": arguments, "states": states, "machine": machine.surroundings()})
    print(f"results in {out}")
    return 0 if all(r["state"] in ("measured", "missing", "not reached") for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
