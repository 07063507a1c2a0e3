#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns a directory of results into the lines for docs/develop/hardware.md: report.py results/<date>-<gpu>-<driver>"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEAD = "| question | row | state | answer |\n|---|---|---|---|"


class BadResults(Exception):
    """What is wrong, with the file."""


def load(folder: Path) -> list[dict]:
    """The questions' results, in their order."""
    results = []
    for path in sorted(folder.glob("[0-9][0-9]-*.json")):
        try:
            result = json.loads(path.read_text())
            result["question"], result["state"], result["simulated"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadResults(f"{path.name}: not a result: {error!r}") from None
        results.append(result)
    if not results:
        raise BadResults(f"{folder}: no results in it")
    return results


def state(result: dict) -> str:
    """What may be claimed. A simulated GPU proves nothing about a card."""
    if result["state"] != "measured":
        return f"not verified on hardware ({result['state']})"
    if result["simulated"] is not False:
        return "not verified on hardware (simulated)"
    return f"measured: {result['card']}, {result['driver']}, kernel {result['kernel']}, {result['date'][:10]}"


def cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def line(result: dict) -> str:
    rows = ", ".join(map(str, result.get("rows", []))) or "–"
    said = result.get("answer") or result.get("reason") or ""
    return f"| {cell(result['question'])} | {rows} | {cell(state(result))} | {cell(said)} |"


def table(results: list[dict]) -> str:
    return "\n".join([HEAD, *(line(result) for result in results)])


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(table(load(Path(arguments[0]))))
    except BadResults as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
