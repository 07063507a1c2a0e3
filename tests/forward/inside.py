# SPDX-License-Identifier: MIT
"""The steps, inside User-Mode Linux: inside.py OUT STEP [WORDS]. Each result is a line of OUT/results.jsonl at once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/demo"))

from measure import Progress, rate, whole_rounds  # noqa: E402

PROC = Path("/proc/cgpu_km")
MIB = 1 << 20
NAMES = ("a" * 64, "b" * 64, "c" * 64)
LOAD = ("gpuload", "--json", "--seconds", "0", "--interval", "0.2", "--iterations", "1", "--depth", "16")
CUDA_OUT_OF_MEMORY = 2


class Report:
    """Writes results as they come."""

    def __init__(self, out: Path) -> None:
        self._file = (out / "results.jsonl").open("a")

    def add(self, name: str, **values: object) -> None:
        self._file.write(json.dumps({"name": name} | values) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class Box:
    """A plain container: made through inst_ctl, its nodes in the place of NVIDIA's in a mount namespace."""

    def __init__(self, name: str, mib: int, **more: object) -> None:
        self.name = name
        words = "".join(f" {key}={value}" for key, value in more.items())
        (PROC / "inst_ctl").write_text(f"create {name} gpu=0 memsize={mib * MIB}{words}")
        line = next(line for line in (PROC / "inst_ctl").read_text().splitlines() if line.split()[0] == name)
        self.dir = dict(word.split("=", 1) for word in line.split()[1:])["dir"]
        self.proc = PROC / "0" / self.dir

    def head(self) -> list[str]:
        """Of a command line that runs in it."""
        nodes = ("nvidiactl", "nvidia0", "nvidia-uvm")
        binds = "; ".join(f"mount --bind /dev/cgpu/{self.dir}/{name} /dev/{name}" for name in nodes)
        # As an engine's container: root without capabilities, so that the host's driver has no administrator.
        drop = "setpriv --bounding-set=-all --inh-caps=-all" if shutil.which("setpriv") else ""
        return ["unshare", "-m", "sh", "-c", f'{binds}; exec {drop} "$@"', "sh"]

    def stat(self) -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in (self.proc / "stat").read_text().splitlines())

    def destroy(self) -> None:
        with contextlib.suppress(OSError):
            (PROC / "inst_ctl").write_text(f"destroy {self.name}")
        end = time.monotonic() + 30
        while self.proc.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"container {self.dir} does not end")
            time.sleep(0.05)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()


def call(*words: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Status and output."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(words, 124, "", f"ended after {error.timeout:.0f} s")


def card_mib() -> int:
    """Of the first GPU, as the driver alone says it."""
    done = call("nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return int(done.stdout.split()[0])


def slices() -> tuple[int, int]:
    """6 and 8 of 15 parts of the card, MiB."""
    return card_mib() * 6 // 15, card_mib() * 8 // 15


def smi(report: Report, *words: str) -> None:
    """nvidia-smi, on the driver alone and in a container."""
    mib = slices()[0]
    bare = call("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    report.add("nvidia-smi", ok=bare.returncode == 0, said=bare.stdout.strip() or bare.stderr[-200:])
    with Box(NAMES[0], mib) as box:
        done = call(*box.head(), "nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        total = done.stdout.strip()
        report.add("nvidia-smi in a container", ok=total == str(mib), total_mib=total or done.stderr[-200:])


def walk(report: Report, *steps: str) -> None:
    """libcuda's calls in a container have the results that they have on the driver alone."""
    bare = results(call("walk", *steps))
    report.add("walk", ok=bool(bare), calls=len(bare), not_0={name: result for name, result in bare.items() if result})
    with Box(NAMES[0], slices()[0]) as box:
        sliced = results(call(*box.head(), "walk", *steps))
        used = int(box.stat()["used_bytes"])
    names = [name for name in bare.keys() | sliced.keys() if not name.startswith("managed/")]
    other = {name: [bare.get(name), sliced.get(name)] for name in names if bare.get(name) != sliced.get(name)}
    report.add("walk in a container", ok=bool(sliced) and not other and not used, differs=other, used_bytes=used)


def results(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Of a walk; nothing if it stalled or died."""
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {}
    return {} if said["stalled"] else said["results"]


def limit(report: Report, *words: str) -> None:
    """An allocation of the whole slice fails beside a context; half of it works, and all comes back."""
    limit_mib = slices()[0]
    with Box(NAMES[0], limit_mib) as box:
        for mib, wanted in ((limit_mib, "over"), (limit_mib // 2, "within")):
            done = call(*box.head(), "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(mib))
            lines = done.stdout.splitlines()
            said = json.loads(lines[-1]) if lines else {}
            error = said.get("first_error") or {}
            over = error.get("call") == "cuMemAlloc" and error.get("status") == CUDA_OUT_OF_MEMORY
            ok = over if wanted == "over" else done.returncode == 0 and said.get("works", 0) > 0
            used = int(box.stat()["used_bytes"])
            report.add(
                f"{wanted} the limit", ok=ok and not used, total_bytes=said.get("total_bytes"), error=error, used=used
            )


@contextlib.contextmanager
def load(box: Box, command: Sequence[str] = LOAD) -> Iterator[Progress]:
    """A load in a container, from its first line of progress on."""
    progress = Progress([*box.head(), *command])
    try:
        if not progress.wait_until(0.001, 240):
            raise RuntimeError(f"{command[0]} does not start: {progress.last_words()}")
        yield progress
    finally:
        progress.stop()


def gpu_stat() -> dict[str, str]:
    """Of the GPU: policy, controls."""
    return dict(line.split(maxsplit=1) for line in (PROC / "0/stat").read_text().splitlines())


def rates_of(loads: Sequence[Progress], window_s: float, weights: Sequence[int]) -> list[float]:
    """Works per second of each in whole rounds."""
    round_s = sum(weights) * int((PROC / "0/slice_us").read_text()) / 1e6
    time.sleep(1)
    begin = time.monotonic()
    end = begin + whole_rounds(window_s, round_s)
    for one in loads:
        if not one.wait_until(end, 120):
            raise RuntimeError(f"no progress: {one.last_words()}")
    return [rate(one.samples(), begin, end) for one in loads]


CONTROLS = ("control_p50_us", "control_p99_us", "control_max_us", "control_seen", "effect_check")


def divided(
    report: Report,
    name: str,
    weights: Sequence[int],
    window_s: float,
    policy: int = 2,
    command: Sequence[str] = LOAD,
    bar_pct: float = 3.0,
) -> bool:
    """Containers with these weights; the worst error of a share, in per cent of it."""
    (PROC / "0/policy").write_text(str(policy))
    mib = card_mib() // (len(weights) + 1)
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(Box(NAMES[n], mib, weight=weight)) for n, weight in enumerate(weights)]
        loads = [stack.enter_context(load(box, command)) for box in boxes]
        rates = rates_of(loads, window_s, weights)
        stat = gpu_stat()
    shares = [one / sum(rates) for one in rates]
    asked = [weight / sum(weights) for weight in weights]
    error = max(abs(got / want - 1) * 100 for got, want in zip(shares, asked, strict=True))
    ok = error <= bar_pct
    report.add(
        name,
        ok=ok,
        policy=policy,
        asked=weights[1] / weights[0],
        got=round(rates[1] / rates[0], 4),
        error_pct=round(abs(rates[1] / rates[0] / (weights[1] / weights[0]) - 1) * 100, 2),
        worst_share_error_pct=round(error, 2),
        weights=list(weights),
        works_per_s=[round(one, 1) for one in rates],
        controls={key: stat.get(key) for key in CONTROLS},
    )
    return ok


def ratio(report: Report, *words: str) -> None:
    """Two containers, weights 1 : 2, policy 2, by the module's own thread; three tries, as a busy host wakes late."""
    for _ in range(3):
        if divided(report, "ratio", (1, 2), float(words[0]) if words else 12.0):
            return


# ---- on a card ----


def alone(report: Report, *words: str) -> None:
    """The driver without containers, for the rates of the others: one load, then two."""
    window_s = float(words[0])
    for count in (1, 2):
        with contextlib.ExitStack() as stack:
            loads = []
            for _ in range(count):
                loads.append(Progress(list(LOAD)))
                stack.callback(loads[-1].stop)
                if not loads[-1].wait_until(0.001, 60):
                    raise RuntimeError(loads[-1].last_words())
            rates = rates_of(loads, window_s, (1,))
        report.add(f"driver alone, {count}", ok=True, works_per_s=[round(one, 1) for one in rates])


def shares(report: Report, *words: str) -> None:
    """Policies and weights with gpuload."""
    window_s = float(words[0])
    divided(report, "3 : 1", (3, 1), window_s)
    divided(report, "1 : 7 : 13", (1, 7, 13), 2 * window_s)
    for policy in (1, 3, 6):
        divided(report, f"policy {policy}, 1 : 1", (1, 1), window_s, policy=policy)


def torch(report: Report, *words: str) -> None:
    """One step of PyTorch in each of two containers, and the total that it shows."""
    program = (
        "import json, torch; x = torch.randn(1024, 1024, device='cuda', requires_grad=True); y = (x @ x).sum();"
        "y.backward(); torch.cuda.synchronize(); free, total = torch.cuda.mem_get_info();"
        "print(json.dumps({'finite': bool(torch.isfinite(x.grad).all()), 'total_mib': total >> 20,"
        "'properties_mib': torch.cuda.get_device_properties(0).total_memory >> 20, 'torch': torch.__version__}))"
    )
    for name, mib in zip(NAMES, slices(), strict=False):
        with Box(name, mib) as box:
            done = call(*box.head(), sys.executable, "-c", program, limit_s=100)
            said = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
            ok = said.get("total_mib") == mib and said.get("finite", False)
            report.add(f"PyTorch, {mib} MiB", ok=ok, said=said or done.stderr[-300:])


def torch_shares(report: Report, *words: str) -> None:
    """Two trainings at 1 : 2 and 1 : 9."""
    command = (sys.executable, str(REPO / "tests/hardware/load/torchload.py"), "--seconds", "0", "--interval", "0.2")
    for weights in ((1, 2), (1, 9)):
        divided(report, f"PyTorch {weights[0]} : {weights[1]}", weights, float(words[0]), command=command, bar_pct=5)


def limits(report: Report, *words: str) -> None:
    """Limit set, total shown, allocatable; and what is left when the process is killed."""
    script = str(REPO / "tests/forward/alloc.py")
    for mib in slices():
        for kind, step in (("plain", 256), ("plain", 2), ("vmm", 256), ("pool", 256)):
            with Box(NAMES[0], mib) as box:
                done = call(*box.head(), sys.executable, script, kind, str(step), limit_s=60)
                lines = done.stdout.splitlines()
                said = json.loads(lines[-1]) if lines else {}
                used = int(box.stat()["used_bytes"])
                ok = done.returncode == 0 and said.get("total_mib") == mib and said["allocated_mib"] <= mib and not used
                report.add(
                    f"limit {mib} {kind} {step}", ok=ok, limit_mib=mib, said=said or done.stderr[-300:], left=used
                )
    with Box(NAMES[0], slices()[0]) as box:
        with subprocess.Popen(
            [*box.head(), sys.executable, script, "plain", "256", "hold"], stdout=subprocess.PIPE
        ) as held:
            line = held.stdout.readline() if held.stdout else b""
            before = int(box.stat()["used_bytes"])
            held.kill()
        end = time.monotonic() + 10
        while int(box.stat()["used_bytes"]) and time.monotonic() < end:
            time.sleep(0.05)
        left = int(box.stat()["used_bytes"])
        report.add("killed at the limit", ok=bool(line) and before > 0 and not left, before=before, left=left)


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
                used, card = int(box.stat()["used_bytes"]), gone() - before
        report.add(
            f"charge of a context and {alloc_mib} MiB",
            ok=used > 0,
            used_mib=round(used / MIB, 1),
            card_mib=card,
            difference_mib=round(used / MIB - card, 1),
        )


def costs(report: Report, *words: str) -> None:
    """What a neighbour that computes under policy 2 costs an allocation, and the controls' times."""
    script = str(REPO / "tests/forward/alloc.py")
    (PROC / "0/policy").write_text("2")
    mib = slices()[0]
    with Box(NAMES[0], mib) as box, Box(NAMES[1], mib) as other:
        free = json.loads(call(*box.head(), sys.executable, script, "plain", "64").stdout.splitlines()[-1])
        with load(other):
            beside = json.loads(call(*box.head(), sys.executable, script, "plain", "64").stdout.splitlines()[-1])
            with load(box):
                time.sleep(float(words[0]))
                stat = gpu_stat()
    report.add(
        "costs",
        ok=True,
        slowest_alone_us=free["slowest_us"],
        slowest_beside_us=beside["slowest_us"],
        controls={key: value for key, value in stat.items() if key.startswith(("control_", "run_state", "takeover"))},
    )


def decode(report: Report, *words: str) -> None:
    """Two loops of a transformer's decode steps: each of the two against one that has the GPU alone."""
    window_s = float(words[0])
    program = str(REPO / "tests/hardware/load/serveload.py")
    mib = slices()[0]
    for requests in (2, 4, 8, 16, 32):
        command = (sys.executable, program, "--rate", str(requests), "--interval", "0.2", "--seconds", "0")
        with Box(NAMES[0], mib) as box, load(box, command) as one:
            (whole,) = rates_of([one], window_s, (1,))
        for policy in (5, 2, 6):
            (PROC / "0/policy").write_text(str(policy))
            with (
                Box(NAMES[0], mib) as a,
                Box(NAMES[1], mib) as b,
                load(a, command) as first,
                load(b, command) as second,
            ):
                both = rates_of([first, second], window_s, (1, 1))
            of_whole = [round(100 * one / whole, 1) if whole else None for one in both]
            report.add(f"decode {requests}, policy {policy}", ok=True, alone=round(whole, 2), percent_of_alone=of_whole)


STEPS = {
    one.__name__: one
    for one in (smi, walk, limit, ratio, alone, shares, torch, torch_shares, limits, charges, costs, decode)
}


def main() -> int:
    """0 if the step came to its end."""
    out, step, *words = sys.argv[1:]
    STEPS[step](Report(Path(out)), *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
