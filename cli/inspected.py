# SPDX-License-Identifier: MIT
"""The JSON of kubectl inspect cgpu -> Fleet. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .fleet import OK, Container, Fleet, Gpu, Node, Waiting, natural

_UNIT = re.compile(r"([1-9][0-9]{0,5})?(MiB|GiB)", re.ASCII)


def unit_bytes(text: str) -> int:
    """Bytes of a unit of aliyun.com/gpu-mem: GiB, MiB, or so many of them, as 256MiB. Raises ValueError."""
    found = _UNIT.fullmatch(text)
    if found is None:
        raise ValueError(f"its unit {text[:40]!r} is not known: GiB, MiB, or a number of them")
    return int(found[1] or 1) << {"MiB": 20, "GiB": 30}[found[2]]


def of_kubernetes(data: Mapping[str, Any]) -> Fleet:
    """@data: `kubectl inspect cgpu -o json`. Its amounts are limits, by what pods ask for. Raises ValueError if it is
    something else, amounts that no node has included."""
    try:
        nodes = [_node_of_kubernetes(one) for one in data["nodes"]]
        waiting = [
            Waiting(str(one["pod"]), str(one["note"]), {str(node): str(why) for node, why in one["nodes"].items()})
            for one in data["pending"]
        ]
        return Fleet(tuple(sorted(nodes, key=lambda one: natural(one.name))), tuple(waiting))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no such field: {error}") from error


def _amount(found: object, end: int = 1 << 32) -> int:
    """A whole number below @end, of JSON or a key's text. Raises ValueError."""
    number = int(found) if isinstance(found, str) and found.isascii() and found.isdecimal() else found
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < end:
        raise ValueError(f"{str(found)[:40]!r} is no such amount")
    return number


def _node_of_kubernetes(found: Mapping[str, Any]) -> Node:
    unit = unit_bytes(str(found["unit"]))
    held: dict[int, list[Container]] = {}
    for pod in found["pods"]:
        for gpu, units in (pod["units"] or {}).items():
            one = Container("", _amount(gpu), pod=str(pod["name"]), namespace=str(pod["namespace"]))
            held.setdefault(_amount(gpu), []).append(replace(one, limit_bytes=_amount(units) * unit))
    gpus = [
        Gpu(
            _amount(gpu["index"]),
            instances=_amount(gpu["containers"]),
            total_bytes=_amount(gpu["units"]) * unit,
            limits_bytes=_amount(gpu["allocated_units"]) * unit,
            why=str(gpu["why"]),
            containers=tuple(held.get(_amount(gpu["index"]), ())),
            admitted_bytes=_amount(gpu["free_units"]) * unit if "free_units" in gpu else None,
        )
        for gpu in found["gpus"]
    ]
    return Node(str(found["name"]), OK if not found["why"] else str(found["why"]), gpus=tuple(gpus))
