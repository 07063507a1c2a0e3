# SPDX-License-Identifier: MIT
"""gpuload on a libcuda that is none, and simload's options beside its own."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest


@pytest.fixture
def load(built):
    """Runs gpuload; gives its lines of JSON."""

    def run(*argv: str, expect: int = 0, **env: str) -> list[dict]:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(built / "cuda"), **env}
        done = subprocess.run([built / "gpuload", *argv], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == expect, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_a_kernel_is_made_as_long_as_asked(load):
    (info,) = load("--calibrate", "--kernel-us", "500", FAKE_CUDA_ROUND_NS="50")
    assert info["iterations"] == pytest.approx(10_000, rel=0.3)
    assert info["name"] == "Fake"
    assert info["simulated"] is False


def test_work_is_counted_as_it_is_done(load):
    # So deep and so long that a moment without the processor is neither a dry queue nor a tenth of the time.
    argv = ("--seconds", "6", "--warmup", "1", "--interval", "0.3", "--iterations", "20000", "--depth", "512")
    ready, *progress, result = load(*argv, FAKE_CUDA_ROUND_NS="50")
    assert (ready["event"], result["event"]) == ("ready", "result")
    assert result["work_per_s"] == pytest.approx(1000, rel=0.1)
    assert [p["works"] for p in progress] == sorted(p["works"] for p in progress)
    assert 5 <= len(progress) <= 21
    assert result["lat_p50_us"] == pytest.approx(512_000, rel=0.2), "a queue of so many kernels of a millisecond"


def test_a_number_of_works_ends_it(load):
    (result,) = load("--works", "50", "--iterations", "200", "--streams", "3")
    assert result["works"] == 50


def test_what_fails_is_named(load):
    assert load("--seconds", "1", "--iterations", "10", expect=5, FAKE_CUDA_FAIL="cuEventQuery")[-1]["first_error"] == {
        "call": "cuEventQuery",
        "status": 700,
        "text": "CUDA_ERROR_ILLEGAL_ADDRESS",
    }
    assert load("--info", expect=1, FAKE_CUDA_FAIL="cuInit")[0]["first_error"]["call"] == "cuInit"
    assert load("--info", "--gpu", "1", expect=4)[0]["first_error"]["call"] == "cuDeviceGet"


def test_memory_beyond_the_card_is_refused(load):
    (info,) = load("--hold", "--seconds", "0.1", "--alloc-mib", "20000", "--allocs", "4", expect=3)
    assert info["first_error"]["text"] == "CUDA_ERROR_OUT_OF_MEMORY"


def test_without_a_driver_it_says_so(built):
    done = subprocess.run([built / "gpuload", "--info"], capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert "libcuda.so.1" in done.stderr


def test_exercise_names_what_the_library_lacks(built):
    """The library that is none has memory, but no address reservation."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(built / "cuda")}

    def exercise(*argv: str) -> tuple[int, str]:
        done = subprocess.run([built / "exercise", *argv], env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert exercise("alloc") == (0, "")
    assert exercise("init") == (0, "")
    assert exercise("vmm") == (1, "exercise: libcuda.so.1 has no cuMemAddressReserve\n")
    assert exercise("nonsense")[0] == exercise()[0] == 2


def test_the_scripts_options_are_both_loads(built):
    """What ask.Context and the questions pass is known to both."""
    text = {
        name: subprocess.run([built / name, "--help"], capture_output=True, text=True).stdout
        for name in ("gpuload", "simload")
    }
    known = {name: set(re.findall(r"--[a-z-]+", said)) for name, said in text.items()}
    used = {
        "--json",
        "--kernel-us",
        "--depth",
        "--streams",
        "--seconds",
        "--interval",
        "--hold",
        "--info",
        "--alloc-mib",
    }
    assert used <= known["gpuload"] & known["simload"]
