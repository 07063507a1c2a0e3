# SPDX-License-Identifier: MIT
"""lay.py BRANCH: lays out in build/cuda what a machine needs for Docker containers with NVIDIA's user space.

  image.tar           a small root with the C library, Python, pynvml, our programs; nothing of NVIDIA's
  toolkit/            a stand-in for NVIDIA's runtime, set to mount the branch as NVIDIA's own would
  daemon.json         dockerd's settings, in which that is the runtime `nvidia`

Runs on the host, where reading files and starting Python cost nothing.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
OUT = BUILD / "cuda"
STANDIN = REPO / "tests/vm/guest/box/nvidia_standin.py"
LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
APPLETS = ("sh", "cat", "env", "kill", "ls", "mkdir", "mknod", "ps", "rm", "sleep", "stat", "test", "true", "wc")
#: By the system's own Python: the venv's programs name this repository.
PYTHON = Path("/usr/bin/python3")
IMPORTS = "ctypes, json, os, pathlib, subprocess, pynvml"
#: What libcuda opens by name.
OPENED = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")


# ---- the image ----


def programs() -> list[Path]:
    """Ours, for /usr/local/bin."""
    built = [path for path in OUT.iterdir() if path.is_file() and path.stat().st_mode & 0o111]
    return [*sorted(built), BUILD / "gpu/gpuload"]


def needed(program: Path) -> Iterator[Path]:
    """The shared objects of a program, by the names it wants them under."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    for found in re.finditer(r"(/\S+) \(0x", listed):
        yield Path(found[1])


def python_files() -> list[Path]:
    """The interpreter's own files for those imports, wherever its path leads."""
    site = BUILD / "venv/lib/python3.11/site-packages"
    code = (
        f"import sys; sys.path.append({str(site)!r}); import {IMPORTS}; "
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    )
    listed = subprocess.run([str(PYTHON), "-SEB", "-c", code], capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines()]


def contents() -> dict[str, Path]:
    """What is in the image: path there to file here."""
    files = {"/bin/busybox": Path("/bin/busybox"), "/usr/bin/python3": PYTHON.resolve()}
    files |= {f"/usr/local/bin/{path.name}": path for path in programs()}
    for path in python_files():
        inside = str(path)
        if path.is_relative_to(BUILD):
            inside = f"/usr/lib/python3.11/{path.name}"
        files[inside] = path
    for program in [path for path in files.values() if path.suffix != ".py" and path.name != "busybox"]:
        files |= {str(path): path for path in needed(program)}
    for name in OPENED:
        files[f"/lib/x86_64-linux-gnu/{name}"] = Path("/lib/x86_64-linux-gnu") / name
    return files


def add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name.lstrip("/"))
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def write_image(path: Path) -> None:
    """A merged /usr as Debian's, so that a library has one place."""
    with tarfile.open(path, "w") as tar:
        for name in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "tmp", "proc", "sys", "dev", "etc", "root"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        links = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}
        links |= {f"usr/bin/{name}": "busybox" for name in APPLETS}
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for inside, here in sorted(contents().items()):
            merged = re.sub(r"^/(bin|lib|lib64|sbin)/", r"/usr/\1/", inside)
            add(tar, merged, here.read_bytes())
        add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)


# ---- NVIDIA's runtime ----


def driver_mounts(branch: str) -> dict[str, str]:
    """Destination to source, as NVIDIA's toolkit mounts a driver."""
    root = BUILD / "nvidia" / branch / "usr"
    mounts = {"/usr/bin/nvidia-smi": root / "lib/nvidia/current/nvidia-smi"}
    for name in ("bin/nvidia-cuda-mps-control", "sbin/nvidia-cuda-mps-server"):
        mounts[f"/usr/bin/{Path(name).name}"] = root / name
    for path in (root / "lib/x86_64-linux-gnu/nvidia/current").iterdir():
        if re.search(r"\.so\.\d", path.name):  # also the link that programs look for, which the toolkit makes there
            mounts[f"{LIBRARY_DIR}/{path.name}"] = path
    missing = [str(path) for path in mounts.values() if not path.exists()]
    if missing:
        sys.exit(f"lay.py: {missing[0]} is not there: scripts/setup-nvidia {branch}")
    return {inside: str(path.resolve()) for inside, path in mounts.items()}


def write_toolkit(home: Path, branch: str) -> None:
    home.mkdir(exist_ok=True)
    runtime = home / "nvidia-container-runtime"
    runtime.write_text(STANDIN.read_text())
    runtime.chmod(0o755)
    settings = {
        "mode": "jit-cdi",
        "runtimes": [str(BUILD / "bin/cgpu-runtime"), "/usr/sbin/runc"],
        "mounts": driver_mounts(branch),
    }
    (home / "nvidia.json").write_text(json.dumps(settings, indent=2))


def newer(path: Path, sources: Iterable[Path]) -> bool:
    """Whether a file is there and no source was changed since."""
    return path.exists() and all(source.stat().st_mtime <= path.stat().st_mtime for source in sources)


def main() -> int:
    (branch,) = sys.argv[1:]
    OUT.mkdir(parents=True, exist_ok=True)
    toolkit = OUT / f"toolkit-{branch}"
    write_toolkit(toolkit, branch)
    image = OUT / "image.tar"
    if not newer(image, [Path(__file__), *programs()]):
        write_image(image.with_suffix(".new"))
        image.with_suffix(".new").rename(image)
    runtimes = {"nvidia": {"path": str(toolkit / "nvidia-container-runtime")}}
    (OUT / f"daemon-{branch}.json").write_text(json.dumps({"runtimes": runtimes}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
