# SPDX-License-Identifier: MIT
"""PURE: what a weight, ceiling or priority does under the policy in force, as a clause (policies.md §1)."""

from __future__ import annotations

from cgpu_common import policies


def policy_text(policy: int) -> str:
    """'policy 2 (weighted)'"""
    return f"policy {policy} ({policies.of(policy).name})"


def of_weight(policy: int, weight: int) -> str | None:
    """The effect of a weight that is not the obvious one; None: the share follows the weight, or it is the default."""
    name, facts = policy_text(policy), policies.of(policy)
    if weight == 0 and not facts.limits:
        return f"{name} ignores weights, so it runs; under any other policy weight 0 is no compute"
    if weight == 0:
        return f"under {name} it does not run until an administrator raises its weight"
    if weight > 1 and not facts.weights:
        return f"{name} ignores the size of a weight: {weight} has the same effect as 1"
    return None


def of_highprio(policy: int) -> str | None:
    return f"{policy_text(policy)} ignores high priority" if not policies.of(policy).limits else None


def of_ceiling(policy: int) -> str | None:
    if policies.of(policy).ceilings:
        return None
    return f"{policy_text(policy)} ignores ceilings: only {policies.names_where('ceilings')} has them"
