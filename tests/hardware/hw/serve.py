# SPDX-License-Identifier: MIT
"""An inference service beside training: what its requests take, and what is left for the training."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import machine
from .ask import TORCH, Context, Missing, has_torch, question
from .lever import took_us
from .loads import Crew, Load, LoadError, run_program
from .sched import conduct_argv
from .stats import figures
from .traces import keep_packed

SERVE = [sys.executable, str(machine.GPU / "load/serveload.py"), "--tokens", "8", "--rate", "8"]

#: name, policy of the core, weights (service, training), high priority, run state
WAYS = (
    ("weights 1:1", 2, (1, 1), False, False),
    ("weights 4:1", 2, (4, 1), False, False),
    ("high priority, run state unknown", 1, (1, 1), True, False),
    ("high priority, run state known", 1, (1, 1), True, True),
    ("weights 1:1, run state known", 2, (1, 1), False, True),
)


def start(context: Context, argv: list[str], env: dict[str, str] | None = None) -> Load:
    words = [*argv, "--json", "--seconds", "0", "--interval", str(context.interval_s)]
    return Load(words, {**os.environ, **(context.preload() if env is None else env)}, context.work)


def window(context: Context, crew: Crew, serve: Load | None, train: Load | None, seconds: float) -> dict:
    """Requests that arrived in a window, and the training's steps per second in it."""
    loads = [one for one in (serve, train) if one]
    begin = time.monotonic() + 0.3
    rates = crew.rates(seconds, loads)
    row: dict = {}
    if serve:
        inside = [r["ms"] for r in list(serve.requests) if begin <= r["arrived"] <= begin + seconds]
        row["request_ms"] = figures(inside, "ms")
    if train:
        row["steps_per_s"] = round(rates[-1], 3)
    return row


@contextmanager
def conducted(context: Context, loads: list[Load], how: tuple, seconds: float) -> Iterator[None]:
    """The core's decisions for so long, in a process of its own."""
    _, policy, weights, highprio, states = how
    members = [(load, weight, highprio and load is loads[0]) for load, weight in zip(loads, weights, strict=True)]
    options = ["--prio-ratio", "95"] * highprio + ["--states"] * states
    argv = conduct_argv(context, policy, seconds, members, *options)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: dict = {}
    try:
        yield said
    finally:
        out, err = process.communicate(timeout=seconds + 20)
    if process.returncode:
        raise LoadError(f"conduct: {err.strip()}")
    said.update(json.loads(out.splitlines()[-1]))


def link_states(context: Context, serve: Load, train: Load) -> None:
    """conduct finds a process's word beside its socket. Training always has work."""
    serve.socket.with_suffix(".state").symlink_to(context.work / "serve.state")
    train.socket.with_suffix(".state").write_bytes(b"\1\0\0\0")


@contextmanager
def mps(context: Context) -> Iterator[dict[str, str]]:
    """NVIDIA's MPS daemon for this run alone, and the environment of its clients."""
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": str(context.work / "mps"),
        "CUDA_MPS_LOG_DIRECTORY": str(context.work / "mps-log"),
    }
    for path in env.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    control = ["nvidia-cuda-mps-control"]
    try:
        done = subprocess.run([*control, "-d"], env={**os.environ, **env}, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise Missing("nvidia-cuda-mps-control is not installed") from None
    if done.returncode:
        raise LoadError(f"nvidia-cuda-mps-control: {done.stderr.strip() or done.stdout.strip()}")
    try:
        yield env
    finally:
        subprocess.run(control, input="quit\n", env={**os.environ, **env}, text=True, timeout=30, check=False)


def said_of(rows: dict) -> str:
    words = []
    for name, row in rows.items():
        parts = []
        if row.get("request_ms", {}).get("n"):
            parts.append(f"p50/p99 {row['request_ms']['median']:.1f}/{row['request_ms']['p99']:.1f} ms")
        if "steps_per_s" in row:
            parts.append(f"{row['steps_per_s']:.1f} steps/s")
        words.append(f"{name}: {', '.join(parts) or row.get('reason', 'nothing')}")
    return "; ".join(words)


@question("serve", "serve", 340, (7, 8))
def serve_beside_training(context: Context) -> dict:
    """What do requests at batch 1 take beside training, under the driver, under timeslices, under cgpu's core and MPS?

    An LLM's decode steps (half floats, a CUDA graph a token, 8 tokens a request, 8 requests a second by chance) beside
    resnet50 training. Each way for some seconds with the same two processes. Where the run state is known, the service
    says itself whether it has work: no user program can read channel RAM.
    """
    if not has_torch():
        raise Missing("PyTorch is not installed")
    seconds = 3.0 if context.quick else 25.0
    rows: dict[str, dict] = {}
    with context.crew() as crew:
        serve = start(context, [*SERVE, "--state", str(context.work / "serve.state")]).wait_ready(90)
        crew.loads.append(serve)
        rows["service alone"] = window(context, crew, serve, None, seconds)
        train = start(context, TORCH).wait_ready(90)
        crew.loads.append(train)
        link_states(context, serve, train)
        rows["driver"] = window(context, crew, serve, train, seconds)
        slices = {one: one.lever("timeslices")["timeslice_us"] for one in (serve, train)}
        for name, us in (("timeslices 8:1", (8192, 1024)), ("timeslices 16:1", (8192, 512))):
            for one, value in zip((serve, train), us, strict=True):
                one.lever("timeslice", us=value)
            rows[name] = window(context, crew, serve, train, seconds)
        for one in (serve, train):
            one.lever("timeslice", us=max(1000, min(slices[one] or [1024])))
        for how in WAYS[3:] if context.quick else WAYS:
            with conducted(context, [serve, train], how, seconds + 1.5) as said:
                rows[how[0]] = window(context, crew, serve, train, seconds)
            rows[how[0]]["conduct"] = said
        crew.loads.remove(serve)
        serve.stop()
        rows["training alone"] = window(context, crew, None, train, seconds / 2)
    try:
        with mps(context) as env, context.crew() as crew:
            crew.loads += [start(context, argv, env) for argv in (SERVE, TORCH)]
            serve, train = (one.wait_ready(90) for one in crew.loads)
            rows["MPS"] = window(context, crew, serve, train, seconds)
    except (Missing, LoadError, subprocess.SubprocessError) as error:
        rows["MPS"] = {"reason": str(error)}
    return {"answer": said_of(rows), "timeslices_us": list(slices.values()), "rows": rows}


@question("mps", "traces", 5, (2,))
def mps_traces(context: Context) -> dict:
    """Which calls do MPS's server and its clients make?

    The daemon and a client under rmtap; the files go beside the results.
    """
    folder = context.out / "traces" / "mps"
    raw = context.work / "trace-mps"
    raw.mkdir(exist_ok=True)
    tap = {"LD_PRELOAD": str(context.bin / "librmtap.so"), "RMTAP_DIR": str(raw)}
    before = {name: os.environ.get(name) for name in tap}
    os.environ.update(tap)
    try:
        with mps(context) as env:
            done = run_program([str(context.bin / "exercise"), "alloc"], {**env, **tap}, timeout_s=45)
            time.sleep(1)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    files = keep_packed(raw, folder)
    return {"answer": f"{len(files)} processes; the client ends with {done['status']}", "client": done, "files": files}


@question("samples", "levers", 15, (18,))
def samples(context: Context) -> dict:
    """Do the driver's utilisation samples name the process on the engine, and at which times?

    Two loads; one is frozen, then the other; the samples against that alternation, by the time of day.
    """
    with context.crew() as crew:
        first, second = crew.add(2)
        names = {first.process.pid: "first", second.process.pid: "second"}
        spans = []
        for frozen, runs in ((second, "first"), (first, "second")):
            frozen.lever("freeze")
            begin = time.time_ns()
            time.sleep(2)
            spans.append((begin, time.time_ns(), runs))
            frozen.lever("thaw")
        time.sleep(1)
        answer = first.lever("samples")
    right = wrong = 0
    others: dict[str, int] = {}
    for at, pid in answer["samples"]:
        for begin, end, runs in spans:
            if begin + 100_000_000 <= at <= end - 50_000_000:
                who = names.get(pid, str(pid))
                right += who == runs
                wrong += who != runs
                if who != runs:
                    others[who] = others.get(who, 0) + 1
    times = [at for at, _ in answer["samples"]]
    gaps = [(b - a) / 1e6 for a, b in itertools.pairwise(times)]
    return {
        "answer": f"{len(times)} samples; {right} name the process that ran, {wrong} another",
        "status": answer["status"],
        "right": right,
        "wrong": wrong,
        "others": others,
        "gaps_ms": figures(gaps, "ms"),
        "newest_age_s": (time.time_ns() - max(times)) / 1e9 if times else None,
        "us": took_us(answer),
    }
