# SPDX-License-Identifier: MIT
"""The reader of kernel logs against recorded ones."""

from pathlib import Path

import pytest
from vm.harness.console import IGNORED, KINDS, findings, kind_of, strip_stamp

DATA = Path(__file__).parent / "data"

#: What each recorded console holds, in order. debug.log and warn.log lack the frames that the unwinder guesses and
#: registers.
RECORDED = {
    "pass.log": [],
    "lost.log": [],
    "guest.log": ["teardown", "kmemleak", "kmemleak"],
    # A module that misbehaves on purpose: stock kernels stop at the first report.
    "warn.log": ["WARNING"],
    "oops.log": ["oops", "panic"],
    "cache.log": ["leaked objects", "panic"],
    "debug.log": ["KASAN", "UBSAN", "atomic sleep", "leaked objects", "WARNING", "kmemleak", "kmemleak", "kmemleak"],
}


def kinds(text: str) -> list[str]:
    return [finding.kind for finding in findings(text)]


def test_every_recording_is_expected():
    assert {path.name for path in DATA.glob("*.log")} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name):
    assert kinds((DATA / name).read_text()) == RECORDED[name]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("BUG: KASAN: slab-out-of-bounds in f+0x1/0x2 [cgpu_km]", "KASAN"),
        ("UBSAN: shift-out-of-bounds in a.c:1:2", "UBSAN"),
        ("WARNING: possible circular locking dependency detected", "lockdep"),
        ("WARNING: possible recursive locking detected", "lockdep"),
        ("WARNING: suspicious RCU usage", "lockdep"),
        ("WARNING: lock held when returning to user space!", "lockdep"),
        ("[ BUG: Invalid wait context ]", "lockdep"),
        ("BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580", "atomic sleep"),
        ("BUG: scheduling while atomic: insmod/12/0x00000002", "atomic sleep"),
        ("INFO: task cgpud:123 blocked for more than 120 seconds.", "hung task"),
        ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "stall"),
        ("watchdog: BUG: soft lockup - CPU#1 stuck for 134s!", "stall"),
        (
            "BUG cgpu_file (Tainted: G    B      O      ): Objects remaining in cgpu_file on __kmem_cache_shutdown()",
            "leaked objects",
        ),
        ("kmem_cache_destroy cgpu_file: Slab cache still has objects when called from f+0x1/0x2", "leaked objects"),
        ("BUG kmalloc-64 (Tainted: G  O ): Poison overwritten", "slab"),
        ("list_del corruption. prev->next should be ffff", "list"),
        ("refcount_t: underflow; use-after-free.", "refcount"),
        ("BUG: Bad page state in process insmod  pfn:1234", "memory"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "oops"),
        ("kernel BUG at /x/a.c:3!", "oops"),
        ("general protection fault, probably for non-canonical address 0x1: 0000 [#1]", "oops"),
        ("workqueue: work func check_work [cgpu_km] enqueued on deprecated workqueue.", "deprecated"),
        ("WARNING: CPU: 0 PID: 1 at a.c:1 f+0x1/0x2 [cgpu_km]", "WARNING"),
        ("Kernel panic - not syncing: panic_on_warn set ...", "panic"),
        ("kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)", "kmemleak"),
        ("guest: nvsim cannot be unloaded", "teardown"),
    ],
)
def test_one_line_of_each_kind(line, kind):
    assert kind_of(line) == kind
    assert kinds(f"[    1.000000] harmless\n[    1.000001] {line}\n") == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "cgpu-test: tests/vm/guest/test_x.py::test_warning_is_shown",
        "cgpu_km: refused 0x2080 control of container abc",
        "Warning: Processor Platform Limit event detected, but not handled.",
        "mtrr: your CPUs had inconsistent fixed MTRR settings",
        "Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar",
        "rcu: RCU lockdep checking is enabled.",
        "workqueue: work func hotplug_work_func enqueued on deprecated workqueue. Use system_x instead.",
        "kmemleak: Kernel memory leak detector initialized (mem pool available: 15685)",
        "hung_task: not there",
    ],
)
def test_harmless(line):
    assert kind_of(line) is None


def test_every_ignored_line_has_a_reason():
    assert all(reason for _, reason in IGNORED)
    assert len({kind for kind, _ in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    "stamp", ["[    1.234567] ", "[12345.678901] ", "[    1.234567][  T123] ", "<4>[    1.234567] ", ""]
)
def test_stamps_go(stamp):
    assert strip_stamp(f"{stamp}WARNING: x\r") == "WARNING: x"


def test_a_report_keeps_its_lines_and_ends():
    text = "\n".join(
        [
            "------------[ cut here ]------------",
            "WARNING: CPU: 0 PID: 1 at a.c:1 f+0x1/0x2",
            "Modules linked in:",
            "Call Trace:",
            " f+0x1/0x2",
            "---[ end trace 0000000000000000 ]---",
            "later",
        ]
    )
    (finding,) = findings(text)
    assert finding.lines[-1].startswith("---[ end trace")
    assert finding.line == 2


def test_nothing_is_found_once_the_power_goes():
    """The power-off breaks the devices of the root file system first, under processes that still run."""
    off = "[   26.1] sysrq: Power Off\n"
    panic = "[   26.2] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00007e00\n"
    assert kinds(off + panic) == []
    assert kinds(panic + off) == ["panic"]
    assert kinds("[   26.0] guest: sysrq: Power Off\n" + panic) == ["panic"], "only a line of the kernel counts"


def test_a_cgroups_end_of_memory_is_no_finding_and_the_machines_is():
    begin = "[    1.0] python invoked oom-killer: gfp_mask=0x400dc0(GFP_KERNEL_ACCOUNT|__GFP_ZERO), order=0\n"
    trace = "".join(f"[    1.0]  [<6023d34{n % 10}>] ? oom_kill_process+0x17e/0x3a0\n" for n in range(30))
    assert not findings(f"{begin}{trace}[    1.0] Memory cgroup stats for /full:\n")
    assert [one.kind for one in findings(f"{begin}{trace}[    1.0] Mem-Info:\n")] == ["out of memory"]
    after = f"{begin}{trace}[    1.0] Memory cgroup stats for /full:\n[    1.0] BUG: Bad page state in process python\n"
    assert [one.kind for one in findings(after)] == ["memory"]


def test_a_long_stack_does_not_make_a_cgroups_end_of_memory_the_machines():
    """KASAN's stacks have a hundred lines. The machine's is one also where a cgroup's follows."""
    begin = "[    1.0] python invoked oom-killer: gfp_mask=0x400dc0(GFP_KERNEL_ACCOUNT|__GFP_ZERO), order=0\n"
    trace = "[    1.0]  [<604d2753>] ? __asan_load8+0x0/0xd3\n" * 120
    cgroups = f"{begin}{trace}[    1.0] Memory cgroup stats for /full:\n"
    assert not findings(cgroups)
    assert [one.kind for one in findings(f"{begin}{trace}[    1.0] Mem-Info:\n{cgroups}")] == ["out of memory"]
