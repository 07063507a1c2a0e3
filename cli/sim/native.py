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
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cgpu_common.exits import CgpuError, Exit

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default", '-DCGPU_VERSION="0.0.0"')
HEADERS = ("sched_step.h", "timeline.h")
LAST = "cgpu_sim_traced"  # declared at the end of HEADERS: with it they are whole
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


def _words(name: str) -> list[str]:
    """Of a variable of the environment, as a shell reads it."""
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as err:
        raise CgpuError(Exit.USAGE, "usage", f"{name} in the environment is no list of words: {err}") from None


def compiler() -> list[str]:
    words = _words("CC")
    found = words or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    if not found or not shutil.which(found[0]):
        hint = "Debian, Ubuntu: apt-get install gcc libc6-dev; EL, Fedora: dnf install gcc glibc-devel; or CC names one"
        raise CgpuError(Exit.NOT_FOUND, "simulate", "it needs a C compiler to build the core", hint)
    return found


def more_flags() -> list[str]:
    return _words("CFLAGS")


def _run(argv: list[str], scratch: Path, text: str | None = None) -> str:
    """Run the compiler, with its temporary files in scratch too. It and its children end with us."""
    env = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=env, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            found, errors = running.communicate(text or "")
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    if running.returncode:
        why = next((line for line in errors.splitlines() if "error" in line), errors.strip() or "no reason")
        raise CgpuError(Exit.REFUSED, "simulate", f"the C compiler failed: {why}", "CC selects another compiler")
    return found


@contextmanager
def _in_order() -> Iterator[None]:
    """SIGTERM removes what is half done before it ends the process, unless it is handled already."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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


def cache_dir() -> tuple[Path, bool]:
    """A folder for the library; True: a private one, made now, which the caller removes. No other one is removed."""
    named = os.environ.get("CGPU_CACHE")
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() / ".cache")
        path = Path(named) if named else Path(base) / "cgpu"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _ours_alone(path) and os.access(path, os.W_OK):
            return path.resolve(), False
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="cgpu-sim-")), True


def build(folder: Path) -> tuple[Path, Path]:
    """The library and its declarations; built unless cached."""
    name = f"sim-{digest()}"
    library, cdef = folder / f"{name}.so", folder / f"{name}.h"
    if library.is_file() and cdef.is_file():
        return library, cdef
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
        work = Path(scratch)
        cc = compiler()
        text = "".join(f'#include "{name}"\n' for name in HEADERS)
        preprocess = [*cc, "-E", "-P", "-DCGPU_CORE_ENV_H", "-DCGPU_CDEF", *_includes(), "-x", "c", "-"]
        (work / "h").write_text(_run(preprocess, work, text))
        _run([*cc, *FLAGS, *more_flags(), *_includes(), "-o", str(work / "so"), *map(str, sources())], work)
        # Atomic: another process may build the same files.
        (work / "h").rename(cdef)
        (work / "so").rename(library)
    return library, cdef


def _open(library: Path, cdef: Path) -> tuple[Any, Any]:
    """ValueError: the files are damaged."""
    from cffi import FFI, CDefError, FFIError

    ffi = FFI()
    try:
        ffi.cdef(TYPES + cdef.read_text())
        lib = ffi.dlopen(str(library))
        getattr(lib, LAST)
    except (CDefError, FFIError, OSError, ValueError, AttributeError) as err:
        raise ValueError(str(err)) from None
    return ffi, lib


def _built(folder: Path) -> tuple[Any, Any]:
    """What the cache has, or if that is damaged, built once more."""
    files = build(folder)
    try:
        return _open(*files)
    except ValueError:
        for path in files:
            path.unlink(missing_ok=True)
    try:
        return _open(*build(folder))
    except ValueError as err:
        why = f"the library of the core cannot be loaded: {err}"
        raise CgpuError(Exit.REFUSED, "simulate", why, "CGPU_CACHE selects another folder for it") from None


@cache
def load() -> tuple[Any, Any]:
    """(ffi, lib)."""
    if find_spec("cffi") is None:
        raise CgpuError(Exit.NOT_FOUND, "simulate", "the Python package cffi is missing", "pip install cffi")
    with _in_order():
        folder, is_private = cache_dir()
        try:
            return _built(folder)
        finally:
            if is_private:
                shutil.rmtree(folder, ignore_errors=True)
