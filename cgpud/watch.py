# SPDX-License-Identifier: MIT
"""Detects the end of containers by pidfds and cgroup.events; with cgroup v1 by pidfds alone.

Both are level-triggered: a late check loses nothing. While root has no inotify instance or watch left, the cgroups are
looked at each LOOK_S instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath

from cgpu_common import cgroup, log
from cgpu_common.inotify import IN_DELETE, IN_IGNORED, IN_MODIFY, IN_ONLYDIR, IN_Q_OVERFLOW, Inotify
from cgpu_common.model import MIB
from cgpu_common.proc import NODES_TYPE, parse_stat
from cgpud import host_paths, oci
from cgpud.host_paths import GONE
from cgpud.places import Places
from cgpud.state import Trigger
from cgpud.values import Cgroup, Phase, Process, Record

Key = tuple[str, int]


_NAMESPACES = {"network": "net", "pid": "pid"}  # names of config.json and of /proc/<pid>/ns
_PID_NAMESPACE = re.compile(r"/proc/([0-9]{1,10})/ns/pid", re.ASCII)

NVIDIA_VENDOR = "0x10de"  # as sysfs writes it

# The cgroup empties some milliseconds after the exit of init. inotify reports it; these checks are a fallback.
CHECK_AGAIN_S = (0.1, 1.0)
LOOK_S = 1.0
ENGINES_DEPTH = 32  # of the cgroups that engines make for containers, those of engines in containers too


class Facts:
    """Reads /proc and the cgroup tree. No state, no decisions."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        dev: Path = Path("/dev"),
        drm: Path = Path("/sys/class/drm"),
    ) -> None:
        self.proc = proc
        self.dev = dev
        self.drm_class = drm
        self.cgroups = cgroups
        self._lookups = host_paths.Lookups()
        self.controller = ""
        # With cgroup v1 (or v1 and v2 mixed) every container has its own directory in the hierarchy "devices".
        if not (cgroups / "cgroup.controllers").exists() and (cgroups / "devices/cgroup.procs").exists():
            self.cgroups, self.controller = cgroups / "devices", "devices"

    def _read(self, path: Path) -> str | None:
        """None if the file is gone; any other failure (no free descriptor) is an error."""
        try:
            with path.open(
                "rb", buffering=0
            ) as file:  # read_text() costs twice as much, and a start reads several files
                return file.read().decode("utf-8", errors="replace")
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def context_mib(self, index: int) -> int:
        """What cgpu_km charges for a context of the GPU, rounded up; 0: not known, or the module has not attached."""
        try:
            found = parse_stat(self._read(self.proc / f"cgpu_km/{index}/stat") or "").get("context_bytes", "")
        except OSError:
            return 0
        return -(-int(found) // MIB) if found.isdecimal() else 0

    def boot_id(self) -> str:
        return (self._read(self.proc / "sys/kernel/random/boot_id") or "").strip()

    def devices(self) -> str:
        return self._read(self.proc / "devices") or ""

    def real_nodes(self, nv_minor: int) -> tuple[tuple[str, int, int], ...]:
        """(path, major, minor) of the driver's own nodes for one GPU, those that exist. OSError: no /dev/nvidiaM."""
        found = []
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", f"nvidia{nv_minor}"):
            try:
                number = (self.dev / name).stat().st_rdev
            except FileNotFoundError:
                if name == f"nvidia{nv_minor}":
                    raise
                continue
            found.append((f"/dev/{name}", os.major(number), os.minor(number)))
        return tuple(found)

    def drm(self) -> dict[int, str]:
        """Minor of each node of DRM -> PCI address of NVIDIA's GPU behind it; "": another vendor's. A node whose device
        cannot be read is left out."""
        found = {}
        for entry in self.drm_class.glob("*/dev"):  # connectors have none
            number = (self._read(entry) or "").strip().partition(":")[2]
            vendor = (self._read(entry.with_name("device") / "vendor") or "").strip()
            if number.isdecimal() and vendor:
                address = entry.with_name("device").resolve().name
                found[int(number)] = address if vendor == NVIDIA_VENDOR else ""
        return found

    def mps_directories(self) -> tuple[str, ...]:
        """The directories with pipes of an MPS daemon. One that cannot be checked counts as present."""
        return tuple(path for path in oci.MPS_DIRECTORIES if not self._is_absent(path))

    def _is_absent(self, path: str) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            pass
        return False

    def is_own_namespace(self, kind: str, path: str) -> bool:
        """Is the namespace behind this path another one than the daemon's, which is the initial one? False if that
        cannot be known."""
        try:
            here, there = (self.proc / "self/ns" / _NAMESPACES[kind]).stat(), Path(path).stat()
        except PermissionError:  # of another user's process, or of one with more capabilities
            process = _PID_NAMESPACE.fullmatch(path) if kind == "pid" else None
            status = self._read(self.proc / f"{process[1]}/status") if process else None
            return cgroup.pid_namespaces(status or "") > 1
        except (OSError, KeyError, ValueError):
            return False
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) and here.st_dev == there.st_dev

    def cgroup_kind(self) -> str:
        """Of the hierarchy with the devices: v1, v2, or nsdelegate: v2 with that option, as systemd mounts it."""
        found = "v1"
        for one in cgroup.mounts(self.mounts("self")):
            if not self.controller and one.point == str(self.cgroups) and one.kind == "cgroup2":
                found = "nsdelegate" if "nsdelegate" in one.options.split(",") else "v2"
        return found

    def places(self) -> Places:
        """By the mounts of this process as they are now. Of the guarded directories only cgpud's own is looked up: in
        /tmp any user may make a link in a circle, or to a server that does not answer."""
        guarded = (*oci.GUARDED, host_paths.behind_links("/", oci.DAEMON_DIRECTORY))
        return Places(tuple(cgroup.mounts(self.mounts("self"))), guarded)

    async def host_paths(self, directory: str, paths: Collection[str]) -> host_paths.Found:
        """host_paths.find() of these paths, from this directory. Raises Refused."""
        return await self._lookups.find(directory, self.places(), paths)

    def pid_of(self, pidfd: int) -> int | None:
        return cgroup.pid_of_fdinfo(self._read(self.proc / f"self/fdinfo/{pidfd}") or "")

    def pidfd(self, pid: int) -> int | None:
        try:
            return os.pidfd_open(pid) if pid > 0 else None
        except OSError:
            return None

    def kill(self, pid: int, group: Cgroup) -> bool:
        """SIGKILL the process. False: it has ended, or is not in the cgroup or below it. Raises PermissionError."""
        pidfd = self.pidfd(pid)  # before the look at its cgroup: the number cannot be another process's from here on
        if pidfd is None:
            return False
        try:
            path = self.cgroup_path(pid)
            if path is None or not (path == group.path or path.startswith(group.path + "/")):
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def process(self, pid: int) -> Process | None:
        start = cgroup.starttime(self._read(self.proc / f"{pid}/stat") or "")
        return Process(pid, start) if start is not None else None

    def cgroup_path(self, pid: int) -> str | None:
        return cgroup.path_of(self._read(self.proc / f"{pid}/cgroup") or "", self.controller)

    def directory(self, group: Cgroup) -> Path:
        return self.cgroups / group.path.lstrip("/")

    def memory_limit(self, process: Process) -> int | None:
        """Bytes that the memory cgroup of the process, and those above it, leave it; 0: no limit, or no memory cgroup
        that is visible here. None: the process has ended. An OSError if a file cannot be read."""
        root, name, path = self.cgroups, "memory.max", self.cgroup_path(process.pid)
        if self.controller:
            text = self._read(self.proc / f"{process.pid}/cgroup") or ""
            # v1, or v1 beside v2, which then has the memory controller
            v1 = (self.cgroups.parent / "memory").is_dir()
            root = self.cgroups.parent / ("memory" if v1 else "unified")
            name = "memory.limit_in_bytes" if v1 else name
            path = cgroup.path_of(text, "memory" if v1 else "")
        if self.process(process.pid) != process:
            return None
        inner = PurePosixPath(path or "/")
        files = [root / str(one).lstrip("/") / name for one in (inner, *inner.parents)]
        limits = [cgroup.memory_max(self._read(file) or "") for file in files]
        return min((limit for limit in limits if limit), default=0)

    def cgroup_at(self, path: str) -> Cgroup | None:
        try:
            return Cgroup(path, (self.cgroups / path.lstrip("/")).stat().st_ino)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def is_empty(self, group: Cgroup) -> bool:
        """No process in it, gone, or replaced by another of the same name. False if it cannot be read: releasing the
        slice of a running container would be the worse error."""
        try:
            if self.cgroup_at(group.path) != group:
                return True
            if self.controller:
                return not any(True for _ in self.members(group))
            text = self._read(self.directory(group) / "cgroup.events")
        except OSError:
            return False
        return text is None or not cgroup.populated(text)

    def members(self, group: Cgroup) -> Iterator[int]:
        """The pids in the cgroup and below it. An OSError if one cannot be read, as one below PATH_MAX of names."""
        for directory in _tree(str(self.directory(group)), _unless_gone):
            yield from map(int, (self._read(Path(directory) / "cgroup.procs") or "").split())

    def is_alive(self, record: Record) -> bool:
        """Does a process of the container exist, or the runtime that is starting it?"""
        if record.cgroup is not None:
            return not self.is_empty(record.cgroup)
        if record.process is None:  # the runtime is in another pid namespace: only the lease ends the wait
            return record.phase is Phase.PREPARED
        try:
            return self.process(record.process.pid) == record.process
        except OSError:
            return True

    def mounts(self, pid: int | str) -> str:
        """ "": it has ended."""
        try:
            return self._read(self.proc / f"{pid}/mountinfo") or ""
        except OSError as error:
            if error.errno == errno.EINVAL:  # a zombie, which has no mount namespace any more
                return ""
            raise

    def users_of(self, directory: str) -> set[str | None]:
        """The cgroups of the processes that see a node of a slice's directory, open or not; None: one has no cgroup of
        its own. An OSError if that cannot be read."""
        pids = [int(entry.name) for entry in os.scandir(self.proc) if entry.name.isdecimal()]
        return {self.cgroup_path(pid) for pid in pids if cgroup.mounts_below(self.mounts(pid), NODES_TYPE, directory)}

    def find_cgroup(self, container_id: str) -> Cgroup | None:
        """The populated cgroup that an engine made for this id, or None."""
        top = str(self.cgroups)
        for directory in _tree(top, lambda error: None, ENGINES_DEPTH):
            if directory != top and cgroup.mentions_id(posixpath.basename(directory), container_id):
                found = self.cgroup_at("/" + str(Path(directory).relative_to(self.cgroups)))
                if found is not None and not self.is_empty(found):
                    return found
        return None


def _tree(top: str, on_error: Callable[[OSError], None], depth: int = sys.maxsize) -> Iterator[str]:
    """The directory and those below it, down to this depth. Without recursion, as os.walk() has before Python 3.12: a
    tenant that may write its cgroups nests them."""
    rest = [(top, depth)]
    while rest:
        directory, left = rest.pop()
        yield directory
        try:
            with os.scandir(directory) as entries:
                found = [entry.path for entry in entries if left and entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            on_error(error)
            continue
        rest.extend((path, left - 1) for path in found)


def _unless_gone(error: OSError) -> None:
    if error.errno not in GONE:
        raise error


def _exit_trigger(record: Record) -> Trigger:
    """The trigger for the exit of the record's process."""
    return Trigger.RUNTIME_EXITED if record.phase is Phase.PREPARED else Trigger.INIT_EXITED


class Watcher:
    """Calls `on_trigger(key, trigger)` from the event loop; the same trigger may be repeated."""

    def __init__(self, facts: Facts, on_trigger: Callable[[Key, Trigger], None]) -> None:
        self._facts = facts
        self._on_trigger = on_trigger
        self._loop = asyncio.get_running_loop()
        self._inotify: Inotify | None = None
        self._unwatched: dict[Key, Cgroup] = {}  # looked at each LOOK_S
        self._looking: asyncio.TimerHandle | None = None
        self._log = log.get()
        self._why = ""  # inotify cannot be used; "" if it can
        self._pidfds: dict[Key, int] = {}
        self._groups: dict[Key, Cgroup] = {}
        # By watch and entry: an event costs the same with many containers in a directory.
        self._keys: dict[int, dict[str, set[Key]]] = {}
        self._places: dict[Key, list[tuple[int, str]]] = {}

    def close(self) -> None:
        for key in {*self._pidfds, *self._groups}:
            self.remove(key)
        if self._looking is not None:
            self._looking.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def add(self, record: Record, pidfd: int | None) -> None:
        """Takes ownership of `pidfd`."""
        self.remove(record.key)
        if pidfd is not None:
            self._await_exit(record.key, pidfd, _exit_trigger(record))
        if record.cgroup is not None:
            self._groups[record.key] = record.cgroup
            self._watch_group(record.key, record.cgroup)
            self._loop.call_soon(self._check_cgroup, record.key)  # the end may precede the watch

    def _await_exit(self, key: Key, pidfd: int, trigger: Trigger) -> None:
        self._pidfds[key] = pidfd
        self._loop.add_reader(pidfd, self._on_exit, key, trigger)

    def _watch_group(self, key: Key, group: Cgroup) -> None:
        directory = self._facts.directory(group)
        try:
            inotify = self._usable()
            self._watch(inotify, key, directory / "cgroup.events", IN_MODIFY, "")
            self._watch(inotify, key, directory.parent, IN_DELETE | IN_ONLYDIR, directory.name)
        except OSError as error:
            self._look_instead(key, group, str(error))
            return
        self._unwatched.pop(key, None)
        if self._why and not self._unwatched:
            self._log.info("inotify can be used again")
            self._why = ""

    def _usable(self) -> Inotify:
        if self._inotify is None:
            self._inotify = Inotify()
            self._loop.add_reader(self._inotify.fd, self._on_inotify)
        return self._inotify

    def _look_instead(self, key: Key, group: Cgroup, why: str) -> None:
        if not self._why:
            hint = "sysctl fs.inotify; lsof | grep inotify shows who holds them"
            self._log.warning("inotify cannot be used, cgroups are looked at", reason=why, each_s=LOOK_S, hint=hint)
        self._why = why
        self._unwatched[key] = group
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        for key, group in list(self._unwatched.items()):
            self._check_cgroup(key)
            self._unwatch(key)
            self._watch_group(key, group)  # looks again if this fails

    def _watch(self, inotify: Inotify, key: Key, path: Path, mask: int, name: str) -> None:
        wd = inotify.add(path, mask)
        if wd is not None:
            self._keys.setdefault(wd, {}).setdefault(name, set()).add(key)
            self._places.setdefault(key, []).append((wd, name))

    def reopen(self, record: Record) -> None:
        """After a restart of the daemon: verify by its start time that the pid is still of the same process."""
        pidfd = None
        if record.process is not None:
            pidfd = self._facts.pidfd(record.process.pid)
            if pidfd is not None and self._facts.process(record.process.pid) != record.process:
                os.close(pidfd)
                pidfd = None
        self.add(record, pidfd)
        if pidfd is None:
            self._loop.call_soon(self._on_trigger, record.key, _exit_trigger(record))

    def remove(self, key: Key) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._groups.pop(key, None)
        self._unwatched.pop(key, None)
        self._unwatch(key)

    def _unwatch(self, key: Key) -> None:
        for wd, name in self._places.pop(key, ()):
            names = self._keys.get(wd, {})
            names.get(name, set()).discard(key)
            if not names.get(name):
                names.pop(name, None)
            if not names and self._keys.pop(wd, None) is not None and self._inotify is not None:
                self._inotify.remove(wd)

    def check_cgroup(self, key: Key) -> None:
        """Check now, and again after CHECK_AGAIN_S."""
        self._check_cgroup(key)
        for delay in CHECK_AGAIN_S:
            self._loop.call_later(delay, self._check_cgroup, key)

    def _check_cgroup(self, key: Key) -> None:
        group = self._groups.get(key)
        if group is None:
            return
        if self._facts.is_empty(group):
            self._on_trigger(key, Trigger.CGROUP_EMPTY)
        elif self._facts.controller and key not in self._pidfds:
            self._follow(key, group)

    def _follow(self, key: Key, group: Cgroup) -> None:
        """cgroup v1 has no event for an empty cgroup: wait for the exit of one process in it, then of another."""
        for pid in self._members(group):
            pidfd = self._facts.pidfd(pid)
            if pidfd is None:
                continue
            if pid in self._members(group):  # not a later process with the same pid
                self._await_exit(key, pidfd, Trigger.INIT_EXITED)
                return
            os.close(pidfd)
        self._loop.call_later(CHECK_AGAIN_S[-1], self._check_cgroup, key)

    def _members(self, group: Cgroup) -> tuple[int, ...]:
        """Empty if they cannot be read now; there is another check."""
        with contextlib.suppress(OSError):
            return tuple(self._facts.members(group))
        return ()

    def _on_exit(self, key: Key, trigger: Trigger) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:  # stays readable: handle it once
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._on_trigger(key, trigger)

    def _on_inotify(self) -> None:
        keys: set[Key] = set()
        for wd, mask, name in self._inotify.read() if self._inotify is not None else ():
            names = self._keys.get(wd, {})
            if mask & IN_IGNORED:  # the directory is gone: check all of its containers
                keys.update(*names.values())
                self._keys.pop(wd, None)
            elif mask & IN_Q_OVERFLOW:
                keys.update(self._groups)
            else:
                keys |= names.get(name, set())
        for key in keys:
            self._check_cgroup(key)
