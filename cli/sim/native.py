# SPDX-License-Identifier: MIT
"""The core's C files and the simulated engine as a shared library.

They are compiled at first use with the system's compiler and cached by the hash of the sources in $CGPU_CACHE,
$XDG_CACHE_HOME/cgpu or ~/.cache/cgpu. If another user can write to that folder, the library is built in a private one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from cgpu_common.exits import CgpuError, Exit

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default", '-DCGPU_VERSION="0.0.0"')
HEADERS = ("sched_step.h", "timeline.h")
TYPES = "typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64; typedef int64_t s64;\n"


def source_dir() -> Path:
    """cgpu_km/, installed beside this file or in the tree it is imported from."""
    for path in (HERE / "csrc", HERE.parents[1] / "cgpu_km"):
        if (path / "core/sched_gpu.h").is_file():
            return path
    raise CgpuError(Exit.NOT_FOUND, "simulate", "the C files of the core are not installed", "reinstall the package")


def core_sources() -> list[Path]:
    """Every file of the core, without the module's entry core_main.c."""
    return sorted(path for path in (source_dir() / "core").glob("*.c") if path.name != "core_main.c")


def sources() -> list[Path]:
    return [*core_sources(), *sorted(HERE.glob("*.c"))]


def compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", ""))
    found = words or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    if not found or not shutil.which(found[0]):
        raise CgpuError(
            Exit.NOT_FOUND, "simulate", "it needs a C compiler to build the core", "apt-get install gcc libc6-dev"
        )
    return found


def more_flags() -> list[str]:
    return shlex.split(os.environ.get("CFLAGS", ""))


def _run(argv: list[str], text: str | None = None) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip() or "no reason")
        raise CgpuError(Exit.REFUSED, "simulate", f"the C compiler failed: {why}", "CC selects another compiler")
    return done.stdout


def _includes() -> list[str]:
    return [f"-I{source_dir() / 'core'}", f"-I{HERE}"]


def digest() -> str:
    found = hashlib.sha256(repr((FLAGS, more_flags(), platform.machine(), os.environ.get("CC"), TYPES)).encode())
    folder = source_dir()
    for path in sorted([*sources(), *folder.glob("*.h"), *(folder / "core").glob("*.h"), *HERE.glob("*.h")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _ours_alone(path: Path) -> bool:
    """Can no other user put a library there?"""
    info = path.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def cache_dir() -> Path:
    named = os.environ.get("CGPU_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() / ".cache")
    path = Path(named) if named else Path(base) / "cgpu"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _ours_alone(path) and os.access(path, os.W_OK):
            return path
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="cgpu-sim-"))


def build(folder: Path) -> tuple[Path, Path]:
    """The library and its declarations; built unless cached."""
    name = f"sim-{digest()}"
    library, cdef = folder / f"{name}.so", folder / f"{name}.h"
    if library.is_file() and cdef.is_file():
        return library, cdef
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        work = Path(scratch)
        cc = compiler()
        text = "".join(f'#include "{name}"\n' for name in HEADERS)
        preprocess = [*cc, "-E", "-P", "-DCGPU_CORE_ENV_H", "-DCGPU_CDEF", *_includes(), "-x", "c", "-"]
        (work / "h").write_text(_run(preprocess, text))
        _run([*cc, *FLAGS, *more_flags(), *_includes(), "-o", str(work / "so"), *map(str, sources())])
        # Atomic: another process may build the same files.
        (work / "h").rename(cdef)
        (work / "so").rename(library)
    return library, cdef


@cache
def load() -> tuple[Any, Any]:
    """(ffi, lib)."""
    try:
        from cffi import FFI
    except ImportError:
        raise CgpuError(Exit.NOT_FOUND, "simulate", "the Python package cffi is missing", "pip install cffi") from None
    folder = cache_dir()
    library, cdef = build(folder)
    ffi = FFI()
    ffi.cdef(TYPES + cdef.read_text())
    lib = ffi.dlopen(str(library))
    if folder.name.startswith("cgpu-sim-"):
        shutil.rmtree(folder)
    return ffi, lib
