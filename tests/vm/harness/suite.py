# SPDX-License-Identifier: MIT
"""Runs guest/ in one boot and reports whether it passed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from . import run
from .machine import BadVariable, from_variables

#: Of boots with NVIDIA's own kernel driver; KERNEL_DRIVER is another branch.
DRIVER = {"kernel_driver": "550", "nvidia": "550", "nvsim": False, "daemon": False}

#: Where engines and daemons run, one processor takes half the time of two: an emulated processor that spins waits for
#: one that the host does not run. What runs at once is tested by the plain boots.
ENGINES = {"cpus": 1, "memory": "4G"}

#: Their clients call the module as those of the plain boot do, where the checks of locks and of freed files are on.
#: These would take a tenth of the time of a boot that starts hundreds of programs. With newer engines and NVIDIA's
#: other branches (make test-all) they are on, too.
UNCHECKED = {"checks": False}

#: Kinds of boot and the variables that make them. A test belongs to the kind
#: of its marker, and to `plain` without one.
KINDS = {
    "plain": {},
    "bare": {"bare": True, "daemon": False, "cpus": 1},
    "icount": {"icount": True, "cpus": 1},
    "long": {"daemon": False},
    "docker": ENGINES | UNCHECKED | {"docker": True},
    "engines": ENGINES | UNCHECKED,
    "kube": ENGINES | UNCHECKED | {"daemon": False, "gpus": "2", "mem_mib": "15109,81559"},
    "cuda": ENGINES | UNCHECKED | {"docker": True},
    "cuda_nvcc": ENGINES | {"docker": True},
    "cuda_icount": {"icount": True, "cpus": 1, "daemon": False},
    "driver": DRIVER | {"chips": "TU104"},
    "driver_two": DRIVER | {"chips": "TU104,GA100"},
    "driver_pair": DRIVER | {"chips": "TU104,TU104"},
    "driver_icount": DRIVER | {"chips": "TU104", "icount": True, "cpus": 1},
    "systemd": ENGINES | UNCHECKED | {"systemd": True, "daemon": False},
}


#: Options of pytest whose value is the word after them.
VALUED = ("-k", "-m", "-o", "-p", "-W", "-r", "-n", "-c")
VALUED += ("--deselect", "--durations", "--ignore", "--maxfail", "--tb", "--timeout")

#: Of one boot, on a busy host: some take six minutes where nothing else runs.
TIMEOUT_S = 2400


def main(arguments: list[str]) -> int:
    """`suite [KIND] [pytest arguments]`; exit status 0 only if tests ran and all is well."""
    kind, *rest = arguments or ["plain"]
    if kind not in KINDS:
        raise BadVariable(f"kind of boot {kind!r}: choose one of {', '.join(KINDS)}")
    rest += shlex.split(os.environ.get("PYTEST_ARGS", ""))
    machine = from_variables(os.environ, **settings(kind, os.environ))
    if kind.startswith("cuda") and not machine.nvidia:
        raise BadVariable(f"kind of boot {kind!r}: NVIDIA says which of NVIDIA's user spaces")
    name = f"vm-{machine.kernel}-{os.environ.get('PART') or '-'.join(filter(None, (kind, machine.engines)))}"
    junit = run.REPO / "build/junit" / f"{name}.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)
    junit.with_suffix(".tests").unlink(missing_ok=True)
    timeout = float(os.environ.get("TIMEOUT") or TIMEOUT_S)
    print(f"== {name}", flush=True)
    result = run.run(machine, pytest_command(name, kind, rest), timeout, to_stdout, to_stderr)
    for suffix in ("xml", "tests"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(result.run_dir / f"junit.{suffix}", junit.with_suffix(f".{suffix}"))
    if kind in ("engines", "docker"):
        rows = "".join(f"  {json.dumps(row)},\n" for row in engine_rows(junit.parent)).removesuffix(",\n")
        (run.REPO / "build/engines.json").write_text(f"[\n{rows}\n]\n")
    problems = [*judge(result.status, junit), *(str(finding) for finding in result.findings)]
    for problem in problems:
        print(f"{name}: {problem}", flush=True)
    print(
        f"== {name}: {'FAILED' if problems else 'passed'} in {result.seconds:.0f} s, logs in {result.run_dir}",
        flush=True,
    )
    return 1 if problems else 0


def settings(kind: str, variables: Mapping[str, str]) -> dict:
    """What makes a machine one of this kind. Its number of processors can be chosen, but where it must be 1."""
    branch = variables.get("KERNEL_DRIVER") if kind.startswith("driver") else ""
    found = KINDS[kind] | ({"kernel_driver": branch, "nvidia": branch} if branch else {})
    if variables.get("CPUS") and not found.get("icount"):
        found.pop("cpus", None)
    if variables.get("ENGINES") or variables.get("NVIDIA") in ("535", "555"):
        found.pop("checks", None)
    return found


def pytest_command(name: str, kind: str, rest: list[str]) -> str:
    """The command line of pytest in the guest; its report goes to the run directory."""
    words = ["-v", "-p", "no:cacheprovider", "-o", f"junit_suite_name={name}", "--boot", kind]
    options, expressions, chosen = sorted_out(rest)
    names = [word for word in chosen if "/" not in word and ".py" not in word]
    words += options + [place for word in chosen if word not in names for place in located(word)]
    if names:
        expressions.append(" or ".join(names))
    if expressions:
        words += ["-k", expressions[0] if len(expressions) == 1 else " and ".join(f"({each})" for each in expressions)]
    if chosen == names:
        marked = [marker for word in words if word.startswith("-m") for marker in needed(word[2:])]
        words += places([kind] * (kind != "plain") + marked)
    # Plugins of other packages cost seconds to import in an emulated machine.
    plain = 'PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest --junitxml="$CGPU_RUN/junit.xml" '
    return plain + shlex.join(words)


def sorted_out(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """pytest's options, the expressions of -k, of which pytest itself takes the last alone, and what is no option."""
    options, expressions, chosen = [], [], []
    rest = iter(words)
    for word in rest:
        value = next(rest, "") if word in VALUED else ""
        if word == "-k":
            expressions.append(value)
        elif word.startswith("-k"):
            expressions.append(word[2:])
        elif word == "-m":
            options.append(f"-m{value}")
        elif word.startswith("-"):
            options += [word, value] if word in VALUED else [word]
        else:
            chosen.append(word)
    return options, expressions, chosen


def located(word: str) -> list[str]:
    """The file or folder of the guest's tests that a word of TEST means, also by a file's name alone.

    Where there is none, pytest would read no conftest.py of theirs and not know the option --boot.
    """
    path, colons, test = word.partition("::")
    guest = run.REPO / "tests/vm/guest"
    found = [run.REPO / path] if "/" in path else sorted(guest.rglob(path))
    places = [str(each.relative_to(run.REPO)) for each in found if each.exists() and each.is_relative_to(guest)]
    if not places:
        raise BadVariable(f"TEST={word}: there is no {path} below tests/vm/guest")
    return [f"{place}{colons}{test}" for place in places]


def needed(expression: str) -> list[str]:
    """The markers that a file with a test of this `-m` must bear: `a and not b` needs a; `a or b` neither."""
    words = expression.split()
    if "or" in words:
        return []
    after = zip(["", *words], words, strict=False)
    return [word for before, word in after if before != "not" and word not in ("and", "not")]


def places(markers: list[str]) -> list[str]:
    """The files with tests that bear these markers: to read the others costs the debug kernel four minutes.

    Without a marker it is every file, so that a test without a boot is found (scripts/test-levels).
    """
    if not markers:
        return ["tests/vm/guest"]
    files = {path: path.read_text() for path in sorted((run.REPO / "tests/vm/guest").rglob("test_*.py"))}
    named = [path for path, text in files.items() if all(f"pytest.mark.{marker}" in text for marker in markers)]
    return [str(path.relative_to(run.REPO)) for path in named]


def judge(status: int, junit: Path) -> list[str]:
    """The reason against a pass: pytest's status, no report, no test."""
    if not junit.exists():
        return [f"pytest left no report (status {status})"]
    suites = ET.parse(junit).getroot().iter("testsuite")
    ran = sum(int(s.get("tests", 0)) - int(s.get("skipped", 0)) for s in suites)
    if ran == 0:
        return ["no test ran"]
    return [f"pytest ended with status {status}"] if status else []


def engine_rows(reports: Path) -> list[dict[str, str | int]]:
    """Of each engine and version the tests that have used it (guest/engines/conftest.py), and how many of them passed.

    They are those of the last report of each boot; a test that ran in several passed if it did in all of them.
    """
    passed: dict[tuple[str, str], dict[tuple[str, str], bool]] = {}
    for report in sorted(reports.glob("vm-*.xml")):
        for case in ET.parse(report).getroot().iter("testcase"):
            name = (case.get("classname", ""), case.get("name", ""))
            ok = not any(case.findall(f".//{bad}") for bad in ("failure", "error", "skipped"))
            for word in case.findall("properties/property[@name='engine']"):
                engine, _, version = word.get("value", "").partition(" ")
                cases = passed.setdefault((engine, version), {})
                cases[name] = cases.get(name, True) and ok
    return [
        {"engine": engine, "version": version, "cases": len(cases), "ok": sum(cases.values())}
        for (engine, version), cases in sorted(passed.items())
    ]


def to_stdout(data: bytes) -> None:
    """The command's stdout, as it comes."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def to_stderr(data: bytes) -> None:
    """The command's stderr, as it comes."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
