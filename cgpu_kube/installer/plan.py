# SPDX-License-Identifier: MIT
"""PURE: what is to be done on a node, by what it is and has, and what the image has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cgpu_kube.errors import KubeError

PREFIX = "/usr/local"
#: The host's programs without which nothing can be done there.
TOOLS = ("bash", "find", "xargs", "mv", "sha256sum", "systemctl", "nsenter", "modprobe", "depmod", "modinfo")
EXTENSION = "docs/user/kubernetes-node.md has what hosts with a read-only /usr, and Talos, take instead"
OPERATOR_HINT = (
    f"set NVIDIA_CONTAINER_RUNTIME_RUNTIMES={PREFIX}/bin/cgpu-runtime,runc,crun in the GPU Operator's toolkit.env"
)
AGENT_HINT = (
    "label it ack.node.gpu.schedule=default, wait until its label cgpu.io/agent is gone, and remove "
    "ack.node.gpu.schedule, or stop the unit cgpu-kube; nothing was removed"
)
NAMED_MAX = 4
CONTAINERD = "containerd"  # the one engine that is restarted: NVIDIA's runtime reads its file at each start


class Step(StrEnum):
    """In the order in which they are done."""

    PUT = "put"  # the files
    COPY_MODULES = "copy modules"  # the image's, for this kernel
    BUILD_MODULES = "build modules"  # by the host's DKMS
    LOAD = "load"
    DAEMON = "daemon"  # enabled, and started or restarted
    REPLACE_MODULE = "replace module"
    ENGINE = "engine"
    PUT_BACK = "put back"  # the files of before an update whose daemon does not start
    # Of a removal.
    CORDON = "cordon"
    UNLOAD = "unload"
    RESTORE_ENGINE = "restore engine"
    REMOVE = "remove"


class Refused(KubeError):
    """Nothing was changed, or it is as it was. @reason: one word, of the node's condition."""

    def __init__(self, reason: str, sentence: str, hint: str) -> None:
        super().__init__(f"{sentence}: {hint}")
        self.reason = reason


@dataclass(frozen=True)
class Image:
    """@build: of the files, by their contents. @kernels: those for which it has modules."""

    version: str
    build: str
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """The facts of a node. Versions are None without the part."""

    kernel: str
    machine: str = "x86_64"
    systemd: bool = True
    read_only: tuple[str, ...] = ()  # of the folders that are written to
    missing: tuple[str, ...] = ()  # of TOOLS
    installed: str | None = None  # by the list of PREFIX
    build: str | None = None  # of the files that are there
    owner: str | None = None  # of another installation
    on_disk: str | None = None  # the module that modprobe finds for this kernel
    copied: str | None = None  # the build of the image whose modules were copied for this kernel
    loaded: str | None = None
    has_core: bool = True  # if it is loaded
    other_build: bool = False  # what is loaded and what is on disk have one version and different sources
    has_dkms: bool = False
    has_headers: bool = False
    is_active: bool = False  # cgpud
    tenants: tuple[str, ...] = ()  # containers with a slice
    toolkit: bool = False  # NVIDIA's, as packages of the host
    operator: str | None = None  # the configuration of the GPU Operator's toolkit
    has_agent: bool = False  # that serves
    due: frozenset[str] = frozenset()  # Steps of an earlier round that failed or was killed
    broken: str = ""  # the build whose daemon did not start; from the second line on why
    has_before: bool = False  # the files of before it are kept

    @property
    def serves(self) -> bool:
        """What is there has started, so that an update can be taken back to it. Where the files are due, too, they were
        not put, and the daemon that is due is not theirs."""
        is_due = Step.DAEMON in self.due and Step.PUT not in self.due
        return self.build is not None and self.is_active and not is_due


@dataclass(frozen=True)
class Plan:
    """@engine: what `cgpu setup` is called with; "": the engine is another one's. @kept: why not everything is as
    the image has it, when the steps are done."""

    steps: tuple[Step, ...]
    engine: str = ""
    kept: str = ""


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _require_a_host(host: Host) -> None:
    if host.machine != "x86_64":
        raise Refused("NotSupported", f"the node is {host.machine}", "cgpu is for x86-64 only")
    if not host.systemd:
        raise Refused("NoSystemd", "systemd does not run on the host", EXTENSION)
    if host.read_only:
        raise Refused("ReadOnly", f"{_some(host.read_only)} cannot be written on the host", EXTENSION)
    if host.missing:
        raise Refused("NoTools", f"the host has no {_some(host.missing)}", "install them (bash, coreutils, kmod)")


def _modules(host: Host, image: Image, is_new: bool) -> tuple[Step, ...]:
    """How the modules for the running kernel come on disk. @is_new: the files are put."""
    if host.kernel in image.kernels:
        return () if host.copied == image.build and host.on_disk == image.version else (Step.COPY_MODULES,)
    if host.has_dkms and host.has_headers:
        is_there = host.on_disk == image.version and not is_new and Step.BUILD_MODULES not in host.due
        return () if is_there else (Step.BUILD_MODULES,)
    if image.version in (host.on_disk, host.loaded):  # of Kernel Module Management, or by hand
        return ()
    has = _some(image.kernels) if image.kernels else "none"
    lacks = " and no ".join(
        [word for there, word in ((host.has_dkms, "DKMS"), (host.has_headers, "headers of it")) if not there]
    )
    raise Refused(
        "NoModule",
        f"there is no module for the kernel {host.kernel}: the image has those for {has}, and the host has no {lacks}",
        "build the image for it (make node-image KERNEL=…), or install both on the host",
    )


def _engine(host: Host) -> str:
    if host.toolkit:
        return "nvidia-container-runtime"
    return "" if host.operator is not None else CONTAINERD


def _must_load(host: Host, image: Image) -> bool:
    """The core is a module of its own, which may not be loaded, or not be that of the image yet."""
    if host.loaded is None:
        return True
    is_due = not host.has_core or not host.due.isdisjoint((Step.LOAD, Step.REPLACE_MODULE))
    return host.loaded == image.version and is_due


def put_back(why: str) -> Refused:
    """@why: the new daemon did not start."""
    hint = (
        "journalctl -u cgpud has its words. The next image is tried as it comes, this one when "
        "/var/lib/cgpu/install-failed is removed on the node"
    )
    return Refused("PutBack", f"the files of before are back, and serve, since the update does not ({why})", hint)


def install(host: Host, image: Image, by_hand: bool = False) -> Plan:
    """The steps to the image's version; none: it is there. Raises Refused. What the facts do not show, a daemon of
    these files and an engine that has read its own, is due until a round has done it. @by_hand: the engine is set up
    by hand."""
    _require_a_host(host)
    if host.owner is not None:
        why = f"cgpu is on the host already, by {host.owner}"
        raise Refused("OtherInstallation", why, "remove that first, or leave this node to it")
    broken, _, why = host.broken.partition("\n")
    if broken == image.build and host.build != image.build:
        if host.has_before:
            return Plan((Step.PUT_BACK,))
        raise put_back(why)
    is_new = host.build != image.build
    steps = [Step.PUT] if is_new else []
    steps += _modules(host, image, is_new)
    kept = []
    must_load = _must_load(host, image)
    if must_load:
        steps.append(Step.LOAD)
    if is_new or must_load or not host.is_active or Step.DAEMON in host.due:  # it mounts the module's nodes
        steps.append(Step.DAEMON)
    if host.loaded not in (None, image.version) or host.other_build:
        if host.tenants:
            new = "another build of it" if host.loaded == image.version else image.version
            kept.append(
                f"cgpu_km {host.loaded} stays loaded, and {new} is installed, while {len(host.tenants)} of "
                f"the node's containers have a slice ({_some(host.tenants)}): drain the node"
            )
        else:
            steps.append(Step.REPLACE_MODULE)
    engine = "" if by_hand else _engine(host)
    if host.operator is not None and not engine and not by_hand and f"{PREFIX}/bin/cgpu-runtime" not in host.operator:
        kept.append(
            f"containers get no slice yet, the GPU Operator's toolkit does not call cgpu-runtime: {OPERATOR_HINT}"
        )
    if engine and (steps or host.due & {Step.ENGINE, Step.RESTORE_ENGINE}):
        steps.append(Step.ENGINE)
    return Plan(tuple(steps), engine, "; ".join(kept))


def remove(host: Host, by_hand: bool = False) -> Plan:
    """The steps to a node without cgpu; none: it is not there. Raises Refused. @by_hand: as for install()."""
    if host.installed is None:
        if host.owner is not None:
            why = f"cgpu is on the host by {host.owner}, and not by this installer"
            raise Refused("OtherInstallation", why, "remove it in the way it came")
        return Plan(())
    if host.missing:
        raise Refused("NoTools", f"the host has no {_some(host.missing)}", "install them (bash, coreutils, kmod)")
    if host.tenants:
        why = f"{len(host.tenants)} of the node's containers have a slice ({_some(host.tenants)})"
        raise Refused("InUse", why, "drain the node; nothing was removed")
    if host.has_agent:  # the kubelet would go on to admit pods for it
        raise Refused("InUse", "cgpu-kube serves the node", AGENT_HINT)
    unload = (Step.UNLOAD,) if host.loaded is not None else ()
    restore = () if by_hand else (Step.RESTORE_ENGINE,)
    return Plan((Step.CORDON, *unload, *restore, Step.REMOVE), "" if by_hand else CONTAINERD)


#: The condition of the node, its reasons when True, and False but for those of Refused.
CONDITION = "GPUShareInstalled"
DONE, KEPT, GONE, FAILED = "Installed", "UpdatePending", "Removed", "StepFailed"
