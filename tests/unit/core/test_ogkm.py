# SPDX-License-Identifier: MIT OR GPL-2.0
"""How tests/abi reads the public driver, on a driver of a few lines."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "abi"))

import ogkm

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
