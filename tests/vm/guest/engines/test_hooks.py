# SPDX-License-Identifier: MIT
"""A hook of the engine opens the driver to a container after cgpud's edit: by whatever program, at whatever stage, the
container does not start, or ends. What decides is the device cgroup, so the hooks here change that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, Ctr, Running, started, variables

pytestmark = pytest.mark.engines

HOME = e.ROOT / "hooks"
#: Moves the container's first process where no device rule is in force. In createContainer a hook is in the container's
#: pid namespace, whose first process is 1. The program has no name that cgpud could know.
OPENER = """#!/bin/sh
pid=$(sed -n 's/.*"pid": *\\([0-9][0-9]*\\).*/\\1/p')
mkdir -p /sys/fs/cgroup/opened
echo "$1 $pid" >> {log}
echo ${{2:-$pid}} > /sys/fs/cgroup/opened/cgroup.procs
"""
#: Prints a hook's environment, and is cgpu-runtime otherwise.
WITNESS = """#!/bin/sh
env > {place}/env.$2
exec {runtime} "$@"
"""
STANDIN = Path(__file__).parents[1] / "box/nvidia_standin.py"
SENTENCE = "the container may open a whole GPU, the driver's own /dev/nvidia0 (195:0), which config.json does not give"
RUNTIMES = {"runc": ByHand("runc"), "crun": ByHand("crun")}


PATIENT = "nvml_wait_s = 45\n"  # the emulated machine may be slow


@pytest.fixture(scope="module", autouse=True)
def parts(containerd: e.Containerd) -> Iterator[None]:
    e.make_rootfs()
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "opener").write_text(OPENER.format(log=HOME / "log"))
    (HOME / "opener").chmod(0o755)
    yield
    opened = Path("/sys/fs/cgroup/opened")
    d.until(lambda: not opened.exists() or not (opened / "cgroup.procs").read_text(), "the opened cgroup is empty")
    if opened.exists():
        opened.rmdir()


def nvml_answers() -> bool:
    found = d.ask(op="capacity", verb="nvml")["gpus"]
    return bool(found) and not any(one["why"] for one in found)


@pytest.fixture(params=RUNTIMES)
def engine(request: pytest.FixtureRequest) -> Iterator[ByHand]:
    d.ensure_daemon()
    d.until(nvml_answers, "NVML answers", 300)
    (HOME / "log").write_text("")
    with e.hands_over_to(request.param):
        yield RUNTIMES[request.param]
        d.until(e.nothing_is_left, "nothing is left of the container")


def hook(stage: str) -> str:
    words = ["opener", stage, *(["1"] if stage == "createContainer" else [])]
    return f"hooks={json.dumps({stage: [{'path': str(HOME / 'opener'), 'args': words}]})}"


def was_opened() -> bool:
    return bool((HOME / "log").read_text())


def is_said(text: str, engine: ByHand) -> bool:
    """crun shows nothing of what a hook prints, and nothing at all of one of poststart."""
    return SENTENCE in text or (engine.name == "crun" and (not text or "cgpu-runtime` (exit code: 1)" in text))


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_opened_before_the_start(engine: ByHand, stage: str) -> None:
    with e.configured(PATIENT):
        done, one = engine.start(variables(6), e.SLEEP, hook(stage))
    try:
        assert was_opened(), done.stderr
        assert done.returncode != 0
        assert is_said(done.stderr, engine), done.stderr
    finally:
        engine.remove(one.id)


def run_late(engine: ByHand, env: dict[str, str], stage: str) -> str:
    """`create`, `start`, and what both printed. runc runs the hooks of poststart at the end of `create`, crun after
    `start`, and ignores that one fails."""
    where = engine.bundle(env, e.SLEEP, hook(stage))
    container = e.fresh(engine.name)
    out = (where / "out").open("w+")
    words = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, "check": False}
    try:
        if subprocess.run([engine.runtime, "create", "--bundle", where, container], **words).returncode == 0:
            subprocess.run([engine.runtime, "start", container], **words)
        d.until(lambda: is_stopped(engine, container), "the container is killed")
        out.seek(0)
        return out.read()
    finally:
        engine.remove(container)
        shutil.rmtree(where)


def is_stopped(engine: ByHand, container: str) -> bool:
    done = d.call(engine.runtime, "state", container)
    return done.returncode != 0 or json.loads(done.stdout)["status"] == "stopped"


def test_opened_after_the_start(engine: ByHand) -> None:
    with e.configured(PATIENT):
        text = run_late(engine, variables(6), "poststart")
    assert was_opened(), text
    assert is_said(text, engine), text


def test_a_hook_of_startcontainer_is_in_the_container(engine: ByHand) -> None:
    """It has the container's capabilities and rules, so it can open nothing."""
    script = "/bin/busybox mknod /tmp/n c 195 0; ( : < /tmp/n ) && echo yes > /tmp/opened; exit 0"
    hooks = {"startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", script]}]}
    with (
        e.configured(PATIENT),
        started(engine, variables(6), e.SLEEP, f"hooks={json.dumps(hooks)}") as one,
    ):
        d.until((e.ROOTFS / "tmp/n").exists, "the hook ran")
        d.until(lambda: one.sh("true").returncode == 0, "the program has taken the hook's place")
        assert not (e.ROOTFS / "tmp/opened").exists()
        assert not one.reaches_the_driver()
        time.sleep(0.2)
        assert one.sh("true").returncode == 0, "the check after it left the container alone"
    (e.ROOTFS / "tmp/n").unlink()


@pytest.mark.parametrize(("engine", "stage"), [("runc", "createRuntime"), ("crun", "poststart")], indirect=["engine"])
def test_without_a_slice_where_that_is_refused(engine: ByHand, stage: str) -> None:
    e.CONF.write_text(e.CONF.read_text() + "ask = always\n")
    with e.configured(PATIENT + '[gpu]\nunsliced = "refuse"\n'):
        if stage == "poststart":
            text = run_late(engine, {}, stage)
            assert was_opened() and is_said(text, engine), text
            return
        done, one = engine.start({}, e.SLEEP, hook(stage))
        engine.remove(one.id)
        assert was_opened() and done.returncode != 0
        assert is_said(done.stderr, engine), done.stderr
        with started(engine, {}) as one:
            assert one.sh("true").returncode == 0


def test_gpus_of_containerd(monkeypatch: pytest.MonkeyPatch) -> None:
    """ctr and nerdctl: `--gpus` is a hook that calls NVIDIA's command line tool, which it finds in PATH."""
    tool = HOME / "nvidia-container-cli"
    tool.write_text(STANDIN.read_text())
    tool.chmod(0o755)
    (HOME / "nvidia.json").write_text('{"mode": "legacy", "runtimes": []}')
    monkeypatch.setenv("PATH", f"{HOME}:{os.environ['PATH']}")
    engine = Ctr()
    d.ensure_daemon()
    d.until(nvml_answers, "NVML answers", 300)
    with e.hands_over_to("runc"), e.configured(PATIENT):
        done, one = engine.start(variables(6), e.SLEEP, "--gpus", "0")
        assert done.returncode != 0
        assert "would give it more than its part of a GPU" in done.stderr
        engine.remove(one.id)
        d.until(e.nothing_is_left, "nothing is left of the container")
        with started(engine, {}, e.SLEEP, "--gpus", "0") as whole:
            assert "cgpu" not in whole.nodes_come_from(), "the stand-in does what it should"


@pytest.mark.parametrize(("engine", "values"), [("runc", ("2", "6")), ("crun", ("6", "2"))], indirect=["engine"])
def test_the_last_of_two_values_counts(engine: ByHand, values: tuple[str, str]) -> None:
    """As for the program: an image's value and a pod's are both in config.json."""
    env = ["PATH=/bin", *(f"{name}={value}" for name, value in variables(values[0]).items())]
    env.append(f"ALIYUN_COM_GPU_MEM_CONTAINER={values[1]}")
    with (
        e.configured(PATIENT),
        started(engine, variables(values[0]), e.SLEEP, f"process.env={json.dumps(env)}") as one,
    ):
        assert one.memsize() == d.total_mib() * int(values[1]) // 15 * d.MIB
        (pid,) = (Path("/sys/fs/cgroup") / group_of(one) / "cgroup.procs").read_text().split()
        program = Path(f"/proc/{pid}/environ")
        d.until(lambda: b"PATH=/bin\0" in program.read_bytes(), "runc's init has become the program")
        entries = program.read_bytes().decode().split("\0")
        assert [entry for entry in entries if entry.startswith("ALIYUN_COM_GPU_MEM_CONTAINER=")] == env[-1:]


def group_of(one: Running) -> str:
    known = {known["id"]: known["cgroup"] for known in d.ask(op="status")["containers"]}
    return str(known[one.id]).lstrip("/")


def test_the_hooks_inherit_nothing_of_the_image(engine: ByHand) -> None:
    """The kind of CVE-2025-23266: a createContainer hook with LD_PRELOAD of the image."""
    witness = HOME / "witness"
    witness.write_text(WITNESS.format(place=HOME, runtime=d.RUNTIME))
    witness.chmod(0o755)
    for path in HOME.glob("env.*"):
        path.unlink()
    image = {"LD_PRELOAD": "/tmp/evil.so", "GCONV_PATH": "/tmp/evil", "TMPDIR": "/evil", "ENV": "/evil"}
    late = {"poststart": [{"path": "/bin/true"}]}
    with (
        e.configured(PATIENT + f'runtime_path = "{witness}"\n'),
        started(engine, variables(6) | image, e.SLEEP, f"hooks={json.dumps(late)}"),
    ):
        pass
    d.until(lambda: (HOME / "env.release").exists(), "the last hook ran")
    for name in ("bind", "params", "confirm", "release"):
        seen: dict[str, Any] = dict(line.split("=", 1) for line in (HOME / f"env.{name}").read_text().splitlines())
        assert not set(seen) - {"PWD", "OLDPWD", "SHLVL", "_"}, f"what the shell itself sets: {name}"
