# SPDX-License-Identifier: MIT
"""Host-side checks of the clients: layouts, builds, usage. No driver and no VM needed."""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).resolve().parent
sys.path.insert(0, str(CLIENT.parent / "lib"))

import nvclient  # noqa: E402

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
    "UnmapDma": 48,
    "ExportDmabuf": 2608,
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
    "CopyParams": 8,
    "IdInfo": 32,
    "FbInfo": 1028,
    "GidInfo": 268,
    "GpuName": 132,
    "Pids": 3812,
    "PidInfoEntry": 72,
    "PidInfo": 14408,
    "DisableChannels": 536,
    "UvmInitialize": 16,
    "UvmRegisterGpu": 40,
    "UvmRegisterChannel": 56,
    "UvmRegisterVaspace": 32,
    "UvmUnregisterChannel": 28,
    "UvmUuid": 20,
    "UvmRange": 24,
    "UvmRangeGroup": 16,
    "UvmSetRangeGroup": 32,
    "UvmPool": 9248,
    "UvmUnmapExternal": 40,
    "UvmPageable": 8,
    "UvmPreferred": 40,
    "UvmAccessedBy": 40,
    "UvmMigrate": 80,
    "UvmMmInitialize": 8,
    "UvmGpuAttr": 36,
    "UvmMapExternal": 9264,
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
    "DisableChannels": {"count": 4, "only_scheduling": 8, "event": 16, "client": 24, "channel": 280},
    "UvmMapExternal": {"gpu": 24, "gpu_count": 9240, "ctl_fd": 9248, "memory": 9256, "status": 9260},
    "UvmRegisterGpu": {"numa_node": 20, "ctl_fd": 24, "status": 36},
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


def test_c_and_python_agree_on_numbers():
    c = c_defines(CLIENT / "rm_abi.h")
    shared = {n: v for n, v in vars(nvclient).items() if isinstance(v, int) and n in c}
    assert len(shared) > 15
    assert {n: c[n] for n in shared} == shared


def test_c_layout():
    subprocess.run(["cc", "-std=gnu11", "-fsyntax-only", "-xc", str(CLIENT / "rm_abi.h")], check=True)


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
