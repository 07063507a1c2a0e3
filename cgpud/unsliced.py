# SPDX-License-Identifier: MIT
"""PURE: the whole GPUs of a container without a slice, for `unsliced = "refuse"`.

They follow from nodes, mounts, rules and NVIDIA's programs in the hooks of the spec. The variables do not count: an
image may set NVIDIA_VISIBLE_DEVICES=all, but without a runtime that acts on it the container has no GPU. An unknown
form counts as every GPU. What hooks and runtimes do that is not known here is checked by its effect: blocked_numbers().
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from cgpu_common.cards import Gpu
from cgpu_common.errors import BadVariable, Refused
from cgpud import config_json, hooks, oci
from cgpud.admit import choose
from cgpud.env import NVIDIA, parse_devices
from cgpud.values import Devices, NotSliced, Request

NV_MAJOR = 195  # the driver's, fixed
DRM_MAJOR = 226
NV_MINORS = 254  # below are GPUs, from here on nvidia-modeset and nvidiactl
# NVIDIA's device plugin names GPUs by mounts below this path.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
# Nodes that containers with a GPU have beside its own; they do not show which GPU. Those of nvidia-caps are rights to
# an instance of MIG, of a GPU whose own node a process needs too.
_COMPANIONS = re.compile(r"/dev/nvidia(ctl|-uvm|-uvm-tools|-modeset|-caps/nvidia-cap[0-9]{1,5})\Z")
_NODE = re.compile(r"/dev/nvidia([0-9]{1,3})\Z")
_DRM_NODE = re.compile(r"/dev/dri/(?:card|renderD)([0-9]{1,7})\Z")  # the number is the minor


@dataclass(frozen=True, slots=True)
class SpecDevices:
    """The GPUs in a spec. False: none."""

    every: bool = False
    minors: frozenset[int] = frozenset()  # M of /dev/nvidiaM
    named: tuple[Devices, ...] = ()  # by the variable of the hook
    drm: frozenset[int] = frozenset()  # minors of DRM's nodes, of GPUs of any vendor

    def __bool__(self) -> bool:
        return self.every or bool(self.minors) or bool(self.named) or bool(self.drm)


class _Found:
    def __init__(self) -> None:
        self.minors: set[int] = set()
        self.drm: set[int] = set()
        self.every = False
        self.companion = False

    def path(self, path: str) -> None:
        if node := _NODE.match(path):
            self.minors.add(int(node[1]))
        elif node := _DRM_NODE.match(path):
            self.drm.add(int(node[1]))
        elif _COMPANIONS.match(path):
            self.companion = True
        elif oci.is_gpu_path(path):
            self.every = True

    def number(self, major: Any, minor: Any) -> None:
        if major == NV_MAJOR and isinstance(minor, int) and minor >= 0:
            if minor < NV_MINORS:
                self.minors.add(minor)
            else:
                self.companion = True
        elif major == DRM_MAJOR and isinstance(minor, int) and minor >= 0:
            self.drm.add(minor)
        elif major in (NV_MAJOR, DRM_MAJOR):
            self.every = True
        else:
            self.companion = True


def _of_cli(hook: Mapping[str, Any]) -> tuple[bool, Devices | None]:
    """The devices that NVIDIA's command line tool mounts: (every GPU, or these)."""
    words = hooks.words_of(hook)
    given = [after for word, after in pairwise(words) if word in ("--device", "-d")]
    if len(given) != 1:
        return True, None
    try:
        devices = parse_devices(hooks.NVIDIA_CLI, given[0])
    except BadVariable:
        return True, None
    return devices.all, None if devices.all else devices


def _of_hook(env: Mapping[str, str]) -> tuple[bool, Devices | None]:
    """The devices that NVIDIA's legacy hook mounts: (every GPU, or these). None without the variable."""
    text = env.get(NVIDIA, "").strip()
    if text.lower() in ("", "void", "none"):
        # Without it, old images with CUDA_VERSION get every GPU.
        return NVIDIA not in env and "CUDA_VERSION" in env and "NVIDIA_REQUIRE_CUDA" not in env, None
    try:
        devices = parse_devices(NVIDIA, text)
    except BadVariable:
        return True, None
    return devices.all, None if devices.all else devices


def devices_in_spec(spec: config_json.Spec, majors: Iterable[int], env: Mapping[str, str]) -> SpecDevices:
    """`majors` are those of GPU drivers; `env` is the container's."""
    real = frozenset(majors)
    found = _Found()
    found.every = oci.allows_all_devices(spec)
    for node in config_json.nodes(spec):
        if not oci.keep_node(node, real):
            given = oci.clean(node["path"]) if oci.is_gpu_path(node.get("path")) else ""
            if given and not (_DRM_NODE.match(given) and config_json.number(node.get("major")) is not None):
                found.path(given)
            else:
                found.number(node.get("major"), node.get("minor"))
    for mount in config_json.mounts(spec):
        if not oci.keep_mount(mount):
            for path in (mount.get("source"), mount.get("destination")):
                found.path(oci.clean(path))
        if oci.clean(mount.get("destination")).startswith(VOLUME_MOUNTS):
            found.every = True
    for rule in config_json.rules(spec):
        if not oci.keep_rule(rule, real):
            found.number(rule.get("major"), rule.get("minor"))
    named: tuple[Devices, ...] = ()
    for hook in (hook for found_hooks in hooks.of_others(spec).values() for hook in found_hooks):
        if not hooks.calls_nvidia(hook):
            continue
        every, devices = _of_cli(hook) if hooks.NVIDIA_CLI in hooks.programs_of(hook) else _of_hook(env)
        found.every |= every
        named = (*named, devices) if devices else named
    lost = found.companion and not found.minors and not named
    return SpecDevices(found.every or lost, frozenset(found.minors), named, frozenset(found.drm))


def _before_edit(mount: dict[str, Any]) -> dict[str, Any]:
    """A mount of ours, which a spec that starts again has, as the node that was there before."""
    is_ours = oci.clean(mount.get("source")).startswith(f"{oci.NODES}/")
    return {**mount, "source": mount.get("destination")} if is_ours else mount


def with_devices(
    wanted: Request, spec: config_json.Spec, majors: Iterable[int], env: Mapping[str, str]
) -> Request | NotSliced:
    """The request with the GPUs that the spec brings by their own nodes; a node of DRM beside them names no GPU. With
    none of them and `all`, every GPU. Raises Refused if the spec brings a GPU, and does not say which one."""
    mounts = [_before_edit(mount) for mount in config_json.mounts(spec)]
    found = devices_in_spec({**spec, "mounts": mounts}, majors, env)
    variable, source = wanted.nvidia.variable if wanted.nvidia else NVIDIA, wanted.devices.source
    if found.minors:
        return replace(wanted, devices=Devices(source, minors=tuple(sorted(found.minors))))
    if found.named:
        return replace(wanted, devices=replace(found.named[0], source=source))
    if wanted.devices.all:
        return wanted
    if found:
        raise Refused(
            f"{variable} asks for a slice, and {source} does not say of which GPU: set {NVIDIA} to all, or to its "
            f"number or UUID"
        )
    return NotSliced(f"{variable} is set, and the container has no GPU")


def blocked_gpu(
    found: SpecDevices, inventory: Sequence[Gpu], refuses: Callable[[Gpu], bool], drm: Mapping[int, str]
) -> str | None:
    """One of these GPUs that is shared in slices only. An unknown GPU counts as such. @drm: the PCI address of NVIDIA's
    GPU behind each minor of DRM, "" for another vendor's; a minor that is not in it may be of any GPU."""
    minors = {gpu.nv_minor for gpu in inventory}
    addresses = {drm[minor] for minor in found.drm if drm.get(minor)}
    every = found.every or not found.drm <= drm.keys()
    if (
        (every and not inventory)
        or any(minor not in minors for minor in found.minors)
        or not addresses <= {gpu.pci for gpu in inventory}
    ):
        return "a GPU that cgpu_km does not know"
    named = {gpu.index for devices in found.named for gpu in choose(devices, inventory)}
    for gpu in inventory:
        given = every or gpu.nv_minor in found.minors or gpu.index in named or gpu.pci in addresses
        if given and refuses(gpu):
            return f"GPU {gpu.number}"
    return None


def blocked_numbers(inventory: Sequence[Gpu], refuses: Callable[[Gpu], bool]) -> str:
    """The numbers of these GPUs, for the hook that checks what is open to a container; of every GPU while none is
    known."""
    if not inventory:
        return f"{NV_MAJOR}:0-31"
    return ",".join(f"{NV_MAJOR}:{gpu.nv_minor}-{gpu.nv_minor}" for gpu in inventory if refuses(gpu))
