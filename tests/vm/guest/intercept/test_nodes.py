# SPDX-License-Identifier: MIT
"""The file system of the nodes (docs/decisions/0011): its content, permissions and lifetime."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import MIB, NODES, PROC, REPO, Box, mount_nodes, nvclient, unmount_nodes, until

NAME = "10de" * 16
OTHER = "20de" * 16
MODULES = REPO / "build/modules" / os.environ["KERNEL"]
NV_OK = 0
NOBODY = 65534
#: An attach takes the debug kernel five seconds.
TURNS = 5 if os.environ["KERNEL"].endswith("debug") else 15


def call(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def must(*words: object) -> None:
    done = call(*words)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def names(directory: Path | str) -> list[str]:
    return [path.name for path in Path(directory).iterdir()]


def number(path: Path) -> tuple[int, int]:
    rdev = path.stat().st_rdev
    return os.major(rdev), os.minor(rdev)


def open_error(path: Path) -> int:
    """Its errno; 0 where it opens."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno or -1
    return 0


def uvm_major() -> int:
    lines = Path("/proc/devices").read_text().splitlines()
    return next(int(line.split()[0]) for line in lines if line.split()[1:] == ["nvidia-uvm"])


def listed(box: Box) -> dict[str, int]:
    """The true minors, by node."""
    line = next(line for line in box.listed() if line.split()[0] == box.name)
    words = dict(word.split("=", 1) for word in line.split()[1:])
    found = {"nvidiactl": int(words["ctl"]), "nvidia-uvm": int(words["uvm"])}
    for pair in words["gpu"].split(","):
        gpu, minor = pair.split(":")
        found["nvidia" + (PROC / gpu / "minor").read_text().strip()] = int(minor)
    return found


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[Path]:
    """As a runtime mounts it for a container: over a file that is there."""
    target.touch()
    must("mount", "--bind", source, target)
    try:
        yield target
    finally:
        call("umount", target)
        target.unlink(missing_ok=True)


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(NAME, 64) as one:
        yield one


def core() -> str:
    return next(path.name for path in Path("/sys/module").glob("cgpu_core_*"))


# ---- content ----


def test_what_is_mounted_says_the_drivers_number(box: Box, tmp_path: Path) -> None:
    """stat() matches the bare nodes exactly, and open() reaches our nodes."""
    for name in listed(box):
        bare = Path("/dev", name).stat()
        with bound(Path(box.dev, name), tmp_path / name) as node:
            seen = node.stat()
            assert seen.st_rdev == bare.st_rdev, name
            assert stat.S_IFMT(seen.st_mode) == stat.S_IFCHR
            assert stat.S_IMODE(seen.st_mode) == 0o666
            assert (seen.st_uid, seen.st_gid) == (0, 0)
            fd = os.open(node, os.O_RDWR)
            assert os.fstat(fd).st_rdev == bare.st_rdev
            os.close(fd)
    assert number(Path("/dev/nvidiactl")) == (195, 255)
    assert number(Path("/dev/nvidia-uvm")) == (uvm_major(), 0)


def test_a_client_works_by_what_is_mounted(box: Box, tmp_path: Path) -> None:
    """The container's limit applies to the client, although stat() shows the driver's number."""
    with contextlib.ExitStack() as mounts:
        for name in listed(box):
            mounts.enter_context(bound(Path(box.dev, name), tmp_path / name))
        with nvclient.Client(str(tmp_path)) as rm:
            gpu = rm.gpu()
            assert gpu.alloc_vidmem(32 * MIB)[0] == NV_OK
            assert box.used >= 32 * MIB
            assert gpu.alloc_vidmem(64 * MIB)[0] == nvclient.NV_ERR_NO_MEMORY


def test_the_directory_says_the_true_number(box: Box) -> None:
    """So that a copy made by device number is a node of ours."""
    major = int((PROC / "0/major").read_text())
    assert {name: number(Path(box.dev, name)) for name in names(box.dev)} == {
        name: (major, minor) for name, minor in listed(box).items()
    }


def test_a_bound_directory_says_the_true_number(box: Box, tmp_path: Path) -> None:
    must("mount", "--bind", box.dev, tmp_path)
    try:
        assert number(tmp_path / "nvidiactl")[0] == int((PROC / "0/major").read_text())
    finally:
        must("umount", tmp_path)


def test_a_number_is_known_to_sysfs(box: Box) -> None:
    """runc 1.1.5 leaves a device out of systemd's rules for which there is no such entry."""
    major = int((PROC / "0/major").read_text())
    for minor in listed(box).values():
        assert Path(f"/sys/dev/char/{major}:{minor}").exists()
    assert not [path for path in NODES.rglob("*") if "minor" in path.name]


# ---- permissions ----


def test_nothing_is_made_or_removed_there_by_hand(box: Box) -> None:
    there = Path(box.dev)
    refused = (errno.EPERM, errno.EACCES)
    for change in (
        lambda: os.mknod(there / "x", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        lambda: (NODES / "x").mkdir(),
        lambda: (NODES / "x").symlink_to("/"),
        lambda: (there / "x").touch(),
        lambda: os.link(there / "nvidiactl", there / "x"),
        lambda: (there / "nvidiactl").unlink(),
        lambda: (there / "nvidiactl").rename(there / "x"),
        lambda: there.rmdir(),
        lambda: there.rename(NODES / "x"),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno in refused, caught.value
    assert set(names(there)) == set(listed(box))


def test_what_is_mounted_is_not_replaced(box: Box, tmp_path: Path) -> None:
    with bound(Path(box.dev, "nvidia-uvm"), tmp_path / "nvidia-uvm") as node:
        (tmp_path / "other").touch()
        for change in (node.unlink, lambda: node.rename(tmp_path / "x"), lambda: (tmp_path / "other").rename(node)):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno == errno.EBUSY


def test_another_user_does_not_reach_them(box: Box) -> None:
    """Mode 0666 is for the container; on the host the directory is root's."""
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os._exit(open_error(Path(box.dev, "nvidiactl")))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == errno.EACCES


@pytest.mark.stock_only  # the other has no user namespaces
def test_a_user_namespace_mounts_none() -> None:
    done = call("unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "cgpu", "cgpu", "/mnt")
    assert done.returncode != 0
    assert "permi" in done.stderr, done.stderr


# ---- lifetime ----


@pytest.mark.checked
def test_a_destroyed_container_has_no_directory(box: Box, tmp_path: Path) -> None:
    with bound(Path(box.dev, "nvidiactl"), tmp_path / "nvidiactl") as node:
        fd = os.open(box.dev, os.O_PATH)
        box.destroy()
        assert not Path(box.dev).exists()
        assert box.dir not in names(NODES)
        assert open_error(node) == errno.ENODEV
        assert number(node) == (195, 255)
        assert open_error(Path(f"/proc/self/fd/{fd}/nvidiactl")) == errno.ENOENT
        os.close(fd)


@pytest.mark.checked
def test_containers_come_and_go_under_readers(box: Box) -> None:
    """With concurrent look-ups and listings; no name is ever listed twice."""
    reader = subprocess.Popen(
        ["sh", "-c", f"while :; do ls -lR {NODES}; stat {NODES}/{OTHER[:12]}/nvidiactl; done >/dev/null 2>&1"]
    )
    try:
        for _ in range(20):
            with Box(OTHER, 16) as one:
                assert sorted(names(NODES)) == sorted({box.dir, one.dir})
                assert open_error(Path(one.dev, "nvidiactl")) == 0
    finally:
        reader.kill()
        reader.wait()
    assert names(NODES) == [box.dir]


@pytest.mark.checked
def test_it_can_be_unmounted_and_mounted_under_containers(box: Box, tmp_path: Path) -> None:
    """Nodes bound elsewhere continue to work; a container created meanwhile is there afterwards."""
    with bound(Path(box.dev, "nvidiactl"), tmp_path / "nvidiactl") as node:
        unmount_nodes()
        try:
            assert not names(NODES)
            assert open_error(node) == 0
            with Box(OTHER, 16) as other:
                mount_nodes()
                assert set(names(NODES)) == {box.dir, other.dir}
                assert open_error(Path(other.dev, "nvidiactl")) == 0
            assert names(NODES) == [box.dir]
        finally:
            if not names(NODES):
                mount_nodes()
    unmount_nodes()  # nothing is bound: the superblock goes
    mount_nodes()
    assert set(names(box.dev)) == set(listed(box))
    assert open_error(Path(box.dev, "nvidiactl")) == 0


def test_a_second_mount_is_the_same(box: Box, tmp_path: Path) -> None:
    must("mount", "-t", "cgpu", "cgpu", tmp_path)
    try:
        here, there = tmp_path / box.dir / "nvidiactl", Path(box.dev, "nvidiactl")
        assert here.stat().st_ino == there.stat().st_ino
        assert call("mount", "-t", "cgpu", "cgpu", NODES).returncode != 0, "not twice at one place"
    finally:
        must("umount", tmp_path)


@pytest.mark.more
@pytest.mark.checked
def test_mounts_under_churn(box: Box) -> None:
    """Mounted and unmounted while containers are made and destroyed: locks, references, directories."""
    unmount_nodes()
    turn = f"mount -t cgpu cgpu {NODES}; ls {NODES}; umount {NODES}"
    turns = subprocess.Popen(["sh", "-c", f"for i in $(seq {TURNS}); do {turn}; done >/dev/null"])
    try:
        while turns.poll() is None:
            with Box(OTHER, 16):
                pass
        assert turns.returncode == 0
    finally:
        turns.wait()
        mount_nodes()
    assert names(NODES) == [box.dir]


@pytest.mark.checked
def test_it_holds_the_module(tmp_path: Path) -> None:
    """A mount and its bind mounts pin the module until the last is gone; then another module can replace it."""
    modules = (core(), "cgpu_km")
    with Box(NAME, 16) as box:
        mount = bound(Path(box.dev, "nvidiactl"), tmp_path / "nvidiactl")
        mount.__enter__()
    until(lambda: call("rmmod", modules[0]).returncode == 0)
    assert "in use" in call("rmmod", "cgpu_km").stderr
    unmount_nodes()
    assert "in use" in call("rmmod", "cgpu_km").stderr, "by what is bound"
    mount.__exit__(None, None, None)
    until(lambda: call("rmmod", "cgpu_km").returncode == 0)
    try:
        assert call("mount", "-t", "cgpu", "cgpu", NODES).returncode != 0
    finally:
        for name in reversed(modules):
            must("insmod", MODULES / f"{name}.ko")
        mount_nodes()
    until((PROC / "0/policy").exists)
    with Box(NAME, 16) as box:
        assert open_error(Path(box.dev, "nvidiactl")) == 0
