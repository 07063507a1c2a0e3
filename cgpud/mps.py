# SPDX-License-Identifier: MIT
"""PURE: decisions of the MPS node mode: what a client's config.json has, which containers are over their grant, and
which clients are ended for it.

The limit in a client's environment is NVIDIA's, and its program can change it: a second device in its list, an unknown
UUID or a malformed value makes it void. So what counts is the use that NVML reports for each process, summed up for
each container. A client that is ended keeps its process; only its context on the GPU is gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cgpu_common import mps
from cgpu_common.cards import Gpu
from cgpu_common.errors import Refused
from cgpud import oci
from cgpud.config_json import Spec, json_object, mounts, process_env
from cgpud.env import shorten
from cgpud.values import Record

Key = tuple[str, int]

SHM = "/dev/shm"
PIPES = oci.MPS_DIRECTORIES[0]  # in the container; NVIDIA's default, so that a client without the variable finds it too
OPTIONS = ("bind", "rprivate", "nosuid", "nodev", "noexec")
CLIENT_MIN_MIB = 256  # of a grant: less than HIDDEN_MIB and a context start no program

ENDED_MAX = 3  # clients of a container; with one more over the grant its pod has to go
GRACE_S = 15.0  # from the request to end a client, which may take the kill as well, until its memory is back
_ENGINE_ID = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


# ---- admission ----


def limit_mib(grant_mib: int) -> int:
    """Of one client. Σ NVML's use of an honest client stays within the grant."""
    return grant_mib - mps.HIDDEN_MIB


def own_shm(spec: Spec) -> str | None:
    """The source of a mount at or below /dev/shm that the container's author has asked for, or None. An engine's own is
    a tmpfs, or a bind of one that it keeps by the container's id, or the host's (hostIPC)."""
    for mount in mounts(spec):
        where = oci.clean(mount.get("destination"))
        if where != SHM:
            if where.startswith(SHM + "/"):
                return str(mount.get("source"))
            continue
        source = oci.clean(mount.get("source"))
        parts = source.split("/")
        by_engine = parts[-1] == "shm" and any(map(_ENGINE_ID.match, parts)) and "volumes" not in parts
        if mount.get("type") == "tmpfs" or by_engine or source == SHM:
            continue
        return str(mount.get("source"))
    return None


def check_spec(spec: Spec, gpu: Gpu, *, allow_privileged: bool) -> None:
    """Raises Refused for a container that cannot be a client, or whose use could not be kept to its GPU."""
    if (shm := own_shm(spec)) is not None:
        raise Refused(
            f"the container mounts {shorten(shm)} over {SHM}, in which the MPS server of GPU {gpu.number} shares "
            f"memory with its clients; a client with one of its own ends with CUDA's error 205: remove the mount"
        )
    if allow_privileged:
        return
    if oci.allows_all_devices(spec):
        raise Refused(
            "the container may use every device (--privileged), so it could use the GPUs beside MPS; start it without, "
            "or set allow_privileged = true in cgpu.toml"
        )
    if "CAP_SYS_ADMIN" in oci.capabilities(spec):
        raise Refused(
            "the container has CAP_SYS_ADMIN, with which it could take the GPU out of the mode for MPS; start it "
            "without, or set allow_privileged = true in cgpu.toml"
        )


def unedited(spec: Spec, directory: str) -> Spec:
    """Without the mounts of edited(): a daemon that was restarted before its answer reads its own config.json."""
    ours = (f"{directory}/shm", f"{directory}/pipe", f"{directory}/none")

    def is_ours(mount: Mapping[str, Any]) -> bool:
        where = oci.clean(mount.get("destination"))
        return mount.get("source") in ours and (where in (SHM, PIPES) or where.startswith(PIPES + "/"))

    return {**spec, "mounts": [mount for mount in mounts(spec) if not is_ours(mount)]}


def user_of(spec: Spec) -> int:
    user = json_object(json_object(spec.get("process"), "process").get("user"), "process.user").get("uid")
    return user if isinstance(user, int) and not isinstance(user, bool) else 0


def check_room(gpu: Gpu, grant_mib: int, room_mib: int, clients: int, there: Collection[Record]) -> None:
    """Raises Refused if the grants together would be more than the GPU has beside its server, or the containers more
    than MPS has clients. @there: the containers of the GPU."""
    if grant_mib < CLIENT_MIN_MIB:
        raise Refused(
            f"{grant_mib} MiB of GPU {gpu.number} start no program under MPS, whose clients need {CLIENT_MIN_MIB}"
        )
    if len(there) >= clients:
        raise Refused(
            f"GPU {gpu.number} has {len(there)} containers already, and its MPS server takes {clients} clients"
        )
    held = sum(one.mps.mib for one in there if one.mps)
    if grant_mib > room_mib - held:
        holders = ", ".join(f"{one.pod or one.id[:12]} {one.mps.mib} MiB" for one in there if one.mps)
        raise Refused(
            f"GPU {gpu.number} has {max(room_mib - held, 0)} of its {gpu.total_mib} MiB left for clients of MPS and "
            f"{grant_mib} MiB were requested; held by: {holders or 'no container'}; its server and the driver have "
            f"{gpu.total_mib - room_mib} MiB"
        )


def check_user(gpu: Gpu, uid: int, there: Iterable[Record]) -> None:
    """A server serves one user, and a client of another one waits until the last of that user has ended."""
    other = next((one for one in there if one.mps and one.mps.uid != uid), None)
    if other is not None and other.mps is not None:
        raise Refused(
            f"the MPS server of GPU {gpu.number} serves user {other.mps.uid} ({other.pod or other.id[:12]}), and the "
            f"container runs as user {uid}, who would wait for the end of all of those: use one user on this GPU "
            f"(securityContext.runAsUser), or another node"
        )


def room_mib(gpu: Gpu, own_mib: int, clients_mib: int, server_mib: int) -> int:
    """What the grants may have together: the GPU without driver and server. @own_mib: of a driver, which the GPU's room
    contains; @clients_mib: of the clients now, and @server_mib: of the server now, which it does not contain."""
    left = gpu.total_mib if gpu.room_mib is None else gpu.room_mib
    driver = max(gpu.total_mib - left + own_mib - clients_mib - server_mib, own_mib)
    return max(gpu.total_mib - driver - max(server_mib, mps.SERVER_MIB), 0)


def variables(grant_mib: int, threads: int) -> dict[str, str]:
    """The server has one GPU, so its number is 0."""
    return {
        f"{mps.PREFIX}PIPE_DIRECTORY": PIPES,
        f"{mps.PREFIX}PINNED_DEVICE_MEM_LIMIT": f"0={limit_mib(grant_mib)}M",
        f"{mps.PREFIX}ACTIVE_THREAD_PERCENTAGE": str(threads),
    }


def edited(spec: Spec, directory: str, grant_mib: int, threads: int, masked: str) -> Spec:
    """The spec with the server's pipes and shared memory, and with our variables in place of the author's. @directory:
    of the GPU's control daemon; @masked: a socket there that is not for clients, or ""."""
    kept = [entry for entry in process_env(spec) if not (isinstance(entry, str) and entry.startswith(mps.PREFIX))]
    env = [*kept, *(f"{name}={value}" for name, value in variables(grant_mib, threads).items())]
    there = [mount for mount in mounts(spec) if oci.clean(mount.get("destination")) not in (SHM, PIPES)]
    added = [
        {"destination": SHM, "type": "bind", "source": f"{directory}/shm", "options": [*OPTIONS, "rw"]},
        # Read-only: a client connects to its sockets, and cannot replace them.
        {"destination": PIPES, "type": "bind", "source": f"{directory}/pipe", "options": [*OPTIONS, "ro"]},
    ]
    if masked:
        none = {"type": "bind", "source": f"{directory}/none", "options": [*OPTIONS]}
        added.append({"destination": f"{PIPES}/{masked}", **none})
    process = {**json_object(spec.get("process"), "process"), "env": env}
    return {**spec, "process": process, "mounts": [*there, *added]}


# ---- the watch ----


@dataclass(frozen=True, slots=True)
class Client:
    """A process on the GPU, as NVML has it."""

    pid: int
    mib: int | None  # None: NVML does not know
    group: str | None  # its cgroup; None: it has ended, or is in the root


@dataclass(frozen=True, slots=True)
class Account:
    """What the watch knows of one container."""

    used_mib: int | None = None  # None: not known
    ended: int = 0  # clients
    killed: int = 0  # of those, by SIGKILL, since MPS did not end them
    ending: Mapping[int, float] = field(default_factory=dict)  # pid -> when it was requested
    overs: int = 0  # times that it went over its grant
    is_over: bool = False
    evict: str = ""  # not empty: the pod has to go, for this reason


def of_container(group: str, clients: Iterable[Client]) -> list[Client]:
    """Those in the container's cgroup or below it."""
    return [
        one for one in clients if one.group is not None and (one.group == group or one.group.startswith(group + "/"))
    ]


def to_end(clients: Sequence[Client], grant_mib: int) -> list[int]:
    """The fewest clients without whom the others are within the grant: the largest."""
    left = sum(one.mib or 0 for one in clients)
    chosen = []
    for one in sorted(clients, key=lambda one: (-(one.mib or 0), one.pid)):
        if left <= grant_mib:
            break
        left -= one.mib or 0
        chosen.append(one.pid)
    return chosen


def look(before: Account, grant_mib: int, clients: Sequence[Client], now: float) -> tuple[Account, list[int]]:
    """The account after one sample, and the clients to end now. @clients: those of the container."""
    if any(one.mib is None for one in clients):
        why = "NVML does not know the memory of its processes, so its limit cannot be watched"
        return replace(before, used_mib=None, evict=before.evict or why), []
    used = sum(one.mib or 0 for one in clients)
    there = {one.pid for one in clients}
    ending = {pid: at for pid, at in before.ending.items() if pid in there}
    if used <= grant_mib:
        return replace(before, used_mib=used, ending={}, is_over=False), []
    after = replace(before, used_mib=used, ending=ending, is_over=True, overs=before.overs + (not before.is_over))
    stuck = sorted(pid for pid, at in ending.items() if now - at > GRACE_S)
    if stuck and not after.evict:
        after = replace(after, evict=f"process {stuck[0]} is over the limit and did not end within {GRACE_S:g} s")
    waits = {pid for pid in ending if pid not in stuck}
    chosen = [pid for pid in to_end(clients, grant_mib) if pid not in waits]
    fresh = [pid for pid in chosen if pid not in ending]
    if before.ended + len(fresh) > ENDED_MAX and not after.evict:
        after = replace(
            after, evict=f"more than {ENDED_MAX} of its programs were ended for using more than it was given"
        )
    asked = dict.fromkeys(chosen, now)  # stuck ones too: the server may have been busy
    return replace(after, ended=before.ended + len(fresh), ending={**ending, **asked}), chosen
