# SPDX-License-Identifier: MIT
"""scripts/setup-engines without its packages: the error if they cannot be had; a set that is there is kept."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from vm.harness.machine import ENGINE_SETS

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup-engines", "scripts/debian-archive"):
        shutil.copy(REPO / name, tmp_path / name)
    return tmp_path


def call(checkout, *sets):
    environ = {**os.environ, "DEBIAN_MIRROR": "http://127.0.0.1:9/debian"}
    words = [checkout / "scripts/setup-engines", *sets]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", ENGINE_SETS)
def test_one_sentence_where_the_mirror_does_not_answer(checkout, name):
    done = call(checkout, name)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("setup-engines: newer engines cannot be had on this machine: http://127.0.0.1:9/debian")
    assert not (checkout / "build/engines" / name).exists()


@pytest.mark.parametrize(("sets", "sentence"), [(("sid", "woody"), "woody is none of"), ((), "which set:")])
def test_a_set_that_it_does_not_know(checkout, sets, sentence):
    done = call(checkout, *sets)
    assert done.returncode == 1 and f"setup-engines: {sentence} " in done.stderr
    assert ", ".join(ENGINE_SETS) in done.stderr
    assert not (checkout / "build").exists(), "nothing has been fetched"


def test_what_is_there_is_not_asked_for_again(checkout):
    text = (checkout / "scripts/setup-engines").read_text()
    lists = [re.search(rf'^{name}="(.*)"', text, re.MULTILINE)[1] for name in ("ENGINES", "LIBRARIES")]
    own = re.search(r"^ +sid\) echo (.*) ;;", text, re.MULTILINE)[1]
    there = checkout / "build/engines/sid"
    there.mkdir(parents=True)
    (there / ".wish").write_text(" ".join(["sid", *lists, own]) + "\n")
    done = call(checkout, "sid")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
