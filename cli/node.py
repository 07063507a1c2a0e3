# SPDX-License-Identifier: MIT
"""Reads what cgpu doctor checks: files below the root, the tree, cgpud's status, NVML. Changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgpu_common import mps as names
from cgpu_common import versions
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.model import Container, Snapshot
from cgpu_common.proc import (
    LIVE,
    MODULE,
    Paths,
    engine_record,
    nodes_are_missing,
    parse_stat,
    read_node,
    read_tree,
    signed_only,
)
from cgpu_common.toml import tomllib

from . import daemon
from .columns import printable
from .edit import TOOLKIT, lookup
from .facts import Card, Engine, Facts, OwnLimits, RefusedStart
from .names import by_name, label

if TYPE_CHECKING:
    from cgpu_common.config import Config

NVML_S = 5.0
FILE_MAX = 1 << 20
MODULES_MAX = 16 << 20
DPKG_MAX = 16 << 20
RUNTIME = "cgpu-runtime"
ENVIRON_MAX = 1 << 17
VARIABLE = b"ALIYUN_COM_GPU_MEM_CONTAINER"
NVIDIAS = (b"NVIDIA_GPU_MEMORY_LIMIT", b"NVIDIA_GPU_MEMORY_REQUEST")  # where cgpu.toml makes slices by them
OWN_LIMITS_FROM = 615  # NVIDIA's branch
CGROUPS_MAX = 20000
_CONTAINER = re.compile(r"[0-9a-f]{64}")
LIBRARY = "libcuda.so.1"
LIBRARY_FOLDERS = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64", "lib"),
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/local/cuda/compat"),
)
ENGINES = {
    "docker": (("usr/bin/dockerd", "usr/sbin/dockerd"), ("etc/docker/daemon.json",)),
    "podman": (
        ("usr/bin/podman",),
        ("etc/containers/containers.conf", "etc/containers/containers.conf.d/*.conf"),
    ),
    "containerd": (("usr/bin/containerd",), ("etc/containerd/config.toml",)),
}
#: With Docker alone, containerd is its part and needs no set-up.
OWN_CONTAINERD = ("usr/bin/kubelet", "usr/bin/nerdctl", "usr/local/bin/nerdctl")


def _text(path: Path, most: int = FILE_MAX) -> str:
    """The beginning of a file; the empty text if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode(errors="replace")
    except OSError:
        return ""


def _exists(root: Path, names: tuple[str, ...]) -> bool:
    return any((root / name).is_file() for name in names)


def _parsed(path: Path) -> Any:
    """ValueError: neither JSON nor TOML."""
    text = _text(path)
    try:
        return json.loads(text or "{}") if path.suffix == ".json" else tomllib.loads(text)
    except RecursionError as err:
        raise ValueError("nested too deep") from err


def _is_ours(value: object) -> bool:
    return isinstance(value, str) and value.rsplit("/", 1)[-1] == RUNTIME


def _mentions_ours(data: object) -> bool:
    """Is cgpu-runtime a value anywhere in this configuration? Without recursion: the file may be any."""
    left = [data]
    while left:
        one = left.pop()
        if _is_ours(one):
            return True
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
    return False


def _engine(root: Path, name: str) -> Engine:
    programs, files = ENGINES[name]
    installed = _exists(root, programs)
    if name == "containerd" and _exists(root, ENGINES["docker"][0]) and not _exists(root, OWN_CONTAINERD):
        installed = False
    ours = False
    for pattern in files:
        for path in sorted(root.glob(pattern)):
            try:
                ours = ours or _mentions_ours(_parsed(path))
            except ValueError as err:
                return Engine(name, installed, False, error=f"{path}: {err}")
    return Engine(name, installed, ours)


def _toolkit(root: Path) -> tuple[Engine, str, tuple[int, ...]]:
    """NVIDIA's runtime, its mode, and its version, () if it is not known."""
    from cgpu_common import toolkit

    own = _exists(root, (f"usr/bin/{TOOLKIT}", f"usr/local/bin/{TOOLKIT}"))
    operated = not own and (root / toolkit.OPERATOR).is_file()
    path = root / (toolkit.OPERATOR if operated else f"etc/{TOOLKIT}/config.toml")
    installed = own or operated
    try:
        data = _parsed(path)
    except ValueError as err:
        return Engine(TOOLKIT, installed, False, error=f"{path}: {err}"), "", ()
    runtimes = lookup(data, TOOLKIT, "runtimes")
    listed = runtimes if isinstance(runtimes, list) else []
    ours = bool(listed) and _is_ours(listed[0])
    mode = lookup(data, TOOLKIT, "mode")
    misplaced = any(map(_is_ours, listed)) and not ours
    number = toolkit.version(_text(root / "var/lib/dpkg/status", DPKG_MAX)) if own else None
    mode = toolkit.effective_mode(mode if isinstance(mode, str) else "", number)
    return Engine(TOOLKIT, installed, ours, "misplaced" if misplaced else ""), mode, number or ()


def configuration(root: Path) -> tuple[str, Config]:
    """The error of cgpu.toml, and what it says without one."""
    from cgpu_common import config
    from cgpu_common.errors import ConfigError

    path = root / config.DEFAULT_PATH.relative_to("/")
    try:
        return "", config.load(path if path.exists() else None, root / config.RUNTIME_CONF.relative_to("/"), path)
    except ConfigError as err:
        return str(err), config.Config()


def has_configuration(root: Path) -> bool:
    from cgpu_common import config

    path = root / config.DEFAULT_PATH.relative_to("/")
    return path.exists() or any(path.with_name(path.name + ".d").glob("*.toml"))


def cards() -> tuple[tuple[Card, ...] | None, str]:
    """By NVML, which does not return while a driver hangs: in a thread that is left behind then."""
    out: list[tuple[tuple[Card, ...] | None, str]] = []

    def query() -> None:
        from cgpu_common import gpus

        try:
            found = gpus.query()
        except gpus.NvmlAbsent as err:
            out.append((None, str(err)))
        else:
            read = (Card(one.index, one.mig, one.confidential, one.compute_mode, one.lost, one.uuid) for one in found)
            out.append((tuple(read), ""))

    thread = threading.Thread(target=query, daemon=True)
    thread.start()
    thread.join(NVML_S)
    return out[0] if out else (None, f"no answer within {NVML_S:g} s")


def _snapshot(paths: Paths) -> Snapshot | None:
    try:
        return read_tree(paths)
    except CgpuError as err:
        if err.code is Exit.NO_MODULE:
            return None
        raise


def _of_stat(paths: Paths, snapshot: Snapshot | None, name: str) -> dict[int, str]:
    found = {}
    for gpu in snapshot.gpus if snapshot else ():
        try:
            found[gpu.index] = parse_stat(read_node(paths.proc / str(gpu.index) / "stat")).get(name, "none")
        except CgpuError:
            continue
    return found


def _has_libcuda(root: Path, pid: int) -> bool:
    """In the usual places of the process's own root. Only names are looked up: links in it lead elsewhere here."""
    own = root / "proc" / str(pid) / "root"
    return any(os.path.lexists(own / folder / LIBRARY) for folder in LIBRARY_FOLDERS)


def _without_libcuda(root: Path, status: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Short ids of running containers; None: cgpud names none."""
    pids = {str(row.get("id")): row.get("pid") for row in daemon.rows(status, "containers")}
    known = {name: pid for name, pid in pids.items() if isinstance(pid, int) and (root / f"proc/{pid}/root").exists()}
    return tuple(name[:12] for name, pid in known.items() if not _has_libcuda(root, pid)) if known else None


def _unfollowed(status: dict[str, Any] | None, listed: tuple[Container, ...]) -> tuple[str, ...]:
    """The daemon's containers, by the cookie, that it has no record of."""
    from cgpu_common.cookie import is_our_cookie

    if status is None:
        return ()
    ids = {daemon.kernel_id(row) for row in daemon.rows(status, "containers")}
    return tuple(label(one.id) for one in listed if not one.dying and is_our_cookie(one.cookie) and one.id not in ids)


def _order(release: str) -> tuple[tuple[int, int | str], ...]:
    """Of two releases of a kernel the later one is greater: 6.12.9 above 6.1.0."""
    words = re.findall(r"[0-9]{1,9}|[a-z]+", release)
    return tuple((1, int(word)) if word.isdigit() else (0, word) for word in words)


def _next_kernel(root: Path) -> str:
    """The one that the boot loader's saved entry names (EL), else the latest with an image; "": none is found."""
    saved = re.search(r"^saved_entry=(.+)$", _text(root / "boot/grub2/grubenv"), re.M)
    if saved:
        entry = _text(root / "boot/loader/entries" / f"{Path(saved[1]).name}.conf")
        image = re.search(r"^linux\s+\S*/vmlinuz-(\S+)$", entry, re.M)
        if image:
            return image[1]
    there = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-[0-9]*")]
    return max(there, key=_order, default="")


def _lacking(root: Path, release: str) -> tuple[str, ...]:
    """Of what a slice needs of that kernel: cgpu_km, nvidia, headers to build them with."""
    listed = _text(root / f"lib/modules/{release}/modules.dep", MODULES_MAX)
    names = {MODULE: MODULE, "nvidia": "nvidia(-(current|tesla|legacy|open)[\\w-]*)?"}  # Debian's has a suffix
    lacks = [name for name, file in names.items() if not re.search(rf"/{file}\.ko(\.\w+)?:", listed)]
    if not (root / f"lib/modules/{release}/build/Makefile").is_file():
        lacks.append("headers")
    return tuple(lacks)


def _vidmem(path: Path) -> dict[str, int]:
    """A file of the dmem controller: NVIDIA's GPUs with a number of bytes other than 0."""
    rows = [line.split() for line in _text(path, 1 << 16).splitlines()]
    found = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
    return {gpu: size for gpu, size in found.items() if gpu.startswith("nvidia/") and size}


def _unused(group: Path) -> int:
    """What the group reserves above the reservations within it. NVIDIA's tools add that of a container to each group
    above its own, and the end of the container takes none back. A group without groups within may reserve for itself
    while it has processes."""
    kept = _vidmem(group / "dmem.min")
    within = [path.parent for path in group.glob("*/dmem.min")] if kept else []
    if not kept or (not within and "populated 1" in _text(group / "cgroup.events")):
        return 0
    inner = [_vidmem(one / "dmem.min") for one in within]
    return max(size - sum(one.get(gpu, 0) for one in inner) for gpu, size in kept.items())


def _own_limits(root: Path, driver_text: str) -> OwnLimits | None:
    """None: the driver has none."""
    release = re.search(r"\b([0-9]{3})\.[0-9]{1,4}\b", driver_text)
    if not release or int(release[1]) < OWN_LIMITS_FROM:
        return None
    mode = re.search(r"\bRmMemacctMode=([0-9]+)", _text(root / "proc/driver/nvidia/params"))
    top = root / "sys/fs/cgroup"
    if mode and mode[1] == "0":
        return OwnLimits("off")
    if (mode and mode[1] == "1") or not _vidmem(top / "dmem.capacity"):
        return OwnLimits("misc")
    groups = [path.parent for path in islice(top.rglob("dmem.max"), CGROUPS_MAX)]
    names = {group: "/" + str(group.relative_to(top)) for group in sorted(groups)}
    limited = tuple(name for group, name in names.items() if _vidmem(group / "dmem.max"))
    leaked = tuple((name, unused) for group, name in names.items() if (unused := _unused(group)) > 0)
    return OwnLimits("dmem", limited, leaked)


def _asks_for_a_slice(environ: bytes, by_nvidia: bool) -> bool:
    values = dict(one.split(b"=", 1) for one in environ.split(b"\0") if b"=" in one)
    if values.get(b"CGPU_DISABLE", b"").lower() in (b"true", b"1"):
        return False
    size = values.get(VARIABLE, b"").strip()
    return size != b"0" if size else by_nvidia and any(values.get(name, b"").strip() for name in NVIDIAS)


def _past_us(
    root: Path, status: dict[str, Any] | None, listed: tuple[Container, ...], by_nvidia: bool
) -> tuple[str, ...] | None:
    """Running containers whose first process has the variables, and that have no slice; None: cgpud names none.
    `by_nvidia`: NVIDIA's own, too."""
    if status is None:
        return None
    known = {str(row.get("id")) for row in daemon.rows(status, "containers")} | {one.id for one in listed}
    seen: dict[str, bool] = {}
    pids = sorted(int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdigit())
    for pid in pids:
        found = _CONTAINER.findall(_text(root / f"proc/{pid}/cgroup", 1 << 14))
        if not found or found[-1] in seen or found[-1] in known:
            continue
        try:
            with (root / f"proc/{pid}/environ").open("rb") as stream:
                seen[found[-1]] = _asks_for_a_slice(stream.read(ENVIRON_MAX), by_nvidia)
        except OSError:
            continue  # it has just ended
    return tuple(sorted(label(one) for one, asks in seen.items() if asks))


#: How Docker's error has the line of cgpu-runtime (cgpud/runtime/report.c).
_REFUSED = re.compile(r"\bcgpu: (.+?)(?:: unknown)?\s*\Z", re.S)
_RESTARTED = ("always", "unless-stopped")


def _refused_start(paths: Paths, container_id: str) -> RefusedStart | None:
    """By Docker's own files, without a call to it."""
    record = engine_record(paths, container_id)
    try:
        limits = json.loads(_text(paths.engine / container_id / "hostconfig.json"))
        is_restarted = limits["RestartPolicy"]["Name"] in _RESTARTED
        state = record["State"]
        is_stopped = not state["Running"] and not record.get("HasBeenManuallyStopped", False)
        found = _REFUSED.search(state["Error"])
        name = str(record["Name"]).lstrip("/")
    except (ValueError, RecursionError, KeyError, TypeError):
        return None  # of another version of Docker
    if not (found and is_restarted and is_stopped):
        return None
    return RefusedStart(printable(name), printable(" ".join(found[1].split())))


def _refused_starts(paths: Paths) -> tuple[RefusedStart, ...] | None:
    """None: Docker has no containers, or its folder is for root only."""
    try:
        ids = sorted(path.name for path in paths.engine.iterdir())
    except OSError:
        return None
    found = (_refused_start(paths, one) for one in ids)
    return tuple(sorted((one for one in found if one), key=lambda one: by_name(one.name)))


def read(paths: Paths) -> Facts:
    """All facts. Raises CgpuError only if the tree cannot be read."""
    from cgpu_common import toolkit

    root = paths.root
    release = _text(root / "proc/sys/kernel/osrelease").strip() or os.uname().release
    built = _text(root / f"boot/config-{release}")
    snapshot = _snapshot(paths)
    silence = ""
    remedy = ""
    try:
        status: dict[str, Any] | None = daemon.ask(paths, "status")
    except daemon.Silence as silent:
        status, silence, remedy = None, silent.why, silent.remedy
    found = versions.collect(paths, str((status or {}).get("version", "unknown")), "", "")
    drift, unmatched = (status or {}).get("drift"), (status or {}).get("no_such_gpu")
    below, mode, number = _toolkit(root)
    config_error, config = configuration(root)
    driver_text = next(iter(_text(paths.driver / "version").splitlines()), "")
    read = (status or {}).get("config_fingerprint")
    nvml = cards() if paths.proc == LIVE else (None, "a copied tree")
    mps = root / "tmp/nvidia-mps"
    next_kernel = _next_kernel(root)
    return Facts(
        kernel=release,
        machine=os.uname().machine,
        kprobes="\nCONFIG_KPROBES=y\n" in f"\n{built}" if built else None,
        headers=(root / f"lib/modules/{release}/build/Makefile").is_file(),
        dkms=_exists(root, ("usr/sbin/dkms", "usr/bin/dkms")),
        dkms_kernels=tuple(path.parts[-3] for path in root.glob("var/lib/dkms/cgpu/*/*/*/module")),
        module_file=f"/{MODULE}.ko" in _text(root / f"lib/modules/{release}/modules.dep", MODULES_MAX),
        signed_only=signed_only(paths),
        module=found.module,
        core=found.core,
        package=found.package,
        nodes_missing=nodes_are_missing(paths),
        driver_text=driver_text,
        any_driver=_text(root / f"sys/module/{MODULE}/parameters/any_driver").strip() == "Y",
        driver_nodes=tuple(name for name in ("nvidiactl", "nvidia-uvm") if (root / "dev" / name).exists()),
        runtime=next(
            (
                str(root / place / RUNTIME)
                for place in ("usr/bin", "usr/local/bin")
                if (root / place / RUNTIME).exists()
            ),
            shutil.which(RUNTIME) if root == Path("/") else None,
        ),
        toolkit=toolkit.found(root),
        toolkit_mode=mode,
        toolkit_version=number,
        legacy_hook_config=config.legacy_hook_config,
        engines=(*(_engine(root, name) for name in ENGINES), below),
        config_error=config_error,
        config_file=has_configuration(root),
        daemon_silence=silence,
        daemon_remedy=remedy,
        daemon_version=found.daemon,
        config_is_read=read == config.fingerprint if isinstance(read, str) and not config_error else None,
        drift=len(drift) if isinstance(drift, list) else None,
        unknown_gpus=tuple(map(str, unmatched)) if isinstance(unmatched, list) else (),
        draining=paths.drain.exists(),
        snapshot=snapshot,
        controls_ineffective=_of_stat(paths, snapshot, "control_ineffective"),
        effect_check=_of_stat(paths, snapshot, "effect_check"),
        run_state=_of_stat(paths, snapshot, "run_state_source"),
        run_state_errors=_of_stat(paths, snapshot, "run_state_errors"),
        cards=nvml[0],
        cards_error=nvml[1],
        mps=(str(mps),) if mps.exists() else (),
        mps_units=tuple(sorted(path.parent.name for path in root.glob(f"{names.ROOT[1:]}/*/{names.READY}"))),
        unfollowed=_unfollowed(status, snapshot.containers if snapshot else ()),
        without_libcuda=_without_libcuda(root, status),
        next_kernel=next_kernel,
        next_lacks=_lacking(root, next_kernel) if next_kernel else (),
        past_us=_past_us(
            root,
            status,
            snapshot.containers if snapshot else (),
            config.container.nvidia_memory_limit == "slice",
        ),
        refused_starts=_refused_starts(paths),
        own_limits=_own_limits(root, driver_text),
    )
