# SPDX-License-Identifier: MIT
"""Changes by an administrator: nodes of a GPU, nodes of a container, create, destroy."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

from cgpu_common import policies
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.kernel_abi import UVM_NAMES
from cgpu_common.keys import SLICE_AUTO
from cgpu_common.model import MIB, Container, Slot, SlotWant
from cgpu_common.proc import (
    Paths,
    containers,
    engine_name,
    is_loaded,
    no_module,
    parse_stat,
    read_node,
    read_tree,
    write_node,
)

from . import refusals
from .columns import cut
from .describe import ShareChange, if_gpu_had, if_slot_had
from .kernel import kernel
from .names import Named, choose

GPU_NODES = ("policy", "max_inst", "prio_ratio", "slice_us", "uvm", "overcommit", "default_memsize")
CONTAINER_NODES = ("weight", "ceiling", "memsize", "highprio", "host_memsize", "ipc")
SIZES = ("memsize", "default_memsize", "host_memsize")
OF_CONTAINER = ("host_memsize",)  #: one value, which each GPU's directory shows
NUMBER_MAX = (1 << 32) - 1
SIZE_MAX = (1 << 63) - 1
CARD_GIB_MAX = 512  # a number alone is meant in GiB up to here, above in MiB

_UNITS = {
    unit + end: factor for unit, factor in (("k", 1 << 10), ("m", MIB), ("g", 1 << 30)) for end in ("", "i", "ib")
} | {"": 1}
SIZE_WORDS = "bytes, or with MiB or GiB (Mi, Gi)"

#: Of 10^9 bytes to some, and of 2^30 to others.
_AMBIGUOUS = ("kb", "mb", "gb")
#: cgpu_parse_check_id() of the module.
_ID = re.compile(r"(?!\.\.?\Z)[!-.0-<>-~]{1,128}")
ID_ALLOWED = "1 to 128 printable ASCII characters without blanks, '/' and '=', and neither . nor .."
END_S, END_POLL_S = 2.0, 0.02  # how long destroy waits for the end of a container
ID_QUOTED = 40


def usage(why: str, hint: str = "") -> CgpuError:
    return CgpuError(Exit.USAGE, "usage", why, hint)


def parse_size(text: str) -> int:
    """'6336544768', '6043MiB', '6Gi', '6g' -> bytes. ValueError otherwise."""
    digits = text.rstrip("KMGiBkmgb")
    unit = text[len(digits) :].lower()
    if not (digits.isascii() and digits.isdecimal()) or unit not in _UNITS:
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def _number(what: str, text: str, most: int, allowed: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) > most:
        raise usage(f"{what}: {text!r} is not allowed", allowed)
    return int(text)


def _size(what: str, text: str, least: int) -> int:
    """@least: 0 where no size is a value too."""
    try:
        size = parse_size(text)
    except ValueError:
        if text.lower().endswith(_AMBIGUOUS) and text[:-2].isdecimal():
            hint = f"{text[:-1]} or {text[:-1]}iB, powers of 1024, or bytes"
            raise usage(f"{what}: {text!r}: {text[-2:]} is 1000 or 1024 to a power", hint) from None
        raise usage(f"{what}: {text!r} is no size", SIZE_WORDS) from None
    if size < MIB and (least or size):
        alone = f"a number alone is bytes: {text}{'GiB' if size <= CARD_GIB_MAX else 'MiB'}? "
        hint = f"{alone if size and text.isdecimal() else ''}at least 1MiB{'' if least else ', or 0'}"
        raise usage(f"{what}: {size} bytes is not allowed" if size else f"{what}: 0 is not allowed", hint)
    if size > SIZE_MAX:
        raise usage(f"{what}: {text!r} is too large", SIZE_WORDS)
    return size


def node_value(node: str, text: str, what: str = "") -> int:
    """A value of the command line as the kernel's number. The kernel checks its range. @what: instead of the node's
    name in an error."""
    what = what or node
    if node == "policy":
        known = policies.number(text)
        if known is None:
            raise usage(f"{what}: {text!r} is not allowed", policies.ALLOWED)
        return known
    if node == "uvm":
        if text not in UVM_NAMES:
            raise usage(f"{what}: {text!r} is no mode", " or ".join(UVM_NAMES))
        return UVM_NAMES.index(text)
    if node in SIZES:
        return _size(what, text, MIB if node == "memsize" else 0)
    if node == "slice_us" and text == "auto":
        return SLICE_AUTO
    if node == "highprio":
        return _number(what, text, 1, "0 or 1")
    return _number(what, text, NUMBER_MAX, "a whole number, not negative")


def gpu_dir(paths: Paths, gpu: int) -> Path:
    if not is_loaded(paths):
        raise no_module(paths)
    path = paths.proc / str(gpu)
    if not path.is_dir():
        raise CgpuError(Exit.NOT_FOUND, f"gpu {gpu}", "there is no such GPU", "cgpu gpu list shows the GPUs")
    return path


def _read_back(path: Path) -> str:
    """The value after a change. A container that has ended meanwhile does not make the change an error."""
    try:
        return read_node(path)
    except CgpuError:
        return "gone"


def node_text(node: str, number: int) -> str:
    """A value as it is written into the node."""
    return UVM_NAMES[number] if node == "uvm" else str(number)


def shown_value(node: str, text: str) -> str:
    """A value of a node for people."""
    if node == "host_memsize" and text == "0":
        return "none"
    if node == "ipc":
        return text or "none"
    if node not in SIZES or not text.isdecimal():
        return text
    size = int(text)
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size} bytes"


@dataclass(frozen=True)
class Planned:
    """The writes of a set: the node's path, its text before and after, and the shares allowed that change."""

    gpu: int
    path: Path
    before: str
    after: str
    shares: list[ShareChange]


def plan_gpu(paths: Paths, gpu: int, node: str, value: str) -> list[Planned]:
    number = node_value(node, value)
    path = gpu_dir(paths, gpu) / node
    shares = [one for found in read_tree(paths).gpus if found.index == gpu for one in if_gpu_had(found, node, number)]
    return [Planned(gpu, path, read_node(path), node_text(node, number), shares)]


def plan_container(paths: Paths, key: str, node: str, value: str, gpu: int | None) -> list[Planned]:
    number = 0 if node == "ipc" else node_value(node, value)
    container = find_container(paths, key)
    there = {found.index: found for found in read_tree(paths).gpus}
    out = []
    for index, _ in container.gpus:
        if gpu in (None, index) and index in there:
            path = paths.proc / str(index) / container.dir / node
            text = ("" if value.lower() == "none" else value) if node == "ipc" else str(number)
            shares = if_slot_had(there[index], container.id, node, number)
            out.append(Planned(index, path, read_node(path), text, shares))
    if not out:
        raise CgpuError(Exit.NOT_FOUND, f"container {key}", f"does not use GPU {gpu}", "cgpu ps")
    return out


def set_gpu(paths: Paths, gpu: int, node: str, value: str) -> tuple[str, str]:
    """Write one node of a GPU; returns its text before and after."""
    number = node_value(node, value)
    path = gpu_dir(paths, gpu) / node
    before = read_node(path)
    try:
        kernel(paths).set_gpu(gpu, node, number, f"set gpu {gpu} {node} {value}")
    except CgpuError as err:
        raise refusals.of_gpu(paths, err, gpu, node, number) from None
    return before, _read_back(path)


def find_container(paths: Paths, key: str) -> Container:
    """The container that names.choose() finds."""
    everyone = containers(paths)
    named = [Named(one.id, one.dir, engine_name(paths, one.id)) for one in everyone]
    return everyone[choose(key, named, refusals.names_are_hidden(paths))]


def _set_ipc(paths: Paths, container: Container, gpus: Sequence[int], value: str, what: str) -> None:
    """The name belongs to the whole container; netlink does not have it."""
    text = "" if value.lower() == "none" else value
    if any(char.isspace() for char in text) or not value:
        raise usage(f"{value!r} is no name", "1 to 128 printable characters without blanks, '/' and '='; or none")
    write_node(paths.proc / str(gpus[0]) / container.dir / "ipc", text, what)


def set_container(paths: Paths, key: str, node: str, value: str, gpu: int | None) -> list[tuple[int, str, str]]:
    """Write one node on all of the container's GPUs, or on one; all or nothing.

    Returns (GPU, before, after) for each.
    """
    number = 0 if node == "ipc" else node_value(node, value)
    if node in OF_CONTAINER and gpu is not None:
        raise usage(f"--gpu: {node} is one value of the container, on all of its GPUs")
    container = find_container(paths, key)
    gpus = [number for number, _ in container.gpus if gpu is None or number == gpu]
    if not gpus:
        raise CgpuError(Exit.NOT_FOUND, f"container {key}", f"does not use GPU {gpu}", "cgpu ps")
    what = f"set container {key} {node} {value}"
    nodes = [paths.proc / str(number) / container.dir / node for number in gpus]
    before = [read_node(path) for path in nodes]
    if node == "ipc":
        _set_ipc(paths, container, gpus, value, what)
    else:
        try:
            kernel(paths).set_container(container, gpus, node, number, what)
        except CgpuError as err:
            if node in ("weight", "ceiling"):
                raise refusals.of_compute(paths, err, container, gpus, node, number) from None
            if node == "memsize":
                raise refusals.of_memory(paths, err, [(gpu, number) for gpu in gpus], container) from None
            raise
    return list(zip(gpus, before, map(_read_back, nodes), strict=True))


def over_the_limit(paths: Paths, key: str, gpus: Sequence[int]) -> list[str]:
    """A sentence for each GPU on which the container uses more than its limit is now."""
    container = find_container(paths, key)
    notes = []
    for gpu in gpus:
        try:
            stat = parse_stat(read_node(paths.proc / str(gpu) / container.dir / "stat"))
            limit = int(read_node(paths.proc / str(gpu) / container.dir / "memsize"))
        except (CgpuError, ValueError):
            continue
        more = int(stat.get("used_bytes", "0")) - limit
        if more > 0:
            text = f"it uses {-(-more // MIB)} MiB more than that: it keeps them, and its allocations are refused until"
            notes.append(f"GPU {gpu}: {text} it has freed as much")
    return notes


def effects(paths: Paths, values: Sequence[tuple[int, str, str]]) -> list[str]:
    """The effect of a weight, ceiling or priority (GPU, node, value) under the policy in force, where it is unusual."""
    from cgpu_common import effect

    notes = []
    for gpu, node, text in values:
        policy = _read_back(paths.proc / str(gpu) / "policy")
        if node not in ("weight", "ceiling", "highprio") or not (policy.isdecimal() and text.isdecimal()):
            continue
        value = int(text)
        if node == "weight" and (about := effect.of_weight(int(policy), value)):
            notes.append(f"GPU {gpu}: weight {value}: {about}")
        if node == "ceiling" and value and (about := effect.of_ceiling(int(policy))):
            notes.append(f"GPU {gpu}: ceiling {value}: {about}")
        if node == "highprio" and value and (about := effect.of_highprio(int(policy))):
            notes.append(f"GPU {gpu}: {about}")
    return notes


# ---- create and destroy ----


def _numbers(option: str, text: str, node: str) -> list[int]:
    return [node_value(node, part, option) for part in text.split(",")]


def new_slots(gpu: str, memsize: str, weight: str | None, highprio: bool, ceiling: str | None = None) -> list[SlotWant]:
    """The slots of the command line. The last value of a shorter list repeats."""
    gpus = _numbers("--gpu", gpu, "gpu")
    sizes = _numbers("--memsize", memsize, "memsize")
    weights = _numbers("--weight", weight, "weight") if weight is not None else [1]
    ceilings = _numbers("--ceiling", ceiling, "ceiling") if ceiling is not None else [0]
    for option, values in (("--memsize", sizes), ("--weight", weights), ("--ceiling", ceilings)):
        if len(values) > len(gpus):
            raise usage(f"{option} has {len(values)} values for {len(gpus)} GPU{'s' * (len(gpus) > 1)}")
    if 0 in weights:
        raise usage("--weight: 0 is not allowed", "1 to max_inst; afterwards: cgpu set container ID weight 0")
    every = zip(gpus, *(chain(values, repeat(values[-1])) for values in (sizes, weights, ceilings)), strict=False)
    return [SlotWant(one, 0, size, weight_, highprio, most) for one, size, weight_, most in every]


def parse_cookie(text: str) -> int:
    try:
        cookie = int(text, 16 if text[:2].lower() == "0x" else 10) if text.isascii() and "_" not in text else 0
    except ValueError:
        cookie = 0
    if not 0 < cookie < 1 << 64:
        raise usage(f"--cookie: {text!r} is not allowed", "decimal or 0x…, 64 bits, not 0")
    return cookie


def _free_weight(paths: Paths, gpu: int) -> int | None:
    """None: unknown until the module has attached to the GPU."""
    try:
        return int(read_node(paths.proc / str(gpu) / "free_weight"))
    except (CgpuError, ValueError):
        return None


def _not_free(container_id: str, gpu: int, free: int, asked: int) -> CgpuError:
    return CgpuError(
        Exit.REFUSED,
        f"create {container_id}",
        f"GPU {gpu} has {free} of its weight free, and {asked} was requested",
        "cgpu ps shows the weights; --allow-less takes what is free",
    )


def _affordable(paths: Paths, container_id: str, slots: Sequence[SlotWant], allow_less: bool) -> list[SlotWant]:
    """The slots with the weight that is free now; without allow_less an error if that is less."""
    fitting = []
    for one in slots:
        free = _free_weight(paths, one.gpu)
        if free is not None and free < one.weight:
            if not allow_less:
                raise _not_free(container_id, one.gpu, free, one.weight)
            one = replace(one, weight=max(1, free))  # 0 free: the kernel gives 0 for 1
        fitting.append(one)
    return fitting


def _granted(paths: Paths, found: Container) -> list[Slot]:
    out = []
    for gpu, _ in found.gpus:
        path = paths.proc / str(gpu) / found.dir
        texts = [_read_back(path / node) for node in ("weight", "memsize", "highprio", "ceiling")]
        if all(text.isdecimal() for text in texts):
            weight, limit, highprio, ceiling = map(int, texts)
            out.append(Slot(gpu, weight=weight, limit=limit, highprio=highprio != 0, ceiling=ceiling))
    return out


def create(
    paths: Paths,
    container_id: str,
    slots: Sequence[SlotWant],
    cookie: int | None,
    weight_given: bool,
    allow_less: bool = False,
) -> tuple[Container | None, list[Slot]]:
    """Create a container; returns it as listed, and its slots. A requested weight that is not free: an error."""
    if not is_loaded(paths):
        raise no_module(paths)
    if not _ID.fullmatch(container_id):
        raise usage(f"{cut(container_id, ID_QUOTED)!r} is no id", ID_ALLOWED)
    if paths.drain.exists():
        raise CgpuError(Exit.REFUSED, f"create {container_id}", "this node is being drained", "cgpu uncordon")
    asked = {one.gpu: one.weight for one in slots} if weight_given else {}
    wanted = _affordable(paths, container_id, slots, allow_less) if asked else list(slots)
    try:
        kernel(paths).create(container_id, cookie, wanted)
    except CgpuError as err:
        if err.code is Exit.NOT_FOUND:
            for slot in wanted:
                gpu_dir(paths, slot.gpu)  # names the one that is missing
        err = refusals.of_id(err, container_id)
        raise refusals.of_memory(paths, err, [(one.gpu, one.limit) for one in wanted]) from None
    found = next((one for one in containers(paths) if one.id == container_id), None)
    if found is None:  # a copied tree
        return None, []
    granted = _granted(paths, found)
    for one in granted:
        if one.weight < asked.get(one.gpu, 0) and not allow_less:
            kernel(paths).destroy(found, f"create {container_id}")  # another container took the weight meanwhile
            raise _not_free(container_id, one.gpu, one.weight, asked[one.gpu])
    return found, granted


def destroy(paths: Paths, key: str, cookie: int | None) -> tuple[str, bool]:
    """Destroy a container; returns the full id, and whether a call that has not returned keeps it dying."""
    container = find_container(paths, key)
    if cookie is not None and cookie != container.cookie:
        raise CgpuError(Exit.NOT_FOUND, f"destroy {key}", f"has the cookie {container.cookie:#x}", "cgpu inspect")
    kernel(paths).destroy(container, f"destroy {key}")
    end = time.monotonic() + END_S
    while dying := any(one.id == container.id for one in containers(paths)):
        if time.monotonic() >= end:
            break
        time.sleep(END_POLL_S)
    return container.id, dying
