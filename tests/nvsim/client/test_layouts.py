# SPDX-License-Identifier: MIT
"""Host-side checks of the clients: layouts, builds, usage. No driver and no VM needed."""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import calltable
import nvclient
import pytest
import rmabi
import rmlayout

CLIENT = Path(__file__).resolve().parent
TESTS = CLIENT.parents[1]
RMCLIENT = TESTS / "rmclient"

PT_INTERP = 3

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

# Sizes in bytes of the driver's structures at 580.105.08.
SIZES = {
    "Alloc": 48,
    "Free": 16,
    "Control": 32,
    "Dup": 28,
    "MapMemory": 56,
    "MapDma": 64,
    "MapDmaBefore580": 56,
    "UnmapMemory": 32,
    "RenameMap": 40,
    "UnmapDma": 48,
    "UnmapDmaBefore550": 40,
    "ExportDmabuf": 2608,
    "ExportDmabufBefore570": 2600,
    "CardInfo": 72,
    "Version": 72,
    "RegisterFd": 4,
    "OsEvent": 16,
    "Xfer": 16,
    "DeviceParams": 56,
    "SubdeviceParams": 4,
    "VaspaceParams": 56,
    "MemoryParams": 128,
    "TsgParams": 20,
    "ContextShareParams": 12,
    "ChannelParams": 368,
    "ChannelParamsSince610": 376,
    "CopyParams": 8,
    "Notification": 16,
    "AttachedIds": 128,
    "IdInfo": 32,
    "ClassList": 804,
    "FbInfo": 1028,
    "GidInfo": 268,
    "GpuName": 132,
    "Pids": 3812,
    "PidInfoEntry": 72,
    "PidInfo": 14408,
    "DisableChannels": 536,
    "EngineUtil": 128,
    "EngineUtilBefore570": 116,
    "UtilSample": 776,
    "UtilSamples": 55888,
    "Schedule": 3,
    "Preempt": 8,
    "Token": 4,
    "UvmInitialize": 16,
    "UvmRegisterGpu": 40,
    "UvmRegisterChannel": 56,
    "UvmRegisterVaspace": 32,
    "UvmUnregisterChannel": 28,
    "UvmUnregisterChannelSince590": 12,
    "UvmUuid": 20,
    "UvmRange": 24,
    "UvmFree": 24,
    "UvmFreeSince590": 16,
    "UvmRangeGroup": 16,
    "UvmSetRangeGroup": 32,
    "UvmPool": 9248,
    "UvmPoolBefore550": 1184,
    "UvmMapDyn": 40,
    "UvmUnmapExternal": 40,
    "UvmPageable": 8,
    "UvmPreferred": 40,
    "UvmAccessedBy": 40,
    "UvmMigrate": 80,
    "UvmMmInitialize": 8,
    "UvmGpuAttr": 36,
    "UvmMapExternal": 9264,
    "UvmMapExternalBefore550": 1200,
    "NvsimWork": 32,
    "NvsimSem": 16,
}

# Offsets where padding could go wrong.
OFFSETS = {
    "Alloc": {"params": 16, "params_size": 32, "flags": 36, "status": 40},
    "Control": {"cmd": 8, "params": 16, "params_size": 24, "status": 28},
    "MapMemory": {"offset": 16, "length": 24, "status": 40, "flags": 44, "fd": 48},
    "CardInfo": {"gpu_id": 16, "reg_address": 24, "fb_size": 48, "minor": 56},
    "MemoryParams": {"flags": 8, "attr": 24, "size": 64, "limit": 88, "numa_node": 120},
    "ChannelParams": {
        "gpfifo_va": 8,
        "gpfifo_entries": 16,
        "userd_memory": 32,
        "userd_offset": 64,
        "engine": 128,
        "phys_channel_group": 240,
        "process_id": 296,
        "tpc_config_id": 360,
    },
    "ChannelParamsSince610": {"handle_vaspace": 32, "userd_memory": 36, "userd_offset": 72, "engine": 136},
    "DisableChannels": {"count": 4, "only_scheduling": 8, "event": 16, "client": 24, "channel": 280},
    "UvmMapExternal": {"gpu": 24, "gpu_count": 9240, "ctl_fd": 9248, "memory": 9256, "status": 9260},
    "UvmMapExternalBefore550": {"gpu": 24, "gpu_count": 1176, "ctl_fd": 1184, "memory": 1192, "status": 1196},
    "UvmRegisterGpu": {"numa_node": 20, "ctl_fd": 24, "status": 36},
    "UtilSamples": {"tracker": 12, "sample": 16},
    "UtilSample": {"graphics": 136},
}

# The structures of the calls whose number has no parameters in rmlayout.PARAMS.
ESCAPES = {
    rmabi.ESC_RM_ALLOC: "Alloc",
    rmabi.ESC_RM_FREE: "Free",
    rmabi.ESC_RM_CONTROL: "Control",
    rmabi.ESC_RM_DUP_OBJECT: "Dup",
    rmabi.ESC_RM_MAP_MEMORY: "MapMemory",
    rmabi.ESC_RM_UNMAP_MEMORY: "UnmapMemory",
    rmabi.ESC_RM_UPDATE_DEVICE_MAPPING_INFO: "RenameMap",
    rmabi.ESC_RM_MAP_MEMORY_DMA: "MapDma",
    rmabi.ESC_RM_UNMAP_MEMORY_DMA: "UnmapDma",
    rmabi.ESC_REGISTER_FD: "RegisterFd",
    rmabi.ESC_ALLOC_OS_EVENT: "OsEvent",
    rmabi.ESC_FREE_OS_EVENT: "OsEvent",
    rmabi.ESC_CHECK_VERSION_STR: "Version",
    rmabi.ESC_EXPORT_TO_DMABUF_FD: "ExportDmabuf",
}
UVM_CALLS = {
    rmabi.UVM_INITIALIZE: "UvmInitialize",
    rmabi.UVM_CREATE_RANGE_GROUP: "UvmRangeGroup",
    rmabi.UVM_DESTROY_RANGE_GROUP: "UvmRangeGroup",
    rmabi.UVM_REGISTER_GPU_VASPACE: "UvmRegisterVaspace",
    rmabi.UVM_UNREGISTER_GPU_VASPACE: "UvmUuid",
    rmabi.UVM_REGISTER_CHANNEL: "UvmRegisterChannel",
    rmabi.UVM_UNREGISTER_CHANNEL: "UvmUnregisterChannel",
    rmabi.UVM_SET_RANGE_GROUP: "UvmSetRangeGroup",
    rmabi.UVM_MAP_EXTERNAL_ALLOCATION: "UvmMapExternal",
    rmabi.UVM_FREE: "UvmFree",
    rmabi.UVM_REGISTER_GPU: "UvmRegisterGpu",
    rmabi.UVM_UNREGISTER_GPU: "UvmUuid",
    rmabi.UVM_PAGEABLE_MEM_ACCESS: "UvmPageable",
    rmabi.UVM_SET_PREFERRED_LOCATION: "UvmPreferred",
    rmabi.UVM_UNSET_PREFERRED_LOCATION: "UvmRange",
    rmabi.UVM_ENABLE_READ_DUPLICATION: "UvmRange",
    rmabi.UVM_SET_ACCESSED_BY: "UvmAccessedBy",
    rmabi.UVM_MIGRATE: "UvmMigrate",
    rmabi.UVM_MAP_DYNAMIC_PARALLELISM_REGION: "UvmMapDyn",
    rmabi.UVM_UNMAP_EXTERNAL: "UvmUnmapExternal",
    rmabi.UVM_ALLOC_SEMAPHORE_POOL: "UvmPool",
    rmabi.UVM_CREATE_EXTERNAL_RANGE: "UvmRange",
    rmabi.UVM_MM_INITIALIZE: "UvmMmInitialize",
}


@pytest.mark.parametrize("name", SIZES)
def test_python_layout(name):
    layout = getattr(nvclient, name)
    assert ctypes.sizeof(layout) == SIZES[name]
    for field, offset in OFFSETS.get(name, {}).items():
        assert getattr(layout, field).offset == offset, field


def test_every_python_structure_has_its_size_here():
    structs = {n for n, v in vars(nvclient).items() if isinstance(v, type) and issubclass(v, ctypes.Structure)}
    assert structs == set(SIZES)


def kind_of(number):
    """Of a row of PARAMS. Controls of the client have numbers as small as those of classes."""
    classes = {v for n, v in vars(rmabi).items() if n.startswith("CLASS_")} | set(sum(rmabi.ARCHS.values(), ()))
    return "class" if number in classes else "control"


@pytest.mark.parametrize("branch", calltable.BRANCHES)
def test_sizes_are_those_of_the_call_table(branch):
    """The module's table, which make test-abi compares with NVIDIA's headers, was written for itself."""
    table: dict[tuple[str, int], set[int]] = {}
    for row in calltable.every():
        if row.holds(branch):
            table.setdefault((row.kind, row.number), set()).add(row.size)
    ours = {(kind_of(n), n): rmlayout.bytes_of(n, branch) for n in rmlayout.PARAMS}
    for kind, calls in (("escape", ESCAPES), ("uvm", UVM_CALLS)):
        ours |= {(kind, n): ctypes.sizeof(rmlayout.of_branch(name, branch)) for n, name in calls.items()}
    gone = {key for key in ours if key not in table}
    assert gone <= {("uvm", number) for number in (23, 24, 31, 53)} and (branch >= 610) == bool(gone)
    assert {key: size for key, size in ours.items() if key not in gone and size not in table[key]} == {}


def test_request_numbers():
    assert nvclient.request(nvclient.ESC_RM_ALLOC, 48) == 0xC030462B
    assert nvclient.request(nvclient.ESC_RM_FREE, 16) == 0xC0104629
    assert nvclient.request(nvclient.ESC_RM_CONTROL, 32) == 0xC020462A
    assert nvclient.request(nvclient.ESC_RM_MAP_MEMORY, 56) == 0xC038464E
    assert nvclient.request(nvclient.ESC_REGISTER_FD, 4) == 0xC00446C9


def c_defines(header):
    """The numbers of the #defines, as the preprocessor sees them."""
    out = subprocess.run(["cc", "-E", "-dM", str(header)], check=True, capture_output=True, text=True).stdout
    found = {}
    for line in out.splitlines():
        _, name, *value = line.split(None, 2)
        try:
            found[name] = int(value[0].rstrip("uUlL"), 0)
        except (IndexError, ValueError):
            continue
    return found


@pytest.fixture(scope="session")
def header(tmp_path_factory):
    path = tmp_path_factory.mktemp("header") / "rm_abi.h"
    with path.open("w") as out:
        subprocess.run([sys.executable, RMCLIENT / "header.py"], check=True, stdout=out)
    return path


def test_c_and_python_agree_on_numbers(header):
    c = c_defines(header)
    ours = {n: v for n, v in vars(rmabi).items() if isinstance(v, int)}
    assert len(ours) > 90
    assert {n: c[n] for n in ours} == ours


def test_c_layout(header):
    """The header has an assertion for each size and offset."""
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", "-xc", str(header)], check=True)


def numbers(path):
    """The plain numbers of the #defines, without NVIDIA's prefix."""
    found = re.findall(r"^#define\s+(?:NV_)?(\w+)\s+(0x[0-9a-fA-F]+|\d+)[uUlL]*(?=\s|$)", path.read_text(), re.M)
    return {name: int(value, 0) for name, value in found}


def test_numbers_are_those_of_the_module_and_of_nvsim():
    """The three were written for themselves; a number with one name in two of them has one value."""
    ours = {n.removeprefix("NV_"): v for n, v in vars(rmabi).items() if isinstance(v, int)}
    for other, least in ((TESTS.parent / "cgpu_km/core/nv_abi.h", 20), (TESTS / "nvsim/module/nvabi.h", 20)):
        shared = {n: v for n, v in numbers(other).items() if n in ours}
        assert len(shared) > least, other
        assert shared == {n: ours[n] for n in shared}, other


# ---- programs ----


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    out = tmp_path_factory.mktemp("client")
    subprocess.run(["make", "-s", "-C", str(CLIENT), f"OUT={out}"], check=True)
    return out


def run(programs, *argv, dev="/nonexistent"):
    env = os.environ | {"NVSIM_DEV": dev}
    return subprocess.run([programs / argv[0], *argv[1:]], capture_output=True, text=True, env=env, timeout=30)


@pytest.mark.parametrize("name", ["simload", "simsmi", "flip", "hoard"])
def test_help(programs, name):
    done = run(programs, name, "--help")
    assert done.returncode == 0
    assert name in done.stdout
    assert done.stderr == ""


def test_help_names_every_option(programs):
    text = run(programs, "simload", "--help").stdout
    source = (CLIENT / "simload_options.c").read_text()
    names = [line.split('"')[1] for line in source.splitlines() if line.startswith('\t{ "')]
    assert len(names) > 20
    assert [n for n in names if n != "help" and f"--{n}" not in text] == []


@pytest.mark.parametrize(
    "argv",
    [
        ("simload", "--depth", "0"),
        ("simload", "--seconds", "x"),
        ("simload", "--busy-ms", "5"),
        ("simload", "--seconds", "1", "--warmup", "2"),
        ("simload", "stray"),
        ("simload", "--unknown"),
        ("simsmi", "--unknown"),
        ("flip",),
        ("flip", "--mode", "other"),
    ],
)
def test_usage_errors(programs, argv):
    done = run(programs, *argv)
    assert done.returncode == 2
    assert argv[0] in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("argv", [("simload",), ("simsmi",), ("flip", "--mode", "nested-size")])
def test_without_a_driver(programs, argv):
    done = run(programs, *argv)
    assert done.returncode == 1
    assert done.stderr == f"{argv[0]}: open(/nonexistent/nvidiactl): No such file or directory" + (
        " (status -2)\n" if argv[0] == "flip" else "\n"
    )


@pytest.mark.parametrize("name", ["simload", "simsmi", "flip", "hoard"])
def test_programs_are_static(programs, name):
    elf = (programs / name).read_bytes()
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    types = {struct.unpack_from("<I", elf, table + i * size)[0] for i in range(count)}
    assert types and PT_INTERP not in types


def test_nvml_stub_builds_and_fails_cleanly(tmp_path):
    subprocess.run(["make", "-s", "-C", str(CLIENT.parent / "nvml"), f"OUT={tmp_path}"], check=True)
    code = (
        "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlErrorString.restype = ctypes.c_char_p;"
        "r = n.nvmlInit_v2(); print(r, n.nvmlErrorString(r).decode())"
    )
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "NVSIM_DEV": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "9 NVIDIA driver is not loaded\n"


def test_a_client_that_cannot_be_made_leaves_no_file_open(tmp_path):
    """An open file keeps its container: tests/soak would hold each one in which the driver failed."""
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for make in (nvclient.Client, nvclient.Uvm):
        with pytest.raises(OSError, match="Inappropriate ioctl"):
            make(str(tmp_path))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
