# SPDX-License-Identifier: MIT
"""What things take of the card, seen by HEAP_FREE from beside."""

from __future__ import annotations

import statistics
import time

from .ask import Context, question
from .loads import Load
from .probes import both_ways, summary

KIB, MIB = 1024, 1 << 20
SETTLE_S = 0.3


class Watcher:
    """A process that holds a context and reads the card's heap."""

    def __init__(self, load: Load):
        self._load = load

    def used(self) -> int:
        time.sleep(SETTLE_S)
        heap = self._load.lever("heap")
        if heap["failed"] or not heap["calls"]:
            raise RuntimeError(f"FB_GET_INFO_V2: status 0x{heap['status']:x}")
        return heap["total_bytes"] - heap["free_bytes"]


def watch(crew) -> Watcher:
    return Watcher(crew.add(1, hold=True)[0])


@question("context-bytes", "memory", 25, (6,))
def context_bytes(context: Context) -> dict:
    """What does a process with a context take of the card, beside what it asked for?

    HEAP_FREE read by another process before and after each of four processes that hold a context; then after their end.
    """
    with context.crew() as crew:
        watcher = watch(crew)
        before = seen = watcher.used()
        steps = []
        held = []
        for _ in range(2 if context.quick else 4):
            held += crew.add(1, hold=True)
            now = watcher.used()
            steps.append(now - seen)
            seen = now
        for load in held:
            crew.loads.remove(load)
            load.stop()
        left = watcher.used() - before
    typical = statistics.median(steps)
    return {
        "answer": f"{typical / MIB:.1f} MiB a process; {left / MIB:.1f} MiB are still gone after their end",
        "bytes_by_process": steps,
        "median_bytes": typical,
        "left_bytes": left,
    }


@question("granularity", "memory", 40, (6, 15))
def granularity(context: Context) -> dict:
    """How much does the card give for an allocation of a size, and for many of them?

    HEAP_FREE around a process that allocates so much, less what one takes that allocates nothing.
    """
    sizes = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 3 * MIB, 32 * MIB]
    many = [] if context.load == "simload" else [(1000, 4 * KIB), (1000, 64 * KIB), (100, 2 * MIB)]
    rows = []
    with context.crew() as crew:
        watcher = watch(crew)

        def taken(**options: object) -> int:
            before = watcher.used()
            (load,) = crew.add(1, hold=True, **options)
            after = watcher.used()
            crew.loads.remove(load)
            load.stop()
            return after - before

        base = statistics.median(taken() for _ in range(1 if context.quick else 3))
        for size in sizes[2:5] if context.quick else sizes:
            got = taken(alloc_mib=size / MIB) - base
            rows.append({"asked_bytes": size, "pieces": 1, "taken_bytes": got})
        for pieces, size in many:
            got = taken(alloc_mib=pieces * size / MIB, allocs=pieces) - base
            rows.append({"asked_bytes": size, "pieces": pieces, "taken_bytes": got, "each_bytes": got / pieces})
    said = [f"{row['pieces']}x{row['asked_bytes'] // KIB} KiB: {row['taken_bytes'] // KIB}" for row in rows]
    return {"answer": f"KiB taken: {', '.join(said)}", "context_bytes": base, "rows": rows}


@question("objects", "memory", 30, (15,))
def objects(context: Context) -> dict:
    """What do a channel and a stream take of the card?

    HEAP_FREE around processes with 1, 8, 32 and 64 streams; channels as rmlever counted them.
    """
    rows = []
    with context.crew() as crew:
        watcher = watch(crew)
        for streams in (1, 16) if context.quick else (1, 8, 32, 64):
            before = watcher.used()
            (load,) = crew.add(1, streams=streams, depth=2, kernel_us=100)
            found = load.lever("list")
            taken = watcher.used() - before
            count = {kind: len(found[kind]) for kind in ("clients", "tsgs", "channels")}
            rows.append({"streams": streams, **count, "taken_bytes": taken})
            crew.loads.remove(load)
            load.stop()
    first, last = rows[0], rows[-1]
    more = last["channels"] - first["channels"]
    each = (last["taken_bytes"] - first["taken_bytes"]) / more if more else None
    said = f"{each / KIB:.0f} KiB a channel" if each is not None else "streams made no channels"
    return {"answer": said, "bytes_each_channel": each, "rows": rows}


@question("totals", "memory", 35, (10,))
def totals(context: Context) -> dict:
    """Do cudaMemGetInfo, nvidia-smi and torch show totals that were rewritten in FB_GET_INFO?

    Each program as it is, then with totals and free of at most 4096 MiB in the answers.
    """
    rows = both_ways(context, RMLEVER_TOTAL_MIB="4096")
    for row in rows.values():
        row["shows_4096"] = any(word in row["answered"].get("stdout", "") for word in ("4096", str(4096 * MIB)))
    said = ", ".join(
        f"{name}: {'yes' if row['shows_4096'] else 'no'}" for name, row in rows.items() if row["times_answered"]
    )
    return {"answer": f"{summary(rows)}; shown: {said or 'by none'}", "programs": rows}
