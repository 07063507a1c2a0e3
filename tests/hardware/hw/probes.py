# SPDX-License-Identifier: MIT
"""The four questions that decide the design."""

from __future__ import annotations

import os
from pathlib import Path

from .ask import Context, Missing, question
from .lever import status_text, took_us
from .loads import Load, run_program
from .stats import figures, shares
from .traces import STEPS

NOBODY = 65534


def moved(before: list[float], after: list[float]) -> float:
    """By which factor the first one's part against the second's changed."""
    small = 1e-3
    return round((after[0] + small) / (after[1] + small) / ((before[0] + small) / (before[1] + small)), 3)


@question("restart", "probes", 20, (3, 4))
def restart(context: Context) -> dict:
    """Does RESTART_RUNLIST answer a process, and does it commit timeslices?

    Two equal loads; throughput as they are, after SET_TIMESLICE of 4096 and 1024 us, after RESTART_RUNLIST by one of
    them.
    """
    with context.crew() as crew:
        a, b = crew.add(2)
        before = crew.rates(context.window_s)
        asked = [a.lever("timeslice", us=4096), b.lever("timeslice", us=1024)]
        alone = crew.rates(context.window_s)
        answers = [a.lever("restart", n=20, gap_us=5000)]
        committed = crew.rates(context.window_s)
        other = [a.lever("restart", force=force, bypass=bypass) for force, bypass in ((0, 0), (0, 1), (1, 1))]
    factor, by_itself = moved(before, committed), moved(before, alone)
    status = status_text(answers[0])
    return {
        "answer": f"{status}; SET_TIMESLICE 4:1 alone moves the ratio by {by_itself}, with RESTART_RUNLIST by {factor}",
        "set_timeslice_status": [status_text(one) for one in asked],
        "restart_status": status,
        "restart_status_by_force_bypass": {
            key: status_text(one) for key, one in zip(("0,0", "0,1", "1,1"), other, strict=True)
        },
        "restart_us": figures(took_us(answers[0]), "us"),
        "shares_before": shares(before),
        "shares_timeslice_alone": shares(alone),
        "shares_after_restart": shares(committed),
        "factor_timeslice_alone": by_itself,
        "factor_after_restart": factor,
        "work_per_s": [round(sum(rates), 1) for rates in (before, alone, committed)],
    }


def freeze_by(context: Context, crew, victim: Load, actor: Load) -> dict:
    """@actor names @victim's channels; what became of both."""
    before = crew.rates(context.window_s, [victim, actor])
    names = victim.lever.channels()
    if not names:
        raise Missing("the load has no channel on a graphics engine that rmlever saw")
    done = actor.lever("freeze", list=",".join(names))
    frozen = crew.rates(context.window_s, [victim, actor])
    restarted = actor.lever("restart")
    again = crew.rates(context.window_s, [victim, actor])
    thawed = actor.lever("thaw", list=",".join(names))
    actor.lever("restart")
    after = crew.rates(context.window_s, [victim, actor])
    stops = frozen[0] < before[0] / 10
    return {
        "freeze_status": status_text(done),
        "thaw_status": status_text(thawed),
        "restart_status": status_text(restarted),
        "stopped": stops,
        "stopped_after_restart": again[0] < before[0] / 10,
        "back_after_thaw": after[0] > before[0] / 2,
        "work_per_s": {
            "before": before,
            "foreign channels frozen": frozen,
            "and RESTART_RUNLIST": again,
            "thawed": after,
        },
    }


@question("foreign", "probes", 25, (19,))
def foreign(context: Context) -> dict:
    """May a process freeze another process's channels by DISABLE_CHANNELS?

    Two loads; the second names the first's client and channels, by its own subdevice. Then the same as user nobody.
    """
    with context.crew() as crew:
        (victim,) = crew.add(1)
        (actor,) = crew.add(1)
        numbers = {"same_user": freeze_by(context, crew, victim, actor)}
        if os.geteuid() == 0:
            crew.loads.remove(actor)
            actor.stop()
            try:
                (actor,) = crew.add(1, user=NOBODY)
                numbers["nobody"] = freeze_by(context, crew, victim, actor)
            except Exception as error:  # the nodes need not be open to every user
                numbers["nobody"] = {"reason": str(error)}
    said = []
    for who, one in numbers.items():
        stops = one.get("stopped") or one.get("stopped_after_restart")
        said.append(f"{who}: {'yes' if stops else 'no'} ({one.get('freeze_status') or one['reason']})")
    return {"answer": "; ".join(said), **numbers}


def both_ways(context: Context, **env: str) -> dict:
    """Each program as it is and with the answer in the driver's place."""
    rows = {}
    for name, argv in context.programs().items():
        log = context.work / f"answers-{name}"
        log.unlink(missing_ok=True)
        plain = context.plain(name)
        changed = run_program(argv, context.preload(RMLEVER_LOG=str(log), **env), timeout_s=30)
        lines = log.read_text().splitlines() if log.exists() else []
        rows[name] = {
            "plain": plain,
            "answered": changed,
            "times_answered": len(lines),
            "same_status": plain["status"] == changed["status"],
        }
    return rows


def summary(rows: dict) -> str:
    """load: works (3 answered), torch: not installed, ..."""
    said = []
    for name, row in rows.items():
        if row["plain"]["status"] is None:
            said.append(f"{name}: {row['plain']['reason']}")
        elif row["plain"]["status"]:
            said.append(f"{name}: fails anyway ({row['plain']['status']})")
        elif not row["times_answered"]:
            said.append(f"{name}: does not ask")
        else:
            changed = row["answered"]
            end = "works" if row["same_status"] else f"ends with {changed['status'] or changed.get('reason')}"
            said.append(f"{name}: {end} ({row['times_answered']} answered)")
    return ", ".join(said)


@question("refuse-0xde", "probes", 30, (10,))
def refuse_rusd(context: Context) -> dict:
    """Do CUDA and NVML live with class 0xde (shared totals) being refused?

    Each program as it is, then with RM_ALLOC of class 0xde answered INVALID_CLASS.
    """
    rows = both_ways(context, RMLEVER_REFUSE="de")
    return {"answer": summary(rows), "programs": rows}


@question("mm-initialize", "probes", 40, (16,))
def mm_initialize(context: Context) -> dict:
    """Do programs start when UVM_MM_INITIALIZE is answered without being forwarded?

    Each program with it answered NV_WARN_NOTHING_TO_DO (0x10006, what the driver says where no page tables are shared),
    then NV_ERR_NOT_SUPPORTED (0x56).
    """
    rows = {"NOTHING_TO_DO": both_ways(context, RMLEVER_MM_INITIALIZE="10006")}
    if not context.quick:
        rows["NOT_SUPPORTED"] = both_ways(context, RMLEVER_MM_INITIALIZE="56")
    return {"answer": "; ".join(f"{how}: {summary(row)}" for how, row in rows.items()), "programs": rows}


def programs_of_cuda(context: Context) -> dict[str, list[str]]:
    """Every part of CUDA, NVML and PyTorch that is here, by name."""
    if context.facts["simulated"]:
        return context.programs()
    steps = {step: [str(context.bin / "exercise"), step] for step in STEPS}
    return {**context.programs(), **steps}


def refused_calls(log: Path) -> list[str]:
    """The numbers in the log of rmlever, each once: control=0x..., class=0x..., uvm=..., escape=..."""
    lines = log.read_text().splitlines() if log.exists() else []
    return sorted({line.rsplit(" ", 1)[1] for line in lines if line.startswith("table refuses")})


def under_table(context: Context, argv: list[str], **env: str) -> tuple[dict, list[str]]:
    log = context.work / "table-log"
    log.unlink(missing_ok=True)
    done = run_program(argv, context.preload(RMLEVER_LOG=str(log), **env), timeout_s=40)
    return done, refused_calls(log)


def fatal_ones(context: Context, argv: list[str], refused: list[str], status: object, way: dict[str, str]) -> list[str]:
    """Those whose refusal alone changes how the program ends."""
    numbers = {one: one.split("=0x")[1] for one in refused}
    found = []
    for one in refused:
        others = ",".join(number for name, number in numbers.items() if name != one)
        done, _ = under_table(context, argv, **way, RMLEVER_ALLOW=others)
        if done["status"] != status:
            found.append(one)
    return found


@question("table", "probes", 210, (1, 2, 10, 16))
def call_table(context: Context) -> dict:
    """Do CUDA, NVML and PyTorch run when each call that the module refuses is refused?

    The module's call table in the process itself, with uvm = account and uvm = deny. For a program that ends otherwise
    than by itself under account: which refusals do that, each tried alone.
    """
    ways = {name: {"RMLEVER_TABLE": name} for name in ("account", "deny")}
    rows: dict[str, dict] = {}
    for name, argv in programs_of_cuda(context).items():
        plain, refused = under_table(context, argv, RMLEVER_TABLE="watch")
        if plain["status"] is None:
            rows[name] = {"plain": plain}
            continue
        row: dict = {"plain": plain, "refused": refused}
        for way, env in ways.items():
            done, _ = under_table(context, argv, **env)
            row[way] = {"same": done["status"] == plain["status"], **done}
        if not row["account"]["same"] and name != "torch":
            row["fatal"] = fatal_ones(context, argv, refused, plain["status"], ways["account"])
        rows[name] = row
    said = []
    for way in ways:
        bad = [name for name, row in rows.items() if way in row and not row[way]["same"]]
        said.append(f"{way}: {'all as without it' if not bad else 'otherwise ' + ', '.join(bad)}")
    fatal = sorted({one for row in rows.values() for one in row.get("fatal", [])})
    return {"answer": f"{'; '.join(said)}; fatal alone: {', '.join(fatal) or 'none'}", "programs": rows}
