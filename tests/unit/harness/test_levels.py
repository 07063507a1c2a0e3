# SPDX-License-Identifier: MIT
"""scripts/test-levels: failures are listed at the end, where the reader of a long log looks first."""

import importlib.machinery
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from vm.harness import suite

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/test-levels"

JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0">
<testcase classname="tests.test_a" name="test_good"/>
<testcase classname="tests.test_a" name="test_bad"><failure message="assert 0&#10; + where 0 = f()"/></testcase>
<testcase classname="tests.test_b" name="test_worse"><error message="no setup"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def levels(tmp_path, monkeypatch, request):
    """The script as a module, its reports in a directory of the test's. @param: its BACKEND."""
    monkeypatch.setenv("BACKEND", getattr(request, "param", ""))
    loader = importlib.machinery.SourceFileLoader("test_levels_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    monkeypatch.setitem(sys.modules, loader.name, module)  # where its dataclasses look for their names
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    module.JUNIT = tmp_path
    return module


def play(levels, monkeypatch, level, status, said, report):
    def beside(level, _command, _title):
        (levels.JUNIT / f"{level.name}.log").write_text(said)
        if report:
            (levels.JUNIT / f"{level.junit}.xml").write_text(report)
        return status, 1.5

    monkeypatch.setattr(levels, "run_beside", beside)
    return levels.run(level)


def test_failed_tests_are_named_with_the_first_line_of_their_message(levels, monkeypatch):
    out = play(levels, monkeypatch, levels.boot("6.1", "plain"), 1, "vm-6.1-plain: pytest ended with status 1\n", JUNIT)
    assert (out.passed, out.failed) == (1, 2)
    assert out.failures == [
        "tests.test_a::test_bad: assert 0",
        "tests.test_b::test_worse: no setup",
        "vm-6.1-plain: pytest ended with status 1",
    ]


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("vm: VM LOST (this is no test result): timed out\nelse\n", "vm: VM LOST (this is no test result): timed out"),
        ("vm-6.1-plain: --- panic, line 9 of the kernel log\n", "vm-6.1-plain: --- panic, line 9 of the kernel log"),
        ("make: nothing of its own\n", "status 2"),
    ],
)
def test_a_level_that_fails_by_itself_says_why(levels, monkeypatch, said, want):
    out = play(levels, monkeypatch, levels.boot("6.1", "plain"), 2, said, "")
    assert out.failed == 1
    assert out.failures == [want]


def test_a_level_that_hangs_is_ended_with_its_processes(levels, monkeypatch):
    monkeypatch.setattr(levels, "REPO", levels.JUNIT.parent)
    pids = levels.JUNIT / "pids"
    command = ["sh", "-c", f"sleep 600 & echo $! >{pids}; wait"]
    began = time.monotonic()
    status, _ = levels.run_beside(levels.Level("kube", "test-kube", limit_s=3), command, "title")
    assert status == -signal.SIGKILL
    assert time.monotonic() - began < 30
    status = Path(f"/proc/{pids.read_text().strip()}/status")
    for _ in range(100):
        if not status.exists() or "State:\tZ" in status.read_text():  # waits at most for process 1
            break
        time.sleep(0.1)
    else:
        pytest.fail("its process goes on")
    assert levels.complaints(levels.Level("kube", "test-kube"), 2) == ["kube: ended after 3 s"]


def test_a_missed_bar_is_named(levels):
    level = levels.Level("bench-quick", "bench-quick")
    (levels.JUNIT / "bench-quick.log").write_text("NOT YET A BAR: one\nMISSED: a decision takes 1100 ns\nmake: *** 1\n")
    assert levels.complaints(level, 2) == ["MISSED: a decision takes 1100 ns"]


def test_what_failed_is_the_last_that_is_printed(levels, monkeypatch, capsys):
    monkeypatch.setenv("LEVELS", "lint vm-6.1-needs")
    monkeypatch.setattr(levels, "homeless", lambda _levels: [])
    monkeypatch.setattr(levels, "REPO", levels.JUNIT)  # build/test.json keeps the times of the last real run
    (levels.JUNIT / "build").mkdir()
    came = {"lint": (1, 0, 0, []), "vm-6.1-needs": (331, 1, 0, ["tests.test_a::test_bad"])}
    monkeypatch.setattr(levels, "run", lambda level, _nice: levels.Outcome(level, 1.0, 0.5, *came[level.name]))
    assert levels.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-3:] == [
        "vm-6.1-needs failed: tests.test_a::test_bad",
        "not all levels: LEVELS=lint vm-6.1-needs",
        "332 passed, 1 failed",
    ]
    times = json.loads((levels.JUNIT / "build/test.json").read_text())["levels"]
    assert times["vm-6.1-needs"] == {
        "began_s": 0,
        "seconds": 1.0,
        "cpu_seconds": 0.5,
        "passed": 331,
        "failed": 1,
        "skipped": 0,
        "failed_once": [],
    }


@pytest.fixture
def failing(levels, monkeypatch):
    """Levels that ended with some failed tests, and their second runs with `second` tests failed."""

    def outcomes(tests, rest, second=0):
        runs = []

        def run(level):
            runs.append(level)
            return levels.Outcome(level, 1.0, 0.5, tests - second, second, 0, ["x"] * second)

        monkeypatch.setattr(levels, "run", run)
        found = []
        for level in (levels.boot("uml", "cuda", levels.SHORT), levels.Level("kube", "test-kube", junit="test-kube")):
            case = f'<testcase classname="t" name="x"><error message="{rest[0]}"/></testcase>'
            report = f'<a><testsuite tests="{tests + 7}" errors="{tests}">{case * tests}</testsuite></a>'
            (levels.JUNIT / f"{level.junit}.xml").write_text(report)
            _, failed, _, failures = levels.read(levels.JUNIT / f"{level.junit}.xml")
            found.append(levels.Outcome(level, 9.0, 9.0, 7, max(failed, 1), 0, [*failures, *rest[1:]]))
        levels.run_again(found)
        return found, runs

    return outcomes


def test_a_few_failed_tests_run_again_alone(levels, failing):
    (boot, kube), runs = failing(2, ("assert 0", "vm-uml-cuda: pytest ended with status 1"))
    assert [(o.passed, o.failed, o.failures, len(o.once)) for o in (boot, kube)] == [(9, 0, [], 2)] * 2
    assert [run.name for run in runs] == ["vm-uml-cuda-again", "kube-again"]
    assert runs[0].variables[-2:] == (
        "PART=cuda-again",
        "PYTEST_ARGS='-mnot more' --failed-in=build/junit/vm-uml-cuda.xml",
    )
    assert runs[1].variables[-1].split() == [
        "PYTEST_ARGS=",
        "--failed-in=build/junit/test-kube.xml",
        "--junitxml=build/junit/test-kube-again.xml",
    ]


def test_a_test_that_fails_twice_has_failed(failing):
    found, _ = failing(2, ("assert 0", "status 2"), second=1)
    assert [(o.passed, o.failed, o.once) for o in found] == [(7, 2, [])] * 2


@pytest.mark.parametrize(
    ("tests", "rest"),
    [
        (3, ("assert 0", "status 2")),
        (1, ("the kernel complained during this test:", "status 2")),
        (1, ("assert 0", "vm-6.1-plain: --- panic, line 9 of the kernel log")),
        (0, ("", "vm: VM LOST (this is no test result): timed out")),
    ],
    ids=["too many", "a splat", "a panic", "no test"],
)
def test_what_has_another_cause_does_not_run_again(failing, tests, rest):
    found, runs = failing(tests, rest)
    assert not runs
    assert [o.failed for o in found] == [max(tests, 1)] * 2


def test_what_failed_in_a_report_is_chosen_by_name(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', ['x-1', 'x-2'])\ndef test_a(x): assert x == 'x-2'\n"
        "def test_b(): pass\n"
    )
    plugin = f"-p conftest --rootdir={tmp_path} --override-ini=pythonpath={SCRIPT.parents[1] / 'tests'}".split()
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_it.py"]
    first = subprocess.run([*run, "--junitxml=report.xml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in first.stdout, first.stdout + first.stderr
    again = subprocess.run([*run, "--failed-in=report.xml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 deselected" in again.stdout, again.stdout + again.stderr


def play_all(levels, monkeypatch, idle):
    """run_all() of all levels, with processors that are idle or not: when each level began and ended. The first that
    waits does so for another of its like, if there is a lane for one."""
    lock, events, two = threading.Lock(), [], threading.Barrier(2)

    def run(level, nice):
        with lock:
            events.append(("began", level, nice))
            meets = idle and level.waits and sum(what == "began" and one.waits for what, one, _ in events) <= 2
        if meets:
            two.wait(60)
        time.sleep(0.02)
        with lock:
            events.append(("ended", level, nice))
        return levels.Outcome(level, 1.0, 0.5, 1, 0, 0, [])

    monkeypatch.setattr(levels, "run", run)
    monkeypatch.setattr(levels, "IDLE_SECONDS", 0.005)
    monkeypatch.setattr(levels, "idle_part", lambda _before: idle)
    every = [*levels.LEVELS, *levels.LONG]
    assert [outcome.level for outcome in levels.run_all(every)] == every
    assert sorted(level.name for what, level, _ in events if what == "began") == sorted(level.name for level in every)
    return events


def beside(events, which):
    """How many of them ran at a time at most."""
    running = most = 0
    for what, level, _ in events:
        if which(level):
            running += 1 if what == "began" else -1
            most = max(most, running)
    return most


def test_each_level_runs_once_and_after_what_it_needs(levels, monkeypatch):
    """Three boots at a time, with kernel and modules built; beside them a level that waits, and one that works."""
    events = play_all(levels, monkeypatch, idle=0.0)
    ended = set()
    for what, level, _ in events:
        if what == "ended":
            ended.add(level.name)
        elif level.boots:
            assert {levels.MODULES, levels.LINUX} <= ended
        elif level.name in levels.EARLY:
            assert ended == {levels.TOOLS}, "compilers are enough"
        else:
            assert levels.SETUP in ended or level.alone
    assert beside(events, lambda level: level.boots) == levels.LANES
    rest = [(level.name, nice) for what, level, nice in events if what == "began" and not level.boots]
    assert (
        beside(events, lambda level: not (level.boots or level.alone or level.name in levels.EARLY)) <= levels.LANES + 2
    )
    assert {nice for what, level, nice in events if level.boots} == {0}
    assert rest[0][0] == levels.TOOLS
    assert ("install", levels.NICE) in rest
    assert [name for name, _ in rest][4:6].count("kube") == 1, "it waits the longest"


def test_idle_processors_get_a_further_level(levels, monkeypatch):
    """The shortest of those that wait begin while the two lanes of these have the longest."""
    events = play_all(levels, monkeypatch, idle=1.0)
    waiting = [level.name for level in levels.LEVELS if level.waits]
    assert beside(events, lambda level: level.waits) > 2
    order = [level.name for what, level, _ in events if what == "began" and level.waits]
    assert set(order[:3]) == {*waiting[:2], waiting[-1]}
    assert beside(events, lambda level: level.boots) == levels.LANES


def test_idle_time_is_that_of_all_processors(levels, monkeypatch):
    """user nice system idle iowait irq softirq steal, then the guests' time, which is in user and nice, too."""
    proc = levels.JUNIT / "stat"
    monkeypatch.setattr(levels, "Path", lambda _path: proc)
    proc.write_text("cpu  100 10 50 400 40 0 0 0 70 7\ncpu0 1 1 1 1\n")
    before = levels.processor_ticks()
    assert before == (440, 600)
    proc.write_text("cpu  130 10 70 410 80 0 0 0 99 9\n")
    assert levels.idle_part(before) == 0.5
    assert levels.idle_part(levels.processor_ticks()) == 0


def test_a_level_that_raises_ends_all(levels, monkeypatch):
    def run(level, _nice):
        raise OSError(level.name)

    monkeypatch.setattr(levels, "run", run)
    with pytest.raises(OSError, match="core"):
        levels.run_all([level for level in levels.LEVELS if level.name == "core"])


def test_a_test_of_a_long_level_is_not_missed_by_the_others(levels):
    short, long = levels.boot("6.1", "plain"), levels.LONG[-1]
    listed = f"ran\ttest_a\nneeds a {long.kind} boot\ttest_b\nneeds a stock kernel\ttest_c\n"
    (levels.JUNIT / f"{short.junit}.tests").write_text(listed)
    assert levels.homeless([short]) == ["test_c: needs a stock kernel"]
    assert levels.homeless([short, long]) == [f"test_b: needs a {long.kind} boot", "test_c: needs a stock kernel"]


def test_a_test_of_the_debug_kernel_is_not_missed_without_it(levels):
    """A boot of another kind names the kind, whatever its kernel."""
    plain, other = levels.boot("uml", "plain"), levels.boot("uml", "bare")
    (levels.JUNIT / f"{plain.junit}.tests").write_text("needs the debug kernel\ttest_a\nneeds pci\ttest_b\n")
    (levels.JUNIT / f"{other.junit}.tests").write_text("needs a plain boot\ttest_a\nneeds a plain boot\ttest_b\n")
    assert levels.homeless([plain, other]) == ["test_b: needs a plain boot, needs pci"]
    debug = levels.boot("uml-debug", "plain")
    assert len(levels.homeless([plain, other, debug])) == 2
    (levels.JUNIT / f"{debug.junit}.tests").write_text("ran\ttest_a\n")
    assert levels.homeless([plain, other, debug]) == ["test_b: needs a plain boot, needs pci"]


def test_a_test_marked_more_is_missed_by_make_test_all_only(levels):
    short = levels.boot("6.1", "plain", levels.SHORT)
    more = levels.boot("6.1", "plain", levels.MORE, part="more")
    (levels.JUNIT / f"{short.junit}.tests").write_text("ran\ttest_a\nis left to make test-all\ttest_b\n")
    assert levels.homeless([short]) == []
    assert levels.homeless([short, more]) == ["test_b: is left to make test-all"]
    (levels.JUNIT / f"{more.junit}.tests").write_text("ran\ttest_b\n")
    assert levels.homeless([short, more]) == []


def test_levels_of_one_kind_have_names_of_their_own(levels):
    names = [level.name for level in (*levels.LEVELS, *levels.LONG)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("levels", ["qemu"], indirect=True)
def test_the_back_end_qemu_builds_and_boots_no_user_mode_linux(levels):
    every = [*levels.LEVELS, *levels.LONG]
    assert not [level.name for level in every if "uml" in " ".join((level.name, level.target, *level.variables))]
    assert not {level.target for level in every} & {"forward", "module-run", "module-run-rehearsal"}
    assert {level.kind for level in levels.LEVELS} >= {"plain", "icount", "cuda", "docker", "bare", "kube"}


GUEST = SCRIPT.parents[1] / "tests/vm/guest"


def test_what_make_test_leaves_out_is_in_make_test_all(levels):
    """Each kind of boot with a test marked `more` has a boot in make test that leaves it out, and one that runs it."""
    texts = [path.read_text() for path in GUEST.rglob("test_*.py")]
    marks = [re.findall(r"^pytestmark = (.*)", text, re.MULTILINE) for text in texts if "pytest.mark.more" in text]
    kinds = {
        next((kind for kind in suite.KINDS if re.search(rf"mark\.{kind}\b", str(mark))), "plain") for mark in marks
    }
    assert len(kinds) > 2

    def boots(there, words):
        return {level.kind for level in there if level.boots and words in " ".join(level.variables)}

    assert kinds <= boots(levels.LEVELS, "not more")
    assert kinds <= boots(levels.LONG, levels.MORE)


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("docs/develop/testing.md", "## Which level holds which claim"),
        ("tests/cluster/README.md", "## Which test holds which bad input"),
    ],
)
def test_the_tables_name_tests_that_exist(page, title):
    """The pages list the tests of each claim and of each bad input: each name is a file or a function."""
    repo = SCRIPT.parents[1]
    section = (repo / page).read_text().split(f"\n{title}\n")[1].split("\n## ")[0]
    named = set(re.findall(r"\btest_\w+", section))
    files = [path for path in (repo / "tests").rglob("*.py") if "build" not in path.parts]
    there = {path.stem for path in files}
    there |= {
        name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 20 and not named - there
