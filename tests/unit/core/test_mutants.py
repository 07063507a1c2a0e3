# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Cores with one fault each, of mutants.toml: the tests that a fault names must notice it.

Those of the policies' own files run always, the others with CGPU_MUTANTS=all (about a minute).
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import _build
import pytest

from cgpu_common.policies import Policy
from cgpu_common.toml import tomllib

HERE = Path(__file__).parent
ALL = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
OF_POLICIES = [one for one in ALL if one["file"].startswith("policy_")]
FLAGS = ["-c", "-fPIC", "-O1", "-w", "-iquote", _build.CORE, *_build.DEFINES]
FAILED = 1  # pytest's exit status when tests ran and some failed
# A core that reads past its tables may end the test's process: that is noticed too.
NOTICED = {FAILED, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE}


def name_of(mutant):
    return mutant["name"]


def compiled(source, folder):
    target = folder / f"{source.stem}.o"
    subprocess.run([_build.CC, *FLAGS, "-o", target, source], check=True)
    return target


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The core's objects by the name of their file, and the tests' own."""
    folder, sources = tmp_path_factory.mktemp("objects"), [*_build.sources(), *_build.SIMULATED]
    subprocess.run([_build.CC, *FLAGS, *sources], cwd=folder, check=True)
    return {path.name: folder / f"{path.stem}.o" for path in sources}


def replaced(file, before, after):
    text = (_build.CORE / file).read_text()
    assert text.count(before) == 1
    return text.replace(before, after)


def library(objects, folder, **text_of):
    """The core as a shared library, with other @text_of its files."""
    for stem, text in text_of.items():
        source = folder / f"{stem}.c"
        source.write_text(text)
        objects = objects | {source.name: compiled(source, folder)}
    target = folder / "core.so"
    subprocess.run([_build.CC, "-shared", "-o", target, *objects.values()], check=True)
    return target


def run_tests(so, tests):
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = os.environ | {"CGPU_CORE_SO": str(so), "HYPOTHESIS_MAX_EXAMPLES": "60"}
    return subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", ALL if os.environ.get("CGPU_MUTANTS") == "all" else OF_POLICIES, ids=name_of)
def test_mutant_is_noticed(mutant, objects, tmp_path):
    text = replaced(mutant["file"], mutant["before"], mutant["after"])
    core = library(objects, tmp_path, **{Path(mutant["file"]).stem: text})
    done = run_tests(core, mutant["noticed_by"].split())
    assert done.returncode in NOTICED, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("mutant", ALL, ids=name_of)
def test_mutant_is_still_one_of_this_core(mutant):
    assert replaced(mutant["file"], mutant["before"], mutant["after"]) != (_build.CORE / mutant["file"]).read_text()
    for noticed_by in mutant["noticed_by"].split():
        path, _, test = noticed_by.partition("::")
        assert f"def {test}" in (HERE / path).read_text()


def test_the_core_as_it_is_passes_this_way(objects, tmp_path):
    """Or a mutant would be noticed for the wrong reason."""
    tests = {test for one in OF_POLICIES for test in one["noticed_by"].split()}
    done = run_tests(library(objects, tmp_path), sorted(tests))
    assert done.returncode == 0, done.stdout[-2000:]


TOUCHED = {one["file"] for one in OF_POLICIES}
UNTOUCHED = [policy for policy in Policy if f"policy_{policy.name.lower()}.c" not in TOUCHED]


@pytest.mark.parametrize("policy", sorted({Policy.NATIVE, *UNTOUCHED}))
def test_a_policy_with_another_engine_is_noticed(policy, objects, tmp_path):
    """By the table of policies.md. Each policy without a mutant in mutants.toml has at least this one."""
    other = "soft" if policy is Policy.NATIVE else "native"
    row = "\tCGPU_POLICIES(CGPU_POLICY_ROW)\n"
    text = replaced("policy.c", row, f"{row}\t[{policy:d}] = &cgpu_policy_{other},\n")
    mutant = library(objects, tmp_path, policy=text)
    done = run_tests(mutant, ["test_policy_table.py", "-k", f"test_the_table and {policy:d}-"])
    assert done.returncode == FAILED, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
