# SPDX-License-Identifier: MIT
"""PURE: the whole GPUs of a container without a slice, for `unsliced = "refuse"`.

They follow from nodes, mounts, rules and NVIDIA's programs in the hooks of the spec. The variables do not count: an
image may set NVIDIA_VISIBLE_DEVICES=all, but without a runtime that acts on it the container has no GPU. An unknown
form counts as every GPU. What hooks do that are not known here is checked by its effect: blocked_numbers().
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cgpu_common.errors import BadVariable
from cgpu_common.model import Devices, Gpu
from cgpud import config_json, hooks, oci
from cgpud.admit import choose
from cgpud.env import NVIDIA, parse_devices

NV_MAJOR = 195  # the driver's, fixed
DRM_MAJOR = 226
NV_MINORS = 254  # below are GPUs, from here on nvidia-modeset and nvidiactl
# NVIDIA's device plugin names GPUs by mounts below this path.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
# Every container with a GPU has these nodes; they do not show which GPU.
_COMPANIONS = re.compile(r"/dev/nvidia(ctl|-uvm|-uvm-tools|-modeset)\Z")
_NODE = re.compile(r"/dev/nvidia([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class SpecDevices:
    """The GPUs in a spec. False: none."""

    every: bool = False
    minors: frozenset[int] = frozenset()  # M of /dev/nvidiaM
    named: tuple[Devices, ...] = ()  # by the variable of the hook

    def __bool__(self) -> bool:
        return self.every or bool(self.minors) or bool(self.named)


class _Found:
    def __init__(self) -> None:
        self.minors: set[int] = set()
        self.every = False
        self.companion = False

    def path(self, path: str) -> None:
        if node := _NODE.match(path):
            self.minors.add(int(node[1]))
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
            if oci.is_gpu_path(node.get("path")):
                found.path(oci.clean(node["path"]))
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
    return SpecDevices(found.every or lost, frozenset(found.minors), named)


def blocked_gpu(found: SpecDevices, inventory: Sequence[Gpu], refuses: Callable[[Gpu], bool]) -> str | None:
    """One of these GPUs that is shared in slices only. An unknown GPU counts as such."""
    minors = {gpu.nv_minor for gpu in inventory}
    if (found.every and not inventory) or any(minor not in minors for minor in found.minors):
        return "a GPU that cgpu_km does not know"
    named = {gpu.index for devices in found.named for gpu in choose(devices, inventory)}
    for gpu in inventory:
        if (found.every or gpu.nv_minor in found.minors or gpu.index in named) and refuses(gpu):
            return f"GPU {gpu.number}"
    return None


def blocked_numbers(inventory: Sequence[Gpu], refuses: Callable[[Gpu], bool]) -> str:
    """The numbers of these GPUs, for the hooks that check what other hooks have opened; of every GPU while none is
    known."""
    if not inventory:
        return f"{NV_MAJOR}:0-31"
    return ",".join(f"{NV_MAJOR}:{gpu.nv_minor}-{gpu.nv_minor}" for gpu in inventory if refuses(gpu))
