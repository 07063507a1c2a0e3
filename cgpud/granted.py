# SPDX-License-Identifier: MIT
"""What a container asks for at its start: by its variables, or by a grant.

A grant is kept, or cgpu-kube decides it now; then it is kept too, so that the container's later starts need neither
cgpu-kube nor the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from cgpu_common import log, wire
from cgpu_common.config import Config
from cgpu_common.errors import Refused
from cgpu_common.model import Container
from cgpud import env, oci, unsliced
from cgpud.config_json import Spec, process_env
from cgpud.grants import Grant, Grants, subjects
from cgpud.values import NotSliced, Plan, Request


def variables(spec: Spec) -> dict[str, str]:
    """Of the container's environment."""
    return env.as_dict(process_env(spec))


def with_warnings(
    reply: dict[str, Any], container_id: str, variables: dict[str, str], *warnings: str
) -> dict[str, Any]:
    """The reply with what cgpu-runtime prints to the user."""
    strange = env.unknown(variables)
    if strange:
        log.get().warning("unknown variable", id=container_id, warning=strange)
    if text := "; ".join(filter(None, (*warnings, strange))):
        reply["warning"] = wire.sentence(text)
    return reply


def log_start(container_id: str, plan: Plan, container: Container) -> None:
    """What a container was admitted to."""
    for warning in plan.warnings:
        log.get().warning("admitted, but", id=container_id, warning=warning)
    for hint in plan.hints:
        log.get().info("without effect", id=container_id, hint=hint)
    slots = [{"gpu": slot.gpu, "limit": slot.limit, "weight": slot.weight} for slot in container.slots]
    log.get().info("prepared", id=container_id, dir=container.dir, slots=slots)


def request(
    grant: Grant | None, config: Config, spec: Spec, majors: frozenset[int], variables: Mapping[str, str]
) -> Request | NotSliced:
    """Of the grant, else of the container's variables. `majors`: of GPU drivers."""
    default_memsize = config.default_memsize()
    if grant is not None:
        return grant.request(default_memsize=default_memsize)
    slices = config.container.nvidia_memory_limit == "slice"
    wanted = env.parse(dict(variables), default_memsize=default_memsize, nvidia_slices=slices)
    if isinstance(wanted, NotSliced) or wanted.devices.source != env.SPEC_NODES:
        return wanted
    return unsliced.with_devices(wanted, spec, majors, variables)


def applied(grant: Grant | None, spec: Spec) -> Spec:
    """The spec with what the grant adds to the slice."""
    return spec if grant is None else oci.with_environment(spec, grant.variables)


class Decider(Protocol):
    """cgpu-kube. kube.py implements it."""

    async def decide(self, subject: dict[str, str], wait_s: float) -> dict[str, Any]: ...


async def find(
    grants: Grants,
    decider: Decider,
    container_id: str,
    spec: Mapping[str, Any],
    variables: Mapping[str, str],
    wait_s: float,
) -> Grant | None:
    """The grant of the container; None: its own variables count. Raises Refused: without a grant a container with
    PROMISE does not start, whatever its other variables say. `wait_s`: for a cgpu-kube that restarts."""
    found = grants.find(container_id, spec)
    if found is not None or env.PROMISE not in variables:
        return found
    pod = next((subject for subject in subjects(container_id, spec) if subject.uid), None)
    if pod is None:
        raise Refused(
            f"{env.PROMISE} promises a slice that an orchestrator gives, and config.json names no pod to give it to"
        )
    grant = grants.add(await decider.decide(msgspec.to_builtins(pod), wait_s), asked=True)
    log.get().info("granted", to=str(grant.subject), variables=grant.variables)
    return grant
