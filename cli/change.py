# SPDX-License-Identifier: MIT
"""Changes by an administrator: nodes of a GPU, nodes of a container, create, destroy."""

from __future__ import annotations

from pathlib import Path

from .errors import CgpuError, Exit
from .model import MIB, POLICIES, Container
from .proc import Paths, containers, engine_name, is_loaded, no_module, read_node, write_node

GPU_NODES = ("policy", "max_inst", "prio_ratio", "slice_us", "uvm", "overcommit", "default_memsize")
CONTAINER_NODES = ("weight", "memsize", "highprio", "ipc")

_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": 1 << 30, "kib": 1 << 10, "mib": MIB, "gib": 1 << 30}


def parse_size(text: str) -> int:
    """'6336544768', '6043MiB', '6g' -> bytes. ValueError otherwise."""
    digits = text.rstrip("KMGiBkmgb")
    unit = text[len(digits) :].lower()
    if not (digits.isascii() and digits.isdecimal()) or unit not in _UNITS:
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def node_text(node: str, value: str) -> str:
    """A value of the command line in the kernel's form. The kernel checks it."""
    if node == "policy" and value.lower() in POLICIES:
        return str(POLICIES.index(value.lower()))
    if node in ("memsize", "default_memsize"):
        try:
            return str(parse_size(value))
        except ValueError:
            raise CgpuError(Exit.USAGE, "usage", f"{value!r} is no size", "bytes, or with MiB or GiB") from None
    if node == "ipc" and value.lower() == "none":
        return ""
    if any(char.isspace() for char in value) or not value:
        raise CgpuError(Exit.USAGE, "usage", f"{value!r} is no value")
    return value


def set_gpu(paths: Paths, gpu: int, node: str, value: str) -> tuple[str, str]:
    """Write one node of a GPU; returns its text before and after."""
    text = node_text(node, value)
    path = gpu_dir(paths, gpu) / node
    before = read_node(path)
    write_node(path, text, f"set gpu {gpu} {node} {value}")
    return before, read_node(path)


def gpu_dir(paths: Paths, gpu: int) -> Path:
    if not is_loaded(paths):
        raise no_module(paths)
    path = paths.proc / str(gpu)
    if not path.is_dir():
        raise CgpuError(Exit.NOT_FOUND, f"gpu {gpu}", "there is no such GPU", "cgpu status lists the GPUs")
    return path


def find_container(paths: Paths, key: str) -> Container:
    """A container by id, by a prefix of it, by directory name or by docker's name."""
    everyone = containers(paths)
    exact = [one for one in everyone if key in (one.id, one.dir)]
    found = exact or [one for one in everyone if one.id.startswith(key)]
    found = found or [one for one in everyone if engine_name(paths, one.id) == key]
    if not found:
        raise CgpuError(Exit.NOT_FOUND, f"container {key}", "there is no such container", "cgpu ps lists them")
    if len(found) > 1:
        raise CgpuError(Exit.USAGE, f"container {key}", f"fits {len(found)} containers", "give more of the id")
    return found[0]


def set_container(paths: Paths, key: str, node: str, value: str, gpu: int | None) -> list[tuple[int, str, str]]:
    """Write one node on all of the container's GPUs, or on one; all or nothing.

    Returns (GPU, before, after) for each.
    """
    text = node_text(node, value)
    container = find_container(paths, key)
    gpus = [number for number, _ in container.gpus if gpu is None or number == gpu]
    if not gpus:
        raise CgpuError(Exit.NOT_FOUND, f"container {key}", f"does not use GPU {gpu}", "cgpu ps")
    what = f"set container {key} {node} {value}"
    done: list[tuple[int, str, str]] = []
    for number in gpus:
        path = paths.proc / str(number) / container.dir / node
        try:
            before = read_node(path)
            write_node(path, text, what)
            done.append((number, before, read_node(path)))
        except CgpuError:
            for earlier, old, _ in reversed(done):
                write_node(paths.proc / str(earlier) / container.dir / node, old, f"undo {what}")
            raise
    return done


def create(paths: Paths, container_id: str, options: dict[str, str]) -> Container | None:
    """Create a container through inst_ctl; returns it as listed."""
    if not is_loaded(paths):
        raise no_module(paths)
    if paths.drain.exists():
        raise CgpuError(Exit.REFUSED, f"create {container_id}", "this node is being drained", "cgpu drain --undo")
    words = ["create", container_id, *(f"{name}={value}" for name, value in options.items())]
    write_node(paths.proc / "inst_ctl", " ".join(words), f"create {container_id}")
    return next((one for one in containers(paths) if one.id == container_id), None)


def destroy(paths: Paths, key: str, cookie: str | None) -> tuple[str, bool]:
    """Destroy through inst_ctl; returns the full id, and whether open files keep it dying."""
    container = find_container(paths, key)
    tail = f" cookie={cookie}" if cookie else ""
    write_node(paths.proc / "inst_ctl", f"destroy {container.id}{tail}", f"destroy {key}")
    return container.id, any(one.id == container.id for one in containers(paths))
