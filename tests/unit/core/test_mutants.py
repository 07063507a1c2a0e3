# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Cores with one fault each, kept as patches in mutants/: the tests that a patch names must notice it.

Those of the policies' own files run always, the others with CGPU_MUTANTS=all (about a minute).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import _build
import pytest

from cgpu_common.policies import Policy

HERE = Path(__file__).parent
ALL = sorted((HERE / "mutants").glob("*.patch"))
FAILED = 1  # pytest's exit status when tests ran and some failed
# A core that reads past its tables may end the test's process: that is noticed too.
NOTICED = {FAILED, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE}
PATCHES = ALL
if os.environ.get("CGPU_MUTANTS") != "all":
    PATCHES = [path for path in ALL if "+++ b/core/policy_" in path.read_text()]


def compiled(source, folder):
    target = folder / f"{source.stem}.o"
    subprocess.run([_build.CC, "-c", "-fPIC", "-O1", "-w", *_build.DEFINES, "-o", target, source], check=True)
    return target


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The core's objects by the name of their file, and the tests' own."""
    folder = tmp_path_factory.mktemp("objects")
    return {path.name: compiled(path, folder) for path in [*_build.sources(), *_build.SIMULATED]}


def patched(folder, patch):
    """The core's sources with @patch."""
    shutil.copytree(_build.CORE, folder / "core")
    shutil.copy(_build.ROOT / "cgpu_km/uapi.h", folder)
    subprocess.run(["patch", "-s", "-p1", "-F0", "-i", patch], cwd=folder, check=True)


def library(objects, folder, patch=None):
    """The core with @patch as a shared library."""
    if patch:
        patched(folder, patch)
        name = re.search(r"^\+\+\+ b/core/(.+)$", patch.read_text(), re.M)[1]
        objects = objects | {name: compiled(folder / "core" / name, folder)}
    target = folder / "core.so"
    subprocess.run([_build.CC, "-shared", "-o", target, *objects.values()], check=True)
    return target


def run_tests(so, tests):
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = os.environ | {"CGPU_CORE_SO": str(so), "HYPOTHESIS_MAX_EXAMPLES": "60"}
    return subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_mutant_is_noticed(patch, objects, tmp_path):
    tests = re.search(r"^Noticed-by: (.+)$", patch.read_text(), re.M)[1].split()
    done = run_tests(library(objects, tmp_path, patch), tests)
    assert done.returncode in NOTICED, f"{patch.read_text()}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("patch", ALL, ids=lambda path: path.stem)
def test_mutant_is_still_one_of_this_core(patch):
    subprocess.run(["patch", "-s", "-p1", "-F0", "--dry-run", "-i", patch], cwd=_build.CORE.parent, check=True)


def test_the_core_as_it_is_passes_this_way(objects, tmp_path):
    """Or a mutant would be noticed for the wrong reason."""
    done = run_tests(library(objects, tmp_path), ["test_turn.py"])
    assert done.returncode == 0, done.stdout[-2000:]


TOUCHED = {name for path in ALL for name in re.findall(r"^\+\+\+ b/core/policy_(\w+)\.c", path.read_text(), re.M)}
UNTOUCHED = [policy for policy in Policy if policy.name.lower() not in TOUCHED]


@pytest.mark.parametrize("policy", sorted({Policy.NATIVE, *UNTOUCHED}))
def test_a_policy_with_another_engine_is_noticed(policy, objects, tmp_path):
    """By the table of policies.md. Each policy without a patch in mutants/ has at least this mutant."""
    other = "soft" if policy is Policy.NATIVE else "native"
    row = "\tCGPU_POLICIES(CGPU_POLICY_ROW)\n"
    text = (_build.CORE / "policy.c").read_text()
    assert text.count(row) == 1
    shutil.copytree(_build.CORE, tmp_path / "core")
    shutil.copy(_build.ROOT / "cgpu_km/uapi.h", tmp_path)
    source = tmp_path / "core/policy.c"
    source.write_text(text.replace(row, f"{row}\t[{policy:d}] = &cgpu_policy_{other},\n"))
    mutant = library(objects | {source.name: compiled(source, tmp_path)}, tmp_path)
    done = run_tests(mutant, ["test_policy_table.py", "-k", f"test_the_table and {policy:d}-"])
    assert done.returncode == FAILED, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
