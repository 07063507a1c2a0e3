# SPDX-License-Identifier: MIT
"""cgpu simulate: the effect of a policy, without changing a node. Needs neither module nor GPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cgpu_common import policies
from cgpu_common.app import Command, FloatRange, OutFile, check_out
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.files import write_file
from cgpu_common.output import out
from cgpu_common.placement import PLACEMENTS

from . import chrome
from .columns import Column, folded, table
from .complete import policy_words, profile_words
from .render import percent
from .sim import config, draw, playback
from .sim.model import Scenario, Setup, in_digits, profile
from .sim.run import Got, Result, run
from .terminal import width

SCHEMA_VERSION = 1
UNLIMITED = 100  # cells of the time line where nothing limits it
HEAD = (
    Column("Container", least=8),
    Column("Weight", right=True),
    Column("Allowed", right=True),
    Column("Got", right=True),
    Column("Kernels/s", right=True),
    Column("Wait p50", right=True),
    Column("Wait p99", right=True),
    Column("Wait max", right=True),
)
EPILOG = """\b
Examples:
  cgpu simulate --container name=train,weight=2,depth=150 --container name=serve,kernel_us=2000,rate=100
  cgpu simulate --policy fixed --max-inst 10 --container weight=3 --container weight=2 --svg line.svg
  cgpu simulate --policy 1 --profile h200 --container count=8,kernel_us=100,depth=1
  cgpu simulate --container name=batch,depth=64 --container name=chat,highprio=1,on_ms=20,off_ms=180
  cgpu simulate --alone --container name=train --container name=llm,highprio=1,request_us=20000+200x40,requests_per_s=2
  cgpu simulate node.toml --json

\b
A container: name, count, weight, highprio, ceiling, gpu; processes, kernel_us (-/+ spread_us), depth (kernels queued),
gap_us (CPU time from an end to the next launch, -/+ gap_spread_us), rate (launches a second), on_ms and off_ms
(bursts), start_ms, stop_ms, churn_ms, stubborn (ignores preemption). With requests: request_us (lengths of a request's
kernels, 20000+200x40) and one of requests_per_s (Poisson), think_ms (after an end), requests_file.
docs/user/cli.md section 4 describes each.
"""


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} us" if value < 1000 else f"{value / 1000:.1f} ms"


def _row(got: Got) -> list[str]:
    one = got.container
    waits = got.waits
    return [
        one.name,
        f"{got.weight}{' hp' if got.highprio else ''}",
        percent(got.allowed_pct),
        percent(got.share_pct),
        f"{got.works_per_s:.0f}",
        *(_us(value) for value in (waits.p50_us, waits.p99_us, waits.max_us)),
    ]


REQUEST_HEAD = (
    Column("Container", least=8),
    Column("Requests", right=True),
    Column("Open", right=True),
    Column("Requests/s", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("max", right=True),
    Column("p99 of alone", right=True),
)
FAIR_HEAD = (
    Column("Container", least=8),
    Column("Got", right=True),
    Column("Alone", right=True),
    Column("Max-min fair", right=True),
)


def _request_row(got: Got) -> list[str]:
    """One with requests."""
    one = got.requests
    assert one
    alone = got.p99_of_alone_pct
    return [
        got.container.name,
        str(one.ended),
        str(one.open),
        f"{one.per_s:.2f}",
        *(_us(value) for value in (one.p50_us, one.p99_us, one.max_us)),
        "-" if alone is None else percent(alone),
    ]


def _more_tables(result: Result, width: int | None) -> list[str]:
    """Of requests, and beside what each has alone."""
    lines = []
    requests = [_request_row(got) for got in result.got if got.requests]
    if requests:
        lines += ["", *table(REQUEST_HEAD, requests, width)]
    fair = [
        [got.container.name, percent(got.share_pct), percent(got.alone.share_pct), percent(got.fair_pct)]
        for got in result.got
        if got.alone
    ]
    if fair:
        lines += ["", *table(FAIR_HEAD, fair, width)]
    return lines


def _title(result: Result) -> str:
    setup = result.setup
    name = f"{setup.policy} {policies.of(setup.policy).name}"
    if result.first_policy not in (None, setup.policy):
        name = f"{result.first_policy} {policies.of(result.first_policy or 0).name}, at the end {name}"
    return f"{setup.profile.name}, simulated; policy {name}, slice {result.slice_us} us"


def result_text(number: int, result: Result, width: int | None, plain: bool) -> list[str]:
    idle = (
        f"No kernel running {result.idle_pct:.1f} %, of it {result.idle_loss_pct:.1f} with work queued and "
        f"{result.switch_pct:.1f} switching"
    )
    scheduler = (
        f"Scheduler: {result.turns_per_s:.0f} turns and {result.control_calls_per_s:.0f} control calls a second, "
        f"{result.sched_thread_pct:.1f} % of a core"
    )
    source = f"Run state: {result.setup.source}" + (
        f", {result.polls_per_s:.0f} polls a second; never seen on hardware" if result.setup.source != "none" else ""
    )
    rows = table(HEAD, [_row(got) for got in result.got], width)
    title = folded(f"GPU {number}: {_title(result)}, {result.seconds:.1f} s", width)
    lines = [*title, "", *rows, *_more_tables(result, width), ""]
    lines += [line for text in (idle, scheduler, source, *result.notes) for line in folded(text, width)]
    lines.append("")
    names = [got.container.name for got in result.got]
    return lines + draw.time_line(result.line, names, result.line_ms, width or UNLIMITED, plain)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def got_json(got: Got) -> dict[str, Any]:
    one = got.container
    return {
        "name": one.name,
        "weight": got.weight,
        "highprio": got.highprio,
        "share_allowed_pct": _rounded(got.allowed_pct),
        "share_got_pct": _rounded(got.share_pct),
        "kernels_per_s": _rounded(got.works_per_s),
        "wait_p50_us": _rounded(got.waits.p50_us),
        "wait_p99_us": _rounded(got.waits.p99_us),
        "wait_max_us": _rounded(got.waits.max_us),
        "takeover_p99_us": _rounded(got.takeover_us),
        "takeover_throttled_p99_us": _rounded(got.takeover_throttled_us),
        "share_per_100_ms_pct": [round(ns / 1e6, 2) for ns in got.buckets],
        **requests_json(got),
    }


def requests_json(got: Got) -> dict[str, Any]:
    """Of a container without requests, and without --alone, null."""
    found, alone = got.requests, got.alone
    return {
        "requests": found.ended if found else None,
        "requests_open": found.open if found else None,
        "requests_per_s": _rounded(found.per_s) if found else None,
        "request_p50_us": _rounded(found.p50_us) if found else None,
        "request_p99_us": _rounded(found.p99_us) if found else None,
        "request_max_us": _rounded(found.max_us) if found else None,
        "request_alone_p99_us": _rounded(alone.p99_us) if alone else None,
        "request_p99_of_alone_pct": _rounded(got.p99_of_alone_pct),
        "share_alone_pct": _rounded(alone.share_pct) if alone else None,
        "share_fair_pct": _rounded(got.fair_pct),
        "share_from_fair_pp": _rounded(got.from_fair_pp),
    }


def result_json(number: int, result: Result) -> dict[str, Any]:
    setup = result.setup
    return {
        "index": number,
        "profile": setup.profile.key,
        "policy": {"number": setup.policy, "name": policies.of(setup.policy).name},
        "slice_us": result.slice_us,
        "seconds": round(result.seconds, 6),
        "idle_pct": round(result.idle_pct, 3),
        "idle_loss_pct": round(result.idle_loss_pct, 3),
        "switch_pct": round(result.switch_pct, 3),
        "low_of_rest_pct": _rounded(result.low_of_rest_pct),
        "share_from_fair_pp": _rounded(result.from_fair_pp),
        "turns_per_s": round(result.turns_per_s, 2),
        "control_calls_per_s": round(result.control_calls_per_s, 2),
        "sched_thread_cpu_pct": round(result.sched_thread_pct, 3),
        "run_state": setup.source,
        "run_state_polls_per_s": round(result.polls_per_s, 2),
        "notes": list(result.notes),
        "containers": [got_json(got) for got in result.got],
        "line": {
            "from_ms": result.line_ms[0],
            "to_ms": result.line_ms[1],
            "ran": [
                {
                    "container": result.got[one.client].container.name,
                    "from_ms": round(one.begin_ns / 1e6, 6),
                    "to_ms": round(one.end_ns / 1e6, 6),
                }
                for one in result.line
            ],
        },
    }


def svg_target(path: Path, number: int) -> Path:
    return path if not number else path.with_name(f"{path.stem}-{number}{path.suffix}")


def check_outputs(svg: Path | None, count: int, perfetto: Path | None) -> None:
    """Check before the run, which may take long, that the files can be written, and are different ones.

    @count: of pictures. Raises CgpuError (usage), and OSError as check_out().
    """
    targets = [svg_target(svg, number) for number in range(count)] if svg else []
    targets += [perfetto] if perfetto else []
    places = [os.path.realpath(one) for one in targets]
    for place, target in zip(places, targets, strict=True):
        if places.count(place) > 1:
            raise CgpuError(Exit.USAGE, "usage", f"{target} is named for two outputs", "each needs a file of its own")
        check_out(target)


def write_all(files: Sequence[tuple[Path, str]]) -> list[Path]:
    """All of them. CgpuError: one could not be written; it names those that were, since the work itself was done."""
    written: list[Path] = []
    for target, text in files:
        try:
            write_file(target, text)
        except OSError as error:
            hint = f"written: {', '.join(map(str, written))}" if written else ""
            raise CgpuError(Exit.OUTPUT, str(target), error.strerror or str(error), hint) from error
        written.append(target)
    return written


def pictures(path: Path, results: Sequence[Result]) -> list[tuple[Path, str]]:
    """One file per GPU; the second one's name gets its number."""
    found = []
    for number, result in enumerate(results):
        target = svg_target(path, number)
        names = [got.container.name for got in result.got]
        buckets, seen = [got.buckets for got in result.got], [got.seen for got in result.got]
        line = draw.merged(result.line, result.line_ms)
        text = draw.svg(_title(result), names, line, result.line_ms, buckets, seen, result.marks)
        found.append((target, text))
    return found


def trace_document(results: Sequence[Result]) -> str:
    """The time lines as Chrome's trace, one process for each GPU."""
    processes = [
        chrome.Process(
            number,
            f"GPU {number} {_title(result)}",
            [got.container.name for got in result.got],
            [chrome.Span(one.client, one.begin_ns / 1000, one.end_ns / 1000) for one in result.line],
            instants=[chrome.Instant(mark.at_ms * 1000, mark.text) for mark in result.marks],
            about=[{"weight": got.weight, "highprio": got.highprio} for got in result.got],
        )
        for number, result in enumerate(results)
    ]
    return chrome.document(processes, {"simulated": True})


def _line_window(from_ms: float | None, line_ms: float | None, scenario: Scenario) -> tuple[float, float] | None:
    if from_ms is None and line_ms is None:
        return None
    whole = scenario.seconds * 1000
    begin = from_ms or 0.0
    if begin >= whole:
        raise CgpuError(
            Exit.USAGE, "usage", f"--from-ms {in_digits(begin)} is after the end of the run", f"{in_digits(whole)} ms"
        )
    return begin, min(whole, begin + (line_ms or 200.0))


def _check_alone(ctx: click.Context) -> None:
    """--cluster is a simulation of its own."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if name not in ("cluster", "placement", "as_json") and source is click.core.ParameterSource.COMMANDLINE:
            given = next(one for one in ctx.command.params if one.name == name)
            raise CgpuError(Exit.USAGE, "usage", f"--cluster and {given.opts[0]} exclude one another")


def _plain() -> bool:
    try:
        draw.BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return os.environ.get("TERM") == "dumb"


def _merged(file: Path | None, flags: Mapping[str, object]) -> dict[str, object]:
    """The values of the file, overridden by the command line."""
    values = config.read_file(file) if file else {}
    return values | {name: value for name, value in flags.items() if value is not None}


@click.command("simulate", cls=Command, epilog=EPILOG)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--container", "containers", multiple=True, metavar="KEY=VALUE,...", help="One container; may be repeated."
)
@click.option("--profile", "card", default="a100", show_default=True, shell_complete=profile_words,
              help="Costs of the card: a100, h100, h200, t4.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(1, 16), help="Number of identical GPUs; default: 1, or those of FILE.")
@click.option("--policy", metavar="P", default="weighted", show_default=True, shell_complete=policy_words,
              help=f"{policies.ALLOWED}.")  # fmt: skip
@click.option("--slice-us", metavar="US", help="Default: 20 control calls, as the module chooses.")
@click.option("--max-inst", metavar="N", help="Default: 20.")
@click.option("--prio-ratio", metavar="PCT", help="Default: 80.")
@click.option(
    "--run-state",
    metavar="SOURCE",
    help="Where the module reads which containers have work: chram, pccsr, none. Default: the card's.",
)
@click.option("--personality", metavar="KEY=VALUE,...", help="A driver with faults, e.g. err40_pct=27.")
@click.option("--seconds", metavar="S", help="Simulated; default: 10.")
@click.option("--seed", metavar="N", help="Random seed; the same seed gives the same run. Default: 1.")
@click.option("--from-ms", type=FloatRange(0), help="Begin of the time line.")
@click.option("--line-ms", type=FloatRange(0.1), help="Length of the time line.")
@click.option("--svg", type=OutFile(), help="Draw the time line into this file.")
@click.option(
    "--trace",
    "played",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Play back the containers of a file of cgpu trace --perfetto: each interval in which one ran is work that "
    "arrives when it began.",
)
@click.option(
    "--perfetto",
    type=OutFile(),
    help="Write the time line as a trace for ui.perfetto.dev.",
)
@click.option(
    "--cluster",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Pools of nodes and pods (TOML or YAML): which pod goes where. Only with --placement and --json.",
)
@click.option("--placement", type=click.Choice(PLACEMENTS), help="With --cluster. Default: both.")
@click.option("--alone", is_flag=True, help="Run each container alone too, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
def simulate(
    file: Path | None,
    containers: tuple[str, ...],
    card: str,
    gpus: int | None,
    policy: str,
    slice_us: str | None,
    max_inst: str | None,
    prio_ratio: str | None,
    run_state: str | None,
    personality: str | None,
    seconds: str | None,
    seed: str | None,
    from_ms: float | None,
    line_ms: float | None,
    svg: Path | None,
    played: Path | None,
    perfetto: Path | None,
    cluster: Path | None,
    placement: str | None,
    alone: bool,
    as_json: bool,
) -> int:
    """Simulate containers on a GPU under a policy: shares, waits, time line.

    The scheduler is the kernel module's own, the GPU and its driver are simulated. Containers come from the command
    line, from FILE (TOML), or both; values of a GPU in FILE override the options.
    """
    if cluster is not None:
        _check_alone(click.get_current_context())
        from . import simulate_cluster

        return simulate_cluster.show(cluster, placement or "", as_json)
    if placement is not None:
        raise CgpuError(Exit.USAGE, "usage", "--placement is of --cluster")
    wanted: dict[str, object] = {
        "slice_us": slice_us, "max_inst": max_inst, "prio_ratio": prio_ratio, "run_state": run_state
    }  # fmt: skip
    given = {name: value for name, value in wanted.items() if value is not None} | {"policy": policy}
    if personality:
        given["personality"] = config.pairs(personality, "--personality")
    base = config.read_setup(given, Setup(profile(card)))
    there, length_s = playback.read(played) if played else ([], None)
    values = {"seconds": seconds or length_s, "seed": seed}
    scenario = config.read_scenario(_merged(file, values), base, gpus, containers, there, str(file or ""))
    check_outputs(svg, len(scenario.gpus), perfetto)
    window = _line_window(from_ms, line_ms, scenario)
    results = run(scenario, window, alone, exact=as_json or perfetto is not None)
    files = pictures(svg, results) if svg else []
    written = write_all([*files, *([(perfetto, trace_document(results))] if perfetto else [])])
    if as_json:
        data = {"schema_version": SCHEMA_VERSION, "simulated": True, "seed": scenario.seed}
        out(json.dumps(data | {"gpus": [result_json(i, one) for i, one in enumerate(results)]}, indent=2))
        return 0
    for number, result in enumerate(results):
        out("\n".join([*([""] if number else []), *result_text(number, result, width(), _plain())]))
    for path in written:
        out(f"wrote {path}")
    return 0
