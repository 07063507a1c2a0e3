# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The call table: order, ranges, what must never be passed, and the look-ups against a plain search of the rows."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import calltable
import pytest
from calltable import BRANCHES, Row, found
from corelib import C, ffi, lib
from hypothesis import given
from hypothesis import strategies as st

ROWS = {kind: calltable.table(kind) for kind in calltable.KINDS}
ALL = [r for rows in ROWS.values() for r in rows]
RM_CONTROL = (Path(__file__).resolve().parents[3] / "cgpu_km/intercept/rm_control.c").read_text()
#: REFUSE needs none.
CONTROL_VERDICTS = {"REFUSE", *re.findall(r"^\t\[CGPU_(\w+)\]\s*= \w+,$", RM_CONTROL, re.MULTILINE)}
ESCAPE_VERDICTS = {"REFUSE", "PASS", "ALLOC", "ALLOC_MEMORY", "FREE", "CONTROL", "DUP", "MAP", "MAP_DMA"}
ESCAPE_VERDICTS |= {"UNMAP_DMA", "VID_HEAP", "DMABUF", "OS_EVENT", "SHARE", "UNMAP", "RENAME_MAP"}
ESCAPE_VERDICTS |= {"KEEP_GPUS", "ANSWER_OK"}
UVM_VERDICTS = {"REFUSE", "PASS", "ANSWER_OK", "ANSWER_NOTHING", "UVM_MAP", "UVM_MANAGED"}

# Handled in a way that keeps the tenant from the card, or refused; never passed.
SCHEDULING = {
    *(0x80170F, 0x801711, 0x801712, 0x801714, 0x801108),
    *(0x2080110A, 0x2080110B, 0x20801110, 0x20801115, 0x20801117, 0x2080111A, 0x20801121),
    *(0x83DE0317, 0x83DE0318, 0x906F0102, 0x90670102, 0x20801210),
    *(0xA06C0101, 0xA06C0103, 0xA06C0105, 0xA06C0107, 0xA06C0110, 0xA06F0103, 0xA06F0109, 0xA06F0111, 0xA06F0112),
}
WHOLE_CARD = {
    *(0x801909, 0x2080200A, 0x20800130, 0x20800134, 0x20800136, 0x20800145, 0x20800146, 0x20800194, 0x20800407),
    *(0x20801356, 0x2080130E, 0x2080220C, 0x20802210, 0xB01, 0xB05),
}
MEMORY_TOTALS = {0x20801301, 0x20801303, 0x20801320, 0xDE0001}
OTHERS = {0x2080018D, 0x2080018E, 0x20802096, 0x20801119, 0x20801349, 0x2080016D, 0x2080017B, 0xB03, 0xB04}
REGISTERS = {0x20800122, 0xB0CC010A, 0x83DE0315, 0x83DE0316, 0x20801322}
HOLDS_MEMORY = {0x3D05, 0x3D06, 0x3D0B, 0x3D0C, 0xE00101, 0xF80103, 0xFD0102, 0x503C0104}
NEVER_CLASSES = {0x3F, 0x42, 0x81, 0x82, 0x83, 0xC2, 0xF8, 0xFD, 0xE0, 0xF1, 0xB2CC, 0x90CC}
NEVER_ESCAPES = {0x41, 0x4D, 215, 216}
NEVER_UVM = {56, 62, 63, 76, 78}
MANAGED_UVM = {*range(42, 48), 40, 41, 51, 53, 71, 80}

branches = st.sampled_from(BRANCHES)


def search(rows, branch, number) -> Row | None:
    """What a look-up must find, the slow way."""
    return next((r for r in rows if r.number == number and r.holds(branch)), None)


def near(rows):
    """Numbers of the table, their neighbours, and any."""
    numbers = sorted({r.number for r in rows})
    return st.one_of(
        st.sampled_from(numbers),
        st.builds(lambda n, d: (n + d) % 2**32, st.sampled_from(numbers), st.integers(-2, 2)),
        st.integers(0, 2**32 - 1),
    )


# ---- the rows ----


@pytest.mark.parametrize("kind", calltable.KINDS)
def test_sorted(kind):
    raws = [t.row[i] for t in calltable.tables(kind) for i in range(t.count)]
    keys = [(getattr(r, calltable.NUMBER[kind]), r.since, r.size if kind == "escape" else 0) for r in raws]
    assert keys == sorted(set(keys))


def test_each_control_is_in_its_table():
    tables = calltable.control_tables()
    first = [t.first for t in tables]
    assert first[0] == 0
    assert first == sorted(set(first))
    for t, end in zip(tables, [*first[1:], 2**32], strict=True):
        assert all(t.first <= t.row[i].cmd < end for i in range(t.count))


@pytest.mark.parametrize("kind", calltable.KINDS)
def test_one_row_at_most_holds(kind):
    """Ranges of one number (of one size, for an escape) do not overlap."""
    seen = {}
    for r in ROWS[kind]:
        seen.setdefault((r.number, r.size if kind == "escape" else 0), []).append((r.first, r.last))
    for number, ranges in seen.items():
        assert all(first <= last for first, last in ranges), number
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges)), number


def test_ranges_are_of_known_branches():
    assert list(BRANCHES) == sorted(set(BRANCHES))
    assert BRANCHES[0] == C.CGPU_BRANCH_FIRST
    assert {b for r in ALL for b in (r.first, r.last)} <= set(BRANCHES)


def test_a_difference_is_one():
    """A row that says the same as the one before it claims a change that is none; nothing ends that never began."""
    for kind in calltable.KINDS:
        for raws in calltable.histories(kind):
            assert calltable.row(kind, raws[0]).verdict != "GONE", kind
            for a, b in itertools.pairwise(raws):
                before, after = calltable.row(kind, a), calltable.row(kind, b)
                words = {"name": after.name, "note": after.note, "source": after.source}
                same = replace(before, first=b.since, **words) == after
                assert a.since == b.since or after.name or not same, (kind, after)


def test_names():
    assert all(r.name for r in ALL)
    assert len({(r.kind, r.number, r.name) for r in ALL}) >= len({(r.kind, r.number) for r in ALL})
    for r in ROWS["class"]:
        assert not any(o.name == r.name and o.number != r.number for o in ROWS["class"]), r.name


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("escape", ESCAPE_VERDICTS),
        ("control", CONTROL_VERDICTS),
        ("uvm", UVM_VERDICTS),
        ("class", set(calltable.CLASS_KINDS.values())),
    ],
)
def test_verdicts_have_a_handler(kind, allowed):
    """Each verdict is one that the shell knows in that place."""
    assert {r.verdict for r in ROWS[kind]} <= allowed


def test_a_refusal_says_why():
    assert [r for r in ALL + calltable.opaque() if r.refused and not r.note] == []


def test_offsets_are_inside():
    for r in ALL:
        if r.status_at:
            assert r.status_at + 4 <= r.size, r
        if r.fd_kind != "NONE":
            assert r.fd_at + 4 <= r.size, r


def test_what_is_answered_in_the_struct_has_a_status():
    for r in ROWS["escape"]:
        assert r.status_at or r.verdict in ("PASS", "REFUSE", "KEEP_GPUS", "ANSWER_OK"), r
    for r in ROWS["uvm"]:
        assert r.status_at or r.verdict == "PASS" or r.number in (67, 69, 79), r


def test_copied_in_rows_are_those_that_are_read():
    """A handler that reads parameters, or has to know that the driver did it, gets them copied in.

    The size it relies on is there in every branch.
    """
    reading = {"FB_INFO", "FB_INFO_V2", "NO_PIDS", "SET_TIMESLICE", "GET_TIMESLICE", "OWN_CHANNELS"}
    reading |= {"EXPORT", "IMPORT", "SCHEDULE", "SHARE_POLICY", "NOT_THERE", "READ_THERMAL", "FORCE_CILP"}
    reading |= {"ADDR_SPACE", "GPU_ID", "PEERS", "BIND"}
    assert {r.number for r in ROWS["control"] if r.copied_in} == {
        r.number for r in ROWS["control"] if r.verdict in reading
    }
    kinds = {"DEVICE", "SUBDEVICE", "VIDMEM", "TSG", "CHANNEL", "PEERS"}
    assert all(r.copied_in for r in ROWS["class"] if r.verdict in kinds)
    assert all(r.size for r in ALL if r.copied_in)


def test_fields_that_the_module_reads_are_inside():
    for kind, at in (
        ("TSG", ffi.offsetof("struct nv_tsg_params", "engineType")),
        ("VIDMEM", ffi.offsetof("struct nv_mem_params", "size") + 4),
        ("PEERS", ffi.offsetof("struct nv_peers_params", "l2pBar1P2PDmaInfo") - 4),
    ):
        rows = [r for r in ROWS["class"] if r.verdict == kind]
        assert rows
        assert all(at + 4 <= r.size for r in rows), kind
    for branch in BRANCHES:
        abi = lib.cgpu_call_abi(branch)
        sizes = {r.size for r in ROWS["class"] if r.verdict == "CHANNEL" and r.holds(branch)}
        assert len(sizes) == 1 and abi.channel_h_userd < abi.channel_engine < abi.channel_h_ecc < min(sizes), branch
    sizes = [r.size for r in ROWS["control"] if r.number == C.NV2080_CTRL_CMD_FB_GET_INFO_V2]
    assert max(sizes) == ffi.sizeof("struct nv_fb_info_v2")
    for number, size in (
        (C.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, ffi.sizeof("struct nv_disable_channels")),
        (C.NV2080_CTRL_CMD_GPU_GET_PIDS, ffi.sizeof("struct nv_pids")),
        (C.NV2080_CTRL_CMD_GPU_GET_PID_INFO, ffi.sizeof("struct nv_pids_info")),
        (C.NVA06C_CTRL_CMD_SET_TIMESLICE, 8),
        (C.NV2080_CTRL_CMD_FB_GET_INFO, ffi.sizeof("struct nv_fb_info")),
        (0x20801210, ffi.sizeof("struct nv_ctxsw_mode")),
        (0x20800513, ffi.sizeof("struct nv_thermal")),
        (0x20808513, ffi.sizeof("struct nv_thermal")),
    ):
        assert {r.size for r in ROWS["control"] if r.number == number} == {size}


# ---- what must not be passed ----


@pytest.mark.parametrize(
    "number", sorted(SCHEDULING | WHOLE_CARD | MEMORY_TOTALS | OTHERS | REGISTERS | HOLDS_MEMORY), ids=hex
)
def test_dangerous_control_is_not_passed(number):
    rows = [r for r in ROWS["control"] if r.number == number]
    assert rows, "refused all the same, but the table should say why"
    assert [r for r in rows if r.verdict == "PASS"] == []


def test_controls_with_a_file_descriptor():
    """The redirected look-up keeps the file inside the container; what it then carries needs a handler."""
    kept = {r.number: r.verdict for r in ROWS["control"] if r.fd_kind != "NONE" and not r.refused}
    passed = {0x3D08: "PASS"}  # asks
    exports = dict.fromkeys((0x3D05, 0x3D0A, 0x3D0B), "EXPORT")  # 0x3D0A makes a carrier, with places for objects
    assert kept == passed | exports | dict.fromkeys((0x3D06, 0x3D0C), "IMPORT")
    assert all(r.copied_in for r in ROWS["control"] if r.verdict in ("EXPORT", "IMPORT"))


def test_what_cannot_be_undone_is_refused():
    assert all(r.refused for r in ROWS["class"] if r.number in NEVER_CLASSES)
    assert {r.number for r in ROWS["class"]} >= NEVER_CLASSES
    assert {r.verdict for r in ROWS["class"] if r.number == 0xDE} == {"SHARED_DATA"}, "never the driver's own page"
    assert all(r.refused for r in ROWS["escape"] if r.number in NEVER_ESCAPES)
    assert {r.number for r in ROWS["escape"]} >= NEVER_ESCAPES
    assert all(r.refused for r in ROWS["uvm"] if r.number in NEVER_UVM)
    assert {r.number for r in ROWS["uvm"]} >= NEVER_UVM
    assert {r.number for r in ROWS["uvm"] if r.verdict == "UVM_MANAGED"} == MANAGED_UVM


def test_names_that_change_something_are_not_passed():
    """SET, RESET, CLEAR … in a passed control: only those that are known to be the client's own."""
    words = {"SET", "RESET", "CLEAR", "ENABLE", "DISABLE", "LOCK", "RESERVE", "BOOST", "STOP", "START", "EXEC", "WRITE"}
    own = {
        "NV2080_CTRL_CMD_GPU_GET_RESET_STATUS",
        "NV2080_CTRL_CMD_GPU_GET_DRAIN_AND_RESET_STATUS",
        "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION",
        "NVC36F_CTRL_CMD_GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX",
        "NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE",
        "NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO",
        "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK",  # of a session on its own compute object, which has all without
    }
    passed = {r.name for r in ROWS["control"] if r.verdict == "PASS" and words & set(r.name.split("_"))}
    assert passed <= own


# Classes without which libcuda does not start, and that are of the container's own objects only.
@pytest.mark.parametrize("number", [0x2081, 0x83DE, 0x900E], ids=hex)
def test_classes_that_libcuda_needs(number):
    rows = [found("class", lib.cgpu_call_class(branch, number)) for branch in BRANCHES]
    assert {(row.verdict, row.copied_in) for row in rows} == {("PLAIN", number == 0x83DE)}, "a debugger names an object"


@pytest.mark.parametrize(
    ("number", "size", "verdict"),
    [
        (0x20808159, 332, "ANSWER_OK"),
        (0x800294, 4, "PASS"),
        (0x809909, 1, "ANSWER_OK"),
        (0x801108, 32, "ANSWER_OK"),
        (0x20808513, 1432, "READ_THERMAL"),
        (0x20801210, 32, "FORCE_CILP"),
        (0x20809001, 8, "PASS"),
        (0x20809009, 8, "PASS"),
        (0x20809064, 520, "PASS"),
        (0x2080A026, 532, "PASS"),
        (0x2080A084, 0, "REFUSE"),
        (0x2080A612, 0, "REFUSE"),
        (0x2080852A, 0, "REFUSE"),
        (0x20810108, 0, "REFUSE"),
        (0x83DE0309, 4, "PASS"),
    ],
)
def test_what_the_libraries_ask(number, size, verdict):
    rows = [found("control", lib.cgpu_call_control(branch, number)) for branch in BRANCHES]
    assert {(row.size, row.verdict) for row in rows} == {(size, verdict)}


def test_only_charged_kinds_are_video_memory():
    assert {r.number for r in ROWS["class"] if r.verdict == "VIDMEM"} == {C.NV01_MEMORY_LOCAL_USER}


COPIES = [*range(0x9, 0x13), *range(0x34, 0x3E)]  #: COPY0 to COPY19
DECOMPRESS = [*range(0x40, 0x54)]  #: from 560 on the same engines, which GPU_GET_ENGINES_V2 lists by these numbers


@given(
    branches,
    st.integers(0, 2**32 - 1) | st.integers(0, 0x60),
    st.sampled_from([0, 2**64 - 1]) | st.integers(0, 2**64 - 1),
)
def test_the_engine_of_a_channel(branch, number, copies):
    """NV2080_ENGINE_TYPE_* of class/cl2080_notification.h, of 535 to 595; 0 is GR0 to the driver.

    What is not known to have a runlist of its own may be on that of graphics: a copy engine that is no asynchronous
    one, and a number of no engine (kfifoGetDefaultRunlist() of the driver).
    """
    engines = [*enumerate(COPIES), *(enumerate(DECOMPRESS) if branch >= 560 else ())]
    want = {
        **{engine: lib.CGPU_ENGINE_OTHER for n, engine in engines if copies >> n & 1},
        **dict.fromkeys(range(0x13, 0x1B), lib.CGPU_ENGINE_NVDEC),
        **dict.fromkeys((0x1B, 0x1C, 0x1D, 0x3F), lib.CGPU_ENGINE_NVENC),
        **dict.fromkeys(range(0x2B, 0x33), lib.CGPU_ENGINE_NVJPG),
        **dict.fromkeys((0x33, 0x3E), lib.CGPU_ENGINE_OFA),
    }
    assert lib.cgpu_call_engine(branch, number, copies) == want.get(number, lib.CGPU_ENGINE_GR)
    shared = {engine for n, engine in engines if copies and not copies >> n & 1}
    assert lib.cgpu_call_on_graphics(branch, number, copies) == (number <= 8 or number in shared), "else unknown"


@given(branches, st.integers(0, 19), st.integers(0, 2**64 - 1))
def test_a_copy_engine_that_decompresses_is_the_copy_engine(branch, n, copies):
    """gpuGetRmEngineType() of 560 and later. Before, it is no engine, and what is none may be on graphics' runlist."""
    pair = COPIES[n], DECOMPRESS[n]
    if branch >= 560:
        assert len({lib.cgpu_call_engine(branch, number, copies) for number in pair}) == 1
        assert len({lib.cgpu_call_on_graphics(branch, number, copies) for number in pair}) == 1
    else:
        assert lib.cgpu_call_engine(branch, pair[1], copies) == lib.CGPU_ENGINE_GR


@given(branches, st.data())
def test_the_asynchronous_copy_engines(branch, data):
    """CE_GET_ALL_CAPS: those that exist and are not of graphics' runlist (GRCE), by each branch's own form."""
    (size,) = {r.size for r in ROWS["control"] if r.number == C.NV2080_CTRL_CMD_CE_GET_ALL_CAPS and r.holds(branch)}
    engines = 32 if branch < 545 else 64
    assert size == engines * 2 + engines // 8 <= ffi.sizeof("struct nv_ce_caps")
    present, grce = (data.draw(st.integers(0, 2**engines - 1)) for _ in range(2))
    other = data.draw(st.integers(0, 0x7F)) << 1
    caps = b"".join(bytes([other | (grce >> n & 1), 0xFF]) for n in range(engines))
    got = lib.cgpu_call_async_copies(caps + present.to_bytes(engines // 8, "little"), size)
    assert got == present & ~grce


def test_a_session_is_of_the_engine_that_its_class_names():
    """By the last byte of the number, which is the engine's in every generation, and by the name."""
    ends = {"NVDEC": (0xB0, "DECODER"), "NVENC": (0xB7, "ENCODER"), "NVJPG": (0xD1, "NVJPG"), "OFA": (0xFA, "OFA")}
    rows = [r for r in ROWS["class"] if r.verdict in ends]
    assert {r.verdict for r in rows} == set(ends)
    for row in rows:
        end, word = ends[row.verdict]
        assert row.number & 0xFF == end and f"_VIDEO_{word}" in row.name, row
    assert not [r for r in ROWS["class"] if "_VIDEO_" in r.name and r.verdict not in ends]
    for number, kind in calltable.CLASS_KINDS.items():
        engine = getattr(lib, f"CGPU_ENGINE_{kind}") if kind in ends else lib.CGPU_ENGINE_OTHER
        assert lib.cgpu_call_engine_of_kind(number) == engine


PAGES = ["docs/user/support.md", "docs/decisions/0031-video-engines-are-frozen-counted-and-charged.md"]


@pytest.mark.parametrize("page", PAGES)
def test_what_an_encoder_lacks_is_on_the_page(page):
    """A class of NVENC passes, and still NVIDIA's library opens no session: the page has what is refused to it."""
    text = (Path(__file__).resolve().parents[3] / page).read_text()
    rows = [r for r in ALL if "libnvidia-encode" in r.note]
    assert {r.number for r in rows} == {0x20808163, 0x20808165, 0x2080A028}
    assert all(r.refused for r in rows)
    assert [hex(r.number) for r in rows if hex(r.number) not in text] == []
    assert "NVENC, NVJPG and OFA work in a slice" not in text


def test_the_kernel_log_can_name_graphics():
    """The notes are not in the module, so the rows whose reason is graphics say it in a member."""
    t = lib.cgpu_classes
    named = {(t.row[i].cls, t.row[i].since) for i in range(t.count) if t.row[i].graphics}
    assert named == {(r.number, r.first) for r in ROWS["class"] if r.note == "graphics"}
    assert all(r.refused for r in ROWS["class"] if (r.number, r.first) in named)
    assert {0xC597, 0xC697, 0xC997, 0xCB97, 0xCD97, 0xCE97} <= {number for number, _ in named}


def test_a_refused_session_says_what_is_wrong_with_it():
    (row,) = [r for r in ROWS["class"] if r.number == 0xA0BC]
    assert row.refused and "without a reference" in row.note


def test_opaque_controls_are_refused():
    assert len(calltable.opaque()) == 2
    for cmd in (0x2080A097, 0x00008001, 0x20810107, 0x2081FFFF, 0x20818001):
        for branch in BRANCHES:
            r = found("control", lib.cgpu_call_control(branch, cmd))
            assert r.refused
            assert r in calltable.opaque()


# ---- look-ups ----


@given(branches, near(ROWS["control"]))
def test_control_look_up(branch, cmd):
    want = search(ROWS["control"], branch, cmd)
    if not want and cmd >> 16 == 0x2081:
        want = calltable.opaque()[1]
    elif not want and cmd & 0x8000:
        want = calltable.opaque()[0]
    assert found("control", lib.cgpu_call_control(branch, cmd)) == want


@given(branches, near(ROWS["class"]))
def test_class_look_up(branch, cls):
    assert found("class", lib.cgpu_call_class(branch, cls)) == search(ROWS["class"], branch, cls)


@given(branches, near(ROWS["uvm"]))
def test_uvm_look_up(branch, nr):
    assert found("uvm", lib.cgpu_call_uvm(branch, nr)) == search(ROWS["uvm"], branch, nr)


SIZES = st.one_of(st.sampled_from(sorted({r.size for r in ROWS["escape"]})), st.integers(0, 2**14))


@given(branches, near(ROWS["escape"]), SIZES, st.sampled_from([1, 2, 4]))
def test_escape_look_up(branch, nr, size, node):
    rows = [r for r in ROWS["escape"] if r.nodes & node and r.size in (0, size)]
    assert found("escape", lib.cgpu_call_escape(branch, nr, size, node)) == search(rows, branch, nr)


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_row_is_found(branch):
    for r in ALL:
        if not r.holds(branch):
            continue
        if r.kind == "escape":
            for node in (1, 2, 4):
                got = found("escape", lib.cgpu_call_escape(branch, r.number, r.size, node))
                assert (got == r) == bool(r.nodes & node)
        else:
            look_up = {"control": lib.cgpu_call_control, "class": lib.cgpu_call_class, "uvm": lib.cgpu_call_uvm}
            assert found(r.kind, look_up[r.kind](branch, r.number)) == r


def test_a_number_can_mean_two_things():
    names = {b: found("control", lib.cgpu_call_control(b, 0x20801358)) for b in BRANCHES}
    assert names[565] is None
    assert names[570].name == "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT"
    assert names[580].name == "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS"


# ---- branches ----


@pytest.mark.parametrize("version", ["535.146.02", "535.288.01", "550.54.14", "565.77", "580.105.08", "595.91.07"])
def test_known_driver(version):
    assert lib.cgpu_call_knows_driver(version.encode())
    assert lib.cgpu_call_branch(version.encode()) == int(version.split(".")[0])


@pytest.mark.parametrize(
    ("version", "branch"),
    [
        ("610.57.04", 610),
        ("615.71.09", 615),
        ("999.6.0", BRANCHES[-1]),
        ("600.1", 595),
        ("540.1", 535),
    ],
)
def test_unknown_driver_gets_the_nearest_older(version, branch):
    """610 and 615 have rows of their own, compared in part: with any_driver=1."""
    assert not lib.cgpu_call_knows_driver(version.encode())
    assert lib.cgpu_call_branch(version.encode()) == branch


@pytest.mark.parametrize(
    "version", ["530.41.03", "525.147.05", "1.1", "", ".", "580", "main", "x.1", "535.129.03", "550.40.07"]
)
def test_a_release_without_rows_has_none(version):
    """Older than all rows, or without a number: checked with the rows of another release, a call would be read wrongly.

    nvidia-uvm of 550.40.07 has the structs of 545 (tests/abi/releases.json); before 535.146 nothing is exported.
    """
    assert not lib.cgpu_call_knows_driver(version.encode())
    assert lib.cgpu_call_branch(version.encode()) == 0


def test_the_first_releases_are_the_same_everywhere():
    """The kernel log names them too."""
    sources = Path(__file__).resolve().parents[3] / "cgpu_km"
    block = (sources / "core/nv_branch.c").read_text().partition("least[] = {")[2].partition("};")[0]
    least = [f"{branch}.{minor}" for branch, minor in re.findall(r"{ (\d+), (\d+) }", block)]
    assert least == ["535.146", "550.54"]
    assert f"whose first are of {' and '.join(least)}:" in (sources / "driver/driver.c").read_text()
    for release in least:
        branch, minor = map(int, release.split("."))
        for at, rows in ((minor, branch), (minor - 1, 0)):
            assert lib.cgpu_call_branch(f"{branch}.{at}.01".encode()) == rows


@given(st.text(alphabet="0123456789.x-", max_size=12))
def test_any_version_gets_a_branch_or_none(version):
    assert lib.cgpu_call_branch(version.encode()) in {0, *BRANCHES}
    if lib.cgpu_call_knows_driver(version.encode()):
        assert int(version.split(".")[0]) == lib.cgpu_call_branch(version.encode())


@pytest.mark.parametrize("branch", BRANCHES)
def test_offsets_of_the_kernel_side_allocation(branch):
    """NVOS21 until 570, then NVOS64: inside the op's union of 64 bytes, behind the pointer to the parameters."""
    abi = lib.cgpu_call_abi(branch)
    assert (abi.op_alloc_params_size, abi.op_alloc_status) == ((24, 28) if branch < 575 else (32, 40))
    assert abi.dmabuf_handles == (32 if branch < 570 else 36)


@pytest.mark.parametrize("branch", BRANCHES)
def test_layout_of_the_utilisation_samples(branch):
    """A ring of whole samples, of 72, behind a head of 16 bytes, as large as the call table says."""
    abi, row = (
        lib.cgpu_call_abi(branch),
        lib.cgpu_call_control(branch, C.NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2),
    )
    assert (
        row.params_size
        == ffi.offsetof("struct nv_util_samples", "samples") + 72 * abi.util_stride
        <= ffi.sizeof("struct nv_util_samples")
    )
    # The frame buffer's sample is before it, of 116 bytes, since 570 of 128.
    assert abi.util_pid == 8 + (116 if branch < 570 else 128) + 8


BLOCK = 2 << 20


@given(st.integers(0, 1 << 49), st.integers(0, 1 << 40))
def test_a_managed_range_costs_the_blocks_it_touches(start: int, length: int):
    charged = lib.cgpu_estimate_managed_bytes(start, start + length)
    assert charged == len(range(start // BLOCK * BLOCK, start + length, BLOCK)) * BLOCK * bool(length)
    assert length <= charged < length + 2 * BLOCK


def test_an_empty_or_inverted_range_costs_nothing():
    assert lib.cgpu_estimate_managed_bytes(BLOCK, BLOCK) == lib.cgpu_estimate_managed_bytes(2 * BLOCK, BLOCK) == 0


@given(st.integers(0, 1 << 40), st.integers(1 << 20, 1 << 40))
def test_mapping_a_limit_once_is_included(overhead: int, limit: int):
    """One mapping of all there is, and a gigabyte in pieces of 2 MiB, cost nothing; what is over costs itself."""
    assert lib.cgpu_estimate_overhead_charge(lib.cgpu_estimate_page_tables(limit), limit) == 0
    assert lib.cgpu_estimate_overhead_charge(512 * lib.cgpu_estimate_page_tables(BLOCK - 1), 1 << 30) == 0
    included = (16 << 20) + limit // 512
    assert lib.cgpu_estimate_overhead_charge(overhead, limit) == max(0, overhead - included)
