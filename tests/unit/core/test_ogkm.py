# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""How tests/abi reads the public driver, on a driver of a few lines."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "abi"))

import calltable
import check
import differences
import layouts
import nvheader
import ogkm
from corelib import ffi, lib

HEADER = """
typedef unsigned int NvU32;
#define BITS 26:25
#define ODD UNDECLARED_THERE
typedef struct { NvU32 a; NvU32 b; } PAIR;
#define CMD_PAIR (0x20800102U)
"""
METHOD = """
    /*flags=*/      0x{flags:x}u,
    /*accessRight=*/0x0u,
    /*methodId=*/   0x{cmd:x}u,
    /*paramSize=*/  {size},
"""
CLASSES = """
RS_ENTRY(
    /* External Class  */ SOME_CLASS,
    /* Internal Class  */ Some,
    /* Alloc Param Info */ RS_REQUIRED(PAIR),
)
RS_ENTRY(
    /* External Class  */ BARE_CLASS,
    /* Internal Class  */ Bare,
    /* Alloc Param Info */ RS_NONE,
)
"""


@pytest.fixture
def tree(tmp_path):
    files = {
        f"{ogkm.SDK}/nvtypes.h": HEADER,
        f"{ogkm.GENERATED}/g_some_nvoc.c": METHOD.format(flags=8, cmd=0x20800102, size="sizeof(PAIR)")
        + METHOD.format(flags=4, cmd=0x20800145, size="0 /* Singleton parameter list */"),
        ogkm.CLASSES: CLASSES,
        "version.mk": "NVIDIA_VERSION = 580.1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_probe_gives_what_is_there_and_leaves_out_the_rest(tree):
    exprs = ["CMD_PAIR", "sizeof(PAIR)", "offsetof(PAIR, b)", "(0 ? BITS)", "ODD", "sizeof(GONE)", "offsetof(PAIR, c)"]
    assert ogkm.Tree(tree, "580.1").probe(exprs) == {
        "CMD_PAIR": 0x20800102,
        "sizeof(PAIR)": 8,
        "offsetof(PAIR, b)": 4,
        "(0 ? BITS)": 25,
    }


def test_controls_and_classes(tree):
    (found,) = ogkm.trees(tree, [])
    assert (found.tag, found.branch) == ("580.1", 580)
    assert found.methods() == {
        0x20800102: [ogkm.Method(0x20800102, 8, 0, "PAIR")],
        0x20800145: [ogkm.Method(0x20800145, 4, 0, "")],
    }
    assert found.classes() == {
        "SOME_CLASS": ogkm.Alloc("SOME_CLASS", "RS_REQUIRED", "PAIR"),
        "BARE_CLASS": ogkm.Alloc("BARE_CLASS", "RS_NONE", ""),
    }


def test_the_newest_release_of_each_branch(tree):
    git = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    for tag in ("510.9", "580.65.06", "580.105.08", "590.44.01", "main-1"):
        subprocess.run([*git, "tag", tag], check=True)
    assert [t.tag for t in ogkm.trees(tree, [])] == ["580.105.08", "590.44.01"]
    assert [t.tag for t in ogkm.trees(tree, ["all"])] == ["580.65.06", "580.105.08", "590.44.01"]
    assert [t.methods().keys() for t in ogkm.trees(tree, ["580.65.06"])] == [{0x20800102, 0x20800145}]


def test_without_a_driver_the_target_says_what_it_needs():
    check = Path(ogkm.__file__).with_name("check.py")
    done = subprocess.run([sys.executable, check], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert "OGKM" in done.stderr


# ---- what was read of releases that no repository here has ----

READ = ogkm.read_releases(check.READ)


@pytest.mark.parametrize("read", READ, ids=lambda read: read.tag)
def test_what_was_read_of_a_release_is_in_the_table(read):
    out = check.check(read)
    assert out.differences == []
    assert len(out.rows) >= 8 and out.source


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"values": {"sizeof(NV_CHANNEL_ALLOC_PARAMS)": 368}}, "TURING_CHANNEL_GPFIFO_A size: 376 here, 368 there"),
        ({"values": {"offsetof(NV_CHANNEL_ALLOC_PARAMS, hUserdMemory)": 32}}, "channel_h_userd"),
        ({"gone": frozenset({"UVM_FREE"})}, "UVM_FREE: a row, but the driver has it no more"),
    ],
)
def test_a_value_that_is_not_the_tables_is_a_difference(changed, says):
    read = READ[-1]
    changed = {key: read.values | value if key == "values" else value for key, value in changed.items()}
    assert says in "\n".join(check.check(replace(read, **changed)).differences)


def test_what_a_release_does_not_say_is_open():
    counts = check.counts(check.check(READ[0]))
    assert counts["rows"] == counts["compared"] + counts["open"] and counts["open"] > 300


# ---- the rows to write for a new branch ----


def test_the_rows_of_a_new_branch():
    """A size that grew, an argument with the status elsewhere, a call that is gone, and one that is not named."""
    branch = calltable.BRANCHES[-1]
    read = READ[-1]
    old = differences.Release(read, read.probe(check.wanted(read, {}, read.classes())), {}, read.classes())
    got = old.got | {"sizeof(NV_CHANNEL_ALLOC_PARAMS)": 384, "sizeof(UVM_FREE_PARAMS)": 24}
    got |= {"offsetof(UVM_FREE_PARAMS, rmStatus)": 16}
    del got["UVM_DISCARD"]
    new = differences.Release(replace(read, tag=f"{branch + 5}.1"), got, {}, old.classes)
    lines = [line.split("\t")[0] for line in differences.rows(old, new)]
    assert f"{{ 34, {branch + 5}, 24, CGPU_PASS, 16 }}," in lines
    assert f"{{ 80, {branch + 5}, GONE }}," in lines
    assert f"{{ 0xc46f, {branch + 5}, 384, CGPU_KIND_CHANNEL, .copied_in = true }}," in lines
    assert not [line for line in lines if line.startswith("{ 0x20809001")], "a number without a name stays"
    assert any("UVM_FREE" in line for line in differences.rows(old, new))


def test_the_form_of_the_record():
    """make abi-doc reads it."""
    for tag in json.loads(check.OUTCOME.read_text())["tags"]:
        assert tag["rows"]["rows"] == tag["rows"]["compared"] + tag["rows"]["open"]


def test_the_core_has_the_numbers_of_the_comparison():
    """Of branches that were compared in part: the kernel log and cgpu doctor say them."""
    rows = {int(one["tag"].split(".")[0]): one["rows"] for one in json.loads(check.OUTCOME.read_text())["tags"]}

    def recorded(branch: int) -> tuple[int, int]:
        """Rows compared, and all: none of today's where make test-abi has not seen the branch."""
        if branch in rows:
            return rows[branch]["compared"], rows[branch]["rows"]
        return 0, sum(row.holds(branch) for row in calltable.every())

    for branch in calltable.BRANCHES:
        part = lib.cgpu_call_part(branch)
        known = lib.cgpu_call_knows_driver(f"{branch}.999.01".encode())
        assert (part == ffi.NULL) == known
        if not known:
            assert (part.branch, part.compared, part.rows) == (branch, *recorded(branch)), "parts[] of nv_branch.c"


def test_each_number_and_struct_is_as_it_was_compared():
    """make test-abi needs NVIDIA's sources, which no level of make test has, and says what is in none of them."""
    outcome = json.loads(check.OUTCOME.read_text())
    assert check.numbers_digest() == outcome["names"], "a number of nv_abi.h or nvabi.h is new or other: make test-abi"
    open_here = {name.removeprefix("struct ") for name in check.OPEN}
    structs = {f"{tag} {check.digest(tag)}" for tag, one in check.STRUCTS.items() if one.nvidia}
    assert {line for line in structs ^ set(outcome["structs"]) if line.split()[0] not in open_here} == set(), (
        "make test-abi"
    )
    names = nvheader.defines(nvheader.NUMBERS, nvheader.NVSIM).keys() | check.common().keys()
    assert (layouts.NAMES.keys() | layouts.COMMON.keys() | layouts.OF_NVSIM) <= names, "not in a header any more"
