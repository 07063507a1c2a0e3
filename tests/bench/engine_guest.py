# SPDX-License-Identifier: MIT
"""Inside the machine of engine.py: processor time while containers start and end.

One processor that counts instructions. The figure is the time in which any task ran, by the scheduler's own accounts,
so that waiting is not counted. Prints one JSON object, the last line of its stdout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / part) for part in ("tests/vm/guest/box", "tests")]

import docker_box as d  # noqa: E402
import engine_box as e  # noqa: E402
from vm.harness.machine import ICOUNT_NS  # noqa: E402

IDLE_S = 60
NEAR = Path("/run/near")  # programs in memory: nothing waits for the host
#: Each of the six orders of three lives occurs equally often. One life of Docker differs by 15 % from the next one.
ROUNDS = {"runc": 12, "docker": 18, "live": 6}


def busy_ns() -> int:
    """Time in which a task ran, over all processors."""
    lines = Path("/proc/schedstat").read_text().splitlines()
    return sum(int(line.split()[7]) for line in lines if line.startswith("cpu"))


def daemon_ns(pid: int) -> int:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def near(program: str) -> str:
    NEAR.mkdir(exist_ok=True)
    found = shutil.which(program)
    assert found, program
    return shutil.copy(found, NEAR)


def settled(others: int) -> None:
    """Nothing of an earlier life is under way."""
    d.until(lambda: len(list(d.STATE.glob("*.json"))) == others, "the last container is gone", 600)
    time.sleep(2)


VERBS = ("create", "start", "kill", "delete", "state")

# A life in two parts: the preparation, and the measured part.
Life = tuple[Callable[[], Path], Callable[[Path], None]]


def by_hand(name: str, runtime: str, env: dict[str, str]) -> Life:
    engine = e.ByHand(name, runtime)

    def life(bundle: Path) -> None:
        done, one = engine.start_bundle(bundle)
        assert done.returncode == 0, done.stderr
        engine.kill(one.id)
        engine.remove(one.id)

    return lambda: engine.bundle(env, e.SLEEP), life


def docker(runtime: str, options: list[str]) -> Life:
    def life(_: Path) -> None:
        d.must("docker", "run", "--rm", f"--runtime={runtime}", "--network=none", *options, d.IMAGE, "true")

    return lambda: NEAR, life


def docker_verbs(path: Path) -> list[str]:
    """The verbs with which Docker calls cgpu-runtime in one life."""
    asked = path.with_suffix(".asked")
    path.write_text(f'#!/bin/sh\necho "$@" >>{asked}\nexec {ours()} "$@"\n')
    path.chmod(0o755)
    _, life = docker("counted", [])
    life(path)
    return [next(word for word in line.split() if word in VERBS) for line in asked.read_text().splitlines()]


def calls(rounds: int = 30) -> dict[str, float]:
    """Instructions that cgpu-runtime adds to a call that it only passes on: the next runtime does nothing here.

    The life of a Go program varies by more than this. So it is measured by itself, call by call.
    """
    runtime, nothing = ours(), near("true")
    bundle = e.ByHand("calls", runtime).bundle({}, e.SLEEP)
    create = ["--bundle", str(bundle), "x"]
    words = {"create": create, "start": ["x"], "kill": ["x", "KILL"], "delete": ["--force", "x"]}
    found = {}
    with e.hands_over_to(nothing):
        for verb, more in words.items():
            costs: dict[str, list[int]] = {nothing: [], runtime: []}
            for _ in range(rounds):
                for program, taken in costs.items():
                    before = busy_ns()
                    d.must(program, verb, *more)
                    taken.append(busy_ns() - before)
            medians = {program: statistics.median(taken) for program, taken in costs.items()}
            found[verb] = (medians[runtime] - medians[nothing]) / ICOUNT_NS
    print(f"calls: {found}", file=sys.stderr)
    return found


def compare(pid: int, lives: dict[str, Life], rounds: int) -> dict[str, float]:
    """Instructions of one life, the median; all kinds in every order, the first round not counted.

    Beside one that lives all the time: the first container of a node attaches to the driver, no other one does.
    """
    engine = e.ByHand("beside", ours())
    done, beside = engine.start(sliced(0), e.SLEEP)
    assert done.returncode == 0, done.stderr
    costs: dict[str, list[int]] = {name: [] for name in [*lives, "daemon"]}
    orders = itertools.cycle(itertools.permutations(lives))
    for n, order in zip(range(rounds + 1), orders, strict=False):
        for name in order:
            prepare, life = lives[name]
            what = prepare()
            settled(1)
            before, before_daemon = busy_ns(), daemon_ns(pid)
            life(what)
            settled(1)
            if n:
                costs[name].append(busy_ns() - before)
            if n and name == "sliced":
                costs["daemon"].append(daemon_ns(pid) - before_daemon)
    engine.kill(beside.id)
    engine.remove(beside.id)
    for name, found in costs.items():
        print(f"{name}: {sorted(round(ns / ICOUNT_NS) for ns in found)}", file=sys.stderr)
    return {name: statistics.median(found) / ICOUNT_NS for name, found in costs.items()}


def idle(pid: int) -> dict[str, float]:
    """Cost of the idle daemon."""
    settled(0)
    before = daemon_ns(pid)
    time.sleep(IDLE_S)
    used = daemon_ns(pid) - before
    rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return {"cpu_pct": 100 * used / (IDLE_S * 1e9), "rss_mib": int(rss.split()[1]) / 1024}


def events(pid: int, counts: list[int], rounds: int) -> dict[str, float]:
    """The daemon's instructions for one more life, at that number of live containers."""
    runtime = ours()
    live: list[e.Running] = []
    engine = e.ByHand("live", runtime)
    gpus = len(list(d.PROC.glob("[0-9]*")))
    for gpu in range(gpus):
        (d.PROC / str(gpu) / "max_inst").write_text("25")
    found = {}
    for count in counts:
        while len(live) < count - 1:
            done, one = engine.start(sliced(len(live) % gpus), e.SLEEP)
            assert done.returncode == 0, done.stderr
            live.append(one)
        costs = []
        settled(len(live))
        for n in range(rounds + 1):
            before = daemon_ns(pid)
            done, one = engine.start(sliced(gpus - 1), e.SLEEP)
            assert done.returncode == 0, done.stderr
            engine.kill(one.id)
            engine.remove(one.id)
            settled(len(live))  # the records are files: a request to the daemon would count as its work
            if n:
                costs.append(daemon_ns(pid) - before)
        found[str(count)] = statistics.median(costs) / ICOUNT_NS
        print(f"{count} live: {found[str(count)]:.0f}", file=sys.stderr)
    for one in live:
        engine.kill(one.id)
        engine.remove(one.id)
    return found


def sliced(gpu: int) -> dict[str, str]:
    return e.variables(1, ALIYUN_COM_GPU_MEM_DEV=60, ALIYUN_COM_GPU_VISIBLE_DEVICES=gpu)


def ours() -> str:
    return near(str(d.RUNTIME))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=ROUNDS)
    parser.add_argument("--rounds", type=int, help="instead of " + ", ".join(f"{n} for {k}" for k, n in ROUNDS.items()))
    arguments = parser.parse_args()
    rounds = arguments.rounds or ROUNDS[arguments.what]
    pid = d.daemon_pid()
    assert pid, "cgpud does not run"
    e.make_rootfs()
    runc = near("runc")
    added = {"calls": calls()} if arguments.what != "live" else {}
    with e.hands_over_to(runc):
        os.environ["PATH"] = f"{NEAR}:{os.environ['PATH']}"
        if arguments.what == "runc":
            runtime = ours()
            lives = {
                "alone": by_hand("alone", runc, {}),
                "not ours": by_hand("other", runtime, {}),
                "sliced": by_hand("sliced", runtime, sliced(0)),
            }
            found = {"start": compare(pid, lives, rounds), "idle": idle(pid), "verbs": list(added["calls"])}
        elif arguments.what == "docker":
            # Configured like ours: Docker's way to call a configured runtime is not compared.
            counted = NEAR / "counted"
            paths = {"alone": runc, "nvidia": ours(), "counted": str(counted)}
            d.settings(runtimes={name: {"path": path} for name, path in paths.items()})
            d.until(
                lambda: '"alone"' in d.must("docker", "info", "--format", "{{json .Runtimes}}"), "dockerd knows them"
            )
            d.make_image()
            lives = {
                "alone": docker("alone", []),
                "not ours": docker("nvidia", []),
                "sliced": docker("nvidia", d.variables(1, 60, devices=0)),
            }
            found = {"verbs": docker_verbs(counted), "start": compare(pid, lives, rounds)}
        else:
            found = {"event": events(pid, [5, 200], rounds)}
    print(json.dumps(added | found))


if __name__ == "__main__":
    main()
