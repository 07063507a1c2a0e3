# SPDX-License-Identifier: MIT
"""What editing an engine's file needs: what is asked for, what was done, why not, and TOML edited as text. Pure.

A file with comments keeps them: TOML is edited as text and only then read, so that nothing but our key is another.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEGIN = "# cgpu: begin (cgpu setup --undo takes it out)\n"
END = "# cgpu: end\n"
BY_HAND = "do it by hand: docs/daemon.md section 1"
TOOLKIT = "nvidia-container-runtime"


class Refuse(Exception):
    """Why a file is left as it is, and what to do about it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True)
class Record:
    """What a file was (None: not there) before cgpu setup, and what it became; folders made for it, deepest first."""

    runtime: str
    before: str | None
    after: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What is asked for; others: files that count beside the one that is edited, by name."""

    runtime: str
    default: bool = False
    others: Mapping[str, str] = field(default_factory=dict)


def at(data: Any, *keys: str) -> Any:
    """The value below these keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def taken(there: object, runtime: str) -> Refuse:
    """The name nvidia belongs to somebody else."""
    words = there if isinstance(there, str) else json.dumps(there, default=str)
    if words.strip('"').rsplit("/", 1)[-1] == runtime.rsplit("/", 1)[-1]:
        hint = "--undo first, if it was cgpu setup"
    elif TOOLKIT in words:
        hint = f"cgpu setup {TOOLKIT} puts cgpu-runtime below NVIDIA's"
    else:
        hint = "take it out first"
    return Refuse(f"has another runtime called nvidia: {words[:80]}", hint)


def changed(what: str) -> Refuse:
    return Refuse(f"{what} was changed since cgpu setup", "take it out by hand")


def toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise Refuse(f"is not TOML: {err}") from None


def without(data: Any, keys: tuple[str, ...]) -> Any:
    """The data less one key and less tables with nothing in them, which a header alone makes."""
    if not isinstance(data, dict):
        return data
    rest = {
        name: without(value, keys[1:] if keys[:1] == (name,) else ()) for name, value in data.items() if keys != (name,)
    }
    return {name: value for name, value in rest.items() if value != {}}


def only(before: str, after: str, *paths: tuple[str, ...]) -> str:
    """The text after, if nothing but these keys differs from before."""
    old = toml(before)
    try:
        new: Any = toml(after)
    except Refuse:
        raise Refuse("has a form into which cgpu setup cannot write", BY_HAND) from None
    for path in paths:
        old, new = without(old, path), without(new, path)
    if old != new:
        raise Refuse("has a form into which cgpu setup cannot write", BY_HAND)
    return after


def ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def block(*lines: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    begin, end = marks
    return begin + "".join(f"{line}\n" for line in lines) + end


def cut(text: str, begin: str = BEGIN, end: str = END) -> str:
    """The block that is in a text, with its marks; nothing: there is none."""
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.S)
    return found[0] if found else ""


def unblock(text: str, record: Record) -> str:
    """The text without our block; refused if the block is not as it was written."""
    ours = cut(record.after)
    if not ours or text.count(ours) != 1:
        raise changed("what stands between the marks")
    return text.replace(ours, "")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def named(name: str, err: Refuse) -> Refuse:
    return Refuse(f"{name} {err.why}", err.hint) if name else err


def toml_of(name: str, text: str) -> dict[str, Any]:
    try:
        return toml(text)
    except Refuse as err:
        raise named(name, err) from None
