# SPDX-License-Identifier: MIT
"""scripts/setup-nvidia without its packages: the error if they cannot be had; packages that are there are kept."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/setup-nvidia"


def call(root, *branches):
    environ = {**os.environ, "NVIDIA_ROOT": str(root), "DEBIAN_MIRROR": "http://127.0.0.1:9/debian"}
    return subprocess.run([SCRIPT, *branches], env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("branch", ["550", "535", "driver-550", "nvcc"])
def test_one_sentence_where_the_mirror_does_not_answer(tmp_path, branch):
    done = call(tmp_path, branch)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("setup-nvidia: NVIDIA's files cannot be had on this machine: http://127.0.0.1:9/debian")
    assert not (tmp_path / branch).exists()


def test_a_branch_that_it_does_not_know(tmp_path):
    done = call(tmp_path, "999")
    known = "550, 535, 555, driver-550, driver-535, nvcc, libraries"
    assert (done.returncode, done.stderr) == (1, f"setup-nvidia: 999 is none of {known}\n")


def test_what_is_there_is_not_asked_for_again(tmp_path):
    (tmp_path / "550").mkdir()
    driver = re.search(r'^DRIVER="(.*)"$', SCRIPT.read_text(), re.MULTILINE)[1]
    wish = f"trixie 550.163.01 {driver} "
    (tmp_path / "550/.wish").write_text(wish + "\n")
    done = call(tmp_path, "550")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
