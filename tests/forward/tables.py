# SPDX-License-Identifier: MIT
"""results.md of a run of module-run: the figures beside NVIDIA's published ones. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

#: NVIDIA's limit of memory by cgroup (driver 615.71.09, RTX PRO 6000, steps of 256 MiB): set, shown, allocatable, MiB.
#: What is not published is None.
PUBLISHED_LIMITS = ((30_000, 30_000, 29_184), (3_000, None, 2_560))
#: Two models a GPU, 8 A100-40: tokens per second in per cent of a dedicated GPU, by requests a GPU: the driver's round
#: robin with HAMi's limit of memory, and 50 % of the multiprocessors by MPS.
PUBLISHED_LOOPS = {2: (44.5, 63.5), 4: (45.0, 60.4), 8: (51.2, 68.0), 16: (61.6, 77.8), 32: (72.8, 87.9)}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of Markdown; None is a dash."""
    lines = [list(head), ["---"] * len(head)]
    lines += [["–" if word is None else str(word) for word in row] for row in rows]
    return ["| " + " | ".join(words) + " |" for words in lines]


def limits(results: Sequence[dict[str, Any]]) -> list[str]:
    """Limit set, total shown, allocatable."""
    rows: list[Sequence[object]] = []
    for line in results:
        said = line.get("said")
        if not str(line["name"]).startswith("limit ") or not isinstance(said, dict):
            continue
        lost = line["limit_mib"] - said["allocated_mib"] if "allocated_mib" in said else None
        how = f"{said.get('kind')}, {said.get('step_mib')} MiB"
        shown = (said.get("total_mib"), line.get("smi_mib"))
        rows.append((how, line["limit_mib"], *shown, said.get("allocated_mib"), lost))
    for asked, shown_mib, allocatable in PUBLISHED_LIMITS:
        published = "NVIDIA's limit (driver 615), 256 MiB"
        rows.append((published, asked, shown_mib, None, allocatable, asked - allocatable))
    head = ("how, in steps of", "limit set, MiB", "cuMemGetInfo", "nvidia-smi", "allocatable", "less than the limit")
    return ["## Limit set, total shown, allocatable", "", *table(head, rows)]


def loops(results: Sequence[dict[str, Any]]) -> list[str]:
    """Per cent of a dedicated GPU's rate."""
    found: dict[int, dict[str, object]] = {}
    names: dict[str, None] = {}
    for line in results:
        words = str(line["name"]).removeprefix("decode ").split(", ", 1)
        if len(words) == 2 and words[0].isdigit() and "percent_of_alone" in line and not line.get("missing"):
            found.setdefault(int(words[0]), {})[words[1]] = line["percent_of_alone"]
            names.setdefault(words[1])
    if not found:
        return []
    rows = [
        (requests, *(row.get(name) for name in names), *PUBLISHED_LOOPS.get(requests, (None, None)))
        for requests, row in sorted(found.items())
    ]
    head = ("requests a GPU", *names, "published: driver and HAMi", "published: MPS, 50 %")
    return ["## Two decode loops, % of one that has the GPU", "", *table(head, rows)]


def steps(done: Sequence[dict[str, Any]]) -> list[str]:
    """How each ended, and what it did not measure."""
    rows = []
    for step in done:
        missing = sorted({line["missing"] for line in step.get("results", []) if line.get("missing")})
        failed = [str(line["name"]) for line in step.get("results", []) if line.get("ok") is False]
        why = "; ".join([*filter(None, [str(step.get("why") or "")]), *failed, *(f"missing: {one}" for one in missing)])
        rows.append((step["step"], "ok" if step["ok"] else "failed", step.get("seconds"), why.replace("|", "/")))
    return ["## Steps", "", *table(("step", "end", "seconds", "why"), rows)]


def refusals(log: Iterable[str]) -> list[str]:
    """What the module refused, by its lines in the kernel log: a call by its number, memory at a limit; how often."""
    found: Counter[str] = Counter()
    for line in log:
        what = re.search(r"container \w+: (.+?) refused", line)
        name = what[1] if what else line
        found["memory at the limit" if name.endswith(" bytes") else name] += 1
    rows: list[tuple[str, int | None]] = [*sorted(found.items())] or [("none", None)]
    return ["## What the module refused", "", *table(("call", "lines in the log"), rows)]


def page(report: dict[str, Any]) -> str:
    """results.md"""
    done = report["steps"]
    results = [line for step in done for line in step.get("results", [])]
    machine = report["machine"]
    lines = ["# cgpu_km in User-Mode Linux over this machine's driver", ""]
    if machine.get("simulated"):
        lines += ["**Simulated: no figure here is a card's.**", ""]
    lines += [f"- {key}: {value}" for key, value in machine.items()]
    for part in (steps(done), limits(results), loops(results)):
        lines += ["", *part] if part else []
    lines += ["", *refusals([line for step in done for line in step.get("refused", [])])]
    return "\n".join(lines) + "\n"
