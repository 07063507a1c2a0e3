# SPDX-License-Identifier: MIT
"""PURE: ResourceSlices and ResourceClaims of the driver cgpu.io as nodes, GPUs and what is taken of them.

Units are MiB of memory; what placement calls compute is the capacity `weight`. The scheduler itself places claims, in
the order of the slice; this only explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cgpu_common.placement import NOTHING, Gpu, Load, Need, NoRoom, PodNeed, place
from cgpu_kube import quantity
from cgpu_kube.errors import BadQuantity

Object = dict[str, Any]
DRIVER = "cgpu.io"
MEMORY, WEIGHT, SLOTS = "memory", "weight", "slots"


@dataclass(frozen=True)
class Device:
    """One GPU of a pool. @why: its taints."""

    node: str
    pool: str
    name: str
    size: Load
    why: str = ""


@dataclass(frozen=True)
class Part:
    """One device of a claim, as it was allocated."""

    claim: str  # namespace/name
    pool: str
    device: str
    load: Load
    pods: tuple[str, ...]


def _number(text: Any) -> int:
    try:
        return quantity.whole(text)
    except BadQuantity:
        return 0


def _mib(text: Any) -> int:
    try:
        return quantity.mib(text)
    except BadQuantity:
        return 0


def _load(values: Mapping[str, Any], slots: int) -> Load:
    return Load(_mib(values.get(MEMORY, 0)), _number(values.get(WEIGHT, 0)), _number(values.get(SLOTS, slots)))


def devices(slices: Iterable[Object]) -> list[Device]:
    """Of the newest generation of each pool."""
    ours = [one["spec"] for one in slices if (one.get("spec") or {}).get("driver") == DRIVER]
    newest: dict[str, int] = {}
    for spec in ours:
        pool = spec["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), int(pool.get("generation") or 0))
    found = []
    for spec in ours:
        pool = spec["pool"]
        if int(pool.get("generation") or 0) < newest[pool["name"]]:
            continue
        for one in spec.get("devices") or []:
            values = {key: value.get("value") for key, value in (one.get("capacity") or {}).items()}
            taints = [taint for taint in one.get("taints") or [] if taint.get("effect") in ("NoSchedule", "NoExecute")]
            why = f"has the taint {taints[0].get('key')}={taints[0].get('value', '')}" if taints else ""
            node = str(spec.get("nodeName") or "")
            found.append(Device(node, str(pool["name"]), str(one["name"]), _load(values, 0), why))
    return found


def parts(claims: Iterable[Object]) -> list[Part]:
    """What allocated claims hold of our devices."""
    found = []
    for one in claims:
        meta, status = one.get("metadata") or {}, one.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        users = tuple(str(user.get("name")) for user in status.get("reservedFor") or [])
        for result in results:
            if result.get("driver") == DRIVER and not result.get("adminAccess"):
                load = _load(result.get("consumedCapacity") or {}, 1)
                name = f"{meta.get('namespace')}/{meta.get('name')}"
                found.append(Part(name, str(result.get("pool")), str(result.get("device")), load, users))
    return found


def pending(
    pod: Object, claims: Mapping[str, Object], there: Iterable[Device], taken: Iterable[Part]
) -> dict[str, str]:
    """Why a pod's claims are not allocated: node -> a sentence.

    @claims: by namespace/name. Empty: none of them is ours and open.
    """
    namespace = str((pod.get("metadata") or {}).get("namespace") or "")
    names = [one.get("resourceClaimName") for one in (pod.get("status") or {}).get("resourceClaimStatuses") or []]
    names += [one.get("resourceClaimName") for one in (pod.get("spec") or {}).get("resourceClaims") or []]
    found: dict[str, list[str]] = {}
    pools = list(there)
    used: dict[tuple[str, str], Load] = {}
    for part in taken:
        key = part.pool, part.device
        used[key] = used.get(key, NOTHING) + part.load
    for name in filter(None, dict.fromkeys(names)):
        claim = claims.get(f"{namespace}/{name}")
        if claim is None or (claim.get("status") or {}).get("allocation"):
            continue
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []:
            exactly = request.get("exactly") or {}
            if exactly.get("deviceClassName") != DRIVER:
                continue
            for node, why in _request(exactly, pools, used).items():
                found.setdefault(node, []).append(f"claim {name}, request {request.get('name')}: {why}")
    return {node: "; ".join(whys) for node, whys in found.items()}


def _request(exactly: Object, pools: list[Device], used: Mapping[tuple[str, str], Load]) -> dict[str, str]:
    """Nodes without room for one request, with the reason; one with room has the reason "has room"."""
    asked = (exactly.get("capacity") or {}).get("requests") or {}
    out: dict[str, str] = {}
    by_node: dict[str, list[Device]] = {}
    for device in pools:
        by_node.setdefault(device.node, []).append(device)
    for node, found in by_node.items():
        gpus = [Gpu(i, one.size.units, one.size.core, one.size.slots, one.why) for i, one in enumerate(found)]
        loads = {i: used.get((one.pool, one.name), NOTHING) for i, one in enumerate(found)}
        # Without a request the default is the whole of the memory, and a weight of 1.
        units = _mib(asked[MEMORY]) if MEMORY in asked else max(one.size.units for one in found)
        need = PodNeed((Need("claim", units, _number(asked.get(WEIGHT, 1))),), int(exactly.get("count") or 1))
        room = place(need, gpus, loads, unit="MiB", core_unit="weight", split=False)
        out[node] = room.why if isinstance(room, NoRoom) else "has room"
    return out
