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
    free, states = number(d.PROC / "0/free_weight"), set(d.STATE.glob("*.json"))
    yield
    d.until(lambda: number(d.PROC / "0/free_weight") == free, "the weight is back")
    d.until(lambda: set(d.STATE.glob("*.json")) == states, "no state file is left")


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


def test_containers_without_a_part_pass() -> None:
    for options in (variables(6, CGPU_DISABLE=1), variables(0)):
        done = run_once(*options, command=("ls", "/dev"))
        assert done.returncode == 0, done.stderr
        assert "nvidia" not in done.stdout


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


# ---- what is inside, and limits of root there ----


@pytest.fixture(scope="module")
def neighbours() -> Iterator[tuple[d.Box, d.Box]]:
    """For what changes neither of them. Both hold memory."""
    with box(*variables(1, devices=0), command=d.HOLD) as one, box(*variables(1, devices=0), command=d.HOLD) as two:
        for each in (one, two):
            d.until(lambda each=each: "PID:" in (each.dir / "meminfo").read_text(), "simload holds memory")
        yield one, two


def test_what_is_in_dev(neighbours: tuple[d.Box, d.Box]) -> None:
    minor = int((d.PROC / "0/minor").read_text())
    names = ("nvidia-uvm", f"nvidia{minor}", "nvidiactl")
    bare = [Path("/dev", name).stat().st_rdev for name in names]
    nodes, taken, ours, opened = neighbours[0].answers(
        "stat -c '%n %t %T %a' /dev/nvidia*",
        "rm -f /dev/nvidia*",
        "ls /proc/cgpu_km",
        "mknod /tmp/real c 195 255; cat /tmp/real",
    )
    wanted = [f"/dev/{name} {os.major(no):x} {os.minor(no):x} 666" for name, no in zip(names, bare, strict=True)]
    assert nodes[0].splitlines() == wanted
    assert taken[1].count("busy") == len(names)
    assert ours[0] == "", "masked"
    assert "not permitted" in opened[1]


def test_exec_with_every_capability(neighbours: tuple[d.Box, d.Box]) -> None:
    """Refused in a container with a slice (finding 7). A container without variables is the engine's affair."""
    one = neighbours[0]
    memsize = one.memsize()
    done = d.call("docker", "exec", "--privileged", one.id, "true")
    assert done.returncode != 0
    assert "the container has a slice, which a process with CAP_" in done.stdout, "where Docker has an exec's error"
    assert one.memsize() == memsize
    plain = must(*d.run_line("-d", command=d.SLEEP)).strip()
    done = d.call("docker", "exec", "--privileged", plain, "ls", "/dev")
    assert done.returncode == 0
    assert "nvidia" not in done.stdout
    must("docker", "rm", "-f", plain)


def inside(one: d.Box, script: str) -> str:
    """The output of a script in the container; its commands are expected to fail."""
    return one.run("sh", "-c", script).stdout


def device_numbers(one: d.Box) -> set[str]:
    """major:minor of the nodes that a container was given."""
    line = next(line for line in (d.PROC / "inst_ctl").read_text().splitlines() if line.split()[0] == one.id)
    words = dict(word.split("=", 1) for word in line.split()[1:])
    return {f"{words['major']}:{minor}" for minor in (words["ctl"], words["uvm"], words["gpu"].split(":")[1])}


def test_root_inside_makes_no_other_node(neighbours: tuple[d.Box, d.Box]) -> None:
    """mknod is allowed there; opening what it makes is not: the driver's own nodes, a neighbour's, free numbers."""
    one, two = neighbours
    devices = Path("/proc/devices").read_text().splitlines()
    uvm = next(line.split()[0] for line in devices if line.split()[1:] == ["nvidia-uvm"])
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


def test_root_inside_writes_nothing_of_the_tree(neighbours: tuple[d.Box, d.Box]) -> None:
    one = neighbours[0]
    memsize, policy = one.memsize(), (d.PROC / "0/policy").read_text()
    tree = (d.PROC, "proc/self/root/proc/cgpu_km", "/proc/1/root/proc/cgpu_km")
    writes = [f"echo 2 >{root}/0/policy; echo {1 << 40} >{root}/0/{one.id[:12]}/memsize" for root in tree]
    writes += [f"echo destroy {one.id} >{root}/inst_ctl" for root in tree]
    said = inside(one, "; ".join(writes) + f"; cat {d.PROC}/version {d.PROC}/0/{one.id[:12]}/meminfo; echo end")
    assert said.split() == ["end"]
    assert (one.memsize(), (d.PROC / "0/policy").read_text()) == (memsize, policy)


def test_root_inside_writes_no_file_of_nvidias_driver(neighbours: tuple[d.Box, d.Box]) -> None:
    """Its registry and suspend are 0644 and ask for no capability; Docker closes other parts of /proc only."""
    with box("--security-opt", "systempaths=unconfined", *variables(1, devices=0)) as unconfined:
        for one in (neighbours[0], unconfined):
            check_files_of_the_driver(one)


def check_files_of_the_driver(one: d.Box) -> None:
    find = "find /proc/driver -type f -perm -200"
    (files, _), written, (params, _) = one.answers(
        find, f"for f in $({find}); do ( : >$f ) && echo opened $f; done", "cat /proc/driver/nvidia/params"
    )
    assert "/proc/driver/nvidia/suspend" in files.split(), "root of the host writes it"
    assert written[0] == ""
    assert written[1].count("Read-only file system") == len(files.split())
    assert "ModifyDeviceFiles: 0" in params.splitlines()


def test_root_inside_reopens_no_mapping(neighbours: tuple[d.Box, d.Box]) -> None:
    """Mappings show the driver's files, in map_files by name: following the link is refused."""
    said = inside(
        neighbours[0],
        "cat /proc/1/maps | while read range rest; do case $rest in */back*) echo saw; "
        "( : <>/proc/1/map_files/$range ) 2>/dev/null && echo reached;; esac; done",
    )
    assert set(said.split()) == {"saw"}


def test_root_inside_sees_no_neighbour(neighbours: tuple[d.Box, d.Box]) -> None:
    one, two = neighbours
    pid = int(must("docker", "inspect", "--format", "{{.State.Pid}}", two.id))
    said = inside(one, f"for p in {pid} /proc/{pid}/fd /proc/{pid}/mem; do ls $p; kill -0 $p && echo reached; done")
    assert said == ""
