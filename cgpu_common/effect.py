# SPDX-License-Identifier: MIT
"""PURE: what a weight, ceiling or priority does under the policy in force, as a clause (policies.md §1)."""

from __future__ import annotations

from cgpu_common.kernel_abi import POLICY_NAMES, Policy

#: 0 and 1 give equal parts, 4 about equal ones, 5 leaves the GPU to the driver.
WITHOUT_WEIGHTS = frozenset({Policy.FAIR, Policy.PREEMPTIVE, Policy.SOFT, Policy.NATIVE})


def policy_text(policy: int) -> str:
    """'policy 2 (weighted)'"""
    name = POLICY_NAMES[policy] if 0 <= policy < len(POLICY_NAMES) else "unknown"
    return f"policy {policy} ({name})"


def of_weight(policy: int, weight: int) -> str | None:
    """The effect of a weight that is not the obvious one; None: the share follows the weight, or it is the default."""
    name = policy_text(policy)
    if weight == 0 and policy == Policy.NATIVE:
        return f"{name} ignores weights, so it runs; under any other policy weight 0 is no compute"
    if weight == 0:
        return f"under {name} it does not run until an administrator raises its weight"
    if weight > 1 and policy in WITHOUT_WEIGHTS:
        return f"{name} ignores the size of a weight: {weight} has the same effect as 1"
    return None


def of_highprio(policy: int) -> str | None:
    return f"{policy_text(policy)} ignores high priority" if policy == Policy.NATIVE else None


def of_ceiling(policy: int) -> str | None:
    return None if policy == Policy.BURST else f"{policy_text(policy)} ignores ceilings: only burst has them"
