# SPDX-License-Identifier: MIT
"""The commands of the tutorials' pages, and the record of a run. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from install import blocks  # noqa: E402

#: Kind of machine -> its pages, in the order in which they are played, and the mark of their commands.
PAGES = {
    "docker": {"docs/user/tutorial.md": "tutorial", "docs/user/howto.md": "howto"},
    "kube": {"docs/user/tutorial-kubernetes.md": "kube"},
}
_HERE = re.compile(r"<<-?'?([A-Z]+)'?")
_ID = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Played:
    """A command that ran: its exit status, both of its streams in one, and how long it took."""

    command: str
    status: int
    output: str
    seconds: float


def commands(text: str, mark: str) -> list[str]:
    """Each command of the page with that mark, whole: a line that ends with a backslash, or has a here-document, goes
    on with the next ones."""
    out: list[str] = []
    end = ""
    for line in blocks.marked(text).get(mark, []):
        if out and (end or out[-1].endswith("\\")):
            out[-1] += f"\n{line}"
            end = "" if line.strip() == end else end
        else:
            out.append(line)
        found = _HERE.search(line)
        end = found[1] if found else end
    return out


def record(page: str, played: Sequence[Played], expected: int) -> dict[str, Any]:
    """A page's part of build/tutorial.json. @expected: how many commands the page has."""
    ok = len(played) == expected > 0 and not any(one.status for one in played)
    return {"page": page, "ok": ok, "commands": [asdict(one) for one in played]}


def session(one: Mapping[str, Any], prompt: str = "# ") -> Iterator[str]:
    """A played command as a terminal shows it."""
    first, *more = str(one["command"]).split("\n")
    yield prompt + first
    yield from (f"> {line}" for line in more)
    yield from str(one["output"]).rstrip("\n").split("\n") if one["output"] else ()


def shortened(line: str) -> str:
    """A container's full id is wider than a page; docker's own tables show 12 characters."""
    return _ID.sub(lambda match: match[0][:12] + "…", line)
