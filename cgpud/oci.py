# SPDX-License-Identifier: MIT
"""PURE: edits of an OCI config.json.

Given a spec that NVIDIA's runtime may have been at already, `edit()` returns one in which the only GPU nodes are ours:

  - every real node, every mount that brings one and every rule that allows their majors is taken out;
  - our nodes come in under the NVIDIA names, with an allow rule for exactly their numbers;
  - no deny rule is ever added: runc refuses some of them and systemd turns others into a lock-out;
  - createRuntime and poststop hooks tell the daemon the pid and the end;
  - /proc/cgpu_km is masked.

What cannot be isolated this way check_isolation() refuses with a sentence: user namespaces (the runtime would bind the
host's node by path), all-device access, and capabilities that undo a device cgroup. Fields that are not known here stay
as they are.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cgpud.env import shorten
from cgpud.errors import Refused
from cgpud.model import Container

Spec = dict[str, Any]

PROC_TREE = "/proc/cgpu_km"
NODE_MODE = 0o666
# bind: the runtime waits wait_s, 60 at most, for a daemon that is not there, and then for its answer.
HOOK_TIMEOUT_S = {"bind": 120, "release": 30}

# Names in /proc/devices whose majors give access to a GPU past the slice.
REAL_DRIVERS = ("nvidia", "nvswitch", "nvlink", "nvlink-", "drm", "cgpu")
# Each of these lets a root process in the container take its device cgroup or the kernel apart.
UNDOING_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_BPF")
# Where the clients of a CUDA MPS daemon find it: what runs through its server is the server's, outside of every slice.
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DIRECTORIES = ("/tmp/nvidia-mps",)
LEGACY_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
CONFIG_FLAGS = ("-config", "--config")  # of NVIDIA's legacy hook


@dataclass(frozen=True, slots=True)
class Options:
    """What the administrator decides and where our files are."""

    hook_path: str
    allow_privileged: bool = False
    legacy_hook_config: str | None = None  # a config.toml for NVIDIA's legacy hook that keeps devices out


def _object(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"config.json is damaged: {what} is no object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(f"config.json is damaged: {what} is no list")
    return value


def _objects(value: Any, what: str) -> list[dict[str, Any]]:
    entries = _list(value, what)
    if not all(isinstance(entry, dict) for entry in entries):
        raise Refused(f"config.json is damaged: an entry of {what} is no object")
    return entries


def _number(value: Any) -> int | None:
    """A major or minor; absent and -1 both mean every one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def process_env(spec: Spec) -> list[Any]:
    return _list(_object(spec.get("process"), "process").get("env"), "process.env")


def nodes(spec: Spec) -> list[dict[str, Any]]:
    return _objects(_object(spec.get("linux"), "linux").get("devices"), "linux.devices")


def rules(spec: Spec) -> list[dict[str, Any]]:
    resources = _object(_object(spec.get("linux"), "linux").get("resources"), "linux.resources")
    return _objects(resources.get("devices"), "linux.resources.devices")


def mounts(spec: Spec) -> list[dict[str, Any]]:
    return _objects(spec.get("mounts"), "mounts")


def prestart_hooks(spec: Spec) -> list[dict[str, Any]]:
    return _objects(_object(spec.get("hooks"), "hooks").get("prestart"), "hooks.prestart")


def majors_of(proc_devices: str) -> frozenset[int]:
    """The majors of /proc/devices, character section, that lead to a GPU."""
    found: set[int] = set()
    for line in proc_devices.split("Block devices:")[0].splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdecimal() and words[1].startswith(REAL_DRIVERS):
            found.add(int(words[0]))
    return frozenset(found)


def clean(path: Any) -> str:
    """A path as the runtime takes it. normpath() alone keeps a leading //, and what is relative is below the root."""
    return posixpath.normpath("/" + str(path).lstrip("/"))


def _is_below(path: str, directory: str) -> bool:
    """Or that directory itself; both clean."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_gpu_path(path: Any) -> bool:
    if not isinstance(path, str) or not path:
        return False
    path = clean(path)
    return path.startswith("/dev/nvidia") or _is_below(path, "/dev/dri")


# ---- what cannot be isolated ----


def allows_all_devices(spec: Spec) -> bool:
    """Does the device list end up open by default (`--privileged`), for reading or writing character devices?"""
    open_by_default = True
    for rule in rules(spec):
        kind = rule.get("type") or "a"
        if _is_block(kind):
            continue
        if _number(rule.get("major")) is not None:
            continue
        access = str(rule.get("access") or "")
        if rule.get("allow"):
            open_by_default |= access == "" or "r" in access or "w" in access
        elif kind in ("a", "c") and _number(rule.get("minor")) is None and "r" in access and "w" in access:
            open_by_default = False  # a type that is none closes nothing
    return open_by_default


def _is_block(kind: Any) -> bool:
    """Nothing but a block device? crun looks at the first letter of a type, and what is neither a nor b is c."""
    return str(kind).startswith("b")


def _capabilities(spec: Spec) -> set[str]:
    sets = _object(_object(spec.get("process"), "process").get("capabilities"), "process.capabilities")
    return {name for names in sets.values() if isinstance(names, list) for name in names if isinstance(name, str)}


def check_isolation(spec: Spec, options: Options, mps: Collection[str] = ()) -> None:
    """Raise Refused for a container in which a slice would be no limit. `mps`: those of MPS_DIRECTORIES that the host
    has."""
    linux = _object(spec.get("linux"), "linux")
    kinds = {entry.get("type") for entry in _objects(linux.get("namespaces"), "linux.namespaces")}
    if "user" in kinds or linux.get("uidMappings") or linux.get("gidMappings"):
        raise Refused(
            "the container has a user namespace, in which the runtime would bind the host's /dev/nvidia* by path; "
            "start it without one (no userns-remap, not rootless)"
        )
    for mount in mounts(spec):
        if _is_bind(mount) and clean(mount.get("destination")) == "/dev":
            raise Refused("the container bind-mounts a directory over /dev, so the slice's devices cannot be put there")
    _check_mps(spec, mps)
    if options.allow_privileged:
        return
    if allows_all_devices(spec):
        raise Refused(
            "the container may use every device (--privileged), so a slice would be no limit; "
            "start it without, or set allow_privileged = true in cgpu.toml"
        )
    undoing = [name for name in UNDOING_CAPABILITIES if name in _capabilities(spec)]
    if undoing:
        raise Refused(
            f"the container has {undoing[0]}, with which it could undo its device limits; "
            f"start it without, or set allow_privileged = true in cgpu.toml"
        )
    # The module takes commands from the host's namespaces only; in both of them this would be one of the host's.
    if "CAP_NET_ADMIN" in _capabilities(spec) and not {"pid", "network"} & kinds:
        raise Refused(
            "the container has CAP_NET_ADMIN, the host's network and the host's processes, with which it could change "
            "every slice; start it without one of them, or set allow_privileged = true in cgpu.toml"
        )


def _check_mps(spec: Spec, there: Collection[str]) -> None:
    for entry in process_env(spec):
        name, _, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if name == MPS_VARIABLE and value:
            raise Refused(
                f"{name}={shorten(value)} leads to an MPS daemon, whose server uses the GPU outside of the slice; "
                f"remove it"
            )
    for mount in mounts(spec):
        for path in (mount.get("source"), mount.get("destination")):
            if any(_is_below(clean(path), directory) for directory in MPS_DIRECTORIES):
                raise Refused(
                    f"the container mounts {shorten(str(path))}, the pipes of an MPS daemon, whose server uses the GPU "
                    f"outside of the slice; remove the mount"
                )
        # Half the world binds /tmp: that is a way only where the host has the pipes.
        brought = [directory for directory in there if _is_below(directory, clean(mount.get("source")))]
        if _is_bind(mount) and brought:
            raise Refused(
                f"the container mounts {shorten(str(mount.get('source')))}, which brings {brought[0]}, the pipes of an "
                f"MPS daemon, whose server uses the GPU outside of the slice; remove the mount, or the directory where "
                f"no MPS daemon runs"
            )


# ---- taking out ----


def _is_bind(mount: Mapping[str, Any]) -> bool:
    flags = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in flags or "rbind" in flags


def keep_node(node: Mapping[str, Any], majors: frozenset[int]) -> bool:
    if is_gpu_path(node.get("path")):
        return False
    return _is_block(node.get("type")) or _number(node.get("major")) not in majors


def keep_rule(rule: Mapping[str, Any], majors: frozenset[int]) -> bool:
    if not rule.get("allow") or rule.get("type") == "b":
        return True
    return _number(rule.get("major")) not in majors


def keep_mount(mount: Mapping[str, Any]) -> bool:
    return not (is_gpu_path(mount.get("destination")) or (_is_bind(mount) and is_gpu_path(mount.get("source"))))


# ---- hooks ----


def is_legacy_hook(hook: Mapping[str, Any]) -> bool:
    return posixpath.basename(str(hook.get("path", ""))) in LEGACY_HOOKS


def _is_our_hook(hook: Mapping[str, Any]) -> bool:
    args = hook.get("args")
    return isinstance(args, list) and args[:2] == ["cgpu-runtime", "hook"]


def _without_config(args: Iterable[Any]) -> Iterator[Any]:
    """Of the flag that is given twice Go's package takes the last."""
    rest = iter(args)
    for arg in rest:
        flag, equals, _ = str(arg).partition("=")
        if flag not in CONFIG_FLAGS:
            yield arg
        elif not equals:
            next(rest, None)  # its value, whatever it looks like


def _tame_legacy_hook(hook: dict[str, Any], config: str | None) -> dict[str, Any]:
    """NVIDIA's prestart hook would mount the real nodes over ours; with this configuration it brings libraries only."""
    if config is None:
        raise Refused(
            "NVIDIA's legacy prestart hook would bring the whole GPU; "
            "use its cdi mode, or set legacy_hook_config in cgpu.toml"
        )
    args = _list(hook.get("args"), "hook args") or [posixpath.basename(str(hook["path"])), "prestart"]
    return {**hook, "args": [args[0], f"-config={config}", *_without_config(args[1:])]}


def _our_hook(options: Options, which: str, cookie: int) -> dict[str, Any]:
    return {
        "path": options.hook_path,
        "args": ["cgpu-runtime", "hook", which, f"--cookie={cookie}"],
        "timeout": HOOK_TIMEOUT_S[which],
    }


def _edit_hooks(spec: Spec, container: Container, options: Options) -> dict[str, Any]:
    hooks = dict(_object(spec.get("hooks"), "hooks"))
    for stage, entries in hooks.items():
        kept = [hook for hook in _objects(entries, f"hooks.{stage}") if not _is_our_hook(hook)]
        hooks[stage] = [
            _tame_legacy_hook(hook, options.legacy_hook_config) if is_legacy_hook(hook) else hook for hook in kept
        ]
    hooks["createRuntime"] = [*hooks.get("createRuntime", []), _our_hook(options, "bind", container.cookie)]
    hooks["poststop"] = [*hooks.get("poststop", []), _our_hook(options, "release", container.cookie)]
    return hooks


# ---- putting in ----


def nodes_of(container: Container) -> list[tuple[str, int]]:
    """(path, minor) of every node the container gets."""
    nodes = [("/dev/nvidiactl", container.ctl_minor), ("/dev/nvidia-uvm", container.uvm_minor)]
    nodes.extend((f"/dev/nvidia{slot.nv_minor}", slot.minor) for slot in container.slots)
    return nodes


def edit(spec: Spec, container: Container, majors: Iterable[int], options: Options) -> Spec:
    """The spec with this container's slices in place of whatever GPU it had. Editing twice is editing once.

    Of a spec that check_isolation() let through.
    """
    real = frozenset(majors) | {container.major}
    out = dict(spec)
    linux = out["linux"] = dict(_object(out.get("linux"), "linux"))
    resources = linux["resources"] = dict(_object(linux.get("resources"), "linux.resources"))

    linux["devices"] = [node for node in nodes(out) if keep_node(node, real)]
    resources["devices"] = [rule for rule in rules(out) if keep_rule(rule, real)]
    for path, minor in nodes_of(container):
        number = {"major": container.major, "minor": minor}
        linux["devices"].append({"path": path, "type": "c", **number, "fileMode": NODE_MODE, "uid": 0, "gid": 0})
        resources["devices"].append({"allow": True, "type": "c", **number, "access": "rw"})

    if out.get("mounts") is not None:
        out["mounts"] = [mount for mount in mounts(out) if keep_mount(mount)]
    masked = _list(linux.get("maskedPaths"), "linux.maskedPaths")
    linux["maskedPaths"] = [*masked, *([] if PROC_TREE in masked else [PROC_TREE])]
    out["hooks"] = _edit_hooks(out, container, options)
    return out
