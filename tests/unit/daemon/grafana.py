# SPDX-License-Identifier: MIT
"""Whether a dashboard is what Grafana's types describe: no key that Grafana ignores, no value of another kind."""

from __future__ import annotations

import enum
import json
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

Board = dict[str, Any]
register_default_plugins()


def ignored(written: Any, kept: Any, where: str = "") -> Iterator[str]:
    """The places of the document that a reading by Grafana's types loses."""
    if isinstance(written, dict) and isinstance(kept, dict):
        for key, value in written.items():
            if key in kept:
                yield from ignored(value, kept[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}"
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for place, (one, other) in enumerate(zip(written, kept, strict=True)):
            yield from ignored(one, other, f"{where}/{place}")
    elif written != kept:
        yield where


def _lost(written: dict[str, Any], kind: Any) -> list[str]:
    return list(ignored(written, json.loads(json.dumps(kind.from_json(written), cls=JSONEncoder))))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value without attributes of its own is of a kind."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return value in [one.value for one in kind]
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, dict) and hasattr(kind, "from_json"):  # the library leaves some as they were written
        return not _lost(value, kind) and not list(wrong_kinds(kind.from_json(value)))
    if kind is variants.Dataquery:
        return hasattr(value, "to_json")
    return isinstance(value, kind)


def wrong_kinds(one: Any, where: str = "") -> Iterator[str]:
    """The attributes of the objects that are of another kind than Grafana's types have."""
    if isinstance(one, list):
        for place, inner in enumerate(one):
            yield from wrong_kinds(inner, f"{where}/{place}")
    elif isinstance(one, dict):
        for key, inner in one.items():
            yield from wrong_kinds(inner, f"{where}/{key}")
    elif hasattr(one, "to_json") and not isinstance(one, enum.Enum):
        names = vars(sys.modules[type(one).__module__])
        for name, kind in typing.get_type_hints(type(one), names).items():
            value = getattr(one, name)
            if not _fits(value, kind):
                yield f"{where}/{name}: {value!r} is not {kind}"
            yield from wrong_kinds(value, f"{where}/{name}")


def faults(board: Board) -> list[str]:
    """All of it, as sentences."""
    lost = [f"{place} is no key of Grafana" for place in _lost(board, Dashboard)]
    return lost + list(wrong_kinds(Dashboard.from_json(board)))
