# SPDX-License-Identifier: MIT OR GPL-2.0-only
import errno
import re
from pathlib import Path

from corelib import ffi, lib
from hypothesis import given
from hypothesis import strategies as st

u64 = st.integers(0, 2**64 - 1)
entries = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**50)), max_size=40)
PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/proc.md").read_text()
STAT = PAGE.split("`N/C/stat`, in this order:")[1].split("\n\n")[1]
NAMES = [name for row in STAT.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def text_of(call, *args) -> str:
    """The text, after checking that every smaller buffer is refused and none is overrun."""
    big = ffi.new("char[]", 8192)
    length = call(big, 8192, *args)
    assert 0 < length <= 8192
    want = ffi.buffer(big, length)[:]
    for size in {0, 1, length // 2, length - 1}:
        small = ffi.new("char[]", b"#" * 8192)
        assert call(small, size, *args) == -errno.ENOSPC
        assert ffi.buffer(small, 8192)[size:] == b"#" * (8192 - size)
    exact = ffi.new("char[]", length)
    assert call(exact, length, *args) == length
    assert ffi.buffer(exact, length)[:] == want
    return want.decode()


@given(u64)
def test_a_scalar_is_read_back(value):
    text, back = f"{value}\n".encode(), ffi.new("u64 *")
    assert lib.cgpu_parse_u64(text, len(text), back) == 0
    assert back[0] == value


def pids(items):
    array = ffi.new("struct cgpu_pid_mem[]", max(1, len(items)))
    for i, (pid, size) in enumerate(items):
        array[i].pid, array[i].bytes = pid, size
    return array


@given(u64, entries)
def test_meminfo(free, items):
    got = text_of(lib.cgpu_format_meminfo, free, pids(items), len(items))
    assert got == f"Free: {free}\n" + "".join(f"PID: {p} Mem: {m}\n" for p, m in items)


@given(entries)
def test_merge_is_a_sum_by_pid(items):
    array = pids(items)
    count = lib.cgpu_format_merge_pids(array, len(items))
    want = {}
    for pid, size in items:
        want[pid] = want.get(pid, 0) + size
    assert [(array[i].pid, array[i].bytes) for i in range(count)] == sorted(want.items())


@given(st.lists(u64, min_size=15, max_size=15))
def test_stat_is_what_the_contract_lists(values):
    led, stat = ffi.new("struct cgpu_ledger *"), ffi.new("struct cgpu_sched_stat *")
    stat.gpu_ns, stat.wait_ns, stat.turns, stat.overruns = values[:4]
    stat.running, stat.opened = 1, 0
    values[4:6] = 1, 0
    stat.enforced, stat.unsure_ns, stat.failed, stat.preempt_slow = values[11:] = 1, values[12], 3, 4
    led.limit_bytes, led.used_bytes, led.peak_bytes, led.refused = values[6:10]
    lines = text_of(lib.cgpu_format_slot_stat, led, stat, values[10]).splitlines()
    # What a card has a fixed number of is the shell's to say, behind them (proc.c).
    kinds = ("channels", "groups", "bar1_bytes")
    assert NAMES[15:24] == [kind + end for kind in kinds for end in ("", "_floor", "_left")]
    assert lines == [f"{name} {value}" for name, value in zip(NAMES[:15], values, strict=True)]
    stat.wait, stat.throttled_ns = {}, 17
    lines = text_of(lib.cgpu_format_slot_waits, stat).splitlines()
    waits = [line.split()[0] for line in lines]
    assert NAMES[24:29] == [waits[0], *waits[-4:]]
    # What the driver keeps in lists, and system memory: the shell's, too.
    lists = [kind + end for kind in ("clients", "devices", "events", "os_events") for end in ("", "_left")]
    used = [f"used_{kind}_bytes" for kind in ("data", "context", "managed", "imported", "tables")]
    sessions = [kind + end for kind in ("nvdec", "nvenc", "nvjpg", "ofa") for end in ("", "_floor", "_left")]
    assert NAMES[29:] == [*lists, "host_limit_bytes", "host_used_bytes", "host_refused_allocs", *used, *sessions]
    assert waits == [f"wait_lt_{100_000 << n}" for n in range(18)] + ["waits", "waits_ns", "throttled_ns"]
    assert [lib.cgpu_wait_below_ns(n) for n in range(18)] == [100_000 << n for n in range(18)], "the core's buckets"
    assert lines[-1] == "throttled_ns 17"


def test_a_bucket_includes_the_shorter_waits():
    stat = ffi.new("struct cgpu_sched_stat *")
    wait = ffi.addressof(stat, "wait")
    for ns in (0, 99_999, 100_000, 399_999, 13_107_199_999, 13_107_200_000):
        wait.so_far_ns = ns
        lib.cgpu_wait_end(wait)
        assert wait.so_far_ns == 0
    values = [int(line.split()[1]) for line in text_of(lib.cgpu_format_slot_waits, stat).splitlines()]
    assert values == [2, 3, *[4] * 15, 5, 6, 99_999 + 100_000 + 399_999 + 13_107_199_999 + 13_107_200_000, 0]


def test_the_longest_numbers_fit_the_modules_buffer():
    most = 2**64 - 1
    wait = {"count": most, "sum_ns": most, "bucket": [most] + [0] * 17}
    stat = ffi.new("struct cgpu_sched_stat *", {"wait": wait, "throttled_ns": most})
    assert len(text_of(lib.cgpu_format_slot_waits, stat)) <= 1024
