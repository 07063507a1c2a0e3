# SPDX-License-Identifier: MIT
"""A verdict, a lost machine and a failed test are three things."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest
from vm.harness import initrd, run, suite
from vm.harness.machine import BadVariable, Machine, Paths, from_variables

DATA = run.REPO / "tests/unit/harness/data"


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "console.log").write_text((DATA / "lost.log").read_text())
    return tmp_path


@pytest.mark.parametrize(("verdict", "status"), [(b"0\n", 0), (b"3\n", 3), (b"125\n", 125)])
def test_digits_are_the_commands_status(run_dir, verdict, status):
    assert run.judge(verdict, [], run_dir, 1).status == status


@pytest.mark.parametrize("verdict", [b"", b"0", b"\n", b"ok\n", b"-1\n", b"0\n0\n", b"\xff\n", b"setup: cut"])
def test_anything_less_is_a_lost_machine(run_dir, verdict):
    with pytest.raises(run.LostVM, match="test_it_hangs"):
        run.judge(verdict, [], run_dir, 1)


def test_a_failed_set_up_is_neither(run_dir):
    with pytest.raises(run.SetupFailed, match="insmod"):
        run.judge(b"setup: insmod cgpu_km.ko failed\n", [], run_dir, 1)


def test_a_reader_drains_when_nobody_listens():
    ours, theirs = socket.socketpair()

    def deaf(data):
        raise BrokenPipeError

    reader = run.start_reader(ours, deaf)
    theirs.sendall(b"x" * 1_000_000)
    theirs.close()
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize(
    ("status", "xml", "problem"),
    [
        (0, '<testsuites><testsuite tests="3" skipped="1"/></testsuites>', None),
        (1, '<testsuites><testsuite tests="3" failures="1"/></testsuites>', "status 1"),
        (0, '<testsuites><testsuite tests="0"/></testsuites>', "no test ran"),
        (0, '<testsuites><testsuite tests="2" skipped="2"/></testsuites>', "no test ran"),
        (0, None, "no report"),
        (5, '<testsuites><testsuite tests="0"/></testsuites>', "no test ran"),
    ],
)
def test_a_suite_passes_only_with_tests(tmp_path, status, xml, problem):
    junit = tmp_path / "j.xml"
    if xml:
        junit.write_text(xml)
    problems = suite.judge(status, junit)
    assert not problems if problem is None else problem in problems[0]


REPORT = """<testsuites><testsuite>
<testcase classname="t" name="a"><properties><property name="engine" value="podman 4.3.1"/>
    <property name="engine" value="crun 1.8.1"/></properties></testcase>
<testcase classname="t" name="b"><properties><property name="engine" value="crun 1.8.1"/></properties>{b}</testcase>
<testcase classname="t" name="c"/></testsuite></testsuites>"""


def test_each_engine_has_its_tests_of_all_boots(tmp_path):
    def row(engine, version, cases, ok):
        return {"engine": engine, "version": version, "cases": cases, "ok": ok}

    assert suite.engine_rows(tmp_path) == []
    (tmp_path / "vm-uml-engines.xml").write_text(REPORT.format(b=""))
    assert suite.engine_rows(tmp_path) == [row("crun", "1.8.1", 2, 2), row("podman", "4.3.1", 1, 1)]
    (tmp_path / "vm-6.1-engines.xml").write_text(REPORT.format(b='<failure message="x"/>'))
    (tmp_path / "vm-uml-docker.xml").write_text(REPORT.format(b="").replace("4.3.1", "5.8.6"))
    assert suite.engine_rows(tmp_path) == [
        row("crun", "1.8.1", 2, 1),
        row("podman", "4.3.1", 1, 1),
        row("podman", "5.8.6", 1, 1),
    ]


def test_newer_engines_have_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "REPO", tmp_path)
    with pytest.raises(run.SetupFailed, match="the engines of sid are not below build/engines: make engines"):
        run.check_engines(Machine(engines="sid"))
    (tmp_path / "build/engines/sid/usr").mkdir(parents=True)
    run.check_engines(Machine(engines="sid"))
    run.check_engines(Machine())


def test_pytest_is_told_where_and_what():
    assert suite.pytest_command("x", "plain", []).endswith(" tests/vm/guest")
    by_name = suite.pytest_command("x", "bare", ["test_a", "test_b"])
    assert "-k 'test_a or test_b'" in by_name
    assert " tests/vm/guest/simulator/test_nvsim_memory.py" in by_name and "test_docker" not in by_name
    marked = suite.pytest_command("x", "plain", ["-mchecked"])
    assert "guest/memory/test_ipc.py" in marked and "test_proc" not in marked
    without = suite.pytest_command("x", "plain", ["-mnot once"])
    assert without.endswith("'-mnot once' tests/vm/guest"), "every file has tests without a marker"
    some = suite.pytest_command("x", "plain", ["-mchecked and not more"])
    assert "guest/memory/test_ipc.py" in some and "test_proc" not in some
    by_file = suite.pytest_command("x", "plain", ["tests/vm/guest/proc/test_proc.py"])
    assert by_file.count("tests/vm/guest") == 1
    assert suite.pytest_command("x", "plain", ["test_proc.py"]) == by_file
    one = suite.pytest_command("x", "plain", ["test_proc.py::test_tree", "-p", "no:x"])
    assert " -p no:x tests/vm/guest/proc/test_proc.py::test_tree" in one


def test_an_expression_beside_names():
    """Of two options -k pytest takes the last alone."""
    command = suite.pytest_command("x", "plain", ["test_a", "test_b", "-k", "not slow", "-x"])
    assert "-k '(not slow) and (test_a or test_b)'" in command and command.count("-k") == 1
    assert " -x " in command
    assert "-k 'a or b' tests" in suite.pytest_command("x", "plain", ["-k", "a or b"])
    assert "guest/memory/test_ipc.py" in suite.pytest_command("x", "plain", ["-m", "checked"])


@pytest.mark.parametrize("word", ["test_no_such.py", "tests/vm/guest/proc/test_no_such.py::test_a", "tests/unit/core"])
def test_a_file_that_is_not_there_is_named(word):
    path = word.partition("::")[0]
    with pytest.raises(BadVariable, match=f"TEST={word}: there is no {path} below tests/vm/guest"):
        suite.pytest_command("x", "plain", [word])


@pytest.mark.parametrize(
    ("expression", "markers"),
    [
        ("checked", ["checked"]),
        ("not once", []),
        ("checked and not more", ["checked"]),
        ("checked and more", ["checked", "more"]),
        ("once or more", []),
    ],
)
def test_the_markers_that_a_file_must_bear(expression, markers):
    assert suite.needed(expression) == markers


def test_the_ram_disk_is_a_cpio_archive():
    entry = initrd.newc("init", 0o100755, b"hello")
    assert entry.startswith(b"070701") and len(entry) % 4 == 0
    assert b"init\0" in entry and b"hello" in entry
    assert int(entry[54:62], 16) == 5  # the size of the file


def test_modules_come_after_what_they_need(tmp_path):
    base = tmp_path / "lib/modules/6.1"
    base.mkdir(parents=True)
    (base / "modules.dep").write_text(
        "kernel/9p.ko: kernel/9pnet.ko kernel/netfs.ko\nkernel/9pnet.ko:\nkernel/netfs.ko:\n"
        "kernel/virtio_pci.ko.xz: kernel/virtio_ring.ko.xz\nkernel/virtio_ring.ko.xz:\n"
    )
    names = [path.name for path in initrd.load_order(tmp_path)]
    assert names == ["virtio_ring.ko.xz", "virtio_pci.ko.xz", "netfs.ko", "9pnet.ko", "9p.ko"]


def test_a_fourth_machine_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "REPO", tmp_path)
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    fourth = threading.Event()

    def start_fourth():
        with run.one_of_the_places(free=False):
            fourth.set()

    with run.one_of_the_places(free=False), run.one_of_the_places(free=False):
        with run.one_of_the_places(free=False):
            waiter = threading.Thread(target=start_fourth)
            waiter.start()
            assert not fourth.wait(0.7)
            with run.one_of_the_places(free=True):
                """A shell takes no place."""
        assert fourth.wait(5)
    waiter.join()


@pytest.mark.parametrize(
    ("kind", "chosen", "cpus"),
    [("engines", "", 1), ("engines", "2", 2), ("plain", "", 2), ("icount", "2", 1), ("driver_icount", "2", 1)],
)
def test_processors_of_a_kind(kind, chosen, cpus):
    variables = {"CPUS": chosen, "KERNEL": "6.1"}
    assert from_variables(variables, **suite.settings(kind, variables)).cpus == cpus


def console_of(tmp_path, text):
    (tmp_path / "console.log").write_text(text)
    return Paths(tmp_path, tmp_path, tmp_path / "linux", tmp_path)


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        ("Checking that seccomp filters can be installed...check_seccomp : clone failed", "seccomp filters"),
        ("check_ptrace : expected SIGSTOP, got status = 256", "may not trace"),
        ("/dev/shm must be not mounted noexec", "mounted noexec"),
        ("ld.so: no such file", "ended with status 1: ld.so: no such file"),
    ],
)
def test_a_machine_that_forbids_user_mode_linux(tmp_path, printed, sentence):
    with pytest.raises(run.SetupFailed, match=f"{sentence}.*; the same in QEMU: BACKEND=qemu") as caught:
        run.why_it_ended(Machine(), console_of(tmp_path, printed), 1)
    assert "\n" not in str(caught.value)


def test_user_mode_linux_that_began_is_a_lost_machine(tmp_path):
    paths = console_of(tmp_path, "[    0.000000] Linux version 7.3.4\n[    1.000000] Kernel panic - not syncing: it\n")
    assert "Kernel panic - not syncing: it" in run.why_it_ended(Machine(), paths, -6)


@pytest.mark.parametrize(
    ("flags", "free", "sentence"),
    [(os.ST_NOEXEC, 1 << 30, "mounted noexec"), (0, 1000, "has 3 MiB free and needs 2048: VM_MEM=<less>")],
)
def test_a_folder_that_cannot_hold_its_memory(tmp_path, monkeypatch, flags, free, sentence):
    monkeypatch.setattr(run.os, "statvfs", lambda _: SimpleNamespace(f_flag=flags, f_bavail=free, f_frsize=4096))
    with pytest.raises(run.SetupFailed, match=sentence):
        run.check_memory_file(tmp_path, "2G")


def test_a_folder_that_holds_its_memory(tmp_path):
    run.check_memory_file(tmp_path, "1M")


@pytest.mark.parametrize("size", ["much", "2T", "G", "-1G"])
def test_sizes_that_are_none(size):
    with pytest.raises(run.SetupFailed, match="is no size"):
        run.mib(size)
