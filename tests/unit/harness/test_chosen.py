# SPDX-License-Identifier: MIT
"""The boot that tests need, from their sources alone."""

import pytest
from vm.harness import chosen, machine, suite

SOURCES = {
    "proc/test_proc.py": "import pytest\npytestmark = pytest.mark.attached\nasync def test_tree(): ...\n",
    "sched/test_shares.py": "pytestmark = [pytest.mark.icount, pytest.mark.gpus(2)]\ndef test_shares(): ...\n",
    "intercept/test_redirections.py": 'pytestmark = pytest.mark.needs("ftrace")\ndef test_off(): ...\n',
    "memory/test_start.py": (
        "def test_start(): ...\n"
        '@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.more)])\n'
        '@pytest.mark.needs("smp", "ftrace")\ndef test_start_race(a): ...\n'
    ),
    "driver/test_load.py": "pytestmark = pytest.mark.driver\ndef test_tree_of_it(): ...\n",
}


@pytest.fixture
def known(tmp_path):
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return list(chosen.tests(tmp_path))


def test_markers_are_those_of_the_file_and_the_function(known):
    by_name = {test.name: test for test in known}
    assert by_name["test_shares"].markers == {"icount", "gpus"}
    assert by_name["test_start_race"].needs == {"smp", "ftrace"}
    assert {"more", "parametrize", "needs"} == by_name["test_start_race"].markers
    assert by_name["test_start"].markers == frozenset()


@pytest.mark.parametrize(
    ("words", "kind", "backend", "boot"),
    [
        ([], "", "", ("uml", "plain")),
        ([], "systemd", "", ("uml", "systemd")),
        ([], "", "qemu", ("6.1", "plain")),
        (["test_tree"], "", "", ("uml", "plain")),
        (["test_shares"], "", "", ("uml", "icount")),
        (["test_shares"], "", "qemu", ("6.1", "icount")),
        (["test_off"], "", "", ("6.1", "plain")),
        (["test_off"], "", "uml", ("6.1", "plain")),
        (["test_start"], "", "", ("uml", "plain")),
        (["test_start_race"], "", "", ("6.1", "plain")),
        (["tests/vm/guest/driver"], "", "", ("6.1", "driver")),
        (["tests/vm/guest/memory/test_start.py::test_start_race[1]"], "", "", ("6.1", "plain")),
        (["tests/vm/guest/memory/test_start.py::test_start"], "", "", ("uml", "plain")),
        (["test_shares.py"], "", "", ("uml", "icount")),
        (["test_start.py::test_start_race"], "", "", ("6.1", "plain")),
        (["test_no_such"], "", "", ("uml", "plain")),
    ],
)
def test_the_boot(known, words, kind, backend, boot):
    assert chosen.boot(kind, backend, words, known) == boot


def test_the_words_are_those_of_the_harness():
    assert machine.BACKENDS == chosen.DEFAULTS
    assert set(suite.KINDS) == set(chosen.KINDS)
    for kind, settings in suite.KINDS.items():
        only_qemu = bool(settings.get("kernel_driver")) or kind == "long"
        assert only_qemu == (kind in chosen.QEMU_KINDS)


def test_every_need_is_one_that_a_machine_may_have():
    needed = {need for test in chosen.tests() for need in test.needs}
    assert needed and needed <= set(machine.NEEDS)
