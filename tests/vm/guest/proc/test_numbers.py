# SPDX-License-Identifier: MIT
"""Numbers that agree: every query of a container's memory returns the same bytes at the same moment."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import forked
import pytest
from slicebox import CLIENTS, MIB, REPO, Box
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

FB_GET_INFO = 0x20801301
LIMIT_MIB = 777


def by_the_old_call(gpu: nv.Gpu) -> tuple[int, int]:
    """FB_GET_INFO, with its list behind a pointer: (total, free)."""
    pairs = (ctypes.c_uint32 * 4)(nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, 0, nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE, 0)
    params = (ctypes.c_uint64 * 2)(2, ctypes.addressof(pairs))
    assert gpu.control(FB_GET_INFO, params)[0] == 0
    return pairs[1] << 10, pairs[3] << 10


def by_the_heap_call(gpu: nv.Gpu) -> tuple[int, int]:
    """NVOS32 INFO: (total, free)."""
    arg = (ctypes.c_uint8 * 184)()
    words = (ctypes.c_uint32 * 46).from_buffer(arg)
    words[0], words[1], words[2] = gpu.rm.handle, gpu.device, 5
    gpu.rm.ctl.call(nv.NV_ESC_RM_VID_HEAP_CONTROL, arg)
    assert words[5] == 0
    longs = (ctypes.c_uint64 * 23).from_buffer(arg)
    return longs[3], longs[4]


def by_nvml(box: Box) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, REPO / "tests/nvsim/nvml/show.py"],
        env=os.environ | {"NVSIM_DEV": box.dev, "LD_LIBRARY_PATH": str(CLIENTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout)
    card = shown[0]
    assert card["used"] == card["total"] - card["free"]
    assert set(card["processes"]) <= {str(os.getpid())}
    return card["total"], card["free"]


def by_simsmi(box: Box) -> tuple[int, int]:
    done = subprocess.run([CLIENTS / "simsmi", "--json", "--dev", box.dev], capture_output=True, text=True, check=True)
    card = json.loads(done.stdout)["gpu"][0]
    return card["total_bytes"], card["free_bytes"]


def by_cgpu_smi(box: Box) -> tuple[int, int]:
    done = forked.command("cgpu-smi", "--json")
    assert done.returncode == 0, done.stderr
    gpus = json.loads(done.stdout)["gpus"]
    memory = next(c["memory"] for gpu in gpus for c in gpu["containers"] if c["id"] == box.name)
    return memory["limit_bytes"], memory["limit_bytes"] - memory["used_bytes"]


def by_proc(box: Box) -> tuple[int, int]:
    free, pids = box.meminfo()
    limit = int((box.proc / "memsize").read_text())
    assert sum(pids.values()) == box.used == limit - free
    return limit, free


def test_every_way_to_ask(box: Box, gpu: nv.Gpu):
    def all_agree(limit_mib: int) -> None:
        ways = {
            "FB_GET_INFO_V2": (gpu.memory()["total"], gpu.memory()["free"]),
            "FB_GET_INFO": by_the_old_call(gpu),
            "NVOS32": by_the_heap_call(gpu),
            "NVML": by_nvml(box),
            "simsmi": by_simsmi(box),
            "cgpu-smi": by_cgpu_smi(box),
            "proc": by_proc(box),
        }
        assert set(ways.values()) == {(limit_mib * MIB, limit_mib * MIB - box.used)}, ways

    all_agree(LIMIT_MIB)
    assert box.used == 0
    for mib in (1, 5, 100):
        assert gpu.alloc_vidmem(mib * MIB + 1)[0] == 0
    gpu.space().group().channel()
    assert box.used > 106 * MIB, "and a context"
    all_agree(LIMIT_MIB)
    (box.proc / "memsize").write_text(f"{300 * MIB}\n")
    all_agree(300)
