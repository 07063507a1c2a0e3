# SPDX-License-Identifier: MIT
"""make bench-sched: the accuracy of every policy, beside the published rules of others, on the same traces.

The simulator's half runs here: the core's own files on a simulated GPU (cli/sim). Rows measured elsewhere, on nvsim in
a virtual machine, are read from a file that --vm-rows names. Writes build/bench-sched.json and time lines as SVG, and
fails when a row of ours misses a bar. Everything is simulated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from beside import RULES, Plain16  # noqa: E402
from known import REASONS, excuse, stale  # noqa: E402
from machine import unknown  # noqa: E402
from results import write_report  # noqa: E402
from scenarios import GAP_CARDS, GAPS, H100, QUICK, SCENARIOS, Bars, Scenario  # noqa: E402
from sched_sim import FIELDS, OURS, Cell, Measured, cells, measure, scenarios_named, worst_of  # noqa: E402

from cgpu_cli.sim import draw, native  # noqa: E402
from cgpu_cli.sim.model import profile  # noqa: E402
from cgpu_common.policies import Policy  # noqa: E402

OUTPUT = REPO / "build/bench-sched.json"
LINES = REPO / "build/bench-sched"
CARDS = ("a100", "h200")  # the bars' profiles; t4 is reported
BAR_RATIO_PCT, BAR_CAP_PP, BAR_THREAD_PCT, BAR_AGGREGATE_PP = 1.0, 0.5, 5.0, 0.5
BAR_DECISION_NS, LINEAR_SLACK = 1000.0, 1.25
SEEDS = 3
MORE_RUNS = 10  # of what misses the bar of a decision
BAR_REQUEST_PCT, BAR_LOW_PCT, BAR_IDLE_PCT = 110.0, 90.0, 2.0
# Work with gaps.
BAR_PART_PCT, BAR_STEADY_PCT, BAR_SECOND_PCT, BAR_REST_PCT, BAR_REST_IDLE_PCT = 90.0, 99.0, 94.0, 15.0, 10.0
# Requests of 1 ms have the GPU sooner than at timeslices of 512 us, so fewer of them share a switch of 205 us: no
# timeslice gives both their p99 and the last per cent.
BAR_PLAIN_PCT = 98.0
BAR_DRIVER_PCT = 70.0  # of the driver's p99
BAR_H100_SHORT_PCT = 2.0  # of ratios, at slices of 5 ms: a switch is 4 % of one
# Of readings of the run state, at the costs that cli/sim estimates. Not in force: false.
BAR_READING_PCT, READING_ENFORCED = 5.0, False
COMPARED = (RULES[0].name, Plain16.name)  # vs_driver_pct, p99_of_driver_pct and low_of_plain_pct are shares of theirs
GAP_NAMES = {one.name for one in GAPS}
Row = dict[str, Any]


def say(text: str) -> None:
    print(text, flush=True)


def rounded(row: Row) -> Row:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def sim_rows(
    cards: Sequence[str], scenarios: Sequence[Scenario], seeds: int, lines: bool, rivals: bool = True
) -> Iterator[Row]:
    """Every cell, each figure the worst of the seeds. Without rivals: of theirs those in COMPARED, mostly one seed."""
    for group in cells(cards, (5000, 10_000, None), scenarios):
        driver = plain = driver_p99 = None
        for cell in group:
            if not rivals and cell.rule not in (OURS, *COMPARED):
                continue
            # A worst of three is compared with a worst of three: of one run a p99 is off by some per cent.
            compared = bool(cell.scenario.bars.below_driver)
            several = max(seeds, SEEDS) if compared else seeds
            runs = several if rivals or cell.rule == OURS or (cell is group[0] and compared) else 1
            done = [measure(cell, seed + 1, draw=lines and not seed) for seed in range(runs)]
            if lines:
                write_line(cell, done[0])
            row = worst_of([one.row for one in done])
            if cell.rule == RULES[0].name:
                driver, driver_p99 = row["vs_driver_pct"], row["request_p99_us"]
            plain = row["low_pct"] if cell.rule == Plain16.name else plain
            row["vs_driver_pct"] = percent(row.get("vs_driver_pct"), driver)
            row["p99_of_driver_pct"] = percent(row.get("request_p99_us"), driver_p99) if compares_p99(row) else None
            row["low_of_plain_pct"] = percent(row.get("low_pct"), plain)
            yield rounded(row)


def percent(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else 100 * value / whole


def compares_p99(row: Row) -> bool:
    """Has its scenario a bar against the driver's p99, on this card or another one?"""
    return bool(felt_bars(row).below_driver)


def write_line(cell: Cell, found: Measured) -> None:
    """A time line of the GPU's owners, for one card and one slice only."""
    if cell.card != "a100" or cell.slice_us not in (None, 5000) or not found.line:
        return
    if cell.rule == OURS and cell.policy in (0, 1, 2, 3) and cell.slice_us is None and not cell.scenario.slices:
        return
    LINES.mkdir(parents=True, exist_ok=True)
    who = f"cgpu, policy {cell.policy}" if cell.rule == OURS else cell.rule
    title = f"{cell.scenario.name}, {cell.scenario.personality}: {who}; {cell.card}, simulated"
    names = [one.name for one in cell.scenario.containers]
    text = draw.svg(title, names, found.line, found.line_ms, found.buckets, found.requests)
    (LINES / f"{cell.name}.svg").write_text(text)


def vm_rows(path: Path | None) -> list[Row]:
    """Rows that a machine measured: a list, or an object with `results`."""
    if path is None:
        return []
    found = json.loads(path.read_text())
    rows = found["results"] if isinstance(found, dict) else found
    if not rows:
        raise SystemExit(f"bench-sched: {path} has no rows")
    for row in rows:
        missing = [name for name in FIELDS if name not in row]
        if missing or row["where"] != "vm":
            raise SystemExit(f"bench-sched: {path}: a row is not the machine's or lacks {', '.join(missing)}")
    return rows


def decision_ns() -> dict[int, dict[int, float]]:
    """The cost of a plan and its acknowledgement: policy -> containers -> nanoseconds."""
    target = REPO / "build/bench/decide"
    target.parent.mkdir(parents=True, exist_ok=True)
    source = str(Path(__file__).resolve().parent / "decide.c")
    flags = ["-std=gnu11", "-O2", f"-I{native.source_dir() / 'core'}", '-DCGPU_VERSION="0.0.0"']
    core = map(str, native.core_sources())
    subprocess.run([*native.compiler(), *flags, "-o", str(target), source, *core], check=True)
    found: dict[int, dict[int, float]] = {}

    def run(policy: int) -> None:
        out = subprocess.run([str(target), str(policy)], check=True, capture_output=True, text=True).stdout
        best = found.setdefault(policy, {})
        for count, ns in map(str.split, out.splitlines()):
            best[int(count)] = min(float(ns), best.get(int(count), float(ns)))

    for policy in map(int, Policy):
        run(policy)
    # The best of several: on a machine with other work the rest is that work, for seconds at a time.
    for _ in range(MORE_RUNS):
        if not (slow := [policy for policy, best in found.items() if missed_decisions({policy: best})]):
            break
        time.sleep(1)
        for policy in slow:
            run(policy)
    return found


# The bars.


def judged(row: Row) -> bool:
    """Ours, on a card that has bars and a driver without faults."""
    named = next((one.cards for one in SCENARIOS if one.name == row["scenario"] and one.cards), None)
    cards = named or CARDS
    return row["rule"] == OURS and row["profile"] in cards and row["personality"] == "default"


def scenario_of(row: Row) -> Scenario | None:
    named = (row["scenario"], row["personality"])
    return next((one for one in SCENARIOS if (one.name, one.personality) == named), None)


def felt_bars(row: Row) -> Bars:
    """Those of the row's scenario."""
    found = scenario_of(row)
    return found.bars if found else Bars()


def saturating(row: Row) -> bool:
    """Whether there must be a ratio, a share and a sum: unless the scenario has one that sleeps."""
    found = scenario_of(row)
    return found.saturating if found else True


def felt_missed(row: Row) -> dict[str, float]:
    """The figures that miss a bar for users' experience, in force or not, and the bar."""
    bars, found = felt_bars(row), {}
    if not judged(row) or row.get("refused") or (row["policy"] not in (1, 2) and row["scenario"] not in GAP_NAMES):
        return {}
    for wanted, name, limit, sign in (
        (bars.part, "part_got_pct", BAR_PART_PCT, -1),
        (bars.part, "vs_driver_pct", 100.0, -1),
        (bars.steady, "part_got_pct", BAR_STEADY_PCT, -1),
        (bars.steady, "least_second_pct", BAR_SECOND_PCT, -1),
        (bars.rest, "low_pct", BAR_REST_PCT, -1),
        (bars.rest, "idle_loss_pct", BAR_REST_IDLE_PCT, 1),
        (bars.above_plain, "low_of_plain_pct", BAR_PLAIN_PCT, -1),
        (row["profile"] in bars.below_driver, "p99_of_driver_pct", BAR_DRIVER_PCT, 1),
        (bars.request_p99, "request_p99_of_alone_pct", BAR_REQUEST_PCT, 1),
        (bars.low_of_rest, "low_of_rest_pct", BAR_LOW_PCT, -1),
        (bars.idle_loss, "idle_loss_pct", BAR_IDLE_PCT, 1),
    ):
        value = row.get(name)
        # No figure where there must be one is a miss too: then nothing was measured.
        if wanted and (value is None or sign * value > sign * limit):
            found[name] = limit
    return found


def bars_missed(row: Row) -> dict[str, float]:
    """The figures of a row that miss their bar, and the bar. No figure is a miss of each bar that the row has."""
    if not judged(row):
        return {}
    if row.get("refused"):
        return {"refused": 0.0}
    found = (felt_missed(row) if felt_bars(row).enforced else {}) | (reading_missed(row) if READING_ENFORCED else {})
    policy, slice_us = row["policy"], row.get("slice_us")

    def bar(name: str, limit: float, below: bool = True) -> None:
        value = row.get(name)
        if value is None or (value > limit if below else value < limit):
            found[name] = limit

    if row["scenario"] == "high priority" and policy != 5:
        bar("takeover_us", profile(row["profile"]).control_us + 1000)
    if row["scenario"] in {one.name for one in H100}:
        bar("ratio_error_pct", BAR_H100_SHORT_PCT if slice_us == 5000 else BAR_RATIO_PCT)
        return found
    if row.get("default_slice"):
        # A window of 1 s holds no whole number of such rounds: the other bars are checked at 5 and 10 ms.
        bar("sched_thread_cpu_pct", BAR_THREAD_PCT)
        return found
    if policy in (1, 2, 3) and saturating(row):
        bar("ratio_error_pct", BAR_RATIO_PCT)
        bar("share_error_1s_pp", row.get("share_bound_1s_pp") or 0.0)
    if policy in (1, 2) and saturating(row):
        switch_pct = 100 * profile(row["profile"]).ctxsw_us / slice_us if slice_us else 0.0
        bar("aggregate_pct", 100 - switch_pct - BAR_AGGREGATE_PP, below=False)
    if policy == 3:
        bar("cap_excess_pp", BAR_CAP_PP)
    return found


def missed(row: Row) -> list[str]:
    """The bars that a row misses, in words."""
    return in_words(row, bars_missed(row))


def reading_missed(row: Row) -> dict[str, float]:
    """A machine's row has no such figure."""
    if not judged(row) or row.get("refused") or row.get("where") == "vm":
        return {}
    value = row.get("run_state_cpu_pct")
    return {"run_state_cpu_pct": BAR_READING_PCT} if value is None or value > BAR_READING_PCT else {}


def in_words(row: Row, found: dict[str, float]) -> list[str]:
    said = []
    for name, limit in found.items():
        value = row.get(name)
        got = "is missing" if value is None else f"{value:.3f}" if name != "refused" else ""
        said.append(f"{name} {got}, the bar is {limit:.3f}" if got else f"the policy was refused: {value}")
    return said


def not_in_force(row: Row) -> list[str]:
    """The bars that a row would miss if every bar were in force."""
    found = {} if felt_bars(row).enforced else felt_missed(row)
    return in_words(row, found | ({} if READING_ENFORCED else reading_missed(row)))


def missed_decisions(found: dict[int, dict[int, float]]) -> list[str]:
    said = []
    for policy, costs in found.items():
        few, many = min(costs), max(costs)
        worst = max(costs, key=lambda count: costs[count])
        if costs[worst] > BAR_DECISION_NS:
            said.append(f"a decision of policy {policy} over {worst} containers takes {costs[worst]:.0f} ns")
        if costs[many] > LINEAR_SLACK * costs[few] * many / few:
            said.append(f"decisions of policy {policy} are worse than linear: {costs}")
    return said


# The table.

COLUMNS = {
    "rule": "rule",
    "slice_us": "slice us",
    "ratio_error_pct": "ratio err %",
    "share_error_1s_pp": "1 s err pp",
    "share_bound_1s_pp": "bound pp",
    "aggregate_pct": "aggregate %",
    "vs_driver_pct": "vs driver %",
    "wait_p50_us": "wait p50 us",
    "wait_p99_us": "wait p99 us",
    "takeover_us": "takeover us",
    "reclaim_us": "reclaim us",
    "cap_excess_pp": "cap excess pp",
    "request_p50_us": "req p50 us",
    "request_p99_us": "req p99 us",
    "request_p99_of_alone_pct": "of alone %",
    "p99_of_driver_pct": "of driver %",
    "low_of_rest_pct": "low of rest %",
    "idle_loss_pct": "idle loss %",
    "part_got_pct": "of part %",
    "least_second_pct": "least s %",
    "low_pct": "low %",
    "low_of_plain_pct": "of 16:1 %",
    "share_from_fair_pp": "off fair pp",
    "control_calls_per_s": "calls/s",
    "sched_thread_cpu_pct": "thread %",
    "run_state_cpu_pct": "reading %",
}


def shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2f}"
    return str(value)


def line(row: Row) -> list[str]:
    who = f"cgpu {row['policy']}" if row["rule"] == OURS else row["rule"]
    who += " (vm)" if row["where"] == "vm" else ""
    words = [who, *(shown(row.get(name)) for name in list(COLUMNS)[1:])]
    return [*words, "MISSED" if missed(row) else "refused" if row.get("refused") else ""]


def table(rows: Sequence[Row]) -> str:
    """A block for each scenario, card and personality."""
    blocks: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["profile"], row["scenario"], row["personality"]), []).append(row)
    lines = [[*COLUMNS.values(), ""], *(line(row) for row in rows)]
    widths = [max(len(words[i]) for words in lines) for i in range(len(lines[0]))]

    def text(words: Sequence[str]) -> str:
        first, *rest = zip(words, widths, strict=True)
        return "  ".join([f"{first[0]:<{first[1]}}", *(f"{word:>{width}}" for word, width in rest)]).rstrip()

    out = []
    for (card, scenario, personality), block in blocks.items():
        out += ["", f"{scenario}, {card}, {personality} driver", text(lines[0]), *(text(line(row)) for row in block)]
    return "\n".join(out)


def report(
    rows: list[Row], decisions: dict[int, dict[int, float]], began: float, seeds: int, whole: bool
) -> tuple[dict[str, Any], list[str], list[str]]:
    """whole: every scenario that the known rows are of was run. Gives what is wrong, and what is missed and known."""
    problems, known = [] if rows else ["no rows were measured"], []
    for row in rows:
        for name, text in zip(bars_missed(row), missed(row), strict=True):
            why = excuse(row, name, seeds)
            (known if why else problems).append(f"MISSED: {where(row)}: {text}" + (f" [{why}]" if why else ""))
    problems += [f"MISSED: {what}" for what in missed_decisions(decisions)]
    problems += stale(rows) if whole else []
    bars = {
        "ratio_error_pct": BAR_RATIO_PCT,
        "cap_excess_pp": BAR_CAP_PP,
        "sched_thread_cpu_pct": BAR_THREAD_PCT,
        "decision_ns": BAR_DECISION_NS,
        "request_p99_of_alone_pct": BAR_REQUEST_PCT,
        "p99_of_driver_pct": BAR_DRIVER_PCT,
        "low_of_rest_pct": BAR_LOW_PCT,
        "idle_loss_pct": BAR_IDLE_PCT,
        "run_state_cpu_pct": BAR_READING_PCT,
    }
    return {
        "simulated": True,
        "results": rows,
        "decision_ns": decisions,
        "sources": {rival.name: rival.source for rival in RULES},
        "bars": bars,
        "missed": problems,
        "known": known,
        "not_in_force": [f"{where(row)}: {text}" for row in rows for text in not_in_force(row)],
        "reasons": REASONS,
        "ok": not problems,
        "seconds": round(time.monotonic() - began, 1),
    }, problems, known  # fmt: skip


def where(row: Row) -> str:
    cell = f"{row['scenario']}, policy {row['policy']}, {row['profile']}"
    return f"{cell}, slice {row.get('slice_us')} us, {row['where']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer scenarios, no t4, of rivals what a bar needs")
    parser.add_argument("--seeds", type=int, help="each figure is the worst of so many runs: 3; 1 with --quick")
    parser.add_argument("--only", metavar="SCENARIO", action="append", help="this scenario; again for another")
    parser.add_argument("--vm-rows", type=Path, help="rows measured in a virtual machine")
    arguments = parser.parse_args()
    began = time.monotonic()
    if wrong := unknown(arguments.only or (), [one.name for one in SCENARIOS], "scenario"):
        raise SystemExit(f"bench-sched: {wrong}")
    names = set(arguments.only) if arguments.only else QUICK if arguments.quick else None
    cards = dict.fromkeys((*CARDS, *GAP_CARDS, *(() if arguments.quick else ("t4",))))
    seeds = arguments.seeds or (1 if arguments.quick else SEEDS)
    rows = list(sim_rows(cards, scenarios_named(names), seeds, lines=not arguments.quick, rivals=not arguments.quick))
    rows += vm_rows(arguments.vm_rows)
    found, problems, known = report(rows, decision_ns(), began, seeds, not arguments.only)
    write_report(OUTPUT, found, indent=1)
    say(table(rows))
    say("")
    for policy, costs in found["decision_ns"].items():
        say(f"a decision, policy {policy}: " + ", ".join(f"{n} containers {ns:.0f} ns" for n, ns in costs.items()))
    off = [f"NOT YET A BAR: {text}" for text in found["not_in_force"]]
    say("\n".join(["", *known, "", *off, "", *problems]))
    say(f"bench-sched: {'ok' if not problems else f'{len(problems)} WRONG'}, {len(known)} bars missed and known "
        f"(docs/develop/bench.md), {len(rows)} rows, simulated, {found['seconds']:.0f} s, "
        f"{OUTPUT.relative_to(REPO)}")  # fmt: skip
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
