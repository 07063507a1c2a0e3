# SPDX-License-Identifier: MIT
"""The steps that say something on a card only; without one they show that they run.

What a step needs and this machine has not is a result with a reason. What is asked and why: docs/develop/forward.md.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parts import (
    KERNEL,
    LOAD,
    MIB,
    NAMES,
    PROC,
    REPO,
    SIMULATED,
    STANDIN,
    Box,
    Progress,
    Report,
    call,
    call_all,
    card_mib,
    divided,
    gpu_stat,
    last_line,
    load,
    rates_of,
    set_gpu,
    slices,
)

sys.path.insert(0, str(REPO / "tests/hardware"))

from hw.stats import figures

HERE = Path(__file__).resolve().parent
LOADS = REPO / "tests/hardware/load"
#: A period of high priority is 100 ms; so much of it may be the service's.
PRIO_RATIO = 95
CSV = "--format=csv,noheader,nounits"
#: The smallest step of the memory that is had: of a card that is tens of thousands of pieces of 2 MiB.
FINE_MIB = 2 if SIMULATED else 64
ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS


def python(name: str, *words: object) -> tuple[str, ...]:
    """Of a program of this folder."""
    return (sys.executable, str(HERE / name), *map(str, words))


def has_torch() -> bool:
    """This program runs without the folder that it is in."""
    return not call(sys.executable, "-c", "import importlib.util as u; exit(not u.find_spec('torch'))").returncode


NO_TORCH = "PyTorch is not installed"


def alone(report: Report, *words: str) -> None:
    """The driver without containers, for the rates of the others: one load, then two."""
    for count in (1, 2):
        with contextlib.ExitStack() as stack:
            loads = [stack.enter_context(load(None)) for _ in range(count)]
            rates = rates_of(loads, float(words[0]), (1,))
        report.add(f"driver alone, {count}", ok=True, works_per_s=[round(one, 1) for one in rates])


def shares(report: Report, *words: str) -> None:
    """Policies and weights with gpuload."""
    window_s = float(words[0])
    set_gpu("max_inst", 25)  # of which the weights are parts
    divided(report, "3 : 1", (3, 1), window_s)
    divided(report, "1 : 7 : 13", (1, 7, 13), 2 * window_s)
    for policy in (1, 3, 6):
        divided(report, f"policy {policy}, 1 : 1", (1, 1), window_s, policy=policy)


@contextlib.contextmanager
def boxes() -> Iterator[list[tuple[int, Box]]]:
    """Containers of 6 and 8 of 15 parts of the card, at once."""
    with contextlib.ExitStack() as stack:
        yield [(mib, stack.enter_context(Box(name, mib))) for name, mib in zip(NAMES, slices(), strict=False)]


def nodes(report: Report, *words: str) -> None:
    """What a program finds: the card by its name and UUID, the slice's memory, and one GPU, the container's."""

    def found(*head: str) -> list[list[str]]:
        done = call(*head, "nvidia-smi", "--query-gpu=name,uuid,driver_version,memory.total", CSV)
        return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]

    whole = found()
    with boxes() as both:
        for mib, box in both:
            seen = found(*box.head())
            nodes = call(*box.head(), "sh", "-c", "stat -c '%n %t:%T' /dev/nvidia*").stdout.splitlines()
            ours = (PROC / "0/major").read_text().strip()
            ok = bool(whole) and seen == [[*whole[0][:3], str(mib)]]
            report.add(f"discovery, {mib} MiB", ok=ok, alone=whole, container=seen, nodes=nodes, major=ours)


def vectoradd(report: Report, *words: str) -> None:
    """A kernel's sums: on the driver alone, by the forwarder and no container; then in two containers at once."""

    def add(name: str, done: subprocess.CompletedProcess[str]) -> None:
        said = last_line(done)
        if said and SIMULATED:
            report.missing(name, "the simulated card executes no kernel; the program ends well")
        else:
            report.add(name, ok=said.get("wrong") == 0, said=said or done.stderr[-300:])

    add("vectorAdd, driver alone", call(*python("vectoradd.py")))
    with boxes() as both:
        ended = call_all([[*box.head(), *python("vectoradd.py")] for _, box in both])
    for (mib, _), done in zip(both, ended, strict=True):
        add(f"vectorAdd, {mib} MiB", done)


def traced(report: Report, *words: str) -> None:
    """vectoradd.py in a container under the recorder of calls (tests/hardware/rmtap), after it failed there."""
    with Box(NAMES[0], slices()[0]) as box:
        recorder = ("env", f"LD_PRELOAD={words[0]}", f"RMTAP_DIR={report.folder}")
        done = call(*box.head(), *recorder, *python("vectoradd.py"))
    said = last_line(done)
    report.add("vectorAdd, recorded", ok=said.get("wrong") == 0 or None, said=said or done.stderr[-300:])


def faults(report: Report, *words: str) -> None:
    """A program whose kernels fault, three times, beside another container's load: that one goes on at its rate."""
    with boxes() as ((_, box), (_, other)), load(other) as progress:
        before = rates_of([progress], 2, (1,))[0]
        said = [last_line(call(*box.head(), *python("faulty.py"))).get("status") for _ in range(3)]
        after = rates_of([progress], 2, (1,))[0]
        empty = box.is_empty()
    values = {"status": said, "works_per_s": [round(before, 1), round(after, 1)], "empty": empty}
    if SIMULATED:
        return report.missing("a neighbour's fault", "the simulated card executes no kernel", **values)
    ok = said == [ILLEGAL_ADDRESS] * 3 and after > 0.9 * before > 0 and empty
    return report.add("a neighbour's fault", ok=ok, **values)


# ---- memory ----


#: NVIDIA's own table for its limit (driver 615, RTX PRO 6000) has these; in steps of 256 MiB.
PUBLISHED_MIB = (30_000, 3_000)


def one_limit(report: Report, mib: int, kind: str, step: int) -> None:
    """Limit set, totals shown, allocatable."""
    with Box(NAMES[0], mib) as box:
        smi = call(*box.head(), "nvidia-smi", "--query-gpu=memory.total", CSV).stdout.strip()
        done = call(*box.head(), *python("alloc.py", kind, step), limit_s=60)
        said, empty = last_line(done), box.is_empty()
    ok = done.returncode == 0 and said.get("total_mib") == mib and 0 < said["allocated_mib"] <= mib and empty
    ok = ok and said["after_refusal"] == 0 and smi == str(mib)
    report.add(
        f"limit {mib} {kind} {step}", ok=ok, limit_mib=mib, smi_mib=smi, said=said or done.stderr[-300:], empty=empty
    )


def limits(report: Report, *words: str) -> None:
    """What can be had under a limit, in each way, managed memory too; what is left when the process is killed."""
    set_gpu("uvm", "account")
    killed(report, slices()[0])
    for mib in PUBLISHED_MIB:
        if mib < card_mib() * 9 // 10:
            one_limit(report, mib, "plain", 256)
    for mib in slices():
        for kind, step in (("plain", 256), ("vmm", 256), ("pool", 256), ("managed", 256), ("plain", FINE_MIB)):
            one_limit(report, mib, kind, step)


def killed(report: Report, mib: int) -> None:
    """A process that has all of a container's memory."""
    with Box(NAMES[0], mib) as box:
        command = [*box.head(), *python("alloc.py", "plain", 256, "hold")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as held:
            line = held.stdout.readline() if held.stdout else b""
            before = box.used()
            held.kill()
        empty = box.is_empty()
        report.add("killed at the limit", ok=bool(line) and before > 0 and empty, before=before, left=box.used())


class Staged:
    """staged.py in a container, a stage at a time."""

    def __init__(self, box: Box, *words: object) -> None:
        self._process = subprocess.Popen(
            [*box.head(), *python("staged.py", *words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """What it says at its next stage, where it then waits; its last words if it ends."""
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        return {"stage": "end", "error": self._process.stderr.read()[-200:]}

    def go_on(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def staged(box: Box, *words: object) -> Iterator[Staged]:
    program = Staged(box, *words)
    try:
        yield program
    finally:
        program.end()


HOST_KINDS = ("cuMemAllocHost", "cuMemHostAlloc", "cuMemHostRegister")


def kinds(report: Report, *words: str) -> None:
    """Each kind of memory of the GPU is charged with what it takes, and memory of the host with nothing."""
    size = 64
    set_gpu("uvm", "account")
    with Box(NAMES[0], slices()[0]) as box, staged(box, "kinds", size) as program:
        before = 0
        while (said := program.next())["stage"] != "end":
            name, used = said["stage"], box.used()
            if name.startswith("before "):
                before = used
            else:
                mib = (used - before) / MIB
                right = abs(mib) < 2 if name in HOST_KINDS else size <= mib <= size + 4
                report.add(f"charge of {name}", ok=said["status"] == 0 and right, mib=round(mib, 2), said=said)
            program.go_on()
        report.add("each kind of memory", ok=not said["error"], error=said["error"])


def ipc(report: Report, *words: str) -> None:
    """Memory that two processes of a container have is charged once, to the last one's end; another container's is not
    opened.
    """
    size = 256
    with Box(NAMES[0], slices()[0]) as box, Box(NAMES[1], slices()[0]) as other:
        used: dict[str, float] = {}
        seen: list[str] = []
        with staged(box, "share", size) as program:
            while (said := program.next())["stage"] != "end":
                used[said["stage"]] = round(box.used() / MIB, 1)
                seen += [said["seen"]] if "seen" in said else []
                if said["stage"] == "allocated":
                    with staged(other, "open", said["handle"]) as thief:
                        foreign = thief.next()
                program.go_on()
            error = said["error"]
        empty = box.is_empty()
    # The second process's context comes with "opened"; so the memory itself is what goes between "freed" and "closed".
    ok = not error and seen == ["status 0, pattern right", "status 0"] and empty
    ok = ok and used["freed"] - used["closed"] >= size
    report.add("memory of two processes", ok=ok, used_mib=used, seen=seen, empty=empty, error=error)
    report.add("memory of another container", ok=foreign.get("status", 0) != 0, said=foreign)


def charges(report: Report, *words: str) -> None:
    """What a container is charged against what the card says is gone."""

    def gone() -> int:
        done = call("nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return int(done.stdout.split()[0])

    for alloc_mib in (0, 1024):
        with Box(NAMES[0], slices()[0]) as box:
            before = gone()
            options = ("--alloc-mib", str(alloc_mib)) if alloc_mib else ()
            with load(box, (*LOAD, *options)):
                used, card = box.used(), gone() - before
        report.add(
            f"charge of a context and {alloc_mib} MiB",
            ok=used > 0,
            used_mib=round(used / MIB, 1),
            card_mib=card,
            difference_mib=round(used / MIB - card, 1),
        )


# ---- times ----


def costs(report: Report, *words: str) -> None:
    """What a neighbour that computes under policy 2 costs an allocation, and the controls' times."""
    set_gpu("policy", 2)
    mib = slices()[0]
    with Box(NAMES[0], mib) as box, Box(NAMES[1], mib) as other:

        def slowest_us() -> object:
            return last_line(call(*box.head(), *python("alloc.py", "plain", 64))).get("slowest_us")

        free = slowest_us()
        with load(other):
            beside = slowest_us()
            with load(box):
                time.sleep(float(words[0]))
                stat = gpu_stat()
    report.add(
        "costs",
        ok=bool(free and beside),
        slowest_alone_us=free,
        slowest_beside_us=beside,
        controls={key: value for key, value in stat.items() if key.startswith(("control_", "run_state"))},
    )


def calls(report: Report, *words: str) -> None:
    """The same calls on the driver alone and in a container: the ratio is what cgpu_km adds, the forwarder in both."""
    bare = last_line(call(*python("calls.py", *words)))
    with Box(NAMES[0], slices()[0]) as box:
        sliced = last_line(call(*box.head(), *python("calls.py", *words)))
    ratio = {name: round(sliced[name] / us, 3) for name, us in bare.items() if us and name in sliced}
    report.add("calls", ok=bool(bare and sliced), alone_us=bare, container_us=sliced, ratio=ratio)


#: name, policy, whether the one that wakes has high priority
WAKING = (("native", 5, False), ("policy 2", 2, False), ("policy 6", 6, False), ("high priority", 1, True))


def takeover(report: Report, *words: str) -> None:
    """A container that wakes for one kernel, beside one that always works: how long until it is done,
    against the same without the other.
    """
    burst = ("gpuload", "--json", "--seconds", words[0], "--depth", "1", "--poll-us", "50", *KERNEL)
    burst += ("--busy-ms", "1", "--idle-ms", "46")
    set_gpu("prio_ratio", PRIO_RATIO)
    with Box(NAMES[0], slices()[0]) as box, Box(NAMES[1], slices()[0]) as other:
        rows = {"alone": last_line(call(*box.head(), *burst))}
        with load(other):
            for name, policy, high in WAKING:
                set_gpu("policy", policy)
                box.set("highprio", int(high))
                rows[name] = last_line(call(*box.head(), *burst))
                box.set("highprio", 0)
    for name, said in rows.items():
        values = {key: said.get(key) for key in ("works", "lat_p50_us", "lat_p99_us")}
        report.add(f"takeover, {name}", ok=bool(said.get("works")), **values)


# ---- PyTorch ----


def torch(report: Report, *words: str) -> None:
    """One step of PyTorch in a container, then in two at once, and the totals that it shows."""
    program = (
        "import json, torch; x = torch.randn(1024, 1024, device='cuda', requires_grad=True); y = (x @ x).sum();"
        "y.backward(); torch.cuda.synchronize(); free, total = torch.cuda.mem_get_info();"
        "print(json.dumps({'finite': bool(torch.isfinite(x.grad).all()), 'total_mib': total >> 20,"
        "'properties_mib': torch.cuda.get_device_properties(0).total_memory >> 20, 'torch': torch.__version__}))"
    )
    if not has_torch():
        return report.missing("PyTorch", NO_TORCH)

    def add(name: str, mib: int, done: subprocess.CompletedProcess[str]) -> None:
        said = last_line(done)
        ok = said.get("total_mib") == said.get("properties_mib") == mib and said.get("finite", False)
        (report.of_standin if STANDIN else report.add)(name, ok=ok, said=said or done.stderr[-300:])

    with boxes() as both:
        commands = [[*box.head(), sys.executable, "-c", program] for _, box in both]
        # Two imports at once on one processor are slow: the first one, by itself, is a result already.
        add(f"PyTorch alone, {both[0][0]} MiB", both[0][0], call(*commands[0], limit_s=60))
        ended = call_all(commands, limit_s=80)
    for (mib, _), done in zip(both, ended, strict=True):
        add(f"PyTorch, {mib} MiB", mib, done)
    return None


TRAINING = (sys.executable, str(LOADS / "torchload.py"), "--seconds", "0", "--interval", "0.2")
SERVICE = (sys.executable, str(LOADS / "serveload.py"), "--seconds", "0", "--interval", "0.2")


def torch_shares(report: Report, *words: str) -> None:
    """Two trainings at 1 : 2 and 1 : 9."""
    if not has_torch():
        return report.missing("PyTorch shares", NO_TORCH)
    for weights in ((1, 2), (1, 9)):
        divided(report, f"PyTorch {weights[0]} : {weights[1]}", weights, float(words[0]), command=TRAINING, bar_pct=5)
    return None


#: name, policy, weights of service and training, high priority of the service: rows as in hardware.md
BESIDE = (
    ("driver", 5, (1, 1), False),
    ("policy 2, weights 1:1", 2, (1, 1), False),
    ("policy 2, weights 4:1", 2, (4, 1), False),
    ("policy 6, weights 1:1", 6, (1, 1), False),
    ("policy 1, high priority", 1, (1, 1), True),
)


def window(service: Progress | None, training: Progress | None, seconds: float) -> dict[str, Any]:
    """Requests that arrived in it, and the training's steps per second."""
    loads = [one for one in (service, training) if one]
    begin = time.monotonic() + 1  # rates_of begins then
    rates = rates_of(loads, seconds, (1,))
    row: dict[str, Any] = {}
    if service:
        arrived = [one["ms"] for one in service.requests() if begin <= one["arrived"] <= begin + seconds]
        row["request_ms"] = figures(arrived, "ms")
    if training:
        row["steps_per_s"] = round(rates[-1], 2)
    return row


def priority(report: Report, *words: str) -> None:
    """A service of decode steps beside training, the same two processes throughout."""
    if not has_torch():
        return report.missing("service beside training", NO_TORCH)
    seconds = float(words[0])
    add = report.of_standin if STANDIN else report.add
    set_gpu("prio_ratio", PRIO_RATIO)
    with Box(NAMES[0], slices()[0]) as box, Box(NAMES[1], slices()[1]) as other:
        with load(other, TRAINING) as training:
            add("training alone", ok=True, **window(None, training, seconds))
        with load(box, (*SERVICE, "--rate", "8", "--tokens", "8")) as service:
            add("service alone", ok=True, **window(service, None, seconds))
            with load(other, TRAINING) as training:
                for name, policy, weights, high in BESIDE:
                    box.set("weight", weights[0])
                    other.set("weight", weights[1])
                    box.set("highprio", int(high))
                    set_gpu("policy", policy)
                    row = window(service, training, seconds)
                    add(f"service beside training, {name}", ok=row["request_ms"]["n"] > 0, **row)
    return None


#: name, policy, high priority of the first: its timeslices are then 8 ms, the other's 0.5 ms
LOOPS = (("native", 5, False), ("policy 2", 2, False), ("policy 6", 6, False), ("timeslices 16 : 1", 1, True))
REQUESTS = (2, 4, 8, 16, 32)


def decode(report: Report, *words: str) -> None:
    """Two loops of decode steps with half of the requests each, against one loop that has the GPU and all requests."""
    if not has_torch():
        return report.missing("decode loops", NO_TORCH)
    seconds = float(words[0])
    add = report.of_standin if STANDIN else report.add
    set_gpu("prio_ratio", PRIO_RATIO)
    batches = ",".join(str(one) for one in sorted({1, *REQUESTS}))
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(Box(name, mib)) for name, mib in zip(NAMES, slices(), strict=False)]
        loops = [stack.enter_context(load(box, (*SERVICE, "--batches", batches), talk=True)) for box in pair]

        def tokens(per_loop: Sequence[int]) -> list[float]:
            for one, batch in zip(loops, per_loop, strict=True):
                one.write(str(batch))
            return rates_of(loops, seconds, (1, 1))

        for requests in REQUESTS:
            set_gpu("policy", 5)
            whole = tokens((requests, 0))[0]
            for name, policy, high in LOOPS:
                set_gpu("policy", policy)
                pair[0].set("highprio", int(high))
                both = tokens((requests // 2, requests // 2))
                pair[0].set("highprio", 0)
                add(
                    f"decode {requests}, {name}",
                    ok=whole > 0 and min(both) > 0,
                    alone_tokens_per_s=round(whole, 1),
                    tokens_per_s=[round(one, 1) for one in both],
                    percent_of_alone=round(100 * sum(both) / whole, 1) if whole else None,
                )
    return None


STEPS = {
    one.__name__: one
    for one in (
        nodes,
        vectoradd,
        traced,
        faults,
        alone,
        shares,
        limits,
        kinds,
        ipc,
        charges,
        costs,
        calls,
        takeover,
        torch,
        torch_shares,
        priority,
        decode,
    )
}
