# SPDX-License-Identifier: MIT
"""The packages under the real systemd: cgpud as their unit, and containers in cgroups of systemd.

In the order of the file: the unit alone; engines as `cgpu setup` has them; then three containers, of runc, podman and
Docker, that live through all that happens to the daemon and to systemd; then the end. test_uninstall.py checks the
removal of the packages.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
import unit_box as u
from cri import Cri
from docker_box import call, must, until
from unit_box import UNIT, Tenant, assert_intact, cursor, is_active, main_pid, show, story

pytestmark = pytest.mark.systemd

CAPABILITIES = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_NET_ADMIN": 12}
ENGINES = ("docker.service", "containerd.service", "crio.service", "kubelet.service", "podman-restart.service")
NO_DAEMON = "cgpud does not answer on /run/cgpu/cgpud.sock"
METRICS = ("127.0.0.1", 9400)
WEIGHTED = 2
# The longest slices: turns are most of the load of three containers on an emulated processor.
CONFIGURATION = '[gpu]\npolicy = "weighted"\nslice_us = 100000\n'
NODE = """[Unit]
Wants=docker.service containerd.service cgpud.service
"""


@pytest.fixture(scope="module", autouse=True)
def parts() -> Iterator[None]:
    e.make_rootfs()
    u.wait_for_the_daemon(0)
    u.Docker.configure()
    u.Containerd.configure()
    u.configure(CONFIGURATION)
    yield


@pytest.fixture(scope="module")
def tenants() -> Iterator[list[Tenant]]:
    """Of 15 GiB 3, 4 and 5, of the weights 1, 2 and 3: no two alike."""
    found: list[Tenant] = []
    must("systemctl", "start", "docker.service", UNIT)
    try:
        for number, engine in enumerate((u.runc(), u.podman(), u.Docker())):
            found.append(u.start_tenant(engine, 3 + number, 1 + number))
        assert_intact(found)
        yield found
    finally:
        for each in found:
            each.one.engine.remove(each.one.id)


def restarts() -> int:
    return int(show("NRestarts"))


def comes_back(before: int, pid: int) -> None:
    until(lambda: restarts() == before + 1 and is_active() and main_pid() != pid, "systemd has started it again", 200)


def start_refused(sentence: str) -> None:
    done, one = u.runc().start(e.variables(1), e.SLEEP)
    u.runc().remove(one.id)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert one.id not in e.directories()


def start_is_right() -> None:
    with e.started(u.runc(), e.variables(1)) as one:
        assert one.memsize() == d.total_mib() // 15 * d.MIB
        assert not one.reaches_the_driver()
    until(lambda: one.id not in e.directories(), "its slice is gone")


# ---- the unit alone ----


def test_it_is_systemds_machine() -> None:
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    assert Path("/sys/fs/cgroup/init.scope").is_dir()
    assert Path("/proc/self/cgroup").read_text() == "0::/system.slice/cgpu-vm.service\n"
    until(lambda: call("systemd-analyze", "time").returncode == 0, "the boot is over", 240)
    print(must("systemd-analyze", "time"))


def test_modules_by_modules_load_and_modprobe() -> None:
    """modules-load.d names cgpu_km; its softdeps name those before and after it. tmpfiles.d has made /run/cgpu."""
    # systemd-modules-load fails if a module is missing. It and the unit's dependencies may run in either order.
    assert "cgpu_km" in Path("/usr/lib/modules-load.d/cgpu.conf").read_text().splitlines()
    assert show("Result", "systemd-modules-load.service") == "success"
    loaded = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
    assert {"nvsim", "cgpu_km"} <= loaded
    assert any(name.startswith("cgpu_core_") for name in loaded)
    assert Path("/run/cgpu").stat().st_mode & 0o7777 == 0o755
    assert d.STATE.stat().st_mode & 0o7777 == 0o700


def test_the_packages_run() -> None:
    """The files are as packed. The unit is enabled, so the boot has started it, from the packages' files."""
    packages = ("cgpu", "cgpu-dkms")
    assert must("dpkg-query", "--show", "--showformat=${db:Status-Status} ", *packages) == "installed installed "
    configured = {("??5??????", "c", str(path)) for path in (u.CONF, e.CONF)}  # by parts()
    assert {tuple(line.split()) for line in must("dpkg", "--verify", *packages).splitlines()} == configured
    until(is_active, "the boot has started it", 240)
    assert show("FragmentPath") == f"/lib/systemd/system/{UNIT}"
    assert is_active("dev-cgpu.mount")
    assert Path("/dev/cgpu").is_mount(), "for every process, not for the daemon alone"
    assert Path(f"/proc/{main_pid()}/cmdline").read_text().split("\0")[-2] == "/usr/bin/cgpud"
    mapped = {line.split()[-1] for line in Path(f"/proc/{main_pid()}/maps").read_text().splitlines()}
    brought = {path for path in mapped if "msgspec" in path}
    assert brought
    assert all(path.startswith("/usr/lib/cgpu/") for path in brought)
    assert not [path for path in mapped if path.startswith(str(d.BUILD / "venv"))]


def test_not_started_no_sliced_container() -> None:
    must("systemctl", "stop", UNIT)
    start_refused(NO_DAEMON)
    with e.started(u.runc(), {}) as one:
        assert not one.is_sliced()


def test_no_engine_before_it_is_ready() -> None:
    """The units that a boot starts, in one transaction as there."""
    assert set(ENGINES) <= set(show("Before").split())
    assert not is_active("docker.service")
    Path("/run/systemd/system/node.target").write_text(NODE)
    must("systemctl", "start", "node.target")
    until(lambda: is_active("docker.service") and is_active(), "all of it is there", 200)
    assert d.daemon_pid() == main_pid()
    ready = int(show("ActiveEnterTimestampMonotonic"))
    for unit in ("docker.service", "containerd.service"):
        assert int(show("ExecMainStartTimestampMonotonic", unit)) >= ready
    assert json.loads(must("docker", "info", "--format", "{{json .CgroupDriver}}")) == "systemd"


def test_it_may_do_little() -> None:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{main_pid()}/status").read_text().splitlines())
    may = sum(1 << bit for bit in CAPABILITIES.values())
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[kind], 16) == may, kind
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert opens_in_its_cgroup(u.DRIVER)
    assert not opens_in_its_cgroup((1, 11)), "/dev/kmsg"


def opens_in_its_cgroup(number: tuple[int, int]) -> bool:
    """Access of a process in the unit's cgroup under its device rules."""
    group = f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"
    node = f"/dev/test-{number[0]}-{number[1]}"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(*number))
    try:
        return call("/bin/busybox", "sh", "-c", f"echo $$ >{group} && : <{node}").returncode == 0
    finally:
        Path(node).unlink()


def test_a_bundle_of_another_user(tmp_path: Path) -> None:
    """In /tmp, and root may only by its capabilities: both are left to the unit."""
    engine = u.runc()
    where = engine.bundle(e.variables(1), e.SLEEP)
    config = where / "config.json"
    for path in (config, where):
        os.chown(path, 1000, 1000)
        path.chmod(0o700 if path == where else 0o600)
    mine = tmp_path / "bundle"
    must("cp", "-a", str(where), str(mine))
    done, one = engine.start_bundle(mine)
    try:
        assert done.returncode == 0, done.stderr
        assert one.is_sliced()
        assert (mine / "config.json").stat().st_uid == 1000
    finally:
        engine.remove(one.id)
    until(lambda: not e.directories(), "its slice is gone")


# ---- engines as `cgpu setup` has them ----


@pytest.fixture(scope="module")
def engine_files() -> dict[str, bytes | None]:
    """As they were before."""
    return u.engine_files()


def test_a_plain_docker_run(engine_files: dict[str, bytes | None]) -> None:
    """Without a runtime or a device on the command line: the engine has read them from the file that setup wrote."""
    must("systemctl", "start", "docker.service", UNIT)
    for engine in u.ENGINES:
        u.set_up(engine)
    assert all(u.engine_files()[engine] != engine_files[engine] for engine in u.ENGINES)
    assert f'BinaryName = "{u.RUNTIME}"' in must("containerd", "config", "dump")
    d.make_image()
    made = must("docker", "run", "--detach", "--network=none", *d.variables(2), d.IMAGE, *d.SLEEP).strip()
    one = e.Running(u.Docker(), made)
    assert one.memsize() == d.total_mib() * 2 // 15 * d.MIB
    one.engine.remove(made)
    until(lambda: not one.is_sliced(), "its slice is gone")


@pytest.fixture(scope="module")
def image() -> None:
    archive = e.ROOT / "box.tar"
    archive.write_bytes(e.image_archive())
    must("ctr", "--namespace=k8s.io", "image", "import", str(archive))


@pytest.mark.usefixtures("engine_files", "image")
@pytest.mark.parametrize("handler", ["", "nvidia"], ids=["default", "nvidia"])
def test_a_pod_on_the_distributions_own_file(handler: str) -> None:
    """The file named no runtime. With ours in it there still is the default one, which the CRI plugin must have."""
    cri = Cri(u.Containerd.ADDRESS, "/kubepods/besteffort")
    with cri.pod("plain", handler) as pod:
        one = e.Running(cri, cri.create(pod, "plain", "one", e.IMAGE, e.SLEEP, e.variables(2)))
        cri.start(one.id)
        assert one.is_sliced() == (handler == "nvidia")
        cri.stop(one.id)
        until(lambda: not one.is_sliced(), "its slice is gone")


@pytest.mark.usefixtures("image")
def test_a_pod_as_a_kubelet_asks(engine_files: dict[str, bytes | None]) -> None:
    """For the handler that setup wrote, which took over from runc that cgroups are systemd's."""
    u.undo("containerd")
    assert u.engine_files()["containerd"] == engine_files["containerd"]
    u.Containerd.under_systemd()
    engine_files["containerd"] = u.engine_files()["containerd"]
    u.set_up("containerd")
    cri = Cri(u.Containerd.ADDRESS, "kubepods-besteffort.slice")
    with cri.pod("trainer", "nvidia") as pod:
        one = e.Running(cri, cri.create(pod, "trainer", "sliced", e.IMAGE, e.HOLD, e.variables(2)))
        cri.start(one.id)
        scope = f"cri-containerd-{one.id}.scope"
        assert show("Slice", scope) == "kubepods-besteffort.slice"
        until(one.holds_memory, "its process holds memory")
        must("systemctl", "daemon-reload")
        must("systemctl", "set-property", "--runtime", scope, "CPUWeight=50")
        one.check_slice(2)
        assert "/dev/char/195:" not in show("DeviceAllow", scope)
        cri.stop(one.id)
        until(lambda: not one.is_sliced(), "its slice is gone")


# ---- three containers during restarts and updates ----


def test_the_rule_is_systemds(tenants: list[Tenant]) -> None:
    """Each in a scope of its own; runc's and Docker's device rules are systemd's too, by the numbers of our nodes."""
    assert d.number(d.PROC / "0/policy") == WEIGHTED
    assert len({each.scope for each in tenants}) == 3
    for each in tenants:
        assert is_active(each.scope), each.name
    numbers = next(line for line in (d.PROC / "inst_ctl").read_text().splitlines() if tenants[0].one.id in line)
    words = dict(word.split("=", 1) for word in numbers.split()[1:])
    for each in (tenants[0], tenants[2]):
        rules = must("systemctl", "show", "--property=DevicePolicy,DeviceAllow", each.scope)
        assert "DevicePolicy=strict" in rules, each.name
        assert f"/dev/char/{words['major']}:" in rules, each.name
        assert "/dev/char/195:" not in rules, each.name


def test_daemon_reload(tenants: list[Tenant]) -> None:
    """systemd puts its own device program on every scope again."""
    must("systemctl", "daemon-reload")
    assert_intact(tenants)


def test_set_property(tenants: list[Tenant]) -> None:
    for each in tenants:
        must("systemctl", "set-property", "--runtime", each.scope, "CPUWeight=50", "MemoryMax=1G")
    assert_intact(tenants)


def test_reload(tenants: list[Tenant]) -> None:
    """A changed configuration is in force for containers that run; one with a mistake changes nothing."""
    begin, pid = cursor(), main_pid()
    u.configure(f'metrics = "{METRICS[0]}:{METRICS[1]}"\n{CONFIGURATION}max_inst = 10\n')
    must("systemctl", "reload", UNIT)
    until(lambda: d.number(d.PROC / "0/max_inst") == 10, "it is in force")
    assert_intact(tenants)
    until(lambda: "cgpu_" in scrape(), "metrics are served, also by the unit's leave")
    u.configure('[gpu]\npolicy = "fastest"\n')
    assert call("systemctl", "reload", UNIT).returncode != 0
    os.kill(pid, signal.SIGHUP)  # past the check, to the daemon itself
    until(lambda: "kept as it was" in show("StatusText"), "systemctl status says so")
    assert is_active()
    assert main_pid() == pid
    assert (d.number(d.PROC / "0/policy"), d.number(d.PROC / "0/max_inst")) == (WEIGHTED, 10)
    told = "\n".join(story(begin))
    assert told.index("configuration read again") < told.index("configuration kept as it was")
    assert "'fastest' is not allowed" in told
    u.configure(CONFIGURATION)


def scrape() -> str:
    try:
        with socket.create_connection(METRICS, 10) as sock:
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return sock.makefile().read()
    except OSError:
        return ""


def test_restart(tenants: list[Tenant]) -> None:
    """And a container that starts just then waits for it, and is sliced as it should be."""
    begin, cookies = cursor(), d.cookies()
    with u.waiting(), ThreadPoolExecutor(1) as aside:
        restart = aside.submit(must, "systemctl", "restart", UNIT)
        done, one = u.runc().start(e.variables(1), e.SLEEP)
        restart.result()
    try:
        assert done.returncode == 0, done.stderr
        assert one.memsize() == d.total_mib() // 15 * d.MIB
    finally:
        u.runc().remove(one.id)
    assert_intact(tenants)
    known = {key: cookie for key, cookie in d.cookies().items() if key != one.id}
    assert {key: cookies[key] for key in known} == known, "the same lives"
    assert {each.one.id for each in tenants} == set(known)
    told = [line.split()[0] for line in story(begin)]
    assert told.index("stopping") < told.index("ready"), "in the order of the journal"


def test_killed(tenants: list[Tenant]) -> None:
    before, pid = restarts(), main_pid()
    must("systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT)
    comes_back(before, pid)
    assert_intact(tenants)
    start_is_right()


def test_deaf(tenants: list[Tenant]) -> None:
    """Stopped by a signal, it does not ping: the watchdog ends it. The next daemon answers requests sent meanwhile."""
    before, pid, begin = restarts(), main_pid(), cursor()
    os.kill(pid, signal.SIGSTOP)
    with u.waiting():
        start_is_right()
    comes_back(before, pid)
    assert any("Watchdog timeout" in line for line in story(begin))
    assert_intact(tenants)


def test_stopped(tenants: list[Tenant]) -> None:
    """Without the daemon no container is admitted; a container that ends meanwhile is found at the next start."""
    extra, engine = u.runc().start(e.variables(1), e.SLEEP)[1], u.runc()
    must("systemctl", "stop", UNIT)
    assert_intact(tenants)
    start_refused(NO_DAEMON)
    with e.started(u.runc(), {}) as plain:
        assert not plain.is_sliced()
    engine.remove(extra.id)
    must("systemctl", "start", UNIT)
    until(lambda: extra.id not in e.directories(), "the one that ended is found")
    assert_intact(tenants)


# ---- the end ----


def test_the_end(tenants: list[Tenant]) -> None:
    """Stops containers, engines, the daemon and both modules, in the order of a shutdown."""
    begin = cursor()
    for each in tenants:
        each.one.engine.kill(each.one.id)
        until(lambda one=each.one: not one.is_sliced(), f"{each.name}'s slice is gone")
        each.one.engine.remove(each.one.id)
    until(e.nothing_is_left, "no record is left")
    must("systemctl", "stop", "docker.socket", "docker.service", "containerd.service", UNIT)
    assert show("Result") == "success"
    assert not d.SOCKET.exists()
    print("\n".join(story(begin)))
    core = next(path.name for path in Path("/sys/module").glob("cgpu_core_*"))
    must("systemctl", "stop", "dev-cgpu.mount")
    must("modprobe", "-r", core, "cgpu_km")
    assert not Path("/proc/cgpu_km").exists()
    must("systemctl", "start", "modprobe@cgpu_km.service")
    assert Path(f"/sys/module/{core}").exists(), "as the unit would load them"


def test_setup_is_undone(engine_files: dict[str, bytes | None]) -> None:
    """Every byte of every file."""
    for engine in u.ENGINES:
        u.undo(engine)
    assert u.engine_files() == engine_files
