# SPDX-License-Identifier: MIT
"""The steps, inside User-Mode Linux: inside.py OUT STEP [WORDS]. Each result is a line of OUT/results.jsonl at once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/demo"))

from measure import Progress, rate, whole_rounds  # noqa: E402

PROC = Path("/proc/cgpu_km")
MIB = 1 << 20
NAMES = ("a" * 64, "b" * 64)
SLICES_MIB = (6144, 8192)
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
        return ["unshare", "-m", "sh", "-c", f'{binds}; exec "$@"', "sh"]

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
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(words, 124, "", f"ended after {error.timeout:.0f} s")


def smi(report: Report, *words: str) -> None:
    """nvidia-smi, on the driver alone and in a container."""
    bare = call("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    report.add("nvidia-smi", ok=bare.returncode == 0, said=bare.stdout.strip() or bare.stderr[-200:])
    with Box(NAMES[0], SLICES_MIB[0]) as box:
        done = call(*box.head(), "nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        total = done.stdout.strip()
        report.add("nvidia-smi in a container", ok=total == str(SLICES_MIB[0]), total_mib=total or done.stderr[-200:])


def walk(report: Report, *steps: str) -> None:
    """libcuda's calls in a container have the results that they have on the driver alone."""
    bare = results(call("walk", *steps))
    report.add("walk", ok=bool(bare), calls=len(bare), not_0={name: result for name, result in bare.items() if result})
    with Box(NAMES[0], SLICES_MIB[0]) as box:
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
    with Box(NAMES[0], SLICES_MIB[0]) as box:
        for mib, wanted in ((SLICES_MIB[0], "over"), (SLICES_MIB[0] // 2, "within")):
            done = call(*box.head(), "gpuload", "--json", "--seconds", "1", "--alloc-mib", str(mib))
            lines = done.stdout.splitlines()
            said = json.loads(lines[-1]) if lines else {}
            error = said.get("first_error") or {}
            over = error.get("call") == "cuMemAlloc" and error.get("status") == CUDA_OUT_OF_MEMORY
            ok = over if wanted == "over" else done.returncode == 0 and said.get("works", 0) > 0
            used = int(box.stat()["used_bytes"])
            report.add(f"{wanted} the limit", ok=ok and not used, total_bytes=said.get("total_bytes"), error=error, used=used)


@contextlib.contextmanager
def load(box: Box) -> Iterator[Progress]:
    """gpuload in a container."""
    progress = Progress([*box.head(), *LOAD])
    try:
        if not progress.wait_event("ready", 240):
            raise RuntimeError(f"gpuload does not start: {progress.last_words()}")
        yield progress
    finally:
        progress.stop()


def ratio(report: Report, *words: str) -> None:
    """Two containers, weights 1 : 2, policy 2, by the module's own thread."""
    window_s, rounds = float(words[0]) if words else 12.0, 3
    (PROC / "0/policy").write_text("2")
    round_s = 3 * int((PROC / "0/slice_us").read_text()) / 1e6
    with Box(NAMES[0], SLICES_MIB[0], weight=1) as one, Box(NAMES[1], SLICES_MIB[1], weight=2) as two:
        with load(one) as first, load(two) as second:
            for _ in range(rounds):  # a busy host wakes timers late
                time.sleep(2)
                begin = time.monotonic()
                end = begin + whole_rounds(window_s, round_s)
                if not (first.wait_until(end, 120) and second.wait_until(end, 120)):
                    raise RuntimeError(f"no progress: {first.last_words()} {second.last_words()}")
                rates = [rate(each.samples(), begin, end) for each in (first, second)]
                got = rates[1] / rates[0]
                error = abs(got / 2 - 1) * 100
                stat = {line.split()[0]: line.split()[1] for line in (PROC / "0/stat").read_text().splitlines()}
                keys = ("control_p50_us", "control_p99_us", "control_max_us", "control_seen", "effect_check")
                report.add(
                    "ratio",
                    ok=error <= 3,
                    asked=2,
                    got=round(got, 4),
                    error_pct=round(error, 2),
                    works_per_s=[round(one, 1) for one in rates],
                    controls={key: stat.get(key) for key in keys},
                )
                if error <= 3:
                    return


STEPS = {"smi": smi, "walk": walk, "limit": limit, "ratio": ratio}


def main() -> int:
    """0 if the step came to its end."""
    out, step, *words = sys.argv[1:]
    STEPS[step](Report(Path(out)), *words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
