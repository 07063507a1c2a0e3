# SPDX-License-Identifier: MIT
"""The decisions of the MPS node mode: what a client gets, and which processes are ended for their memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common import mps as names
from cgpu_common.cards import Gpu
from cgpu_common.errors import Refused
from cgpud import mps
from cgpud.mps import Account, Client
from cgpud.values import MpsClient, Phase, Record

UUID = "GPU-00000000-0000-0000-0000-000000000000"
GPU = Gpu(0, 0, UUID, "0000:01:00.0", 0, 15109, 20, 20, compute_mode=names.EXCLUSIVE, room_mib=15109)
OWN = 472  # of the driver
ID = "a" * 64


def spec(*mounts: dict[str, Any], env: tuple[str, ...] = (), **process: Any) -> dict[str, Any]:
    out: dict[str, Any] = json.loads((Path(__file__).parent / "data/docker.json").read_text())
    out["process"] = {**out["process"], "env": ["PATH=/bin", *env], **process}
    out["mounts"] = [mount for mount in out["mounts"] if mount["destination"] != "/dev/shm"] + list(mounts)
    return out


def bind(source: str, destination: str = "/dev/shm") -> dict[str, Any]:
    return {"source": source, "destination": destination, "type": "bind", "options": ["rbind"]}


def record(mib: int, uid: int = 0, pod: str = "team/p", name: str = "x") -> Record:
    return Record(name * 64, 1, "boot", "/b", Phase.BOUND, 0.0, pod=pod, mps=MpsClient(UUID, mib, uid))


# ---- what a client gets ----

KUBELET = "/var/lib/kubelet/pods/0a/volumes/kubernetes.io~empty-dir"
ENGINES = [
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},
    bind(f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm"),
    bind(f"/run/containers/storage/overlay-containers/{ID}/userdata/shm"),
    bind(f"/var/lib/docker/containers/{ID}/mounts/shm"),
    bind("/dev/shm"),
]
AUTHORS = [
    bind(f"{KUBELET}/dshm"),
    bind(f"{KUBELET}/shm"),
    bind("/mnt/shm"),
    bind(f"/var/lib/kubelet/pods/{ID}/volumes/kubernetes.io~empty-dir/shm"),
    bind("/mnt/x", "//dev/../dev/shm/"),
    bind("/mnt/x", "/dev/shm/nccl"),
]


@pytest.mark.parametrize("mount", ENGINES, ids=lambda one: one["source"][:20])
def test_the_engines_shared_memory_is_replaced(mount: dict[str, Any]) -> None:
    mps.check_spec(spec(mount), GPU, allow_privileged=False)
    edited = mps.edited(spec(mount), "/run/m", 4096, 50, "")
    assert [one["source"] for one in edited["mounts"] if one["destination"] == "/dev/shm"] == ["/run/m/shm"]


@pytest.mark.parametrize("mount", AUTHORS, ids=lambda one: one["source"][:20] + one["destination"])
def test_shared_memory_of_the_author_is_refused(mount: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"over /dev/shm, .* CUDA's error 205: remove the mount"):
        mps.check_spec(spec(mount), GPU, allow_privileged=True)


def test_the_authors_variables_are_replaced() -> None:
    author = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8G,1=4G", "CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_MPS_NEW=1", "CUDA_X=1")
    edited = mps.edited(spec(env=author), "/run/m", 4096, 50, "control_privileged")
    assert edited["process"]["env"] == [
        "PATH=/bin",
        "CUDA_X=1",
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3968M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
    ]
    added = {one["destination"]: one for one in edited["mounts"]}
    assert "ro" in added["/tmp/nvidia-mps"]["options"]
    assert added["/tmp/nvidia-mps/control_privileged"]["source"] == "/run/m/none"
    again = mps.edited(edited, "/run/m", 4096, 50, "")
    assert again["process"]["env"] == edited["process"]["env"], "a second start changes nothing"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"linux": {"resources": {"devices": [{"allow": True, "access": "rwm"}]}}}, "every device"),
        ({"process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}}, "CAP_SYS_ADMIN"),
    ],
)
def test_what_could_leave_the_mode_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        mps.check_spec({**spec(), **change}, GPU, allow_privileged=False)
    mps.check_spec({**spec(), **change}, GPU, allow_privileged=True)


def test_one_server_serves_one_user() -> None:
    assert mps.user_of(spec(user={"uid": 1000})) == 1000 and mps.user_of({}) == 0
    mps.check_user(GPU, 0, [record(1024)])
    with pytest.raises(Refused, match=r"serves user 0 \(team/p\), and the container runs as user 1000"):
        mps.check_user(GPU, 1000, [record(1024)])


def test_the_grants_are_within_the_gpu_and_the_servers_clients() -> None:
    room = mps.room_mib(GPU, OWN, 0, 0)
    assert room == 15109 - OWN - 512
    used = replace(GPU, room_mib=15109 - 26 - 5000)
    assert mps.room_mib(used, OWN, 5000, 26) == room, "what clients use is not the driver's"
    assert mps.room_mib(replace(GPU, room_mib=15109 - 700), OWN, 0, 700) == room - 188, "a larger server"
    assert mps.room_mib(replace(GPU, room_mib=14109), OWN, 0, 0) == room - 1000, "a larger driver"
    assert mps.room_mib(replace(GPU, room_mib=100), OWN, 0, 0) == 0
    mps.check_room(GPU, room, room, 48, [])
    with pytest.raises(
        Refused, match=r"left for clients of MPS and 4096 MiB were requested; held by: team/p 12000 MiB"
    ):
        mps.check_room(GPU, 4096, room, 48, [record(12000)])
    with pytest.raises(Refused, match="has 48 containers already, and its MPS server takes 48 clients"):
        mps.check_room(GPU, 256, room, 48, [record(256)] * 48)
    with pytest.raises(Refused, match="255 MiB of GPU 0 start no program"):
        mps.check_room(GPU, 255, room, 48, [])


@pytest.mark.parametrize(("cuda", "clients"), [(11040, 48), (12040, 48), (13000, 48), (13010, 60), (14000, 60)])
def test_the_clients_of_a_gpu_by_cudas_version(cuda: int, clients: int) -> None:
    assert names.clients_max(cuda) == clients


def test_a_limit_is_never_called_isolation() -> None:
    """The words are the promise."""
    for by_cgroup in (True, False):
        assert "isolat" not in names.words(by_cgroup=by_cgroup)
        assert "one fatal fault ends all" in names.words(by_cgroup=by_cgroup)
    assert names.words(by_cgroup=False).startswith("cooperative limit, watched")


# ---- the watch ----


def test_processes_belong_to_the_container_by_their_cgroup() -> None:
    clients = [Client(n, 1, group) for n, group in enumerate(["/a/b", "/a/b/c", "/a/bc", "/a", None])]
    assert [one.pid for one in mps.of_container("/a/b", clients)] == [0, 1]


CLIENTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5000)), max_size=9, unique_by=lambda one: one[0]).map(
    lambda rows: [Client(pid, mib, "/a") for pid, mib in rows]
)


@given(CLIENTS, st.integers(0, 9000))
def test_the_fewest_processes_are_ended(clients: list[Client], grant: int) -> None:
    ended = mps.to_end(clients, grant)
    left = sum(one.mib or 0 for one in clients if one.pid not in ended)
    assert left <= grant
    sizes = sorted((one.mib or 0 for one in clients), reverse=True)
    assert not ended or sum(sizes[len(ended) - 1 :]) > grant, "one less would not do"


@given(st.lists(CLIENTS, max_size=12), st.integers(0, 9000))
def test_any_course_of_samples(course: list[list[Client]], grant: int) -> None:
    """A container within its grant is left alone; of one over it a process is being ended, and it goes after a bounded
    number of them."""
    account = Account()
    for number, clients in enumerate(course):
        used = sum(one.mib or 0 for one in clients)
        before, (account, ends) = account, mps.look(account, grant, clients, number * 0.5)
        assert account.used_mib == used and account.is_over == (used > grant)
        assert account.overs == before.overs + (used > grant and not before.is_over)
        if used <= grant:
            assert not ends and not account.ending and account.evict == before.evict
            continue
        waiting = set(account.ending)
        assert set(ends) <= {one.pid for one in clients}
        assert sum(one.mib or 0 for one in clients if one.pid not in waiting) <= grant
        assert (account.ended > mps.ENDED_MAX) <= bool(account.evict)
        assert account.ended >= before.ended


def test_a_process_is_ended_once_and_one_that_stays_has_to_go() -> None:
    big = [Client(1, 3000, "/a"), Client(2, 100, "/a")]
    account, ends = mps.look(Account(), 2048, big, 0.0)
    assert (ends, account.ended, account.overs, account.evict) == ([1], 1, 1, "")
    account, ends = mps.look(account, 2048, big, 1.0)
    assert (ends, account.ended, account.evict) == ([], 1, ""), "the server may take seconds"
    account, ends = mps.look(account, 2048, big, mps.GRACE_S + 0.1)
    assert (ends, account.ended) == (
        [1],
        1,
    ) and "process 1 is over the limit and did not end within 15 s" in account.evict
    account, ends = mps.look(account, 2048, big, mps.GRACE_S + 0.5)
    assert ends == [], "it is asked again after the same time"
    account, ends = mps.look(account, 2048, [Client(2, 100, "/a")], 99.0)
    assert not account.is_over and account.evict, "the reason stays"


def test_a_container_that_repeats_it_has_to_go() -> None:
    account = Account()
    for number in range(mps.ENDED_MAX + 1):
        account, ends = mps.look(account, 2048, [Client(number, 3000, "/a")], number)
        assert ends == [number] and bool(account.evict) == (number == mps.ENDED_MAX)
        account, _ = mps.look(account, 2048, [], number + 0.5)
    assert account.evict == "more than 3 of its programs were ended for using more than it was given"


def test_memory_that_nvml_does_not_know_is_no_zero() -> None:
    account, ends = mps.look(Account(), 2048, [Client(1, None, "/a"), Client(2, 1, "/a")], 0.0)
    assert account.used_mib is None and not ends and "cannot be watched" in account.evict
