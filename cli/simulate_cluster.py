# SPDX-License-Identifier: MIT
"""cgpu simulate --cluster: will these pools hold these pods, and what does each pod get?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from cgpu_common.exits import Exit
from cgpu_common.output import out
from cgpu_common.placement import NOTHING, PLACEMENTS

from .columns import Column, table
from .render import percent
from .sim import cluster, cluster_config
from .terminal import width

SCHEMA_VERSION = 1
POOL_HEAD = (
    Column("Pool", least=8),
    Column("Nodes", right=True),
    Column("GPUs", right=True),
    Column("Memory", right=True),
    Column("Allocated", right=True),
    Column("Empty nodes", right=True, drop=1),
    Column("Empty GPUs", right=True),
    Column("Largest free", right=True),
)
KIND_HEAD = (
    Column("Pod", least=8),
    Column("Asked", right=True),
    Column("Placed", right=True),
    Column("Left", right=True),
    Column("Further", right=True),
    Column("If unfragmented", right=True, drop=1),
    Column("Each gets"),
)


def show(path: Path, policy: str, as_json: bool) -> int:
    """Print the result of both policies or of one. Returns the exit code: 7 if under none of them all have room."""
    plan = cluster_config.read_plan(cluster_config.read(path), str(path))
    results = [cluster.run(plan, one) for one in ((policy,) if policy else PLACEMENTS)]
    if as_json:
        data = {"schema_version": SCHEMA_VERSION, "simulated": True, "seed": plan.seed}
        out(json.dumps(data | {"policies": [result_json(plan, one) for one in results]}, indent=2))
    else:
        out("\n\n".join("\n".join(result_text(plan, one, width())) for one in results))
    holds = any(all(pod.node is not None for pod in one.pods) for one in results)
    return int(Exit.OK if holds else Exit.PROBLEMS)


def _pool_row(pool: cluster.Pool, result: cluster.Result) -> list[str]:
    nodes = [node for node in result.nodes if node.pool is pool]
    free = [load for node in nodes for load in node.free().values()]
    size = sum(node.size for node in nodes)
    taken = sum(node.taken for node in nodes)
    whole = [(node, gpu) for node in nodes for gpu in pool.gpus if node.used.get(gpu.index, NOTHING) == NOTHING]
    return [
        pool.name,
        str(len(nodes)),
        str(len(free)),
        f"{size} {pool.unit}",
        f"{taken} {pool.unit} ({percent(100 * taken / size)})",
        str(sum(not node.taken for node in nodes)),
        str(len(whole)),
        f"{max(load.units for load in free)} {pool.unit}",
    ]


def _gets(kind: cluster.Kind, plan: cluster.Plan) -> str:
    """What the author of the pod asked for is what each gets: placement rounds nothing."""
    units = {pool.unit for pool in plan.pools if kind.pool in ("", pool.name)}
    load = kind.need.whole
    core = f", {load.core} % of compute" if load.core else ""
    several = f" on each of {kind.need.gpus} GPUs" if kind.need.gpus > 1 else ""
    return f"{load.units} {'/'.join(sorted(units))}{core}{several}"


def result_text(plan: cluster.Plan, result: cluster.Result, width: int | None) -> list[str]:
    placed = Counter(pod.kind.name for pod in result.pods if pod.node)
    total = len(result.pods)
    lines = [f"{result.policy}: {sum(placed.values())} of {total} pods have room; simulated"]
    lines += ["", *table(POOL_HEAD, [_pool_row(pool, result) for pool in plan.pools], width)]
    rows = []
    for kind in plan.kinds:
        there = placed[kind.name]
        numbers = (kind.count, there, kind.count - there, result.more[kind.name], result.ideal[kind.name])
        rows.append([kind.name, *map(str, numbers), _gets(kind, plan)])
    lines += ["", *table(KIND_HEAD, rows, width)]
    for kind in plan.kinds:
        lost = next((pod for pod in reversed(result.pods) if pod.kind is kind and pod.node is None), None)
        if lost is not None:
            lines += ["", f"{lost.name} has no room:"]
            lines += [f"  {count} nodes: {why}" for why, count in lost.why]
    return lines


def result_json(plan: cluster.Plan, result: cluster.Result) -> dict[str, Any]:
    placed = Counter(pod.kind.name for pod in result.pods if pod.node)
    return {
        "placement": result.policy,
        "pods_total": len(result.pods),
        "pods_placed": sum(placed.values()),
        "pools": [
            {
                "name": pool.name,
                "unit": pool.unit,
                "nodes": pool.nodes,
                "units": sum(node.size for node in result.nodes if node.pool is pool),
                "allocated_units": sum(node.taken for node in result.nodes if node.pool is pool),
                "empty_nodes": sum(not node.taken for node in result.nodes if node.pool is pool),
                "largest_free_units": max(
                    load.units for node in result.nodes if node.pool is pool for load in node.free().values()
                ),
            }
            for pool in plan.pools
        ],
        "kinds": [
            {
                "name": kind.name,
                "count": kind.count,
                "placed": placed[kind.name],
                "further": result.more[kind.name],
                "further_if_unfragmented": result.ideal[kind.name],
            }
            for kind in plan.kinds
        ],
        "pods": [_pod_json(pod) for pod in result.pods],
    }


def _pod_json(pod: cluster.Pod) -> dict[str, Any]:
    found: dict[str, Any] = {"name": pod.name, "node": pod.node.name if pod.node else None}
    if pod.node is None or pod.placement is None:
        return found | {"why": [{"why": why, "nodes": count} for why, count in pod.why]}
    containers = {one.name: one for one in pod.kind.need.containers}
    return found | {
        "containers": {
            name: {str(gpu): {"units": containers[name].units, "core_percent": containers[name].core} for gpu in gpus}
            for name, gpus in pod.placement.gpus.items()
        }
    }
