# SPDX-License-Identifier: MIT
"""The documented `docker run` lines against a real engine, the real module and a simulated GPU."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker_box as d
import pytest
from docker_box import box, must, number, run_once, variables

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    if shutil.which("docker") is None or d.call("docker", "version").returncode:
        pytest.skip("no Docker engine answers")
    d.ensure_runtime()
    d.make_image()
    yield


@pytest.fixture(scope="module")
def total() -> int:
    return d.total_mib()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test gives back what it took."""
    free = number(d.PROC / "0/free_weight")
    yield
    d.until(lambda: number(d.PROC / "0/free_weight") == free, "the weight is back")
    d.until(lambda: not list(d.STATE.glob("*.json")), "no state file is left")


def test_the_documented_line(total: int) -> None:
    """6 of 15 GiB: 6043 MiB of the 15109 that the published T4 has."""
    want = total * 6 // 15
    with box(*variables(6, devices=0, weight=1), command=d.HOLD) as one:
        assert one.memsize() == want * d.MIB
        assert (one.dir / "id").read_text().strip() == one.id
        assert number(one.dir / "weight") == 1
        d.until(lambda: "PID:" in (one.dir / "meminfo").read_text(), "simload holds memory")
        assert one.info()["total_bytes"] == want * d.MIB
        if total == 15109:
            assert want == 6043


def test_what_is_in_dev(total: int) -> None:
    with box(*variables(6, devices=0)) as one:
        minor = int((d.PROC / "0/minor").read_text())
        names = one.run("ls", "/dev").stdout.split()
        assert {name for name in names if name.startswith("nvidia")} == {"nvidiactl", "nvidia-uvm", f"nvidia{minor}"}
        for name in ("nvidiactl", "nvidia-uvm", f"nvidia{minor}"):
            bare = Path("/dev", name).stat().st_rdev
            kind = one.run("stat", "-c", "%t %T %a", f"/dev/{name}").stdout.split()
            assert kind == [f"{os.major(bare):x}", f"{os.minor(bare):x}", "666"], name
            assert "busy" in one.run("rm", "-f", f"/dev/{name}").stderr
        assert "ModifyDeviceFiles: 0" in one.run("cat", "/proc/driver/nvidia/params").stdout.splitlines()
        assert one.run("ls", "/proc/cgpu_km").stdout.strip() == "", "masked"
        one.run("mknod", "/tmp/real", "c", "195", "255")
        opened = one.run("cat", "/tmp/real")
        assert opened.returncode != 0
        assert "not permitted" in opened.stderr


def test_exec_with_every_capability(total: int) -> None:
    """Refused in a container with a slice (finding 7). Any other container is the engine's affair."""
    with box(*variables(6, devices=0)) as one:
        done = d.call("docker", "exec", "--privileged", one.id, "true")
        assert done.returncode != 0
        assert "the container has a slice, which a process with CAP_" in done.stdout, "where Docker has an exec's error"
        assert one.run("true").returncode == 0
        assert one.memsize() == total * 6 // 15 * d.MIB
    plain = must(*d.run_line("-d", command=d.SLEEP)).strip()
    assert d.call("docker", "exec", "--privileged", plain, "true").returncode == 0
    must("docker", "rm", "-f", plain)


def test_weight_and_priority() -> None:
    with box(*variables(1, devices=0, weight=4, highprio=1)) as one:
        assert number(one.dir / "weight") == 4
        assert number(one.dir / "highprio") == 1


def test_no_weight_left_is_a_warning_where_one_looks() -> None:
    """Docker passes the runtime's standard error on as the container's."""
    with box(*variables(1, devices=0, weight=number(d.PROC / "0/free_weight"))) as holder:
        done = run_once(*variables(1, devices=0), command=("echo", "started"))
        assert done.returncode == 0, done.stderr
        assert done.stdout == "started\n"
        (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("cgpu: ")]
        assert sentence.startswith("cgpu: warning: GPU 0 has no weight left")
        assert f"{holder.id[:12]} " in sentence


@pytest.mark.parametrize(
    ("options", "needles"),
    [
        (variables(16), ("asks for 16 of the 15 GiB", "GPU 0")),
        (variables("6GiB"), ("ALIYUN_COM_GPU_MEM_CONTAINER=6GiB", "whole number")),
        (variables(6, devices=7), ("ALIYUN_COM_GPU_VISIBLE_DEVICES names GPU 7",)),
        (variables(6, weight=21), ("ALIYUN_COM_GPU_SCHD_WEIGHT=21", "max_inst")),
        (["--privileged", *variables(6)], ("--privileged",)),
        (["--cap-add", "SYS_ADMIN", *variables(6)], ("CAP_SYS_ADMIN",)),
    ],
    ids=str,
)
def test_a_refused_start_is_one_sentence(options: list[str], needles: tuple[str, ...]) -> None:
    done = run_once(*options, command=("true",))
    assert done.returncode == d.REFUSED
    sentence = next(line for line in done.stderr.splitlines() if "cgpu: " in line)
    for needle in needles:
        assert needle in sentence
    assert not d.known_ids()


def test_the_refusal_names_the_holder(total: int) -> None:
    with box(*variables(10, devices=0)) as one:
        done = run_once(*variables(6, devices=0), command=("true",))
        assert done.returncode == d.REFUSED
        asked = f"{total * 6 // 15} MiB were requested"
        said = re.search(rf"GPU 0 has (\d+) of its {total} MiB left and {asked}", done.stderr)
        assert said, done.stderr
        assert re.search(rf"{one.id[:12]} \([a-z0-9_]+\) {total * 10 // 15} MiB", done.stderr), "with Docker's name"
        outside = re.search(r"the driver and what runs outside of containers (\d+) MiB", done.stderr)
        assert int(said[1]) == total - total * 10 // 15 - (int(outside[1]) if outside else 0)


def test_containers_without_variables_pass() -> None:
    done = run_once(command=("ls", "/dev"))
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout
    done = run_once(*variables(6, CGPU_DISABLE=1), command=("ls", "/dev"))
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout
    assert run_once(*variables(0), command=("true",)).returncode == 0


def test_the_exit_status_comes_through() -> None:
    assert run_once(*variables(1), command=("sh", "-c", "exit 42")).returncode == 42


def test_a_command_that_does_not_exist_leaves_nothing() -> None:
    assert run_once(*variables(1), command=("/no/such/thing",)).returncode == 127


def test_the_kernel_has_the_last_word_on_the_number() -> None:
    """25 by hand, the 26th refused: max_inst is the module's own limit."""
    max_inst = d.PROC / "0/max_inst"
    control = d.PROC / "inst_ctl"
    before = max_inst.read_text()
    ids = [f"by-hand-{n}" for n in range(25)]
    made: list[str] = []
    try:
        max_inst.write_text("25")
        for name in ids:
            control.write_text(f"create {name} gpu=0 memsize={d.MIB}")
            made.append(name)
        with pytest.raises(OSError, match="No space left"):
            control.write_text(f"create by-hand-25 gpu=0 memsize={d.MIB}")
        done = run_once(*variables(1), command=("true",))
        assert done.returncode == d.REFUSED
        assert "already has max_inst=25 containers" in done.stderr
    finally:
        for name in made:
            control.write_text(f"destroy {name}")
        max_inst.write_text(before)


def test_docker_is_not_disturbed_otherwise() -> None:
    assert "cgpu" not in must("docker", "info", "--format", "{{.Warnings}}")


# ---- limits of root inside ----


def inside(one: d.Box, script: str) -> str:
    """The output of a script in the container; its commands are expected to fail."""
    return one.run("sh", "-c", script).stdout


def device_numbers(one: d.Box) -> set[str]:
    """major:minor of the nodes that a container was given."""
    line = next(line for line in (d.PROC / "inst_ctl").read_text().splitlines() if line.split()[0] == one.id)
    words = dict(word.split("=", 1) for word in line.split()[1:])
    return {f"{words['major']}:{minor}" for minor in (words["ctl"], words["uvm"], words["gpu"].split(":")[1])}


def test_root_inside_makes_no_other_node() -> None:
    """mknod is allowed there; opening what it makes is not: the driver's own nodes, a neighbour's, free numbers."""
    devices = Path("/proc/devices").read_text().splitlines()
    uvm = next(line.split()[0] for line in devices if line.split()[1:] == ["nvidia-uvm"])
    with box(*variables(1, devices=0)) as one, box(*variables(1, devices=0)) as two:
        own, theirs = device_numbers(one), device_numbers(two)
        major = next(iter(own)).split(":")[0]
        unused = {f"{major}:{minor}" for minor in range(16)} - own
        numbers = {"195:0", "195:1", "195:255", f"{uvm}:0", f"{uvm}:1", *theirs, *unused}
        said = inside(
            one,
            f"for n in {' '.join(sorted(numbers))}; do mknod /tmp/$n c ${{n%:*}} ${{n#*:}}; "
            "( : <>/tmp/$n ) 2>/dev/null && echo reached $n; done; ( : <>/dev/nvidiactl ) && echo own",
        )
        assert said.split() == ["own"]


def test_root_inside_writes_nothing_of_the_tree() -> None:
    with box(*variables(1, devices=0), command=d.HOLD) as one:
        memsize, policy = one.memsize(), (d.PROC / "0/policy").read_text()
        tree = (d.PROC, "proc/self/root/proc/cgpu_km", "/proc/1/root/proc/cgpu_km")
        writes = [f"echo 2 >{root}/0/policy; echo {1 << 40} >{root}/0/{one.id[:12]}/memsize" for root in tree]
        writes += [f"echo destroy {one.id} >{root}/inst_ctl" for root in tree]
        said = inside(one, "; ".join(writes) + f"; cat {d.PROC}/version {d.PROC}/0/{one.id[:12]}/meminfo; echo end")
        assert said.split() == ["end"]
        assert (one.memsize(), (d.PROC / "0/policy").read_text()) == (memsize, policy)


@pytest.mark.parametrize("options", [(), ("--security-opt", "systempaths=unconfined")], ids=["plain", "unconfined"])
def test_root_inside_writes_no_file_of_nvidias_driver(options: tuple[str, ...]) -> None:
    """Its registry and suspend are 0644 and ask for no capability; Docker closes other parts of /proc only."""
    with box(*options, *variables(1, devices=0)) as one:
        files = inside(one, "find /proc/driver -type f -perm -200").split()
        assert "/proc/driver/nvidia/suspend" in files, "root of the host writes it"
        assert inside(one, f"for f in {' '.join(files)}; do ( : >$f ) 2>/dev/null && echo opened $f; done") == ""
        said = one.run("sh", "-c", ": >/proc/driver/nvidia/suspend").stderr
        assert "Read-only file system" in said
        assert "ModifyDeviceFiles: 0" in one.run("cat", "/proc/driver/nvidia/params").stdout.splitlines()


def test_root_inside_reopens_no_mapping() -> None:
    """Mappings show the driver's files, in map_files by name: following the link is refused."""
    with box(*variables(1, devices=0), command=d.HOLD) as one:
        d.until(lambda: "PID:" in (one.dir / "meminfo").read_text(), "simload holds memory")
        said = inside(
            one,
            "cat /proc/1/maps | while read range rest; do case $rest in */back*) echo saw; "
            "( : <>/proc/1/map_files/$range ) 2>/dev/null && echo reached;; esac; done",
        )
        assert set(said.split()) == {"saw"}


def test_root_inside_sees_no_neighbour() -> None:
    with box(*variables(1, devices=0)) as one, box(*variables(1, devices=0), command=d.HOLD) as two:
        pid = int(must("docker", "inspect", "--format", "{{.State.Pid}}", two.id))
        said = inside(one, f"for p in {pid} /proc/{pid}/fd /proc/{pid}/mem; do ls $p; kill -0 $p && echo reached; done")
        assert said == ""
