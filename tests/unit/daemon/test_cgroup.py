# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from cgpu_common import cgroup

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/docker/abc\n", "/docker/abc"),
        ("1:name=systemd:/x\n0::/system.slice/docker-abc.scope\n", "/system.slice/docker-abc.scope"),
        ("0::/docker/abc (deleted)\n", "/docker/abc"),
        ("0::/\n", None),
        ("0::/../other\n", None),
        ("12:memory:/docker/abc\n", None),
        ("", None),
    ],
)
def test_the_path_of_v2(text: str, path: str | None) -> None:
    assert cgroup.path_of(text) == path


@pytest.mark.parametrize(
    ("text", "size"),
    [("max\n", 0), ("1048576\n", 1 << 20), ("9223372036854771712\n", 0), ("", 0), ("-1\n", 0), ("x", 0)],
)
def test_the_limit_of_memory(text: str, size: int) -> None:
    assert cgroup.memory_max(text) == size


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("11:devices:/docker/abc\n0::/system.slice/containerd.service\n", "/docker/abc"),
        ("4:net_cls,devices,pids:/x\n", "/x"),
        ("1:name=devices:/x\n", None),
        ("11:devices:/\n0::/docker/abc\n", None),
        ("0::/docker/abc\n", None),
    ],
)
def test_the_path_of_v1(text: str, path: str | None) -> None:
    assert cgroup.path_of(text, "devices") == path


def test_populated() -> None:
    assert cgroup.populated("populated 1\nfrozen 0\n")
    assert not cgroup.populated("populated 0\nfrozen 0\n")
    assert cgroup.populated("")


def test_starttime_survives_names() -> None:
    rest = " ".join(["S", *map(str, range(4, 30))])
    assert cgroup.starttime(f"42 (a ) b) {rest}") == 22
    assert cgroup.starttime("") is None


def test_pid_of_fdinfo() -> None:
    assert cgroup.pid_of_fdinfo("pos:\t0\nPid:\t42\nNSpid:\t42\n") == 42
    assert cgroup.pid_of_fdinfo("Pid:\t-1\n") is None
    assert cgroup.pid_of_fdinfo("pos:\t0\n") is None


def test_mentions_id() -> None:
    assert cgroup.mentions_id(f"docker-{ID}.scope", ID)
    assert cgroup.mentions_id(ID, ID)
    assert cgroup.mentions_id(f"libpod-{ID}.scope", ID)
    assert not cgroup.mentions_id(f"libpod-conmon-{ID}.scope", ID)
    assert not cgroup.mentions_id(f"crio-conmon-{ID}.scope", ID)
    assert cgroup.mentions_id("abc", "abc")
    assert cgroup.mentions_id("crun-abc.scope", "abc")
    assert not cgroup.mentions_id("abcd", "abc")
    assert not cgroup.mentions_id("session-1.scope", "1")


LINE = "90 80 0:50 {root} /dev/nvidia0 rw,nosuid,noexec master:7 - {kind} cgpu rw\n"
OTHERS = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:50 / /dev/cgpu rw - cgpu cgpu rw\n\nnonsense\n1 2 3\n"


@pytest.mark.parametrize(
    ("root", "kind", "is_there"),
    [
        ("/a\\040b/nvidia0", "cgpu", True),
        ("/a\\040b/nvidia0", "ext4", False),
        ("/a\\040b/nvidia0//deleted", "cgpu", False),
        ("/a\\040bc/nvidia0", "cgpu", False),
        ("/a/nvidia0", "cgpu", False),
        ("/x/a\\040b/nvidia0", "cgpu", False),
    ],
)
def test_the_mount_of_a_node(root: str, kind: str, is_there: bool) -> None:
    assert cgroup.mounts_below(OTHERS + LINE.format(root=root, kind=kind), "cgpu", "a b") is is_there
    assert not cgroup.mounts_below(OTHERS, "cgpu", "a b")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/kubepods/cri-containerd-{ID}.scope/app/x", (ID, f"/kubepods/cri-containerd-{ID}.scope")),
        (f"/docker/{ID}", (ID, f"/docker/{ID}")),
        (f"/libpod-conmon-{ID}.scope", ("", f"/libpod-conmon-{ID}.scope")),
        ("/my-job", ("", "/my-job")),
    ],
)
def test_the_cgroup_of_an_engine(path: str, found: tuple[str, str]) -> None:
    assert cgroup.of_engine(path) == found
