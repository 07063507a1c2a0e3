# SPDX-License-Identifier: MIT
"""Helpers of the tests with NVIDIA's own user space: its image, its programs in a container, a load that reports."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import docker_box as d

sys.path.insert(0, str(d.REPO / "tests/demo"))

from measure import Progress, rate, whole_rounds

__all__ = ["Progress", "rate", "whole_rounds"]

Seen = TypeVar("Seen")

IMAGE = "cgpu-cuda"
BRANCH = os.environ.get("NVIDIA", "")
LIBRARIES = d.BUILD / "nvidia" / BRANCH / "usr/lib/x86_64-linux-gnu/nvidia/current"
CARD_MIB = 15109
OUT_OF_MEMORY = 2
NOT_SUPPORTED = (800, 801)  # not permitted, not supported: which of the two depends on the branch
#: Of the card's model: nvsim, or the card below NVIDIA's own kernel driver.
WAVE_NS = Path(f"/sys/module/{'simgpu' if os.environ.get('KERNEL_DRIVER') else 'nvsim'}/parameters/wave_ns")
#: gpuload launches four waves: a kernel of a millisecond. An emulated processor launches it in far less.
LOAD_WAVE_NS = 250_000


def release() -> str:
    """The exact release, as in the libraries' file names."""
    (found,) = [path.name.removeprefix("libcuda.so.") for path in LIBRARIES.glob("libcuda.so.*.*")]
    return found


@functools.cache
def make_image() -> None:
    """Once a boot: an image that asks for all GPUs, as CUDA's do, and without a cache of code compiled at run time."""
    variables = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "CUDA_CACHE_DISABLE=1")
    changes = [word for variable in variables for word in ("--change", f"ENV {variable}")]
    d.must("docker", "import", *changes, str(d.BUILD / "cuda/image.tar"), IMAGE)


def box(*options: str, command: tuple[str, ...] = d.SLEEP) -> contextlib.AbstractContextManager[d.Box]:
    return d.box(*options, command=command, image=IMAGE)


def program(one: d.Box, *words: str, timeout: float = 120) -> str:
    """The output of a program in the container; its failure fails the test."""
    done = inside(one, *words, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(words)}: status {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout


def inside(one: d.Box, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return d.call("docker", "exec", one.id, *words, timeout=timeout)


def in_nodes(dev: str, gpus: int = 1) -> tuple[str, ...]:
    """The head of a command line that runs where NVIDIA's names are the nodes of a plain container."""
    names = ("nvidiactl", "nvidia-uvm", *(f"nvidia{gpu}" for gpu in range(gpus)))
    binds = "; ".join(f"mount --bind {dev}/{name} /dev/{name}" for name in names)
    return "unshare", "-m", "sh", "-c", f'{binds}; exec "$@"', "sh"


def walk(*before: str, steps: Iterable[str] = (), timeout: float = 600) -> dict[str, Any]:
    """Results of a walk through CUDA's driver interface, run with `before` as the head of its command line."""
    done = d.call(*before, "walk", *steps, timeout=timeout)
    assert done.stdout, f"walk: status {done.returncode}: {done.stderr}"
    said: dict[str, Any] = json.loads(done.stdout)
    assert not said["stalled"], f"the step {said['stalled']} does not end: {said['results']}"
    return said


def peers(dev: str, what: str, look: Callable[[], Seen]) -> Seen:
    """look() while tests/cuda/peers, run as `what` in the nodes of a container, has memory on both its GPUs.

    Each of its calls must succeed and the copied data must arrive.
    """
    argv = [*in_nodes(dev, gpus=2), str(d.BUILD / "cuda/peers"), what]
    run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = run.stdout.readline()
    seen = look()
    rest, errors = run.communicate("\n", timeout=300)
    assert line, errors
    said = json.loads(line)
    assert {name: result for name, result in said["steps"].items() if result} == {"can access": 1}, (line, errors)
    assert said["held"], line
    assert set(json.loads(rest)["after"].values()) == {0}, rest
    assert run.returncode == 0, errors
    return seen


def changed(bare: dict[str, int], sliced: dict[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """Calls with a different result in a container, without those on managed memory, which is denied there."""
    names = {name for name in bare.keys() | sliced.keys() if not name.startswith("managed/")}
    return {name: (bare.get(name), sliced.get(name)) for name in sorted(names) if bare.get(name) != sliced.get(name)}


def card_used() -> int:
    """Memory in use by the simulated card's own count."""
    return int(re.search(r"fb_used=(\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


#: A fifth of a processor: without pauses it takes all that the test leaves.
PAUSES = ("--iterations", "1", "--depth", "4", "--busy-ms", "20", "--idle-ms", "200", "--poll-us", "20000")
LOAD = ("gpuload", "--json", "--seconds", "0", "--interval", "0.2", *PAUSES)


@contextlib.contextmanager
def long_kernels() -> Iterator[None]:
    before = WAVE_NS.read_text()
    WAVE_NS.write_text(str(LOAD_WAVE_NS))
    yield
    WAVE_NS.write_text(before)


@contextlib.contextmanager
def load(one: d.Box, words: tuple[str, ...] = LOAD) -> Iterator[Progress]:
    """A load in the container that reports, from its first line on until the end of the block."""
    before = processes(one)
    progress = Progress(["docker", "exec", one.id, *words])
    try:
        assert progress.wait_event("ready", 180), progress.last_words()
        yield progress
    finally:
        progress.stop()  # of docker; the process that it started goes on
        for pid in processes(one) - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes(one: d.Box) -> set[int]:
    """Of a container, by the host's numbers."""
    return {int(line) for line in Path(f"/sys/fs/cgroup/docker/{one.id}/cgroup.procs").read_text().split()}
