# SPDX-License-Identifier: MIT
"""Host-side checks of the clients: layouts, builds, usage. No driver and no VM needed."""

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import calltable
import nvclient
import nvheader
import pytest
import rmabi
import rmlayout

CLIENT = Path(__file__).resolve().parent
TESTS = CLIENT.parents[1]
RMCLIENT = TESTS / "rmclient"

PT_INTERP = 3

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

# The structures of the calls.
ESCAPES = {
    rmabi.NV_ESC_RM_ALLOC: "Alloc",
    rmabi.NV_ESC_RM_FREE: "Free",
    rmabi.NV_ESC_RM_CONTROL: "Control",
    rmabi.NV_ESC_RM_DUP_OBJECT: "Dup",
    rmabi.NV_ESC_RM_MAP_MEMORY: "MapMemory",
    rmabi.NV_ESC_RM_UNMAP_MEMORY: "UnmapMemory",
    rmabi.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO: "RenameMap",
    rmabi.NV_ESC_RM_MAP_MEMORY_DMA: "MapDma",
    rmabi.NV_ESC_RM_UNMAP_MEMORY_DMA: "UnmapDma",
    rmabi.NV_ESC_REGISTER_FD: "RegisterFd",
    rmabi.NV_ESC_ALLOC_OS_EVENT: "OsEvent",
    rmabi.NV_ESC_FREE_OS_EVENT: "OsEvent",
    rmabi.NV_ESC_CHECK_VERSION_STR: "Version",
    rmabi.NV_ESC_EXPORT_TO_DMABUF_FD: "ExportDmabuf",
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


#: Of classes and controls, by the class that has them.
PARAMS = {
    ("class", rmabi.NV01_DEVICE_0): "DeviceParams",
    ("class", rmabi.NV20_SUBDEVICE_0): "SubdeviceParams",
    ("class", rmabi.KEPLER_CHANNEL_GROUP_A): "TsgParams",
    ("class", rmabi.FERMI_CONTEXT_SHARE_A): "ContextShareParams",
    ("control", rmabi.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2): "IdInfo",
    ("control", rmabi.NV2080_CTRL_CMD_GPU_GET_GID_INFO): "GidInfo",
    ("control", rmabi.NV2080_CTRL_CMD_GPU_GET_PIDS): "Pids",
    ("control", rmabi.NV2080_CTRL_CMD_GPU_GET_PID_INFO): "PidInfo",
    ("control", rmabi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS): "DisableChannels",
}


@pytest.mark.parametrize("branch", calltable.BRANCHES)
def test_sizes_are_those_of_the_call_table(branch):
    """A call has a struct of the table's size, which make test-abi compares with NVIDIA's sources."""
    table: dict[tuple[str, int], set[int]] = {}
    for row in calltable.every():
        if row.holds(branch):
            table.setdefault((row.kind, row.number), set()).add(row.size)
    calls = PARAMS | {("escape", n): name for n, name in ESCAPES.items()}
    calls |= {("uvm", n): name for n, name in UVM_CALLS.items()}
    gone = {key for key in calls if key not in table}
    assert gone <= {("uvm", number) for number in (23, 24, 31, 53)} and (branch >= 610) == bool(gone)
    ours = {key: ctypes.sizeof(rmlayout.of_branch(name, branch)) for key, name in calls.items() if key not in gone}
    assert {key: size for key, size in ours.items() if size not in table[key]} == {}


@pytest.mark.parametrize("branch", calltable.BRANCHES)
def test_the_bytes_of_parameters_are_the_tables(branch):
    """What the clients read of the table's text is what the compiler makes of it."""
    rows = [row for row in calltable.every() if row.holds(branch) and row.kind in ("class", "control")]
    assert len(rows) > 300
    assert {r.name: rmlayout.bytes_of(r.number, branch) for r in rows} == {r.name: r.size for r in rows}


def test_request_numbers():
    assert nvclient.request(nvclient.NV_ESC_RM_ALLOC, 48) == 0xC030462B
    assert nvclient.request(nvclient.NV_ESC_RM_FREE, 16) == 0xC0104629
    assert nvclient.request(nvclient.NV_ESC_RM_CONTROL, 32) == 0xC020462A
    assert nvclient.request(nvclient.NV_ESC_RM_MAP_MEMORY, 56) == 0xC038464E
    assert nvclient.request(nvclient.NV_ESC_REGISTER_FD, 4) == 0xC00446C9


def test_python_reads_the_headers_as_the_compiler_does(tmp_path):
    """Each number, and the size of each struct and the offset of each field."""
    expressions = {name: value for name, value in rmabi.NUMBERS.items() if value < 1 << 63}
    for one in rmlayout.STRUCTS.values():
        expressions[f"sizeof(struct {one.tag})"] = ctypes.sizeof(one.ctype)
        expressions |= {f"offsetof(struct {one.tag}, {at})": offset for at, offset in nvheader.offsets(one.ctype)}
    assert len(expressions) > 1000
    source = tmp_path / "header.c"
    checks = (f"_Static_assert(({text}) == {value}ull, {json.dumps(text)});" for text, value in expressions.items())
    source.write_text('#include "rm_abi.h"\n' + "\n".join(checks) + "\n")
    flags = [f"-I{path}" for path in (RMCLIENT, TESTS / "nvsim/module", TESTS.parent / "cgpu_km/core")]
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Werror", *flags, "-fsyntax-only", source], check=True)


SOURCES = ("cgpu_km", *(f"tests/{name}" for name in ("nvsim", "simgpu", "forward", "rmclient", "fuzz", "hardware")))
NUMBER = r"^#define[ \t]+(\w+)[ \t]+\(?(?:0x[0-9a-fA-F]+|\d+)[uUlL]*\)?[ \t]*(?:/\*.*)?$"
NAMES = re.compile(r"(?:NV|UVM_|RS_|FERMI|KEPLER|HOPPER|GT200)")


def definitions() -> Iterator[tuple[str, Path]]:
    """Numbers and structs of C with a name of NVIDIA's, and of structs with the tag of a header, with their file."""
    tags = "|".join(rmlayout.STRUCTS)
    for folder in SOURCES:
        for path in sorted((TESTS.parent / folder).rglob("*.[ch]")):
            if path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
                continue
            text = path.read_text()
            yield from ((name, path) for name in re.findall(NUMBER, text, re.M) if NAMES.match(name))
            yield from ((f"struct {tag}", path) for tag in re.findall(rf"^struct ({tags}) \{{", text, re.M))


def test_no_number_and_no_struct_is_defined_twice():
    """NVIDIA's ABI has one description: a second one would be wrong unseen in one branch."""
    seen: dict[str, list[str]] = {}
    for name, path in definitions():
        seen.setdefault(name, []).append(str(path.relative_to(TESTS.parent)))
    assert len(seen) > 300 and seen["struct nvos54"] == ["cgpu_km/core/nv_struct.h"]
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}


# ---- programs ----


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    out = tmp_path_factory.mktemp("client")
    subprocess.run(["make", "-s", "-C", str(CLIENT), f"OUT={out}"], check=True)
    return out


def run(programs, *argv, dev="/nonexistent"):
    env = os.environ | {"NVSIM_DEV": dev}
    return subprocess.run([programs / argv[0], *argv[1:]], capture_output=True, text=True, env=env, timeout=30)


@pytest.mark.parametrize("name", ["simload", "simsmi", "hoard"])
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
    ],
)
def test_usage_errors(programs, argv):
    done = run(programs, *argv)
    assert done.returncode == 2
    assert argv[0] in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["simload", "simsmi"])
def test_without_a_driver(programs, name):
    done = run(programs, name)
    assert done.returncode == 1
    assert done.stderr == f"{name}: open(/nonexistent/nvidiactl): No such file or directory\n"


@pytest.mark.parametrize("name", ["simload", "simsmi", "hoard"])
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
