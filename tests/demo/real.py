# SPDX-License-Identifier: MIT
"""make real, inside the virtual machine: NVIDIA's own libraries and programs in Docker, by the documented lines.

The demo's sequence (guest.py) with gpuload, which calls NVIDIA's libcuda, in the place of simload. The GPU is simulated
and executes no kernel: a launch takes the time that its grid costs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guest import CARD_MIB, GPU, Container, Demo, call, must, number, play, say, show, stat, step, until

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/cuda"))

import ways  # noqa: E402

BRANCH = os.environ["NVIDIA"]
#: gpuload launches four waves: kernels of a millisecond, which an emulated processor launches in far less.
WAVE_NS = 250_000
CUDA_OUT_OF_MEMORY = 2
WALK_STEPS = ("context", "memory", "host", "launch", "events", "over")
#: Expected result of these steps besides 0 and out of memory: a launch that no GPU can execute.
WALK_REFUSALS = {"launch/cuLaunchKernel of too many threads"}
PYNVML = (
    "import pynvml as n; n.nvmlInit(); m = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)); "
    "print(m.total >> 20)"
)


class Real(Demo):
    """The sequence; its report has other keys."""

    image = "cgpu-real"
    program = ("gpuload", "--iterations", "1")
    over_program = ("gpuload", "--iterations", "1")
    out_of_memory = CUDA_OUT_OF_MEMORY
    tolerance_pct = 3.0
    ready_s = 150.0

    def __init__(self) -> None:
        super().__init__(Path())
        self.report |= {"driver": "", "user_space": "", "programs": {}}

    def run(self) -> None:
        self.introduce()
        self.ways()
        self.start_containers()
        self.see_memory()
        self.smi()
        self.over_limit()
        self.weighted()
        self.walk()
        self.kill()

    def introduce(self) -> None:
        step("the machine: a virtual one, a SIMULATED GPU behind a simulated NVIDIA driver")
        show("uname -r; cat /proc/driver/nvidia/version; cat /proc/cgpu_km/version")
        version = Path("/proc/driver/nvidia/version").read_text()
        self.report["driver"] = re.search(r"\b\d+\.\d+(\.\d+)?\b", version)[0]
        step("NVIDIA's own user space: Debian's packages, unpacked")
        packages = show(f"cut -d' ' -f1,2 {REPO}/build/nvidia/{BRANCH}/packages")
        self.report["user_space"] = re.search(r"libcuda1 (\S+)-", packages)[1]
        Path("/sys/module/nvsim/parameters/wave_ns").write_text(str(WAVE_NS))
        changes = ("--change", "ENV NVIDIA_VISIBLE_DEVICES=all", "--change", "ENV CUDA_CACHE_DISABLE=1")
        must("docker", "import", *changes, str(REPO / "build/cuda/image.tar"), self.image)

    def program_said(self, name: str, held: bool, said: str) -> None:
        self.report["programs"][name] = {"branch": BRANCH, "result": "ok" if held else said}
        self.claims.check(f"{name} of {BRANCH}", held, said)

    def smi(self) -> None:
        step(f"NVIDIA's own nvidia-smi and NVML in each container (the card has {CARD_MIB} MiB)")
        for name, words, of in (
            ("nvidia-smi", ("nvidia-smi",), lambda box: rf"MiB / +{box.box.total_mib}MiB"),
            ("nvidia-smi -L", ("nvidia-smi", "-L"), lambda box: r"GPU 0: Tesla T4 \(UUID: GPU-"),
            ("pynvml", ("python3", "-c", PYNVML), lambda box: rf"^{box.box.total_mib}$"),
        ):
            self.in_each(name, words, of)

    def in_each(self, name: str, words: tuple[str, ...], of: Callable[[Container], str]) -> None:
        """One program in both containers, and its expected output."""
        said = ""
        for box in self.boxes:
            done = call("docker", "exec", box.name, *words)
            say(f"  # docker exec {box.name} {words[0]}")
            for line in done.stdout.splitlines():
                say(f"  {line}")
            if done.returncode or not re.search(of(box), done.stdout):
                said = f"{box.name}: status {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}"
        self.program_said(name, not said, said or "as it should be in both")

    def over_limit(self) -> None:
        super().over_limit()
        over = self.report["over_limit"]
        self.report["over_limit"] = {"result": over["status"], "neighbour_alive": over["neighbour_alive"]}

    def weighted(self) -> None:
        super().weighted()
        got = " and ".join(f"{box.work_per_s:.1f}" for box in self.boxes)
        self.program_said("gpuload", all(box.work_per_s > 0 for box in self.boxes), f"{got} works/s")

    def walk(self) -> None:
        step("CUDA's driver interface, call by call, in a container")
        done = call("docker", "exec", self.boxes[0].name, "walk", *WALK_STEPS, timeout=240)
        said: dict[str, Any] = json.loads(done.stdout)
        results = said["results"]
        failed = {name: result for name, result in results.items() if result and name not in WALK_REFUSALS}
        over = {f"over/{call} of more than all": CUDA_OUT_OF_MEMORY for call in ("cuMemAlloc_v2", "cuMemCreate")}
        text = f"{len(results)} results, total {said['seen'].get('context/total_mib')} MiB by cuMemGetInfo"
        held = failed == over and not said["stalled"]
        self.program_said("walk", held, text if held else f"{text}; stalled {said['stalled']}; {failed}")

    def ways(self) -> None:
        """CUDA's newer ways to memory in a container of their own: a load beside them takes the emulated processor."""
        step("CUDA's newer ways to memory in a container with 1 of 15 GiB: what it is charged at each phase")
        names = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_VISIBLE_DEVICES=0")
        options = [word for name in names for word in ("-e", name)]
        if ways.UTILITY.exists():
            options += ["-v", f"{ways.UTILITY}:{ways.UTILITY}:ro", "-e", f"CUDA_CHECKPOINT={ways.UTILITY}"]
        full_id = must("docker", "run", "-d", "--runtime=nvidia", *options, self.image, "sleep", "100000").strip()
        directory = GPU / full_id[:12]
        for name in ways.of_branch(int(BRANCH)):
            found = ways.run(("docker", "exec", "-i", full_id), name, lambda: stat(directory, "used_bytes"))
            self.program_said(name, not found.problem, str(found))
            self.report["programs"][name]["charged_bytes"] = {phase: charged for phase, _, charged in found.phases}
        for name, begins in ways.LATER.items():
            found = ways.run(("docker", "exec", "-i", full_id), name, lambda: stat(directory, "used_bytes"))
            self.claims.check(f"{name} of {BRANCH}", found.problem == ways.lacks(begins), str(found))
            self.report["programs"][name] = {"branch": BRANCH, "result": str(found), "charged_bytes": {}}
        self.claims.check("nothing of it is charged any more", stat(directory, "used_bytes") == 0, "0 bytes")
        must("docker", "rm", "-f", full_id)
        self.claims.check("the container ends", until(60, lambda: not directory.exists()), str(directory))

    def kill(self) -> None:
        """A process, by kill -9: the container goes on without it, or ends with it; its memory is back either way."""
        one, two = self.boxes
        held, total, before = stat(two.dir, "used_bytes"), stat(GPU, "used_bytes"), one.progress.works()
        pid = int(must("docker", "inspect", "-f", "{{.State.Pid}}", two.name))
        step(f"kill -9 {pid}, the load of {two.name}")
        os.kill(pid, 9)
        gone = until(60, lambda: not two.dir.exists())
        returned = total - stat(GPU, "used_bytes")
        self.report["after_kill"] = {"directory_gone": gone, "memory_returned_bytes": returned}
        self.claims.check("its memory is returned", returned == held > 0, f"{returned} of {held} bytes")
        self.claims.check("its weight is returned", number(GPU / "free_weight") == 19, "19 free")
        moved = until(30, lambda: one.progress.works() > before + 10)
        self.claims.check(f"{one.name} goes on", moved, f"{one.progress.works() - before} works meanwhile")


if __name__ == "__main__":
    sys.exit(play(Real(), Path(sys.argv[1])))
