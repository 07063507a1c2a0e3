# SPDX-License-Identifier: MIT
"""PURE: the policies. One row for each, which the daemon, the commands, the simulator and the pages read.

The engine of each is cgpu_km/core/policy_NAME.c; what stands in both is held together by
tests/unit/core/test_policies.py. docs/reference/policies.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from cgpu_common.kernel_abi import MAX_INST_BURST_MAX, MAX_INST_MAX, MAX_INST_MIN


class Policy(IntEnum):
    """By number, as files and netlink have it (cgpu_km/uapi.h)."""

    FAIR = 0
    PREEMPTIVE = 1
    WEIGHTED = 2
    FIXED = 3
    SOFT = 4
    NATIVE = 5
    BURST = 6


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy does with compute, in words and as the engine's own switches."""

    name: str
    about: str  #: in a line
    weight: str  #: the effect of a container's weight, in a line
    control: str = "freeze"  #: without which it is refused: freeze, timeslice, or none
    weights: bool = False  #: the share follows the weight; else only weight 0 has an effect
    fixed_round: bool = False  #: a round is max_inst slices, and those without work are lost
    ceilings: bool = False  #: a container may have a ceiling
    limits: bool = True  #: compute is divided; else weights, priority and shares mean nothing
    max_inst: int = MAX_INST_MAX  #: the most slices of a GPU
    documented: bool = True  #: by the vendor, with this number

    @property
    def estimated(self) -> bool:
        """The hardware's timeslices divide the GPU: what a container got is computed from them, not measured."""
        return self.control == "timeslice"

    @property
    def is_wide(self) -> bool:
        """It takes more slices than MAX_INST_MAX."""
        return self.max_inst > MAX_INST_MAX

    @property
    def lends(self) -> bool:
        """Idle time goes to others by turns, as far as the run state is known (policies.md section 10)."""
        return self.limits and not self.fixed_round and self.control == "freeze"


TABLE = {
    Policy.FAIR: Facts(
        "fair",
        "equal parts of 1/max_inst, unused ones are lost",
        "0 freezes; its size is ignored",
        fixed_round=True,
    ),
    Policy.PREEMPTIVE: Facts(
        "preemptive",
        "equal parts among those that have opened the GPU",
        "0 freezes; its size is ignored",
    ),
    Policy.WEIGHTED: Facts(
        "weighted",
        "parts by weight; unassigned slices go to the others",
        "share is weight / sum of weights",
        weights=True,
    ),
    Policy.FIXED: Facts(
        "fixed",
        "fixed parts by weight, a hard cap",
        "share is weight / max_inst",
        weights=True,
        fixed_round=True,
    ),
    Policy.SOFT: Facts(
        "soft",
        "about equal parts by the hardware's timeslices",
        "0 freezes; its size is ignored",
        control="timeslice",
    ),
    Policy.NATIVE: Facts(
        "native",
        "the driver's own sharing; memory limits only",
        "ignored, also 0",
        control="",
        limits=False,
    ),
    Policy.BURST: Facts(
        "burst",
        "weight / max_inst guaranteed, unused time by weight",
        "share is at least weight / max_inst",
        weights=True,
        ceilings=True,
        max_inst=MAX_INST_BURST_MAX,
        documented=False,
    ),
}
#: Of a number that a newer module has: nothing is claimed.
UNKNOWN = Facts("unknown", "?", "?", control="")

NAMES = tuple(TABLE[policy].name for policy in Policy)
DEFAULT = Policy.NATIVE
ALLOWED = f"0 to {len(NAMES) - 1}, or one of {', '.join(NAMES)}"  #: for errors


def of(number: int) -> Facts:
    """The facts of a policy, UNKNOWN for a number that is not in the table."""
    return TABLE[Policy(number)] if 0 <= number < len(NAMES) else UNKNOWN


def names_where(fact: str) -> str:
    """Names of the policies for which a switch is on, in words: 'weighted, fixed and burst'."""
    *names, last = [facts.name for facts in TABLE.values() if getattr(facts, fact)]
    return f"{', '.join(names)} and {last}" if names else last


#: For sentences on max_inst, 'burst'.
WIDE = names_where("is_wide")
MAX_INST_RANGE = f"{MAX_INST_MIN} to {MAX_INST_MAX}, under {WIDE} to {MAX_INST_BURST_MAX}"


def number(text: str) -> int | None:
    """The number of a policy that is given by its name in any case or by its number; None: it is neither."""
    if text.lower() in NAMES:
        return NAMES.index(text.lower())
    return int(text) if text.isascii() and text.isdecimal() and int(text) < len(NAMES) else None
