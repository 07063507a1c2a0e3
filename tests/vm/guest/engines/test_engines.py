# SPDX-License-Identifier: MIT
"""The claims of docs/user/engines.md for every engine in Debian, with the real module and a simulated GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, Ctr, Engine, Podman, Running, started, variables

pytestmark = pytest.mark.engines

ENGINES = {
    "runc": (ByHand("runc"), "runc"),
    "crun": (ByHand("crun"), "crun"),
    "podman-crun": (Podman(), "crun"),
    "podman-runc": (Podman(), "runc"),
    "ctr": (Ctr(), "runc"),
}


@pytest.fixture(scope="module", autouse=True)
def parts(containerd: e.Containerd) -> None:
    e.make_rootfs()


@pytest.fixture(autouse=True)
def a_daemon_before_and_after() -> Iterator[None]:
    """A test that failed without one fails alone."""
    d.ensure_daemon()
    yield
    d.ensure_daemon()


#: runc under Podman: each half is in make test with another one.
MORE = ("podman-runc",)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.more if name in MORE else ()) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every test gives back what it took."""
    found, runtime = ENGINES[request.param]
    with e.hands_over_to(runtime):
        yield found
        d.until(e.nothing_is_left, "nothing is left of the container")


@pytest.fixture
def by_hand() -> Iterator[ByHand]:
    with e.hands_over_to("runc"):
        yield ByHand("runc")
        d.until(e.nothing_is_left, "nothing is left of the container")


NODES = ("nvidia-uvm", "nvidia0", "nvidiactl")
TAKE_AWAY = "for n in /dev/nvidia*; do /bin/busybox rm -f $n; /bin/busybox mv $n /dev/other; done"


def bare_numbers() -> set[str]:
    """Name, number in hex and mode as the driver's own nodes have them on the host, which libraries insist on."""
    found = {name: Path("/dev", name).stat() for name in NODES}
    return {
        f"/dev/{name}:{os.major(one.st_rdev):x}:{os.minor(one.st_rdev):x}:{one.st_mode & 0o777:o}"
        for name, one in found.items()
    }


def check_nodes(one: Running) -> None:
    """The nodes look like the driver's and cannot be removed, nor its files below /proc be written or ours be seen."""
    look = "for n in /dev/nvidia*; do stat -c %n:%t:%T:%a $n; done"
    below_proc = (": >/proc/driver/nvidia/suspend", "cat /proc/driver/nvidia/params", "cat /proc/driver/nvidia/version")
    before, taken, after, suspend, params, version, ours = one.answers(
        look, TAKE_AWAY, look, *below_proc, "ls /proc/cgpu_km"
    )
    assert set(before[0].split()) == set(after[0].split()) == bare_numbers()
    assert taken[1].count("busy") == 2 * len(NODES), taken
    assert "Read-only" in suspend[1], "the driver asks root for no capability"
    assert [line for line in params[0].splitlines() if line.startswith("ModifyDeviceFiles")] == ["ModifyDeviceFiles: 0"]
    assert version[0] == Path("/proc/driver/nvidia/version").read_text()
    assert "ModifyDeviceFiles: 1" in Path("/proc/driver/nvidia/params").read_text(), "the host's is as it was"
    assert ours[0] == "", "masked"


def test_a_slice(engine: Engine) -> None:
    """Limit, nodes, the real driver out of reach, an exec into it, pause, and an end that leaves nothing."""
    with started(engine, variables(6), e.HOLD) as one:
        one.check_slice(6)
        check_nodes(one)
        d.until(one.holds_memory, "its process holds memory")
        want = one.memsize()
        engine.pause(one.id)
        assert one.memsize() == want
        engine.resume(one.id)
        engine.kill(one.id)
        d.until(lambda: not one.is_sliced(), "the slice is gone with its last process")


@pytest.mark.parametrize("engine", ["runc", "podman-crun", "ctr"], indirect=True)
def test_a_refusal_is_the_engines_error(engine: Engine) -> None:
    """The message reaches the engine's user, and nothing is left. cgpu-runtime says it in place of any runtime."""
    every_device = 'linux.resources.devices=[{"allow": true, "access": "rwm"}]'
    done, one = engine.start(variables(6), e.SLEEP, every_device if engine.name == "runc" else "--privileged")
    try:
        assert done.returncode != 0
        assert "the container may use every device" in done.stderr
        assert "Traceback" not in done.stderr
        assert not e.directories()
    finally:
        engine.remove(one.id)


@pytest.mark.parametrize("engine", ["runc", "podman-crun"], indirect=True)
def test_a_process_with_every_capability(engine: Engine) -> None:
    """An exec that could undo the slice is refused; in a container without variables, of which nothing is ours, cgpud
    has no say.
    """
    words = (
        [*engine.words, "exec", "--privileged"]
        if isinstance(engine, Podman)
        else [engine.runtime, "exec", "--cap", "CAP_SYS_ADMIN"]
    )
    with started(engine, variables(6)) as one:
        done = d.call(*words, one.id, "/bin/true")
        assert done.returncode != 0
        assert "the container has a slice, which a process with CAP_" in done.stderr
        assert one.sh("true").returncode == 0
    with started(engine, {}) as one:
        done = d.call(*words, one.id, "/bin/ls", "/dev")
        assert done.returncode == 0
        assert "nvidia" not in done.stdout
        assert not e.directories()


def is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except OSError:
        return False


@pytest.mark.parametrize("engine", ["podman-crun", "ctr"], indirect=True)
def test_who_watches_it_for_the_engine_is_killed(engine: Engine) -> None:
    """conmon or the shim ends: the engine decides about the container. Its slice lives as long as the container."""
    with started(engine, variables(3)) as one:
        (pid,) = pids_of(one)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        watcher = int(status["PPid"])
        assert Path(f"/proc/{watcher}/comm").read_text().strip() in ("conmon", "containerd-shim")
        os.kill(watcher, signal.SIGKILL)
        for _ in range(20):
            time.sleep(0.1)
            assert one.is_sliced() or not is_alive(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        d.until(lambda: not one.is_sliced(), "gone with its process")


def test_killed_from_outside(by_hand: ByHand) -> None:
    """No command of the engine's: the init process just dies, and no one has removed the container yet. The test above
    ends so under podman and containerd.
    """
    with started(by_hand, variables(3)) as one:
        inside = pids_of(one)
        assert inside
        for pid in inside:
            os.kill(pid, signal.SIGKILL)
        d.until(lambda: not one.is_sliced(), "found dead")


def pids_of(one: Running) -> list[int]:
    """Processes of the container's cgroup as recorded by the daemon."""
    group = next(known["cgroup"] for known in d.ask(op="status")["containers"] if known["id"] == one.id)
    return [int(pid) for pid in (Path("/sys/fs/cgroup") / group.lstrip("/") / "cgroup.procs").read_text().split()]


def test_rootless_is_refused(by_hand: ByHand) -> None:
    where = by_hand.bundle(variables(3), e.SLEEP)
    user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    done = d.call(*user, str(d.RUNTIME), "create", "--bundle", str(where), e.fresh("rootless"))
    assert done.returncode == 1
    assert "rootless engines get no slices" in done.stderr
    assert not e.directories()


WHOLE = {
    "no variables": {},
    "no memory": variables(0),
    "a zero in the list": variables("1,0"),
    "switched off": {**variables(3), "CGPU_DISABLE": "true"},
    "all of NVIDIA": {"NVIDIA_VISIBLE_DEVICES": "all"},
}


def test_no_whole_gpus(by_hand: ByHand) -> None:
    """unsliced = "refuse": a container with the card's own node does not start, whatever its variables. Others do."""
    node = 'linux.devices=[{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]'
    e.CONF.write_text(e.CONF.read_text() + "ask = always\n")
    with e.configured('[gpu]\nunsliced = "refuse"\n'):
        for name, wanted in WHOLE.items():
            done, one = by_hand.start(wanted, e.SLEEP, node)
            by_hand.remove(one.id)
            assert done.returncode != 0, name
            assert "GPU 0" in done.stderr, name
        with started(by_hand, variables(3), e.SLEEP, node) as one:
            assert one.is_sliced()
            assert not one.reaches_the_driver()
        with started(by_hand, {}) as one:
            assert not one.is_sliced()


# ---- podman's own ----


@pytest.mark.more
def test_podman_restart_is_a_new_life() -> None:
    podman = Podman()
    with e.hands_over_to("crun"), started(podman, variables(6)) as one:
        first = d.cookies()[one.id]
        d.must(*podman.words, "restart", "--time=0", one.id)
        second = d.cookies()[one.id]
        assert first != second
        assert one.total_bytes() == one.memsize()
    d.until(e.nothing_is_left, "nothing is left of the container")


def test_a_user_namespace_is_refused() -> None:
    """There the runtime would bind the host's own nodes by path."""
    podman = Podman()
    with e.hands_over_to("crun"):
        done, one = podman.start(variables(6), e.SLEEP, "--uidmap=0:100000:1000", "--gidmap=0:100000:1000")
        podman.remove(one.id)
    assert done.returncode != 0
    assert "user namespace" in done.stderr
    assert e.nothing_is_left()


# ---- the runtime's own verbs ----


def test_run_in_the_foreground(by_hand: ByHand) -> None:
    """`run` is create and start in one, and its status is the container's."""
    where = by_hand.bundle(variables(6), ("/bin/sh", "-c", "ls /dev/nvidia0 && exit 7"))
    done = d.call(by_hand.runtime, "run", "--bundle", str(where), e.fresh("run"))
    assert done.returncode == 7
    assert "/dev/nvidia0" in done.stdout


def test_created_and_never_started(by_hand: ByHand) -> None:
    where = by_hand.bundle(variables(6), e.SLEEP)
    container = e.fresh("created")
    with (where / "out").open("w") as log:
        assert d.subprocess.run([by_hand.runtime, "create", "-b", str(where), container], stdout=log).returncode == 0
    assert container in e.directories(), "there before the first instruction of the container's own"
    by_hand.remove(container)


def test_update_keeps_the_devices(by_hand: ByHand) -> None:
    """An update rewrites the container's cgroup; the devices from config.json stay."""
    with started(by_hand, variables(6)) as one:
        d.must(by_hand.runtime, "update", "--memory", str(512 * d.MIB), one.id)
        assert one.total_bytes() == one.memsize()


@pytest.mark.parametrize(("runtime", "by"), [("runc", "file"), ("crun", "stdin")])
def test_an_update_with_device_rules(runtime: str, by: str, tmp_path: Path) -> None:
    """containerd's CRI hands over those from before cgpud's edit, and crun loads them in place of the container's."""
    rules = [{"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rwm"} for minor in (0, 255)]
    devices = [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "access": "m"}, *rules]
    text = json.dumps({"memory": {"limit": 512 * d.MIB}, "devices": devices})
    (tmp_path / "resources").write_text(text)
    found = ByHand(runtime)
    with e.hands_over_to(runtime):
        with started(found, variables(6)) as one:
            name = str(tmp_path / "resources") if by == "file" else "-"
            words = [found.runtime, "update", "--resources", name, one.id]
            done = d.subprocess.run(words, input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert not one.reaches_the_driver()
            assert one.total_bytes() == one.memsize(), "its own nodes open"
            (group,) = {Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2] for pid in pids_of(one)}
            assert int(Path(f"/sys/fs/cgroup{group}/memory.max").read_text()) == 512 * d.MIB, "the rest has effect"
        d.until(e.nothing_is_left, "nothing is left of the container")


def test_a_bundle_that_is_not_ours_is_not_touched(by_hand: ByHand) -> None:
    where = by_hand.bundle({}, ("/bin/true",))
    before = (where / "config.json").read_bytes()
    assert d.call(by_hand.runtime, "run", "-b", str(where), e.fresh("other")).returncode == 0
    assert (where / "config.json").read_bytes() == before


def test_children_that_outlive_init(by_hand: ByHand) -> None:
    """Without a pid namespace of its own processes outlive the first one: the slice stays until the last."""
    two = ("/bin/sh", "-c", "/bin/sleep 100000 & exec /bin/sleep 100000")
    with started(by_hand, variables(3), two, *no_pid_ns()) as one:
        d.until(lambda: len(pids_of(one)) == 2, "both are there")
        init, child = sorted(pids_of(one))
        os.kill(init, signal.SIGKILL)
        d.until(lambda: pids_of(one) == [child], "one is left")
        assert one.is_sliced()
        os.kill(child, signal.SIGKILL)
        d.until(lambda: not one.is_sliced(), "gone with the last one")


def no_pid_ns() -> list[str]:
    kinds = [{"type": kind} for kind in ("mount", "ipc", "uts", "cgroup")]
    return [f"linux.namespaces={json.dumps(kinds)}"]


# ---- restarts and missing parts ----


def test_a_daemon_that_lost_its_records(by_hand: ByHand) -> None:
    """Killed, and /run/cgpu cleared: running containers are found by cgroup, slices of the others are given back."""
    with started(by_hand, variables(3), e.HOLD) as one, started(by_hand, variables(3)) as two:
        size = one.memsize()
        d.stop_daemon(signal.SIGKILL)
        by_hand.kill(two.id)
        for path in d.STATE.glob("*"):
            path.unlink()
        d.start_daemon()
        d.until(lambda: not two.is_sliced(), "nobody lives in the second one")
        assert one.id in d.known_ids()
        assert one.memsize() == size
        assert one.total_bytes() == size
        by_hand.kill(one.id)
        d.until(lambda: not one.is_sliced(), "watched again")


def test_a_module_that_was_reloaded(by_hand: ByHand) -> None:
    """Without the module, containers with variables do not start; afterwards they do, with the same daemon. The GPU
    settings in the files are in force before the first container starts."""
    modules = sorted(Path(os.environ["CGPU_MODULES"]).glob("cgpu_core_*.ko"))
    ratio = d.PROC / "0/prio_ratio"
    with e.configured("reconcile_s = 3600\n[gpu]\nprio_ratio = 55\n"):
        d.stop_daemon()  # the last reconciliation of the old reconcile_s would come too
        d.start_daemon()
        assert d.number(ratio) == 55, "as in the file"
        d.must("umount", "/dev/cgpu")
        d.must("rmmod", modules[0].stem)
        d.must("rmmod", "cgpu_km")
        done, one = by_hand.start(variables(3), e.SLEEP)
        by_hand.remove(one.id)
        d.must("insmod", str(modules[0].with_name("cgpu_km.ko")))
        d.must("insmod", str(modules[0]))
        d.until(lambda: ratio.exists() and d.number(ratio) == 55, "again as the file says")
        assert done.returncode != 0
        assert "cgpu_km is not loaded" in done.stderr
        assert not Path("/dev/cgpu").is_mount(), "the first start will see to it"
        with started(by_hand, variables(3)) as one:
            assert Path("/dev/cgpu").is_mount()
            assert one.total_bytes() == one.memsize()


def test_nodes_that_cannot_be_used(by_hand: ByHand) -> None:
    """Mounted so that no device opens: a sentence instead of a container without a GPU, and its slice is taken back."""
    d.must("mount", "-o", "remount,bind,nodev", "/dev/cgpu")
    try:
        done, one = by_hand.start(variables(3), e.SLEEP)
        by_hand.remove(one.id)
        assert done.returncode != 0
        assert "/dev/cgpu is mounted with nodev" in done.stderr
        d.until(e.nothing_is_left, "taken back")
    finally:
        d.must("mount", "-o", "remount,bind,dev", "/dev/cgpu")


@pytest.mark.more
def test_two_first_starts_at_once(by_hand: ByHand) -> None:
    """Each mounts the nodes, once."""
    for _ in range(5):
        d.must("umount", "/dev/cgpu")
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: by_hand.start(variables(1), e.SLEEP), range(4)))
        for done, one in found:
            assert done.returncode == 0, done.stderr
            by_hand.remove(one.id)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("cgpu ")]
        assert mounts == ["/dev/cgpu"]


def test_no_room_for_records(by_hand: ByHand, tmp_path: Path) -> None:
    """A full /run: a sentence and no container, and those that run still end as they should."""
    with started(by_hand, variables(3)) as one:
        d.must("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(tmp_path))
        (tmp_path / "full").write_bytes(bytes(4096))  # before the daemon can use the space for missing files
        d.must("mount", "--bind", str(tmp_path), str(d.STATE))
        try:
            done, two = by_hand.start(variables(3), e.SLEEP)
            by_hand.remove(two.id)
            assert done.returncode != 0
            assert "No space left on device" in done.stderr
            assert set(e.directories()) == {one.id}
            by_hand.kill(one.id)
            d.until(lambda: not e.directories(), "released all the same")
        finally:
            d.must("umount", str(d.STATE))
            d.must("umount", str(tmp_path))
            for path in d.STATE.glob("*"):
                path.unlink()


# ---- storms ----


@pytest.mark.more
def test_a_storm_of_starts_and_kills(by_hand: ByHand) -> None:
    """Each is killed as soon as it is there."""

    def one_life(n: int) -> bool:
        done, one = by_hand.start(variables(1, ALIYUN_COM_GPU_MEM_DEV=30), e.SLEEP)
        by_hand.remove(one.id)
        return done.returncode == 0

    with ThreadPoolExecutor(6) as pool:
        lived = list(pool.map(one_life, range(int(os.environ.get("STORM", 30)))))
    assert all(lived)
