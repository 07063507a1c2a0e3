# SPDX-License-Identifier: MIT
"""PURE: edits of an OCI config.json.

`edit()` returns a spec whose only GPU nodes are those of cgpu_km. NVIDIA's runtime may have edited the spec before:

  - every node of the driver, every mount that brings one and every rule that allows their majors is removed;
  - our nodes are bind-mounted under the NVIDIA names, with an allow rule for exactly their numbers;
  - no deny rule is added: runc refuses some of them, and systemd turns others into a ban on all devices;
  - our hooks are added: hooks.py;
  - /proc/cgpu_km is masked, and /proc/driver is read-only: root of any container could write NVIDIA's files there.

check_isolation() refuses what cannot be isolated this way: user namespaces (not tested with slices), access to all
devices, and capabilities that can change a device cgroup. Unknown fields are kept.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cgpu_common.errors import Refused
from cgpu_common.model import Container
from cgpud import config_json, hooks
from cgpud.config_json import Spec, json_list, json_object, json_objects, mounts, nodes, number, process_env, rules
from cgpud.env import DISABLE, NVIDIA, PREFIX, PROMISE, shorten

PROC_TREE = "/proc/cgpu_km"
# NVIDIA's files there ask for no capability: registry takes 2 MiB of the host's memory for each open file and sets keys
# of every card, suspend stops all cards. Engines do not close the tree: of /proc they have bus, fs, irq and sys.
DRIVER_TREE = "/proc/driver"
_SERVICE = re.compile(r"(/var)?/run/nvidia-(persistenced|fabricmanager)(/|\Z)")
SERVICES = ("/run/nvidia-persistenced", "/run/nvidia-fabricmanager")
NODES = "/dev/cgpu"  # mount point of the module's file system; cgpu-runtime mounts it
# rprivate: later mounts of the host do not propagate into the container.
NODE_OPTIONS = ("bind", "rprivate", "nosuid", "noexec")

DEFAULT_RUNTIME = "/usr/bin/cgpu-runtime"

CAPABILITY_NUMBERS = {12: "CAP_NET_ADMIN", 16: "CAP_SYS_MODULE", 17: "CAP_SYS_RAWIO", 19: "CAP_SYS_PTRACE"}
CAPABILITY_NUMBERS |= {2: "CAP_DAC_READ_SEARCH", 21: "CAP_SYS_ADMIN", 39: "CAP_BPF"}
DIGITS_MAX = 20  # of more, strtoul() reads its greatest value
_CAPABILITY = re.compile(r"\s*(?:(0x[0-9a-f]+)|(0[0-7]*)|([1-9][0-9]*)|([a-z_]+))", re.ASCII | re.IGNORECASE)
# With each of these a root process in the container can change its device cgroup or the kernel: with the last one
# open_by_handle_at() opens any file of the host, beginning at one that is bind-mounted (/etc/hosts).
UNDOING_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_BPF", "CAP_DAC_READ_SEARCH")
# How clients find a CUDA MPS daemon. Its server runs their work outside of any slice.
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DIRECTORIES = ("/tmp/nvidia-mps", "/run/nvidia/mps")  # NVIDIA's own default, and that of its device plugin
DAEMON_DIRECTORY = "/run/cgpu"  # of cgpud's socket
CGROUPS = "/sys/fs/cgroup"
NO_CONTROLLER = f"{CGROUPS}/systemd"  # under v1, so it has no devices
# Of the host. Root that may write there leaves its device cgroup, has the cards' registers and memory (resourceN), or
# commands the driver and the module.
HOST_TREES = {CGROUPS: "cgroups", "/sys": "devices", DRIVER_TREE: "GPU driver", PROC_TREE: "slices"}
GUARDED = (DAEMON_DIRECTORY, *MPS_DIRECTORIES, *SERVICES, *HOST_TREES)
# Mounts below /sys, which stay writable in a recursive bind that is itself read-only.
IN_SYS = (CGROUPS, "/sys/kernel/debug", "/sys/kernel/tracing")


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


def clean(path: Any) -> str:
    """A path as the runtime resolves it: relative to the root. normpath() alone would keep a leading //."""
    return posixpath.normpath("/" + str(path).lstrip("/"))


def _is_below(path: str, directory: str) -> bool:
    """Below the directory or the directory itself; both normalised by clean()."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_service_path(path: Any) -> bool:
    """A socket of the driver's services, which NVIDIA's toolkit mounts beside its libraries? They take root of a
    container for root: nvidia-persistenced then changes any card of the host. No computation needs them."""
    return isinstance(path, str) and _SERVICE.match(clean(path)) is not None


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
        if number(rule.get("major")) is not None:
            continue
        access = str(rule.get("access") or "")
        if rule.get("allow"):
            open_by_default |= access == "" or "r" in access or "w" in access
        elif kind in ("a", "c") and number(rule.get("minor")) is None and "r" in access and "w" in access:
            open_by_default = False  # a rule with an invalid type denies nothing
    return open_by_default


def _is_block(kind: Any) -> bool:
    """Block devices only? crun decides by the first letter of a type, and treats all but a and b as c."""
    return str(kind).startswith("b")


def capability(text: str) -> str:
    """The name, in capitals, of what a runtime may take for one: crun's library takes any case, and numbers in C's
    forms, and ignores what follows. cgpu-runtime has the same (capability_in())."""
    found = _CAPABILITY.match(text)
    if found is None:
        return ""
    for digits, base in zip(found.groups(), (16, 8, 10), strict=False):
        if digits:
            return CAPABILITY_NUMBERS.get(int(digits[:DIGITS_MAX], base), "")
    return found[4].upper()


def capabilities(spec: Spec) -> set[str]:
    sets = json_object(json_object(spec.get("process"), "process").get("capabilities"), "process.capabilities")
    lists = [names for names in sets.values() if isinstance(names, list)]
    return {capability(name) for names in lists for name in names if isinstance(name, str)}


def own_namespaces(spec: Spec, is_own: Callable[[str, str], bool]) -> set[str]:
    """The kinds of namespaces that the container does not share with the host.

    An entry with a path joins the namespace of another process: with containerd's CRI that of the pod, which is the
    host's under hostNetwork and hostPID. `is_own` compares it with the host's."""
    own: set[str] = set()
    shared: set[str] = set()
    for entry in json_objects(json_object(spec.get("linux"), "linux").get("namespaces"), "linux.namespaces"):
        kind, path = str(entry.get("type")), entry.get("path")
        is_new = path is None or path == ""
        (own if is_new or (isinstance(path, str) and is_own(kind, path)) else shared).add(kind)
    return own - shared


def check_isolation(
    spec: Spec,
    options: Options,
    mps: Collection[str] = (),
    is_own: Callable[[str, str], bool] = lambda kind, path: False,
    resolve: Callable[[str], Collection[str]] = lambda path: (clean(path),),
    cgroups: str = "v1",
) -> None:
    """Raise Refused for a container that could evade its slice. `mps`: those of MPS_DIRECTORIES that exist on the
    host. `is_own`: is the namespace of this kind behind this path another one than the host's? `resolve`: the paths on
    the host behind the links and mounts of a bind's source; it raises Refused for one that cannot be known. `cgroups`:
    v1, v2, or nsdelegate: v2, in which no process leaves its cgroup namespace."""
    if config_json.has_user_namespace(spec):
        raise Refused(
            "the container has a user namespace, for which there are no slices; "
            "start it without one (no userns-remap, not rootless)"
        )
    for mount in mounts(spec):
        if _is_bind(mount) and clean(mount.get("destination")) == "/dev":
            raise Refused("the container bind-mounts a directory over /dev, so the slice's devices cannot be put there")
    binds = _binds(spec, resolve)
    _check_mps(spec, binds, mps)
    _check_daemon(binds, resolve)
    if options.allow_privileged:
        return
    if allows_all_devices(spec):
        raise Refused(
            "the container may use every device (--privileged), so a slice would be no limit; "
            "start it without, or set allow_privileged = true in cgpu.toml"
        )
    undoing = [name for name in UNDOING_CAPABILITIES if name in capabilities(spec)]
    if undoing:
        raise Refused(
            f"the container has {undoing[0]}, with which it could undo its device limits; "
            f"start it without, or set allow_privileged = true in cgpu.toml"
        )
    config_json.check_properties(spec)
    _check_services(binds)
    own = own_namespaces(spec, is_own)
    _check_trees(spec, binds, cgroups, stays=cgroups == "nsdelegate" and "cgroup" in own)
    # The module accepts commands from the initial pid and network namespaces only; this container is in both.
    if "CAP_SYS_PTRACE" in capabilities(spec) and "pid" not in own:
        raise Refused(
            "the container has CAP_SYS_PTRACE and the host's processes, which it could control with it; "
            "start it without one of them, or set allow_privileged = true in cgpu.toml"
        )
    if "CAP_NET_ADMIN" in capabilities(spec) and not {"pid", "network"} & own:
        raise Refused(
            "the container has CAP_NET_ADMIN, the host's network and the host's processes, with which it could change "
            "every slice; start it without one of them, or set allow_privileged = true in cgpu.toml"
        )


def check_exec(capability: str, allow_privileged: bool, *, mps: bool = False) -> None:
    """Raise Refused for a process that an administrator starts in a container with a slice, with a capability by which
    that process, or another one of the container that takes control of it, could evade the slice. @mps: a client of
    MPS, which could take the GPU out of its mode."""
    has = "is a client of MPS, whose mode of the GPU" if mps else "has a slice, which"
    if not allow_privileged:
        raise Refused(
            f"the container {has} a process with {shorten(capability)} could undo; start the process "
            f"without it (exec without --privileged), or set allow_privileged = true in cgpu.toml"
        )


@dataclass(frozen=True, slots=True)
class _Bind:
    mount: Mapping[str, Any]
    own: frozenset[str]  # of the source: as it is written, and behind links
    paths: frozenset[str]  # these, and the other paths of what it brings, by mounts

    @property
    def source(self) -> str:
        return shorten(str(self.mount.get("source")))

    def is_below(self, directory: str) -> bool:
        return any(_is_below(path, directory) for path in self.paths)

    def brings(self, directory: str, paths: Collection[str] = ()) -> bool:
        """The directory, or a part of it? @paths: by these alone."""
        return any(_is_below(directory, one) or _is_below(one, directory) for one in paths or self.paths)


def _brought(spec: Spec) -> list[Mapping[str, Any]]:
    """The binds, and the container's root, which a runtime binds with all that is mounted below it."""
    found: list[Mapping[str, Any]] = [mount for mount in mounts(spec) if _is_bind(mount)]
    root = json_object(spec.get("root"), "root")
    if root.get("path"):
        found.append({"source": root["path"], "options": ["rbind", "ro" if root.get("readonly") is True else "rw"]})
    return found


def bind_sources(spec: Spec) -> set[str]:
    """What check_isolation() resolves."""
    return {DAEMON_DIRECTORY, *(str(mount.get("source")) for mount in _brought(spec))}


def _binds(spec: Spec, resolve: Callable[[str], Collection[str]]) -> list[_Bind]:
    found = []
    for mount in _brought(spec):
        text = str(mount.get("source"))
        behind, *others = map(clean, resolve(text))
        own = frozenset((clean(text), behind))
        found.append(_Bind(mount, own, own.union(others)))
    return found


def _check_mps(spec: Spec, binds: Collection[_Bind], there: Collection[str]) -> None:
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
    for bind in binds:
        # Many containers bind /tmp. That matters only if the pipes exist on the host.
        brought = [one for one in MPS_DIRECTORIES if bind.is_below(one) or (one in there and bind.brings(one))]
        if brought:
            raise Refused(
                f"the container mounts {bind.source}, which brings {brought[0]}, the pipes of an "
                f"MPS daemon, whose server uses the GPU outside of the slice; remove the mount, or the directory where "
                f"no MPS daemon runs"
            )


def _check_daemon(binds: Collection[_Bind], resolve: Callable[[str], Collection[str]]) -> None:
    directories = {DAEMON_DIRECTORY, *map(clean, resolve(DAEMON_DIRECTORY))}
    for bind in binds:
        if any(map(bind.brings, directories)):
            raise Refused(
                f"the container mounts {bind.source}, which brings {DAEMON_DIRECTORY}, "
                f"where cgpud takes requests that change every slice; remove the mount"
            )


def _check_services(binds: Iterable[_Bind]) -> None:
    """What NVIDIA's toolkit mounts is taken out; another destination is of the author of the container."""
    for bind in binds:
        brought = next((one for one in SERVICES if bind.brings(one)), "")
        if brought and not is_service_path(bind.mount.get("destination")):
            raise Refused(
                f"the container mounts {bind.source}, which brings {brought}, where a service of NVIDIA's driver takes "
                f"root of a container for root of the host; remove the mount"
            )


def _check_trees(spec: Spec, binds: Iterable[_Bind], cgroups: str, *, stays: bool) -> None:
    """@stays: the container cannot leave its cgroup, whatever it writes in the host's tree."""
    for mount in mounts(spec):
        # With v1 a runtime mounts the container's own part of the tree alone.
        kind = "" if _is_bind(mount) else mount.get("type")
        again = kind == "proc" and clean(mount.get("destination")) != "/proc"  # what is masked there is not here
        if (kind in ("sysfs", "debugfs", "tracefs") or again) and not _is_read_only(mount):
            raise Refused(
                f"the container mounts {shorten(str(mount.get('destination')))} ({kind}) writable, which brings the "
                f"host's devices, so it could undo its limits; mount it read-only, or remove the mount"
            )
        is_tree = kind in ("cgroup", "cgroup2") and cgroups != "v1"
        if is_tree and not stays and not _is_read_only(mount):
            raise Refused(
                f"the container mounts {shorten(str(mount.get('destination')))} writable, which brings the host's "
                f"cgroups, so it could undo its device limits; mount it read-only, or give the container a cgroup "
                f"namespace of its own (--cgroupns=private)"
            )
    for bind in binds:
        brought = next((tree for tree in HOST_TREES if bind.brings(tree)), None)
        if brought is None or (cgroups == "v1" and all(_is_below(path, NO_CONTROLLER) for path in bind.paths)):
            continue
        alone = (CGROUPS,) if cgroups != "v1" else ()  # v1 has a mount for each controller below it
        above = any(_is_below(one, path) and path not in alone for one in IN_SYS for path in bind.paths)
        # By another mount, perhaps one below it.
        above |= any(bind.brings(tree) and not bind.brings(tree, bind.own) for tree in HOST_TREES)
        if not _is_read_only(bind.mount, recursively=above):
            raise Refused(
                f"the container mounts {bind.source} writable, or what is mounted below it, which brings the host's "
                f"{HOST_TREES[brought]}, so it could undo its limits; mount it read-only with all below it "
                f"(ro,bind-recursive=readonly), or remove the mount"
            )


# ---- taking out ----


def _is_bind(mount: Mapping[str, Any]) -> bool:
    flags = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in flags or "rbind" in flags


def _is_read_only(mount: Mapping[str, Any], *, recursively: bool = False) -> bool:
    """@recursively: with what is mounted below it."""
    flags = json_list(mount.get("options"), "mounts.options")
    if "rrw" in flags:  # runc applies it last
        return False
    last = next((flag for flag in reversed(flags) if flag in ("ro", "rw", "rro")), "rw")
    return last == "rro" or (last == "ro" and not (recursively and "rbind" in flags))


def keep_node(node: Mapping[str, Any], majors: frozenset[int]) -> bool:
    if is_gpu_path(node.get("path")):
        return False
    return _is_block(node.get("type")) or number(node.get("major")) not in majors


def keep_rule(rule: Mapping[str, Any], majors: frozenset[int]) -> bool:
    if not rule.get("allow") or rule.get("type") == "b":
        return True
    return number(rule.get("major")) not in majors


def keep_mount(mount: Mapping[str, Any]) -> bool:
    """Does the mount bring no GPU?"""
    return not (is_gpu_path(mount.get("destination")) or (_is_bind(mount) and is_gpu_path(mount.get("source"))))


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
    linux = out["linux"] = dict(json_object(out.get("linux"), "linux"))
    resources = linux["resources"] = dict(json_object(linux.get("resources"), "linux.resources"))
    linux["devices"] = [node for node in nodes(out) if keep_node(node, majors)]
    resources["devices"] = [rule for rule in rules(out) if keep_rule(rule, majors)]
    out["mounts"] = [one for one in mounts(out) if keep_mount(one) and not is_service_path(one.get("destination"))]
    return out


def with_environment(spec: Spec, variables: Mapping[str, str]) -> Spec:
    """The spec with these variables in place of all of ours, so that the container reads what it has. PROMISE stays:
    the next start asks for the grant again."""
    ours = [entry for entry in process_env(spec) if not _is_ours(entry)]
    process = {**json_object(spec.get("process"), "process")}
    return {**spec, "process": {**process, "env": [*ours, *(f"{name}={value}" for name, value in variables.items())]}}


def with_visible(spec: Spec, value: str) -> Spec:
    """The spec with this value of NVIDIA_VISIBLE_DEVICES in place of all others."""
    kept = [entry for entry in process_env(spec) if not (isinstance(entry, str) and entry.startswith(f"{NVIDIA}="))]
    process = {**json_object(spec.get("process"), "process"), "env": [*kept, f"{NVIDIA}={value}"]}
    return {**spec, "process": process}


def _is_ours(entry: Any) -> bool:
    name = entry.split("=", 1)[0] if isinstance(entry, str) else ""
    return (name == DISABLE or name.startswith(PREFIX)) and name != PROMISE


def with_driver_closed(spec: Spec) -> Spec:
    """The spec with DRIVER_TREE read-only. runc binds it over itself after the hooks of createContainer, together with
    what they have mounted below, crun before them; one that is not there is skipped.

    Unchanged where no user of the container is root of the host, and so none writes there: beside a proc of which a
    part is covered, the kernel lets a user namespace within the container mount none."""
    if not config_json.has_root_of_host(spec):
        return spec
    linux = json_object(spec.get("linux"), "linux")
    there = json_list(linux.get("readonlyPaths"), "linux.readonlyPaths")
    return spec if DRIVER_TREE in there else {**spec, "linux": {**linux, "readonlyPaths": [*there, DRIVER_TREE]}}


def edit_whole(
    spec: Spec, majors: Iterable[int], nodes: Iterable[tuple[str, int, int]], legacy_hook_config: str | None
) -> Spec:
    """The spec with these real nodes, (path, major, minor), in place of any GPU: a shared GPU without isolation. A hook
    of NVIDIA's would read NVIDIA_VISIBLE_DEVICES, which the pod's author may have set to all."""
    out = with_driver_closed(with_visible(_without_gpus(spec, frozenset(majors)), "none"))
    out["hooks"] = hooks.kept(spec, legacy_hook_config)
    for path, major, minor in nodes:
        out["linux"]["devices"].append({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666})
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
        out["linux"]["resources"]["devices"].append(rule)
    return out


def edit(
    spec: Spec,
    container: Container,
    majors: Iterable[int],
    options: Options,
    closed: str,
    *,
    restored: bool = False,
) -> Spec:
    """The spec with this container's slices in place of any GPU. Idempotent.

    The spec has passed check_isolation(). `closed`: closed_numbers(). `restored`: from a checkpoint.
    """
    out = with_driver_closed(_without_gpus(spec, frozenset(majors) | {container.major}))
    linux, resources = out["linux"], out["linux"]["resources"]
    for path, minor in nodes_of(container):
        source = f"{NODES}/{container.dir}/{posixpath.basename(path)}"
        out["mounts"].append({"destination": path, "type": "bind", "source": source, "options": list(NODE_OPTIONS)})
        device = {"major": container.major, "minor": minor}
        resources["devices"].append({"allow": True, "type": "c", **device, "access": "rw"})
    masked = json_list(linux.get("maskedPaths"), "linux.maskedPaths")
    linux["maskedPaths"] = [*masked, *([] if PROC_TREE in masked else [PROC_TREE])]
    if options.allow_privileged and allows_all_devices(spec):
        closed = ""
    out["hooks"] = hooks.edited(
        out, container.cookie, options.hook_path, options.legacy_hook_config, closed, restored=restored
    )
    return out
