# SPDX-License-Identifier: MIT
"""The driver's branches that the call table has, of the module's own file, which the package carries as code."""

from __future__ import annotations

import re
from importlib.resources import files

_HERE = files(__package__)
#: As installed, and in the tree.
_PLACES = (_HERE / "sim/csrc/core/nv_branch.c", _HERE / "../cgpu_km/core/nv_branch.c")
_SOURCE = next(place for place in _PLACES if place.is_file()).read_text()
_ALL = re.findall(r"\d+", _SOURCE.partition("cgpu_branches[] = {")[2].partition("}")[0])
_LAST = int(re.findall(r"#define CGPU_BRANCH_COMPARED\s+(\d+)", _SOURCE)[0])


def _rows(name: str) -> list[tuple[int, ...]]:
    """Of one of its arrays of numbers."""
    body = _SOURCE.partition(f"{name}[] = {{")[2].partition("};")[0]
    return [tuple(map(int, row.split(","))) for row in re.findall(r"{ ([\d, ]+) }", body)]


BRANCHES = tuple(int(one) for one in _ALL if int(one) <= _LAST)  #: accepted
PARTLY = tuple(int(one) for one in _ALL if int(one) > _LAST)  #: with rows that were compared in part

#: The first minor of a branch that the rows hold for.
LEAST_MINOR = {row[0]: row[1] for row in _rows("least")}
#: Of PARTLY: rows that were compared, of how many.
COMPARED = {branch: (compared, rows) for branch, compared, rows in _rows("parts")}


def rows_for(branch: int) -> int | None:
    """The branch whose rows any_driver=1 uses for a driver of @branch; None: there are none, so it is refused."""
    return max((one for one in (*BRANCHES, *PARTLY) if one <= branch), default=None)
