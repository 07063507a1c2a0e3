# SPDX-License-Identifier: MIT
"""Reads and writes /proc/cgpu_km (docs/reference/proc.md), and reads /sys/module.

No other module of the command line does.

A container that ends between listing its directory and reading its files is left out.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cgpu_common.exits import ENROL, CgpuError, Exit, not_permitted, refused
from cgpu_common.holders import living
from cgpu_common.kernel_abi import UVM_NAMES
from cgpu_common.model import Container, KernelGpu, Slot, Snapshot

T = TypeVar("T")

MODULE = "cgpu_km"
LIVE = Path("/proc/cgpu_km")
GPU_NUMBERS = ("policy", "max_inst", "free_weight", "prio_ratio", "slice_us")  # files of N/ with a field of their name
NODES_TYPE = "cgpu"  # of the file system with the nodes of containers

# procfs answers EIO when a file is removed between its open and its read.
_GONE = {errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENXIO, errno.ENOTDIR, errno.EIO}


@dataclass(frozen=True)
class Paths:
    """The paths that the commands use."""

    root: Path
    proc: Path
    driver: Path
    engine: Path
    run: Path
    modules: Path

    @property
    def nodes(self) -> Path:
        """Mount point of the module's file system with the containers' nodes; the mount pins the module."""
        return self.root / "dev/cgpu"

    @property
    def drain(self) -> Path:
        """Exists while no container may start: cgpu drain makes it, cgpud checks it."""
        return self.run / "drain"

    @classmethod
    def below(cls, root: str = "/", proc: str | None = None) -> Paths:
        base = Path(root)
        return cls(
            root=base,
            proc=Path(proc) if proc else base / "proc/cgpu_km",
            driver=base / "proc/driver/nvidia",
            engine=base / "var/lib/docker/containers",
            run=base / "run/cgpu",
            modules=base / "sys/module",
        )


def nodes_are_mounted(paths: Paths) -> bool:
    try:
        lines = (paths.root / "proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(words[1:3] == [str(paths.nodes), NODES_TYPE] for words in map(str.split, lines))


def nodes_are_missing(paths: Paths) -> bool:
    """Not mounted, although the loaded module has this file system; earlier versions did not."""
    try:
        types = (paths.root / "proc/filesystems").read_text().split()
    except OSError:
        return False
    return NODES_TYPE in types and not nodes_are_mounted(paths)


class _Vanished(Exception):
    """The file was removed before it was read."""


def read_file(path: Path) -> str:
    """Raises _Vanished if the file was removed, CgpuError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as err:
        if err.errno in _GONE:
            raise _Vanished from err
        if err.errno in (errno.EPERM, errno.EACCES):
            raise not_permitted(str(path)) from err
        raise


def _value(path: Path, convert: Callable[[str], T]) -> T:
    text = read_file(path).strip()
    try:
        return convert(text)
    except ValueError:
        raise CgpuError(
            Exit.REFUSED, str(path), f"unexpected text {text[:40]!r}", "see docs/reference/proc.md"
        ) from None


def _int(path: Path) -> int:
    return _value(path, int)


def parse_stat(text: str) -> dict[str, str]:
    """Lines `name value`; anything else is left out."""
    pairs = (line.split(None, 1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _numbers(stat: dict[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in stat.items() if value.isdecimal()}


def parse_meminfo(text: str) -> tuple[tuple[int, int], ...]:
    """The processes of a meminfo as (pid, bytes)."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == "PID:" and words[2] == "Mem:" and words[1].isdecimal():
            found.append((int(words[1]), int(words[3]) if words[3].isdecimal() else 0))
    return tuple(found)


def parse_inst(line: str) -> Container | None:
    """One line of inst_ctl, or None if it is not one."""
    words = line.split()
    fields = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    try:
        pairs = [pair.split(":") for pair in fields.get("gpu", "").split(",") if pair]
        return Container(
            id=words[0],
            cookie=int(fields["cookie"], 0),
            dir=fields["dir"],
            major=int(fields["major"]),
            ctl_minor=int(fields["ctl"]),
            uvm_minor=int(fields["uvm"]),
            dying=fields["state"] != "live",
            slots=tuple(Slot(int(number), int(minor)) for number, minor in pairs),
        )
    except (KeyError, ValueError, IndexError):
        return None


def engine_record(paths: Paths, container_id: str) -> dict[str, Any]:
    """The container in Docker's own file, read without a call to the engine; empty if there is none."""
    try:
        text = (paths.engine / container_id / "config.v2.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return {}
    import json  # slow to import

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def engine_name(paths: Paths, container_id: str) -> str | None:
    """The name docker gave the container."""
    name = engine_record(paths, container_id).get("Name")
    return name.lstrip("/") if isinstance(name, str) else None


def process_name(paths: Paths, pid: int) -> str | None:
    """`comm`, which the process itself can set to anything."""
    try:
        return (paths.root / f"proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def driver_version(paths: Paths) -> str | None:
    """Of NVIDIA's driver, from its /proc; its first line if there is no number in it."""
    try:
        first = (paths.driver / "version").read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None
    digits = [word for word in first.split() if word[0].isdigit() and "." in word]
    return digits[0] if digits else first


def gpu_name(paths: Paths, pci: str) -> str:
    """The model, from the driver's own /proc."""
    try:
        text = (paths.driver / "gpus" / pci / "information").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "-"
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model":
            return value.strip() or "-"
    return "-"


def _ceiling(path: Path) -> int:
    """0 too where the module is older than its package, until it is loaded again."""
    try:
        return _int(path / "ceiling")
    except _Vanished:
        return 0


@dataclass(frozen=True)
class _Counters:
    """A container's stat, and when it was read: a share is over the time between two readings of it."""

    stat: dict[str, int]
    at_ns: int


def _counters(folders: Iterable[Path]) -> dict[Path, _Counters]:
    """Those of all containers of a GPU before anything else of them: with windows that begin and end together their
    shares add up to what the GPU gave. One that has gone is left out."""
    found = {}
    for path in folders:
        try:
            begin = time.monotonic_ns()
            text = read_file(path / "stat")
        except _Vanished:
            continue
        found[path] = _Counters(_numbers(parse_stat(text)), (begin + time.monotonic_ns()) // 2)
    return found


def _slot(paths: Paths, gpu: int, path: Path, counters: _Counters, listed: dict[str, Container]) -> Slot:
    container_id = read_file(path / "id").strip()
    known = listed.get(container_id)
    pids = living(paths.root / "proc", paths.nodes / path.name, parse_meminfo(read_file(path / "meminfo")))
    return replace(
        _brief_slot(gpu, path, counters, known),
        id=container_id,
        limit=_int(path / "memsize"),
        used=counters.stat.get("used_bytes", sum(size for _, size in pids)),
        pids=pids,
        name=engine_name(paths, container_id),
    )


def _slots(paths: Paths, gpu: int, path: Path, listed: dict[str, Container]) -> Iterator[Slot]:
    for entry, counters in _counters(entry for entry in sorted(path.iterdir()) if entry.is_dir()).items():
        try:
            yield _slot(paths, gpu, entry, counters, listed)
        except _Vanished:
            continue


def _brief_slot(gpu: int, path: Path, counters: _Counters, container: Container | None) -> Slot:
    return Slot(
        gpu=gpu,
        limit=counters.stat.get("limit_bytes", 0),
        used=counters.stat.get("used_bytes", 0),
        weight=_int(path / "weight"),
        highprio=_int(path / "highprio") != 0,
        ceiling=_ceiling(path),
        id=container.id if container else "",
        dir=path.name,
        stat=counters.stat,
        dying=container is not None and container.dying,
        at_ns=counters.at_ns,
    )


def _brief_slots(gpu: int, path: Path, listed: dict[str, Container]) -> Iterator[Slot]:
    there = {path / one.dir: one for one in listed.values() if any(number == gpu for number, _ in one.gpus)}
    for folder, counters in _counters(there).items():
        try:
            yield _brief_slot(gpu, folder, counters, there[folder])
        except _Vanished:
            continue


def _uvm(text: str) -> int:
    return UVM_NAMES.index(text) if text in UVM_NAMES else -1


def _gpu(paths: Paths, path: Path, listed: dict[str, Container], brief: bool) -> KernelGpu:
    index = int(path.name)
    pci = read_file(path / "pci").strip()
    stat = parse_stat(read_file(path / "stat"))
    numbers = _numbers(stat)
    settings: dict[str, Any] = {name: _int(path / name) for name in GPU_NUMBERS}
    return KernelGpu(
        index=index,
        uuid=read_file(path / "uuid").strip(),
        pci=pci,
        nv_minor=_int(path / "minor"),
        total=numbers.get("total_bytes", 0),
        uvm=_uvm(read_file(path / "uvm").strip()),
        used=numbers.get("used_bytes", 0),
        limits=numbers.get("limits_bytes"),
        name=gpu_name(paths, pci),
        stat=numbers,
        control=stat.get("control", "none"),
        control_seen=stat.get("control_seen", "none"),
        slots=tuple(_brief_slots(index, path, listed) if brief else _slots(paths, index, path, listed)),
        **settings,
    )


def _tree_version(paths: Paths) -> str | None:
    """`version` of the tree: the active core's. None without the module."""
    try:
        return read_file(paths.proc / "version").strip()
    except _Vanished:
        return None


def is_loaded(paths: Paths) -> bool:
    """Is cgpu_km loaded, with or without a core?"""
    return _tree_version(paths) is not None


def module_version(paths: Paths) -> str | None:
    """cgpu_km's own version, which a swap of cores does not change; None without the module."""
    tree = _tree_version(paths)
    if tree is None:
        return None
    try:
        return read_file(paths.modules / MODULE / "version").strip()
    except _Vanished:  # a copied tree; without a core its version is cgpu_km's own
        return "unknown" if cores(paths) else tree


def core_module(version: str) -> str:
    """The core's name for modprobe."""
    return f"cgpu_core_{version.replace('.', '_')}"


def signed_only(paths: Paths) -> bool:
    """Does the kernel require trusted signatures: by lockdown (Secure Boot), or by sig_enforce?"""

    def has_word(path: Path, *words: str) -> bool:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return False
        return any(word in text for word in words)

    return has_word(paths.modules / "module/parameters/sig_enforce", "Y") or has_word(
        paths.root / "sys/kernel/security/lockdown", "[integrity]", "[confidentiality]"
    )


def how_to_load(paths: Paths) -> str:
    return f"modprobe {MODULE}" + (f"; if its key is not trusted: {ENROL}" if signed_only(paths) else "")


def no_module(paths: Paths, what: str | None = None) -> CgpuError:
    return CgpuError(Exit.NO_MODULE, what or str(paths.proc), f"the module {MODULE} is not loaded", how_to_load(paths))


@dataclass(frozen=True)
class SwapResult:
    """The last swap of cores, or refused registration of a core. @result: 0, or an errno."""

    version: str
    result: int
    why: str


@dataclass(frozen=True)
class Cores:
    """The contents of /proc/cgpu_km/upgrade, if a core is registered."""

    active: str
    others: list[str]
    last: SwapResult | None


_SWAP_RESULT = re.compile(r"(.+?) (0|-[0-9]{1,9})(?: (.*))?")


def parse_upgrade(text: str) -> tuple[list[str], SwapResult | None]:
    """The registered cores, the active one first, and the last swap.

    Registered versions are digits and dots. The last line may have the version of a refused core, which is any text,
    with blanks and line ends.
    """
    names, _, tail = f"\n{text}".partition("\nlast: ")
    found = _SWAP_RESULT.fullmatch(" ".join(tail.split()))
    last = SwapResult(found[1], abs(int(found[2])), found[3] or "") if found else None
    return names.split(), last


def _upgrade(paths: Paths) -> tuple[list[str], SwapResult | None]:
    try:
        return parse_upgrade(read_file(paths.proc / "upgrade"))
    except _Vanished:
        return [], None


def cores(paths: Paths) -> Cores | None:
    """None without the module, or without a core."""
    names, last = _upgrade(paths)
    return Cores(names[0], names[1:], last) if names else None


def last_swap(paths: Paths) -> SwapResult | None:
    """The last swap, also if no core is registered."""
    return _upgrade(paths)[1]


def containers(paths: Paths) -> tuple[Container, ...]:
    """The containers in inst_ctl."""
    try:
        lines = read_file(paths.proc / "inst_ctl").splitlines()
    except _Vanished:
        raise no_module(paths) from None
    return tuple(found for line in lines if (found := parse_inst(line)))


def ended(paths: Paths) -> tuple[Container, ...]:
    """The destroyed containers of which something is held; none of a module that has no such file."""
    try:
        lines = read_file(paths.proc / "ended").splitlines()
    except _Vanished:
        return ()
    without_nodes = " major=0 ctl=0 uvm=0 state=dying"
    return tuple(found for line in lines if (found := parse_inst(line + without_nodes)))


def read_tree(paths: Paths, brief: bool = False) -> Snapshot:
    """Read the whole tree. brief: without processes and names, for frequent readers."""
    at_ns = time.monotonic_ns()
    version = _tree_version(paths)
    if version is None:
        raise no_module(paths)
    listed = containers(paths)
    by_id = {container.id: container for container in listed}
    found = []
    try:
        numbers = sorted(int(entry.name) for entry in paths.proc.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        raise no_module(paths) from None
    for number in numbers:
        try:
            found.append(_gpu(paths, paths.proc / str(number), by_id, brief))
        except (_Vanished, FileNotFoundError):
            continue
    return Snapshot(module=version, gpus=tuple(found), containers=listed, at_ns=at_ns)


def processes_of(paths: Paths, slot: Slot) -> tuple[int, ...]:
    """The processes that hold memory of a slot of a brief tree; () if it has gone since."""
    try:
        text = read_file(paths.proc / str(slot.gpu) / slot.dir / "meminfo")
    except _Vanished:
        return ()
    return tuple(pid for pid, _ in parse_meminfo(text))


def read_node(path: Path) -> str:
    """One node's text without its newline; FileNotFoundError-like failures are NOT_FOUND."""
    try:
        return read_file(path).rstrip("\n")
    except _Vanished:
        raise CgpuError(Exit.NOT_FOUND, str(path), "there is no such file", "cgpu-smi") from None


def write_node(path: Path, text: str, what: str) -> None:
    """One write() of one command. procfs ignores O_TRUNC; a copied tree in a test needs it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, text.encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as err:
        raise refused(what, path.name, err) from err
