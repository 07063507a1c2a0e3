# SPDX-License-Identifier: MIT
"""PURE: the text and the JSON of `kubectl inspect cgpu`.

The tables are those of the vendor's `kubectl inspect gpushare` (gpushare-device-plugin 45fb8b8, cmd/inspect), so that
what reads them goes on working; pods that wait, and why, come after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cgpu_common.placement import NOTHING, Load, NoRoom, free_units
from cgpu_kube import dra, pods
from cgpu_kube.errors import Refused
from cgpu_kube.ledger import Held, Ledger, Node

Object = dict[str, Any]
NODES_SHOWN = 5  # of a waiting pod, without -d
HOLDERS_SHOWN = 3  # of a GPU


@dataclass(frozen=True)
class Waiting:
    """A pod that is on no node. @whys: node -> a sentence. @note: about the pod itself."""

    name: str
    whys: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class Report:
    ledger: Ledger
    names: tuple[str, ...]  #: the nodes shown
    waiting: tuple[Waiting, ...] = ()
    devices: tuple[dra.Device, ...] = ()
    parts: tuple[dra.Part, ...] = field(default=())

    @property
    def nodes(self) -> list[Node]:
        return [self.ledger.nodes[name] for name in self.names]


def placed(ledger: Ledger, node: Node) -> dict[int, Load]:
    """Of each GPU what pods hold whose GPU is known."""
    out: dict[int, Load] = {}
    for one in ledger.held(node.name):
        if one.gpus is not None:
            for gpu, load in one.loads(node).items():
                out[gpu] = out.get(gpu, NOTHING) + load
    return out


def unplaced(ledger: Ledger, node: Node) -> int:
    """Units of pods whose GPU is not known yet."""
    return sum(one.unplaced(node) for one in ledger.held(node.name))


def why_waits(pod: Object, ledger: Ledger) -> Waiting:
    """GPU by GPU, with the pods that hold the most of it."""
    name = pods.name_of(pod)
    try:
        need = pods.needs(pod)
    except Refused as error:
        return Waiting(name, {}, str(error))
    if need is None:
        return Waiting(name, {}, "asks for no GPU memory")
    whys = {}
    for node in sorted(ledger.nodes):
        found = ledger.fit(need, node)
        whys[node] = found.why + _holders(ledger, ledger.nodes[node]) if isinstance(found, NoRoom) else "has room"
    if not whys:
        return Waiting(name, {}, "no node offers aliyun.com/gpu-mem")
    if "has room" in whys.values():
        return Waiting(name, whys, "GPU memory is not what it waits for: see its events")
    return Waiting(name, whys)


def _holders(ledger: Ledger, node: Node) -> str:
    found = []
    for gpu in node.gpus:
        on = [(one.loads(node).get(gpu.index, NOTHING).units, one) for one in ledger.held(node.name)]
        most = sorted((pair for pair in on if pair[0]), key=lambda pair: (-pair[0], pair[1].name))
        if most:
            names = ", ".join(f"{one.name} {units}{_unsure(one)}" for units, one in most[:HOLDERS_SHOWN])
            more = f" and {len(most) - HOLDERS_SHOWN} more" if len(most) > HOLDERS_SHOWN else ""
            found.append(f"GPU {gpu.index}: {names}{more}")
    return f" (held by: {'; '.join(found)})" if found else ""


def _unsure(one: Held) -> str:
    if one.is_deleted:
        return " (deleted, its containers have not ended)"
    return " (its GPU is not known)" if one.gpus is None else ""


# ---- text ----


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns with two blanks between them."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(max(map(len, rows)))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def _percent(used: int, total: int) -> str:
    return f"{used}/{total} ({used * 100 // total if total else 0}%)"


def unit_of(nodes: Sequence[Node]) -> str:
    units = sorted({node.unit for node in nodes})
    return "/".join(units) or "GiB"


def summary(report: Report) -> list[str]:
    """A row per node, and the cluster's sum."""
    nodes = report.nodes
    if not nodes:
        return [] if report.devices else ["No node offers aliyun.com/gpu-mem."]
    most = max(len(node.gpus) for node in nodes)
    wait = {node.name: unplaced(report.ledger, node) for node in nodes}
    heads = [f"GPU{i}(Allocated/Total)" for i in range(most)]
    rows = [["NAME", "IPADDRESS", *heads, *(["PENDING(Allocated)"] if any(wait.values()) else [])]]
    rows[0].append(f"GPU Memory({unit_of(nodes)})")
    used_all = total_all = 0
    for node in nodes:
        loads = placed(report.ledger, node)
        total = sum(gpu.units for gpu in node.gpus)
        used = sum(load.units for load in loads.values()) + wait[node.name]
        used_all, total_all = used_all + used, total_all + total
        cells = [f"{loads.get(gpu.index, NOTHING).units}/{gpu.units}" for gpu in node.gpus]
        cells += ["0/0"] * (most - len(cells))
        pend = [str(wait[node.name]) if wait[node.name] else ""] if any(wait.values()) else []
        rows.append([node.name, node.address, *cells, *pend, f"{used}/{total}"])
    lines = table(rows)
    return [*lines, "-" * max(map(len, lines)), "Allocated/Total GPU Memory In Cluster:", _percent(used_all, total_all)]


def details(report: Report) -> list[str]:
    """A table of pods for each node."""
    lines: list[str] = []
    used_all = total_all = 0
    for node in report.nodes:
        held = report.ledger.held(node.name)
        wait = unplaced(report.ledger, node)
        heads = [f"GPU{gpu.index}(Allocated)" for gpu in node.gpus] + (["PENDING(Allocated)"] if wait else [])
        rows = [["NAME", "NAMESPACE", *heads]]
        for one in held:
            namespace, _, name = one.name.partition("/")
            loads = one.loads(node) if one.gpus is not None else {}
            cells = [str(loads.get(gpu.index, NOTHING).units) for gpu in node.gpus]
            unknown = str(one.unplaced(node)) if one.gpus is None else ""
            rows.append([name, namespace, *cells, *([unknown] if wait else [])])
        total = sum(gpu.units for gpu in node.gpus)
        used = sum(load.units for load in placed(report.ledger, node).values()) + wait
        used_all, total_all = used_all + used, total_all + total
        lines += ["", f"NAME:       {node.name}", f"IPADDRESS:  {node.address}", "", *table(rows)]
        lines += [f"Allocated : {_percent(used, total)}", f"Total :     {total}"]
        bad = [f"GPU {gpu.index} {gpu.why}" for gpu in node.gpus if gpu.why]
        lines += [f"Note :      {text}" for text in ([node.why] if node.why else []) + bad]
        lines.append("-" * max(40, *(len(line) for line in table(rows))))
    if report.nodes:
        lines += ["", f"Allocated/Total GPU Memory In Cluster:  {_percent(used_all, total_all)}"]
    return lines[1:] if lines else lines


def claims(report: Report) -> list[str]:
    """The devices of cgpu.io."""
    if not report.devices:
        return []
    rows = [["NODE", "DEVICE", "MEMORY(MiB)", "WEIGHT", "SLOTS", "CLAIMS"]]
    for one in report.devices:
        on = [part for part in report.parts if (part.pool, part.device) == (one.pool, one.name)]
        load = NOTHING
        for part in on:
            load = load + part.load
        cells = [f"{load.units}/{one.size.units}", f"{load.core}/{one.size.core}", f"{load.slots}/{one.size.slots}"]
        rows.append([one.node, one.name, *cells, ", ".join(sorted(part.claim for part in on))])
    notes = [f"{one.node} {one.name} {one.why}" for one in report.devices if one.why]
    return ["", "Devices of cgpu.io (Allocated/Total):", *table(rows), *notes]


def waits(report: Report, whole: bool) -> list[str]:
    """Pods that are on no node. @whole: every node of each."""
    lines: list[str] = []
    for one in report.waiting:
        lines += ["", f"Pending: {one.name}{': ' + one.note if one.note else ''}"]
        shown = sorted(one.whys.items())
        lines += [f"  {node}: {why}" for node, why in (shown if whole else shown[:NODES_SHOWN])]
        if not whole and len(shown) > NODES_SHOWN:
            lines.append(f"  and {len(shown) - NODES_SHOWN} more nodes: -d shows them")
    return lines


def text(report: Report, detailed: bool) -> str:
    body = details(report) if detailed else summary(report)
    return "\n".join([*body, *claims(report), *waits(report, detailed)]).strip("\n")


# ---- JSON ----


def as_json(report: Report) -> Object:
    return {
        "schema_version": 1,
        "nodes": [_node_json(report.ledger, node) for node in report.nodes],
        "devices": [
            {
                "node": one.node,
                "name": one.name,
                "memory_mib": one.size.units,
                "weight": one.size.core,
                "slots": one.size.slots,
                "why": one.why,
                "claims": [
                    {"claim": part.claim, "memory_mib": part.load.units, "weight": part.load.core, "pods": part.pods}
                    for part in report.parts
                    if (part.pool, part.device) == (one.pool, one.name)
                ],
            }
            for one in report.devices
        ],
        "pending": [{"pod": one.name, "note": one.note, "nodes": dict(one.whys)} for one in report.waiting],
    }


def _node_json(ledger: Ledger, node: Node) -> Object:
    loads = placed(ledger, node)
    free = free_units(node.gpus, ledger.used(node.name))
    return {
        "name": node.name,
        "address": node.address,
        "mode": node.mode,
        "unit": node.unit,
        "placement": node.policy,
        "why": node.why,
        "unplaced_units": unplaced(ledger, node),
        "gpus": [
            {
                "index": gpu.index,
                "units": gpu.units,
                "allocated_units": loads.get(gpu.index, NOTHING).units,
                "free_units": free[gpu.index],
                "allocated_core_percent": loads.get(gpu.index, NOTHING).core,
                "containers": loads.get(gpu.index, NOTHING).slots,
                "why": gpu.why,
            }
            for gpu in node.gpus
        ],
        "pods": [
            {
                "name": one.name.partition("/")[2],
                "namespace": one.name.partition("/")[0],
                "uid": one.uid,
                "units": {str(gpu): load.units for gpu, load in one.loads(node).items()} if one.gpus else None,
                "containers": {name: list(gpus) for name, gpus in one.gpus.items()} if one.gpus else None,
            }
            for one in ledger.held(node.name)
        ],
    }
