# SPDX-License-Identifier: MIT
"""Containers without a slice: whether one may have the GPUs in its spec, and the nodes of a GPU that a grant gives as a
whole, to be shared without isolation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.errors import Refused
from cgpu_common.wire import Message
from cgpud import bundle, config_json, hooks, numbers, oci, unsliced
from cgpud.admit import choose, why_unshared
from cgpud.config_json import Spec
from cgpud.grants import Grant
from cgpud.inventory import Inventory
from cgpud.values import Devices, NotSliced
from cgpud.watch import Facts


def _refuses(config: Config) -> Callable[[Gpu], bool]:
    return lambda gpu: config.of(gpu).unsliced == "refuse"


async def check(
    config: Config,
    inventory: Inventory,
    facts: Facts,
    spec: Spec,
    majors: frozenset[int],
    variables: Mapping[str, str],
    wanted: NotSliced,
) -> str:
    """Refuse a container that has no slice and whose spec brings a GPU with unsliced = "refuse". Returns the numbers
    that must be closed to it, "" if it may have them: whatever the spec says, a hook may open them, and an engine may
    have the runtime make no device rules (podman's --cgroups=disabled)."""
    if not config.anywhere("unsliced", "refuse"):
        return ""
    if config.allow_privileged and oci.allows_all_devices(spec):
        return ""
    config_json.check_properties(spec)
    found = unsliced.devices_in_spec(spec, majors, variables)
    gpus = await inventory.snapshot()
    drm = facts.drm() if found.drm else {}
    blocked = unsliced.blocked_gpu(found, gpus, _refuses(config), drm) if found else None
    if blocked is not None:
        raise Refused(
            f'{blocked} is shared in slices only (unsliced = "refuse" in cgpu.toml), and the container has no '
            f"slice of it: {wanted.why}"
        )
    return unsliced.blocked_numbers(gpus, _refuses(config))


def add_check(directory: str, spec: Spec, hook_path: str, closed: str, *, restored: bool) -> None:
    """Into config.json, unless there is nothing to check."""
    if closed:
        checked = hooks.with_check(spec, hook_path, closed, restored=restored)
        bundle.write(directory, oci.with_driver_closed(checked))


async def give(
    config: Config,
    inventory: Inventory,
    facts: Facts,
    grant: Grant,
    spec: Spec,
    message: Message,
    options: oci.Options,
) -> str:
    """Write the real nodes of the grant's GPU, and no other, into config.json of the message's bundle. Returns the
    numbers that hooks may not open. Raises Refused."""
    gpu = await chosen(config, inventory, grant)
    if why := why_unshared(gpu):
        raise Refused(why)
    edited, closed = with_nodes(facts, gpu, spec, options)
    edited = oci.with_environment(edited, grant.variables)
    checked = hooks.with_check(edited, options.hook_path, closed, restored=message.verb == "restore")
    bundle.write(message.bundle, checked)
    return closed


async def chosen(config: Config, inventory: Inventory, grant: Grant) -> Gpu:
    """The GPU of a grant without a slice. Raises Refused.

    A GPU with slices is not given as a whole: its memory is promised."""
    source = f"the grant for {grant.subject}"
    (gpu,) = choose(Devices(source, items=(grant.whole,)), await inventory.for_admission(config))
    if config.of(gpu).unsliced == "refuse":
        raise Refused(
            f'GPU {gpu.number} is shared in slices only (unsliced = "refuse" in cgpu.toml), and {source} gives it '
            f"without one"
        )
    if gpu.instances:
        raise Refused(
            f"GPU {gpu.number} has {gpu.instances} slices, and {source} gives it without isolation; "
            f"the containers with slices have to end first"
        )
    return gpu


def with_nodes(facts: Facts, gpu: Gpu, spec: Spec, options: oci.Options) -> tuple[Spec, str]:
    """The spec with the real nodes of this GPU in place of any GPU's, and the numbers that must be closed to the
    container: those of every other GPU; "" for a privileged one, which has every device. Raises Refused."""
    devices = facts.devices()
    try:
        nodes = facts.real_nodes(gpu.nv_minor)
    except OSError as error:
        raise Refused(f"/dev/nvidia{gpu.nv_minor} cannot be read: {error.strerror or error}") from error
    edited = oci.edit_whole(spec, numbers.majors_of(devices), nodes, options.legacy_hook_config)
    if oci.allows_all_devices(spec):
        return edited, ""
    config_json.check_properties(spec)
    return edited, numbers.closed_numbers(devices, [(major, minor) for _, major, minor in nodes])
