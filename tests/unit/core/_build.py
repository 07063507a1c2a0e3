# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The C files of cgpu_km/core and cgpu_km/pure, compiled for user space and called through cffi.

No declaration is written twice: the cdef is what the preprocessor makes of the headers.
UBSan is always on; test_asan.py adds ASan. Built once per content of the sources, into build/core.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[3]
CORE, PURE = (ROOT / "cgpu_km" / name for name in ("core", "pure"))
BUILD = ROOT / "build" / "core"
SIMULATED = [Path(__file__).with_name(name) for name in ("demand.c", "checked.c")]  # GPUs of the tests

CC = os.environ.get("CC", "cc")
WARN = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
VERSION = '-DCGPU_VERSION="0.0.0"'
DEFINES = [VERSION, "-DCGPU_DOC"]  # the module is built without the names, sources and notes of rows
SANITIZE = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]

# What env.h gives the headers; the rest of it is libc's and not for cffi.
TYPES = """
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
"""


def sources() -> list[Path]:
    """Every file; core_main.c is the module around the core."""
    return sorted(p for p in [*CORE.glob("*.c"), *PURE.glob("*.c")] if p.name != "core_main.c")


def headers() -> list[Path]:
    return [
        ROOT / "cgpu_km" / "uapi.h",
        *sorted(p for p in [*CORE.glob("*.h"), *PURE.glob("*.h")] if p.name != "env.h"),
    ]


def simulated_headers() -> list[Path]:
    return [path.with_suffix(".h") for path in SIMULATED]


def includes(paths: list[Path]) -> str:
    return "".join(f'#include "{p}"\n' for p in paths)


def cdef() -> str:
    """The headers as cffi reads them. Their include guards sort them out."""
    text = includes([*headers(), *simulated_headers()])
    out = subprocess.run(
        [CC, "-E", "-P", "-DCGPU_CDEF", "-DCGPU_CORE_ENV_H", *DEFINES, "-x", "c", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return TYPES + out


def constants() -> dict[str, int]:
    """#define NAME <number> of every header."""
    found = {}
    for path in headers():
        for name, value in re.findall(
            r"^#define\s+((?:CGPU_|NV|RS_|UVM_)\w+)\s+(0x[0-9a-fA-F]+|\d+)[uUlL]*\b", path.read_text(), re.M
        ):
            found[name] = int(value, 0)
    return found


def digest(text: str) -> str:
    h = hashlib.sha256((text + str(SANITIZE) + sys.version + Path(__file__).read_text()).encode())
    for path in [*sources(), *headers(), CORE / "env.h", *SIMULATED, *simulated_headers()]:
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:16]


def load():
    """(ffi, lib) of the compiled core; of another one where CGPU_CORE_SO names it (test_mutants.py, test_asan.py)."""
    text = cdef()
    if other := os.environ.get("CGPU_CORE_SO"):
        ffi = FFI()
        ffi.cdef(text)
        return ffi, ffi.dlopen(other)
    name = f"_cgpu_core_{digest(text)}"
    found = list(BUILD.glob(f"{name}.*.so"))
    if not found:
        BUILD.mkdir(parents=True, exist_ok=True)
        ffi = FFI()
        ffi.cdef(text)
        ffi.set_source(
            name,
            includes([CORE / "env.h", *headers(), *simulated_headers()]),
            sources=[str(p) for p in [*sources(), *SIMULATED]],
            extra_compile_args=[*WARN, *DEFINES, *SANITIZE, "-g", "-O1"],
            extra_link_args=SANITIZE,
        )
        # A folder of its own until it is whole: two test runs may build at once.
        work = BUILD / f"{name}.{os.getpid()}"
        built = Path(ffi.compile(tmpdir=str(work)))
        target = BUILD / built.name
        built.rename(target)
        shutil.rmtree(work)
        found = [target]
    spec = importlib.util.spec_from_file_location(name, found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi, module.lib
