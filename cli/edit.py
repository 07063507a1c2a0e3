# SPDX-License-Identifier: MIT
"""Edits of an engine's file: request, record, refusal, and TOML edited as text. Pure.

Comments are kept: TOML is edited as text, then parsed to verify that only our key has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cgpu_common.toml import tomllib

BEGIN = "# cgpu: begin (cgpu setup --undo takes it out)\n"
END = "# cgpu: end\n"
BY_HAND = "do it by hand: docs/user/daemon.md section 1"
TOOLKIT = "nvidia-container-runtime"


class EditRefused(Exception):
    """The file is not edited: the reason, and a hint."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True)
class Record:
    """The file before (None: absent) and after cgpu setup; folders made for it, deepest first."""

    runtime: str
    before: str | None
    after: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetupRequest:
    """The options of cgpu setup. `others`: further files that the engine reads, by name."""

    runtime: str
    default: bool = False
    cdi: bool = False
    others: Mapping[str, str] = field(default_factory=dict)


def lookup(data: Any, *keys: str) -> Any:
    """The value below these keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def name_taken(there: object, runtime: str) -> EditRefused:
    """The name nvidia is in use by another runtime."""
    words = there if isinstance(there, str) else json.dumps(there, default=str)
    if words.strip('"').rsplit("/", 1)[-1] == runtime.rsplit("/", 1)[-1]:
        hint = "--undo first, if it was cgpu setup"
    elif TOOLKIT in words:
        hint = f"cgpu setup {TOOLKIT} puts cgpu-runtime below NVIDIA's"
    else:
        hint = "take it out first"
    return EditRefused(f"has another runtime called nvidia: {words[:80]}", hint)


def changed_since(what: str) -> EditRefused:
    return EditRefused(f"{what} was changed since cgpu setup", "take it out by hand")


def toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise EditRefused(f"is not TOML: {err}") from None


def without(data: Any, keys: tuple[str, ...]) -> Any:
    """The data without one key and without empty tables, which a header alone creates."""
    if not isinstance(data, dict):
        return data
    rest = {
        name: without(value, keys[1:] if keys[:1] == (name,) else ()) for name, value in data.items() if keys != (name,)
    }
    return {name: value for name, value in rest.items() if value != {}}


def changed_only(before: str, after: str, *paths: tuple[str, ...]) -> str:
    """`after`, if it differs from `before` in these keys only."""
    old = toml(before)
    try:
        new: Any = toml(after)
    except EditRefused:
        raise EditRefused("has a form into which cgpu setup cannot write", BY_HAND) from None
    for path in paths:
        old, new = without(old, path), without(new, path)
    if old != new:
        raise EditRefused("has a form into which cgpu setup cannot write", BY_HAND)
    return after


def section(text: str, *table: str) -> tuple[str, str, str] | None:
    """The text up to and with the header of this table, the table, the rest; None: no such header."""
    names = [rf"""(?:{re.escape(one)}|"{re.escape(one)}"|'{re.escape(one)}')""" for one in table]
    header = re.search(rf"^[ \t]*\[[ \t]*{r'[.]'.join(names)}[ \t]*\][^\n]*(?:\n|\Z)", text, re.M)
    if header is None:
        return None
    next_header = re.compile(r"^[ \t]*\[", re.M).search(text, header.end())
    stop = next_header.start() if next_header else len(text)
    return text[: header.end()], text[header.end() : stop], text[stop:]


def end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def block(*lines: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    begin, end = marks
    return begin + "".join(f"{line}\n" for line in lines) + end


def find_block(text: str, begin: str = BEGIN, end: str = END) -> str:
    """The block in a text, with its marks; "" if there is none."""
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.S)
    return found[0] if found else ""


def unblock(text: str, record: Record) -> str:
    """The text without our block; refused if the block was changed."""
    ours = find_block(record.after)
    if not ours or text.count(ours) != 1:
        raise changed_since("the text between the marks")
    return text.replace(ours, "")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def with_file_name(name: str, err: EditRefused) -> EditRefused:
    return EditRefused(f"{name} {err.why}", err.hint) if name else err


def toml_of(name: str, text: str) -> dict[str, Any]:
    try:
        return toml(text)
    except EditRefused as err:
        raise with_file_name(name, err) from None
