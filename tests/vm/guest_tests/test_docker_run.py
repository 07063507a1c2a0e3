# SPDX-License-Identifier: MIT
"""The documented `docker run` lines against a real engine, the real module and a simulated GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

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
    """Every test returns what it took."""
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
        major = int((d.PROC / "0/major").read_text())
        minor = int((d.PROC / "0/minor").read_text())
        names = one.run("ls", "/dev").stdout.split()
        assert {name for name in names if name.startswith("nvidia")} == {"nvidiactl", "nvidia-uvm", f"nvidia{minor}"}
        for name in ("nvidiactl", "nvidia-uvm", f"nvidia{minor}"):
            kind = one.run("stat", "-c", "%t %a", f"/dev/{name}").stdout.split()
            assert kind == [f"{major:x}", "666"], name
        assert one.run("ls", "/proc/cgpu_km").stdout.strip() == "", "masked"
        one.run("mknod", "/tmp/real", "c", "195", "255")
        opened = one.run("cat", "/tmp/real")
        assert opened.returncode != 0
        assert "not permitted" in opened.stderr


def test_over_the_limit(total: int) -> None:
    with box(*variables(6, devices=0)) as one:
        much = one.run("simload", "--no-context", "--alloc-mib", str(total * 6 // 15 + 1), "--seconds", "1")
        assert much.returncode == d.OVER_LIMIT, much.stderr
        fits = one.run("simload", "--no-context", "--alloc-mib", str(total * 6 // 15 // 2), "--seconds", "1")
        assert fits.returncode == 0, fits.stderr


def test_weight_and_priority() -> None:
    with box(*variables(1, devices=0, weight=4, highprio=1)) as one:
        assert number(one.dir / "weight") == 4
        assert number(one.dir / "highprio") == 1


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
        left = total - total * 10 // 15
        assert f"GPU 0 has {left} of its {total} MiB left and {total * 6 // 15} MiB were asked for" in done.stderr
        assert one.id[:12] in done.stderr


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
