# SPDX-License-Identifier: MIT
"""A refusal of the kernel with the figures of the node: the limit, who holds it, the next step."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from cgpu_common.exits import CgpuError
from cgpu_common.kernel_abi import MAX_INST_MAX
from cgpu_common.model import MIB, Container
from cgpu_common.proc import Paths, containers, engine_name, parse_stat, read_node

from .names import label


def _int_of(path: Path) -> int | None:
    """The number in a node; None: it has just gone, or is not known yet."""
    try:
        return int(read_node(path))
    except (CgpuError, ValueError):
        return None


def _memory_of(paths: Paths, gpu: int) -> tuple[int, int, int] | None:
    """Bytes of the card, overcommit in percent, sum of the limits; None: not known before the first container."""
    try:
        stat = parse_stat(read_node(paths.proc / str(gpu) / "stat"))
        percent = int(read_node(paths.proc / str(gpu) / "overcommit"))
        total, limits = int(stat.get("total_bytes", "0")), int(stat.get("limits_bytes", "0"))
    except (CgpuError, ValueError):
        return None
    return (total, percent, limits) if total else None


def _holders(paths: Paths, gpu: int, limits: int, without: str) -> str:
    """Who has the memory of a GPU, as cgpud says it. @without: the id of the container that asks."""
    there = [one for one in containers(paths) if any(number == gpu for number, _ in one.gpus)]
    sizes = {one.id: _int_of(paths.proc / str(gpu) / one.dir / "memsize") or 0 for one in there}
    words = [
        f"{label(one, engine_name(paths, one))} {size // MIB} MiB" for one, size in sizes.items() if one != without
    ]
    ended = limits - sum(sizes.values())
    words += [f"destroyed containers {-(-ended // MIB)} MiB (/proc/cgpu_km/ended names them)"] if ended > 0 else []
    return ", ".join(words) or "no container"


def of_memory(
    paths: Paths, err: CgpuError, wanted: Sequence[tuple[int, int]], owner: Container | None = None
) -> CgpuError:
    """cgpud's sentence for each GPU that has less room. @wanted: (GPU, bytes). @owner: has a limit there already."""
    short = []
    for gpu, size in wanted if err.number == errno.ENOSPC else ():
        found = _memory_of(paths, gpu)
        if found is None:
            continue
        total, percent, limits = found
        own = _int_of(paths.proc / str(gpu) / owner.dir / "memsize") or 0 if owner else 0
        left = max(0, total * percent // 100 - limits + own)
        if size <= min(left, total):
            continue
        times = f" (overcommit {percent} %)" if percent != 100 else ""
        there = f"{left // MIB} of its {total // MIB} MiB{times} left" if size > left else f"{total // MIB} MiB in all"
        held = _holders(paths, gpu, limits, owner.id if owner else "")
        short.append(f"GPU {gpu} has {there} and {-(-size // MIB)} MiB were requested; held by: {held}")
    if short:
        err.why = "; ".join(short)
        err.hint = "choose a smaller size, end a holder, or cgpu set gpu N overcommit PERCENT"
    return err


def of_id(err: CgpuError, container_id: str) -> CgpuError:
    """A container with the id is there."""
    if err.number == errno.EEXIST:
        err.hint = f"cgpu inspect {container_id}; cgpu destroy {container_id}"
    return err


def of_compute(
    paths: Paths, err: CgpuError, container: Container, gpus: Sequence[int], node: str, value: int
) -> CgpuError:
    """A refused weight or ceiling, with the figures of each GPU that it does not fit."""
    wide, short = [], []
    other = "ceiling" if node == "weight" else "weight"
    for gpu in gpus:
        own, folder = paths.proc / str(gpu) / container.dir, paths.proc / str(gpu)
        most, free = _int_of(folder / "max_inst"), _int_of(folder / "free_weight")
        had, beside = _int_of(own / "weight"), _int_of(own / other) or 0
        if most is None or free is None or had is None:
            continue
        bound = beside and (value > beside if node == "weight" else 0 < value < beside)
        if value > most or bound:
            wide.append(f"GPU {gpu} has max_inst {most}" + (f", and the container has {other} {beside}" * bool(beside)))
        elif node == "weight" and value > free + had:
            short.append(f"GPU {gpu} has {free} of its weight free, and the container has {had}")
    if err.number == errno.EINVAL and wide:
        err.hint = f"{err.hint}: {'; '.join(wide)}"
    elif err.number == errno.ENOSPC and short:
        err.hint = "; ".join([*short, "cgpu ps shows the weights"])
    return err


def of_gpu(paths: Paths, err: CgpuError, gpu: int, node: str, value: int) -> CgpuError:
    """A refused max_inst, with what is in use; a refused policy, with the max_inst that it does not take."""
    most, free = (_int_of(paths.proc / str(gpu) / name) for name in ("max_inst", "free_weight"))
    if err.number != errno.EBUSY or most is None or free is None:
        return err
    if node == "policy" and most > MAX_INST_MAX:
        err.hint = f"GPU {gpu} has max_inst {most}: cgpu set gpu {gpu} max_inst {MAX_INST_MAX}, or less, first"
    there = sum(any(number == gpu for number, _ in one.gpus) for one in containers(paths))
    if node == "max_inst" and value < max(there, most - free):
        err.hint = f"{there} container{'s' * (there != 1)}, weight {most - free} in use; cgpu ps shows them"
    return err


def names_are_hidden(paths: Paths) -> bool:
    """Docker's directory of containers, which has their names, may not be read by this user."""
    try:
        next(paths.engine.iterdir(), None)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
