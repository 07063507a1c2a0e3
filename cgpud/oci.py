# SPDX-License-Identifier: MIT
"""PURE: edits of an OCI config.json.

`edit()` returns a spec whose only GPU nodes are those of cgpu_km. NVIDIA's runtime may have edited the spec before:

  - every node of the driver, every mount that brings one and every rule that allows their majors is removed;
  - our nodes are bind-mounted under the NVIDIA names, with an allow rule for exactly their numbers;
  - no deny rule is added: runc refuses some of them, and systemd turns others into a ban on all devices;
  - createRuntime and poststop hooks report the pid and the end to the daemon, a createContainer hook keeps the
    driver's libraries from making nodes;
  - /proc/cgpu_km is masked.

check_isolation() refuses what cannot be isolated this way: user namespaces (not tested with slices), access to all
devices, and capabilities that can change a device cgroup. Unknown fields are kept.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cgpu_common.errors import Refused
from cgpu_common.model import Container
from cgpud.env import DISABLE, PREFIX, PROMISE, shorten

Spec = dict[str, Any]

PROC_TREE = "/proc/cgpu_km"
NODES = "/dev/cgpu"  # mount point of the module's file system; cgpu-runtime mounts it
# rprivate: later mounts of the host do not propagate into the container.
NODE_OPTIONS = ("bind", "rprivate", "nosuid", "noexec")
# bind: cgpu-runtime waits wait_s (at most 60) for a daemon, then 60 s for its answer.
HOOK_TIMEOUT_S = {"bind": 120, "params": 30, "release": 30}

DEFAULT_RUNTIME = "/usr/bin/cgpu-runtime"

# Names in /proc/devices whose majors give access to a GPU outside of the slice.
REAL_DRIVERS = ("nvidia", "nvswitch", "nvlink", "nvlink-", "drm", "cgpu")
# With each of these a root process in the container can change its device cgroup or the kernel.
UNDOING_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_BPF")
# How clients find a CUDA MPS daemon. Its server runs their work outside of any slice.
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DIRECTORIES = ("/tmp/nvidia-mps",)  # NVIDIA's own default
DAEMON_DIRECTORY = "/run/cgpu"  # of cgpud's socket
LEGACY_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
CONFIG_FLAGS = ("-config", "--config")  # of NVIDIA's legacy hook


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the administrator, and paths of our files."""

    hook_path: str
    allow_privileged: bool = False
    legacy_hook_config: str | None = None  # a config.toml for NVIDIA's legacy hook without devices


def options(requester: str, runtime_path: str, allow_privileged: bool, legacy_hook_config: str) -> Options:
    """The configured values. `requester`: the path of the cgpu-runtime that sent the request."""
    runtime = requester if requester.startswith("/") else DEFAULT_RUNTIME
    return Options(runtime_path or runtime, allow_privileged, legacy_hook_config or None)


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
    """A major or minor; None (absent or -1): all of them."""
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
    """The majors of /proc/devices, character section, that lead to a GPU.

    Refused without that section: a spec's nodes of the real drivers would stay in it.
    """
    found: set[int] = set()
    heading, _, characters = proc_devices.split("Block devices:")[0].partition("Character devices:")
    if heading.strip() or not characters.strip():
        raise Refused("/proc/devices cannot be read: the numbers of GPU drivers are not known")
    for line in characters.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdecimal() and words[1].startswith(REAL_DRIVERS):
            found.add(int(words[0]))
    return frozenset(found)


def clean(path: Any) -> str:
    """A path as the runtime resolves it: relative to the root. normpath() alone would keep a leading //."""
    return posixpath.normpath("/" + str(path).lstrip("/"))


def _is_below(path: str, directory: str) -> bool:
    """Below the directory or the directory itself; both normalised by clean()."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_gpu_path(path: Any) -> bool:
    if not isinstance(path, str) or not path:
        return False
    path = clean(path)
    return path.startswith("/dev/nvidia") or _is_below(path, "/dev/dri") or _is_below(path, NODES)


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
            open_by_default = False  # a rule with an invalid type denies nothing
    return open_by_default


def _is_block(kind: Any) -> bool:
    """Block devices only? crun decides by the first letter of a type, and treats all but a and b as c."""
    return str(kind).startswith("b")


def _capabilities(spec: Spec) -> set[str]:
    sets = _object(_object(spec.get("process"), "process").get("capabilities"), "process.capabilities")
    return {name for names in sets.values() if isinstance(names, list) for name in names if isinstance(name, str)}


def own_namespaces(spec: Spec, is_own: Callable[[str, str], bool]) -> set[str]:
    """The kinds of namespaces that the container does not share with the host.

    An entry with a path joins the namespace of another process: with containerd's CRI that of the pod, which is the
    host's under hostNetwork and hostPID. `is_own` compares it with the host's."""
    own: set[str] = set()
    shared: set[str] = set()
    for entry in _objects(_object(spec.get("linux"), "linux").get("namespaces"), "linux.namespaces"):
        kind, path = str(entry.get("type")), entry.get("path")
        is_new = path is None or path == ""
        (own if is_new or (isinstance(path, str) and is_own(kind, path)) else shared).add(kind)
    return own - shared


def check_isolation(
    spec: Spec,
    options: Options,
    mps: Collection[str] = (),
    is_own: Callable[[str, str], bool] = lambda kind, path: False,
) -> None:
    """Raise Refused for a container that could evade its slice. `mps`: those of MPS_DIRECTORIES that exist on the
    host. `is_own`: is the namespace of this kind behind this path another one than the host's?"""
    linux = _object(spec.get("linux"), "linux")
    kinds = {entry.get("type") for entry in _objects(linux.get("namespaces"), "linux.namespaces")}
    if "user" in kinds or linux.get("uidMappings") or linux.get("gidMappings"):
        raise Refused(
            "the container has a user namespace, for which there are no slices; "
            "start it without one (no userns-remap, not rootless)"
        )
    for mount in mounts(spec):
        if _is_bind(mount) and clean(mount.get("destination")) == "/dev":
            raise Refused("the container bind-mounts a directory over /dev, so the slice's devices cannot be put there")
    _check_mps(spec, mps)
    _check_daemon(spec)
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
    # The module accepts commands from the initial pid and network namespaces only; this container is in both.
    own = own_namespaces(spec, is_own)
    if "CAP_SYS_PTRACE" in _capabilities(spec) and "pid" not in own:
        raise Refused(
            "the container has CAP_SYS_PTRACE and the host's processes, which it could control with it; "
            "start it without one of them, or set allow_privileged = true in cgpu.toml"
        )
    if "CAP_NET_ADMIN" in _capabilities(spec) and not {"pid", "network"} & own:
        raise Refused(
            "the container has CAP_NET_ADMIN, the host's network and the host's processes, with which it could change "
            "every slice; start it without one of them, or set allow_privileged = true in cgpu.toml"
        )


def check_exec(capability: str, allow_privileged: bool) -> None:
    """Raise Refused for a process that an administrator starts in a container with a slice, with a capability by which
    that process, or another one of the container that takes control of it, could evade the slice."""
    if not allow_privileged:
        raise Refused(
            f"the container has a slice, which a process with {shorten(capability)} could undo; start the process "
            f"without it (exec without --privileged), or set allow_privileged = true in cgpu.toml"
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
        # Many containers bind /tmp. That matters only if the pipes exist on the host.
        brought = [directory for directory in there if _is_below(directory, clean(mount.get("source")))]
        if _is_bind(mount) and brought:
            raise Refused(
                f"the container mounts {shorten(str(mount.get('source')))}, which brings {brought[0]}, the pipes of an "
                f"MPS daemon, whose server uses the GPU outside of the slice; remove the mount, or the directory where "
                f"no MPS daemon runs"
            )


def _check_daemon(spec: Spec) -> None:
    for mount in mounts(spec):
        source = clean(mount.get("source"))
        source = "/run" + source.removeprefix("/var/run") if _is_below(source, "/var/run") else source  # a link
        if _is_bind(mount) and (_is_below(source, DAEMON_DIRECTORY) or _is_below(DAEMON_DIRECTORY, source)):
            raise Refused(
                f"the container mounts {shorten(str(mount.get('source')))}, which brings {DAEMON_DIRECTORY}, "
                f"where cgpud takes requests that change every slice; remove the mount"
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
    """Without the flag for the configuration: Go's flag package uses the last one."""
    rest = iter(args)
    for arg in rest:
        flag, equals, _ = str(arg).partition("=")
        if flag not in CONFIG_FLAGS:
            yield arg
        elif not equals:
            next(rest, None)  # its value


def _tame_legacy_hook(hook: dict[str, Any], config: str | None) -> dict[str, Any]:
    """NVIDIA's prestart hook would mount the real nodes over ours; with `config` it mounts libraries only."""
    if config is None:
        raise Refused(
            "NVIDIA's legacy prestart hook would mount the whole GPU; "
            "use its cdi mode, or set legacy_hook_config in cgpu.toml"
        )
    args = _list(hook.get("args"), "hook args") or [posixpath.basename(str(hook["path"])), "prestart"]
    return {**hook, "args": [args[0], f"-config={config}", *_without_config(args[1:])]}


def _our_hook(options: Options, which: str, word: str) -> dict[str, Any]:
    return {
        "path": options.hook_path,
        "args": ["cgpu-runtime", "hook", which, word],
        "timeout": HOOK_TIMEOUT_S[which],
    }


def _edit_hooks(spec: Spec, container: Container, options: Options) -> dict[str, Any]:
    hooks = dict(_object(spec.get("hooks"), "hooks"))
    for stage, entries in hooks.items():
        kept = [hook for hook in _objects(entries, f"hooks.{stage}") if not _is_our_hook(hook)]
        hooks[stage] = [
            _tame_legacy_hook(hook, options.legacy_hook_config) if is_legacy_hook(hook) else hook for hook in kept
        ]
    cookie = f"--cookie={container.cookie}"
    root = _object(spec.get("root"), "root").get("path", "rootfs")
    ours = (
        ("createRuntime", "bind", cookie),
        ("createContainer", "params", f"--root={root}"),  # after NVIDIA's own hook, which may do the same
        ("poststop", "release", cookie),
    )
    for stage, which, word in ours:
        hooks[stage] = [*hooks.get(stage, []), _our_hook(options, which, word)]
    return hooks


# ---- putting in ----


def nodes_of(container: Container) -> list[tuple[str, int]]:
    """(path, minor) of every node of the container."""
    nodes = [("/dev/nvidiactl", container.ctl_minor), ("/dev/nvidia-uvm", container.uvm_minor)]
    nodes.extend((f"/dev/nvidia{slot.nv_minor}", slot.minor) for slot in container.slots)
    return nodes


def _without_gpus(spec: Spec, majors: frozenset[int]) -> Spec:
    """A copy without nodes, rules and mounts of any GPU; linux.devices, linux.resources.devices and mounts are lists
    of its own."""
    out = dict(spec)
    linux = out["linux"] = dict(_object(out.get("linux"), "linux"))
    resources = linux["resources"] = dict(_object(linux.get("resources"), "linux.resources"))
    linux["devices"] = [node for node in nodes(out) if keep_node(node, majors)]
    resources["devices"] = [rule for rule in rules(out) if keep_rule(rule, majors)]
    out["mounts"] = [mount for mount in mounts(out) if keep_mount(mount)]
    return out


def with_environment(spec: Spec, variables: Mapping[str, str]) -> Spec:
    """The spec with these variables in place of all of ours, so that the container reads what it has. PROMISE stays:
    the next start asks for the grant again."""
    ours = [entry for entry in process_env(spec) if not _is_ours(entry)]
    process = {**_object(spec.get("process"), "process")}
    return {**spec, "process": {**process, "env": [*ours, *(f"{name}={value}" for name, value in variables.items())]}}


def _is_ours(entry: Any) -> bool:
    name = entry.split("=", 1)[0] if isinstance(entry, str) else ""
    return (name == DISABLE or name.startswith(PREFIX)) and name != PROMISE


def edit_whole(spec: Spec, majors: Iterable[int], nodes: Iterable[tuple[str, int, int]]) -> Spec:
    """The spec with these real nodes, (path, major, minor), in place of any GPU: a shared GPU without isolation."""
    out = _without_gpus(spec, frozenset(majors))
    for path, major, minor in nodes:
        out["linux"]["devices"].append({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666})
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
        out["linux"]["resources"]["devices"].append(rule)
    return out


def edit(spec: Spec, container: Container, majors: Iterable[int], options: Options) -> Spec:
    """The spec with this container's slices in place of any GPU. Idempotent.

    The spec has passed check_isolation().
    """
    out = _without_gpus(spec, frozenset(majors) | {container.major})
    linux, resources = out["linux"], out["linux"]["resources"]
    for path, minor in nodes_of(container):
        source = f"{NODES}/{container.dir}/{posixpath.basename(path)}"
        out["mounts"].append({"destination": path, "type": "bind", "source": source, "options": list(NODE_OPTIONS)})
        number = {"major": container.major, "minor": minor}
        resources["devices"].append({"allow": True, "type": "c", **number, "access": "rw"})
    masked = _list(linux.get("maskedPaths"), "linux.maskedPaths")
    linux["maskedPaths"] = [*masked, *([] if PROC_TREE in masked else [PROC_TREE])]
    out["hooks"] = _edit_hooks(out, container, options)
    return out
