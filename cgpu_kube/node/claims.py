# SPDX-License-Identifier: MIT
"""PURE: ResourceClaims (resource.k8s.io/v1) -> slices, and the node's ResourceSlice and CDI specs. Objects are JSON.

A claim is one slice, which all its containers and pods share: cgpud names it claim-<uid>.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cgpu_common import effect, policies
from cgpu_common.kernel_abi import MAX_INST_BURST_MAX
from cgpu_common.placement import CONTAINERS_MAX
from cgpu_kube import quantity
from cgpu_kube.annotations import PRIORITY
from cgpu_kube.errors import BadQuantity, KubeError, Refused
from cgpu_kube.node import podview
from cgpu_kube.node.decide import MEMORY_MIN_MIB, Grant, Subject
from cgpu_kube.node.host import DRA, HostGpu

Object = dict[str, Any]
DRIVER = "cgpu.io"
CONFIG_VERSION = "cgpu.io/v1"
CONFIG_KIND = "SliceConfig"
CDI_VERSION = "0.5.0"
CDI_KIND = "cgpu.io/claim"
CAPACITIES = ("memory", "weight", "slots")
#: Of a claim that the scheduler makes for a resource in a container's limits; such a one has no capacity, and a device
#: class offers the whole card by it. The policy cgpu-claims lets the scheduler alone write it.
EXTENDED = "resource.kubernetes.io/extended-resource-name"
TAINT = "cgpu.io/unhealthy"
FROM_CLASS = "FromClass"  # source of parameters that an administrator wrote
CONTAINERD_MIN = (1, 7)  # below it drops CDI devices without an error
CONTAINERD_CDI = (2, 0)  # below it does so too, unless its file says enable_cdi = true
CDI_REMEDY = "the pod needs the runtime class of cgpu, and containerd enable_cdi = true in its table of the CRI plugin"
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class ClaimSlot:
    """One device of a prepared claim."""

    request: str
    device: str
    pool: str
    share: str
    gpu: str  # UUID
    memory_mib: int
    weight: int = 1
    highprio: bool = False
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A prepared claim, as it is kept on disk."""

    uid: str
    namespace: str
    name: str
    slots: tuple[ClaimSlot, ...]
    observers: tuple[str, ...] = ()  # requests with adminAccess
    retired: bool = False  # a later claim of the name is prepared: it ends, and gives nothing any more

    @property
    def requests(self) -> set[str]:
        return {slot.request for slot in self.slots}

    @property
    def slice(self) -> str:
        return f"claim-{self.uid}"


def device_name(gpu: HostGpu) -> str:
    return f"gpu-{gpu.index}"


def check_runtime(version: str, *, cdi_enabled: bool) -> None:
    """`version` as in node.status.nodeInfo; `cdi_enabled`: the administrator says so. Raises Refused for a runtime that
    may ignore CDI devices: the container would start without the slice, and without an error."""
    name, _, rest = version.partition("://")
    found = _VERSION.match(rest)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if name == "cri-o" or (name == "containerd" and number >= CONTAINERD_CDI):
        return
    instead = "or aliyun.com/gpu-mem in place of a claim"
    if name == "containerd" and number < CONTAINERD_MIN:
        raise Refused(
            f"this node runs containerd {rest[:32]}, which drops the devices of a claim without an error; "
            f"it needs containerd 2, or 1.7 with enable_cdi = true and --cdi-enabled, {instead}"
        )
    if name == "containerd" and not cdi_enabled:
        raise Refused(
            f"this node runs containerd {rest[:32]}, which drops the devices of a claim without an error unless its "
            f"file says enable_cdi = true (cgpu setup containerd --cdi does it); then start cgpu-kube node with "
            f"--cdi-enabled. It needs this, containerd 2, {instead}"
        )
    if name != "containerd":
        what = f"the container runtime {version[:48]}" if version else "a container runtime that is not known yet"
        raise Refused(f"this node has {what}; claims are for containerd and CRI-O, {instead}")


# ---- a claim of the API server ----


def asks_high(claim: Object) -> bool:
    """Does the author of the claim ask for high priority?"""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    found = [one for one in devices.get("config") or [] if one.get("source") != FROM_CLASS]
    given = [(one.get("opaque") or {}).get("parameters") for one in found]
    return any(isinstance(one, dict) and one.get("priority") == "high" for one in given)


def prepare(
    claim: Object, uid: str, node: str, mode: str, gpus: Sequence[HostGpu], *, high_allowed: bool = False
) -> Claim:
    """The slice of an allocated claim. @high_allowed: the claim's namespace may have high priority. Raises Refused."""
    meta = claim.get("metadata") or {}
    name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    if meta.get("uid") != uid:
        raise Refused(f"claim {name} is another one now (uid {meta.get('uid')}, not {uid})")
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    results = [one for one in devices.get("results") or [] if one.get("driver") == DRIVER]
    if not results:
        raise Refused(f"claim {name} has no device of {DRIVER}: it is not allocated")
    if mode != DRA:
        raise Refused(f"claim {name} has devices of this node, which is in mode {mode or 'default'} now, not {DRA}")
    by_device = {device_name(gpu): gpu for gpu in gpus}
    slots = []
    observers = tuple(dict.fromkeys(_top(result) for result in results if result.get("adminAccess")))
    for result in results:
        if result.get("adminAccess"):
            continue  # the scheduler counts nothing for it, so there is nothing to hand out
        if result.get("pool") != node:
            raise Refused(f"claim {name} has a device of node {result.get('pool')}, and this is {node}")
        gpu = by_device.get(str(result.get("device")))
        if gpu is None:
            raise Refused(f"claim {name} has device {result.get('device')}, which this node does not have")
        if gpu.why:
            raise Refused(gpu.why)
        _check_asked(name, claim, str(result.get("request")))
        config = _config(name, devices.get("config") or [], str(result.get("request")), high_allowed)
        slots.append(_slot(name, result, gpu, config))
    if len({slot.gpu for slot in slots}) < len(slots):
        raise Refused(f"claim {name} has two parts of one GPU; ask for their sum in one request")
    return Claim(uid, str(meta.get("namespace")), str(meta.get("name")), tuple(slots), observers)


def _top(result: Object) -> str:
    """A request with alternatives is written request/alternative; pods name the request."""
    return str(result.get("request")).partition("/")[0]


def _asked(claim: Object, request: str) -> Object | None:
    """The request, or the alternative of one, in the claim's spec."""
    top, _, alternative = request.partition("/")
    for one in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []:
        if one.get("name") == top:
            subs = (sub for sub in one.get("firstAvailable") or [] if sub.get("name") == alternative)
            found: Object | None = next(subs, one.get("exactly"))
            return found
    return None


def _check_asked(name: str, claim: Object, request: str) -> None:
    """What the admission policy refuses for the class cgpu.io, for every class: another one may select our devices. By
    the consumed capacity alone 0 cannot be told from 256 MiB, nor no memory from the whole card."""
    asked = _asked(claim, request)
    capacity = ((asked or {}).get("capacity") or {}).get("requests") or {}
    if "memory" not in capacity:
        if EXTENDED in ((claim.get("metadata") or {}).get("annotations") or {}):
            return
        raise Refused(
            f"claim {name} asks for no memory in request {request}, which would take the whole card; give it "
            f"capacity.requests.memory, as 6Gi"
        )
    for key in capacity:
        if key not in CAPACITIES:
            raise Refused(f"claim {name} asks for {str(key)[:64]}; there are {', '.join(CAPACITIES)}")
    try:
        memory_mib, weight = quantity.mib(capacity["memory"]), quantity.whole(capacity.get("weight", "1"))
    except BadQuantity as error:
        raise Refused(f"claim {name}: {error}") from error
    if memory_mib < MEMORY_MIN_MIB or weight < 1:
        raise Refused(
            f"claim {name} asks for {memory_mib} MiB and weight {weight} in request {request}; the least are "
            f"{MEMORY_MIN_MIB} MiB and 1"
        )


def _slot(name: str, result: Object, gpu: HostGpu, config: Mapping[str, Any]) -> ClaimSlot:
    consumed = result.get("consumedCapacity") or {}
    if "memory" not in consumed:
        raise Refused(
            f"claim {name} has no consumed capacity: the API server has the feature gate DRAConsumableCapacity off"
        )
    try:
        memory_mib = quantity.mib(consumed["memory"])
        weight = quantity.whole(consumed.get("weight", "1"))
    except BadQuantity as error:
        raise Refused(f"claim {name}: {error}") from error
    if not MEMORY_MIN_MIB <= memory_mib <= gpu.total_mib:
        raise Refused(
            f"claim {name} has {memory_mib} MiB of GPU {gpu.index}; a slice has {MEMORY_MIN_MIB} to {gpu.total_mib} MiB"
        )
    if not 1 <= weight <= gpu.max_inst:
        raise Refused(f"claim {name} has weight {weight} of GPU {gpu.index}; it must be 1 to {gpu.max_inst}")
    policy = config.get("policy")
    if policy is not None and gpu.policy is not None and policies.number(policy) != gpu.policy:
        raise Refused(
            f"claim {name} needs policy {policy}, and GPU {gpu.index} has {policies.of(gpu.policy).name}, which its "
            f"node's administrator sets for all its slices"
        )
    ceiling = config.get("ceiling")
    _check_ceiling(name, gpu, ceiling, weight)
    return ClaimSlot(
        request=_top(result),
        device=str(result.get("device")),
        pool=str(result.get("pool")),
        share=str(result.get("shareID") or ""),
        gpu=gpu.uuid,
        memory_mib=memory_mib,
        weight=weight,
        highprio=config.get("priority") == "high",
        ceiling=ceiling,
    )


def _check_ceiling(name: str, gpu: HostGpu, ceiling: int | None, weight: int) -> None:
    if ceiling is None:
        return
    if not weight <= ceiling <= gpu.max_inst:
        raise Refused(
            f"claim {name} has ceiling {ceiling} of GPU {gpu.index}; it must be from its weight, {weight}, to "
            f"{gpu.max_inst}"
        )
    if gpu.policy is not None and (why := effect.of_ceiling(gpu.policy)):
        raise Refused(f"claim {name} has ceiling {ceiling} of GPU {gpu.index}, and {why}")


def _config(name: str, entries: Iterable[Object], request: str, high_allowed: bool) -> Mapping[str, Any]:
    """The opaque parameters that count for a request: those of the class first, then those of the claim, which its
    author writes: it lowers the ceiling of the class only, and the priority where its namespace may not have high."""
    out: dict[str, Any] = {}
    most = MAX_INST_BURST_MAX
    ordered = sorted(entries, key=lambda one: one.get("source") != FROM_CLASS)
    for entry in ordered:
        opaque = entry.get("opaque") or {}
        requests = entry.get("requests") or []
        names = {request, request.partition("/")[0]}
        if opaque.get("driver") != DRIVER or (requests and not names & set(requests)):
            continue
        given = _parameters(name, opaque.get("parameters"))
        if entry.get("source") == FROM_CLASS:
            high_allowed |= given.get("priority") == "high"
            most = given.get("ceiling", most)
        elif given.get("priority") == "high" and not high_allowed:
            raise Refused(
                f"claim {name} asks for high priority, and neither its class nor its namespace allows it; "
                f"kubectl label namespace {name.partition('/')[0]} {PRIORITY}=high does"
            )
        elif given.get("ceiling", 0) > most:
            raise Refused(f"claim {name} has ceiling {given['ceiling']}, and its class allows {most}")
        out |= given
    return out


def _parameters(name: str, given: Any) -> dict[str, Any]:
    head = f"claim {name}: the parameters for {DRIVER}"
    if not isinstance(given, dict) or (given.get("apiVersion"), given.get("kind")) != (CONFIG_VERSION, CONFIG_KIND):
        raise Refused(f"{head} must have apiVersion {CONFIG_VERSION} and kind {CONFIG_KIND}")
    values = {key: value for key, value in given.items() if key not in ("apiVersion", "kind", "metadata")}
    words = {"priority": ("normal", "high"), "policy": policies.NAMES}
    for key, value in values.items():
        if key == "ceiling":
            if type(value) is not int or not 1 <= value <= MAX_INST_BURST_MAX:
                raise Refused(f"{head}: {key} must be a number from 1 to {MAX_INST_BURST_MAX}, not {value!r:.64}")
        elif key not in words:
            raise Refused(f"{head} have no {str(key)[:64]}; there are {', '.join(words)} and ceiling")
        elif value not in words[key]:
            raise Refused(f"{head}: {key} must be one of {', '.join(words[key])}, not {str(value)[:64]}")
    return values


# ---- a container of a pod ----


def _claims_of(pod: Object) -> Iterator[tuple[str, str, str]]:
    """(container, claim, request or "") of every claim that a container names, by the names of the claims."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    generated = {one.get("name"): one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or []}
    known = {
        one.get("name"): one.get("resourceClaimName") or generated.get(one.get("name"))
        for one in spec.get("resourceClaims") or []
    }
    for one in podview.containers(pod):
        for entry in (one.get("resources") or {}).get("claims") or []:
            if claim := known.get(entry.get("name")):
                yield str(one.get("name")), str(claim), str(entry.get("request") or "")
    extended = status.get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or []:
        if claim := extended.get("resourceClaimName"):
            yield str(mapping.get("containerName")), str(claim), str(mapping.get("requestName") or "")


def claim_names(pod: Object, container: str) -> list[tuple[str, str]]:
    """(claim, request or "") of every claim that the container names."""
    return [(claim, request) for name, claim, request in _claims_of(pod) if name == container]


def by_name(claims: Iterable[Claim]) -> dict[tuple[str, str], Claim]:
    """Those that pods name now: namespace, name -> claim."""
    return {(claim.namespace, claim.name): claim for claim in claims if not claim.retired}


def by_claim(subject: Subject, pod: Object, claims: Iterable[Claim]) -> Grant | None:
    """The grant of a container with a prepared claim; None: it names none of ours, or one with
    adminAccess, which has no slice. Raises Refused."""
    prepared = by_name(claims)
    named: dict[str, set[str]] = {}
    containers = set()
    for container, name, request in _claims_of(pod):
        claim = prepared.get((subject.namespace, name))
        if claim is not None and claim.slots and request not in claim.observers:
            containers.add(container)
            if container == subject.container:
                named.setdefault(name, set()).add(request)
    if not named:
        return None
    if len(containers) > CONTAINERS_MAX:
        raise Refused(
            f"{len(containers)} containers of pod {subject.pod_name} name a claim of {DRIVER}; a pod may have "
            f"{CONTAINERS_MAX} such containers"
        )
    if len(named) > 1:
        raise Refused(
            f"{subject} names {len(named)} claims of {DRIVER} ({', '.join(sorted(named))}), and a container has one; "
            f"name one claim with as many requests"
        )
    ((name, requests),) = named.items()
    claim = prepared[(subject.namespace, name)]
    if "" not in requests and requests != claim.requests:
        raise Refused(
            f"{subject} names {', '.join(sorted(requests))} of claim {name}, which is one slice of "
            f"{len(claim.slots)} GPUs; name the whole claim, or make a claim for each container"
        )
    return grant(subject, claim)


def grant(subject: Subject, claim: Claim) -> Grant:
    slots = [
        {"gpu": slot.gpu, "memory_mib": slot.memory_mib, "weight": slot.weight, "highprio": slot.highprio}
        | ({"ceiling": slot.ceiling} if slot.ceiling is not None else {})
        for slot in claim.slots
    ]
    return {"subject": subject.as_dict(), "variables": {}, "slots": slots, "claim": claim.slice}


# ---- what the node publishes ----


def cdi_spec(claim: Claim, promise: Mapping[str, str]) -> Object:
    """Environment only: without cgpu-runtime the container has no GPU, and not a whole one."""
    env = [f"{name}={value}" for name, value in promise.items()]
    devices = [{"name": cdi_name(claim, slot), "containerEdits": {"env": env}} for slot in claim.slots]
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices}


def cdi_name(claim: Claim, slot: ClaimSlot) -> str:
    return f"{claim.uid}-{slot.device}"


def cdi_id(claim: Claim, slot: ClaimSlot) -> str:
    return f"{CDI_KIND}={cdi_name(claim, slot)}"


def slice_spec(node: str, gpus: Iterable[HostGpu]) -> Object:
    """spec of the node's ResourceSlice, without pool.generation. Small GPUs first: the scheduler takes the first that
    fits, so large ones stay free for large claims."""
    fitting = [gpu for gpu in gpus if min(gpu.slice_mib, gpu.total_mib) >= MEMORY_MIN_MIB]
    return {
        "driver": DRIVER,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "nodeName": node,
        "devices": [_device(gpu) for gpu in sorted(fitting, key=lambda gpu: (gpu.slice_mib, gpu.index))],
    }


def _device(gpu: HostGpu) -> Object:
    most = quantity.of_mib(min(gpu.slice_mib, gpu.total_mib))
    least = quantity.of_mib(MEMORY_MIN_MIB)
    device: Object = {
        "name": device_name(gpu),
        "attributes": {
            "index": {"int": gpu.index},
            "mode": {"string": "cgpu"},
            "uuid": {"string": gpu.uuid},
            **({"productName": {"string": gpu.name[:64]}} if gpu.name else {}),
        },
        "capacity": {
            "memory": {
                "value": quantity.of_mib(gpu.slice_mib),
                "requestPolicy": {"default": most, "validRange": {"min": least, "max": most, "step": "1Mi"}},
            },
            "slots": {"value": str(gpu.max_inst), "requestPolicy": {"default": "1", "validValues": ["1"]}},
            "weight": {
                "value": str(gpu.max_inst),
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": str(gpu.max_inst), "step": "1"}},
            },
        },
        "allowMultipleAllocations": True,
    }
    if gpu.why:
        # A GPU that does not answer is of no use to the pods on it; in another mode it only takes no new ones.
        effect = "NoExecute" if "does not answer" in gpu.why else "NoSchedule"
        device["taints"] = [{"key": TAINT, "value": "true", "effect": effect}]
    return device


def same_slice(published: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Are they equal but for the generation, the order of keys, and fields that the API server adds?"""
    return (
        _without_times(published.get("devices") or []) == _without_times(wanted["devices"])
        and (published.get("pool") or {}).get("resourceSliceCount") == 1
    )


def _without_times(devices: Sequence[Object]) -> list[Object]:
    out = []
    for device in devices:
        taints = [
            {key: value for key, value in taint.items() if key != "timeAdded"} for taint in device.get("taints") or []
        ]
        out.append({**device, "taints": taints})
    return out


def renewed(published: Mapping[str, Any], wanted: Object) -> Object:
    """The wanted spec as the next generation of the published one."""
    try:
        generation = int((published.get("pool") or {}).get("generation") or 0) + 1
    except (TypeError, ValueError) as error:
        raise KubeError(f"the ResourceSlice has no generation: {error}") from error
    return {**wanted, "pool": {**wanted["pool"], "generation": generation}}
