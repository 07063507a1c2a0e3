# SPDX-License-Identifier: MIT
"""cgroup v1, where an engine still uses it: engines and cgpud in a mount namespace where /sys/fs/cgroup is v1's. They
choose by the file system mounted there; the kernel has both.

There is no cgroup.events, and reconcile does not come in time: the end is detected by a pidfd.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, Engine, Podman, Running, started, variables

pytestmark = pytest.mark.engines

# devices and freezer are v1's alone; pids is taken from v2, for a limit to be updated.
CONTROLLERS = ("devices", "freezer", "pids")
HOLDER = """
umount /sys/fs/cgroup && mount -t tmpfs cgroup /sys/fs/cgroup || exit
for one in {controllers}; do
    mkdir /sys/fs/cgroup/$one && mount -t cgroup -o $one cgroup /sys/fs/cgroup/$one || exit
done
: >{ready}
exec sleep 100000
"""
RUNTIME = """#!/bin/sh
exec nsenter --mount --target {holder} --wd="$PWD" {runtime} "$@"
"""


@dataclass
class Node:
    """The namespace and the process that holds it, seen from outside."""

    runtime: Path  # cgpu-runtime there
    holder: int

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", "--mount", "--target", str(self.holder))

    def groups(self, controller: str) -> list[Path]:
        """A parent before its children, and not the root."""
        return list(Path(f"/proc/{self.holder}/root/sys/fs/cgroup/{controller}").glob("**/"))[1:]

    def group(self, one: Running, controller: str = "devices") -> Path:
        """By the name alone: Docker's and podman's are in a directory of theirs."""
        return next(path for path in self.groups(controller) if one.id in path.name)

    def pids(self, one: Running) -> list[int]:
        return [int(pid) for pid in (self.group(one) / "cgroup.procs").read_text().split()]


def switch(controller: str, on: bool) -> None:
    """In every cgroup of v2, from below if off."""
    root = Path("/sys/fs/cgroup")
    if on:
        (root / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    files = sorted(root.rglob("cgroup.subtree_control"), key=lambda path: -len(path.parts))
    for path in files:
        if controller in path.read_text().split():
            path.write_text(f"-{controller}")


def is_free(controller: str) -> bool:
    """As /proc/cgroups has it: in no hierarchy, or in one that has no cgroup but its root."""
    trial = Path("/run/trial")
    trial.mkdir(exist_ok=True)
    if d.call("mount", "-t", "cgroup", "-o", controller, "cgroup", str(trial)).returncode:
        return False
    d.must("umount", str(trial))
    return True


def is_back(controller: str) -> bool:
    """In v2's hands. The end of v1's hierarchy takes the kernel a while after its last mount, and another mount where
    cgroups in it were not quite gone then."""
    for _ in range(20):
        if controller in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split():
            return True
        time.sleep(0.1)
    is_free(controller)
    return False


@pytest.fixture(scope="module")
def v1() -> Iterator[Node]:
    e.make_rootfs()
    place = e.ROOT / "v1"
    place.mkdir(parents=True)
    switch("pids", False)
    for controller in CONTROLLERS:
        d.until(lambda one=controller: is_free(one), f"{controller} can be mounted")
    script = HOLDER.format(controllers=" ".join(CONTROLLERS), ready=place / "ready")
    holder = subprocess.Popen(["unshare", "--mount", "/bin/sh", "-c", script])
    d.until(lambda: (place / "ready").exists() or holder.poll() is not None, "v1 is mounted")
    assert holder.poll() is None, "it could not be mounted"
    runtime = place / "cgpu-runtime"
    runtime.write_text(RUNTIME.format(holder=holder.pid, runtime=d.RUNTIME))
    runtime.chmod(0o755)
    node = Node(runtime, holder.pid)
    with e.configured("reconcile_s = 3600\n"):
        d.stop_daemon()
        d.start_daemon(*node.enter)
        yield node
        d.until(e.nothing_is_left, "nothing is left")
        d.stop_daemon()
        for controller in CONTROLLERS:
            for group in reversed(node.groups(controller)):
                group.rmdir()  # cgroups that engines leave would keep the hierarchy
        holder.kill()
        holder.wait()
        d.start_daemon()
    d.until(lambda: is_back("pids"), "v1 is gone")
    switch("pids", True)


@contextlib.contextmanager
def dockerd(v1: Node) -> Iterator[None]:
    place = e.ROOT / "v1-docker"
    place.mkdir()
    socket = f"unix://{place}/sock"
    words = [
        *("dockerd", "--host", socket, "--exec-root", str(place), "--pidfile", str(place / "pid")),
        *("--bridge=none", "--iptables=false", "--storage-driver=overlay2", f"--add-runtime=nvidia={d.RUNTIME}"),
    ]
    with (place / "log").open("wb") as log, pytest.MonkeyPatch.context() as environ:
        environ.setenv("DOCKER_HOST", socket)
        process = subprocess.Popen([*v1.enter, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            answers = lambda: d.call("docker", "version").returncode == 0  # noqa: E731
            d.until(lambda: answers() or process.poll() is not None, "it answers", 120)
            assert process.poll() is None, (place / "log").read_text()
            d.make_image()
            yield
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(
    params=(
        "runc",
        pytest.param("crun", marks=pytest.mark.more),
        pytest.param("podman", marks=pytest.mark.more),
        pytest.param("docker", marks=pytest.mark.more),
    )
)
def engine(request: pytest.FixtureRequest, v1: Node) -> Iterator[Engine]:
    with e.hands_over_to("crun" if request.param in ("crun", "podman") else "runc"):
        if request.param == "podman":
            podman = Podman()
            podman.words[:0] = v1.enter
            yield podman
        elif request.param == "docker":
            with dockerd(v1):
                yield e.Docker()
        else:
            yield ByHand(f"v1-{request.param}", str(v1.runtime))


@pytest.fixture
def by_hand(v1: Node) -> Iterator[ByHand]:
    with e.hands_over_to("runc"):
        yield ByHand("v1", str(v1.runtime))


def test_a_slice(v1: Node, engine: Engine) -> None:
    """Limit and rules, also after an update, and an end that is seen."""
    with started(engine, variables(6), e.HOLD) as one:
        want = d.total_mib() * 6 // 15 * d.MIB
        assert one.memsize() == want == one.total_bytes()
        numbers = next(line for line in (d.PROC / "inst_ctl").read_text().splitlines() if line.split()[0] == one.id)
        words = dict(word.split("=", 1) for word in numbers.split()[1:])
        rules = (v1.group(one) / "devices.list").read_text().splitlines()
        for minor in (words["ctl"], words["uvm"], words["gpu"].split(":")[1]):
            assert f"c {words['major']}:{minor} rw" in rules
        assert not [rule for rule in rules if rule.startswith("c 195:")]
        assert not one.reaches_the_driver()
        d.until(one.holds_memory, "its process holds memory")

        updater = "docker" if engine.name == "docker" else str(v1.runtime)  # podman 4.3 has no command for it
        d.must(updater, "update", "--pids-limit", "64", one.id)
        assert d.number(v1.group(one, "pids") / "pids.max") == 64
        assert (v1.group(one) / "devices.list").read_text().splitlines() == rules
        assert one.total_bytes() == want

        engine.pause(one.id)
        assert one.memsize() == want
        engine.resume(one.id)
        engine.kill(one.id)
        d.until(lambda: not one.is_sliced(), "the slice is gone with its last process")


@pytest.mark.more
def test_two_that_outlive_the_first(v1: Node, by_hand: ByHand) -> None:
    """No pid namespace of its own. A daemon started in between does not have the remaining processes and finds them."""
    three = ("/bin/sh", "-c", "/bin/sleep 100000 & /bin/sleep 100000 & exec /bin/sleep 100000")
    kinds = [{"type": kind} for kind in ("mount", "ipc", "uts", "cgroup")]
    with started(by_hand, variables(3), three, f"linux.namespaces={json.dumps(kinds)}") as one:
        d.until(lambda: len(v1.pids(one)) == 3, "all are there")
        first, second, third = sorted(v1.pids(one))
        for pid, left in ((first, [second, third]), (second, [third])):
            os.kill(pid, signal.SIGKILL)
            d.until(lambda left=left: v1.pids(one) == left, "the others are left")
            time.sleep(2)  # the daemon searches for as long
            assert one.is_sliced()
            if pid == first:
                d.stop_daemon()
                d.start_daemon(*v1.enter)
                assert one.is_sliced()
        os.kill(third, signal.SIGKILL)
        d.until(lambda: not one.is_sliced(), "gone with the last one")


@pytest.mark.more
def test_a_daemon_that_lost_its_records(v1: Node, by_hand: ByHand) -> None:
    with started(by_hand, variables(3)) as one:
        d.stop_daemon(signal.SIGKILL)
        for path in d.STATE.glob("*"):
            path.unlink()
        d.start_daemon(*v1.enter)
        assert one.id in d.known_ids(), "found by its cgroup"
        by_hand.kill(one.id)
        d.until(lambda: not one.is_sliced(), "watched again")
