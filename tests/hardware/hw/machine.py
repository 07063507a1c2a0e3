# SPDX-License-Identifier: MIT
"""Where this runs: the driver, the card, the kernel, and the programs that are built."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import time
from pathlib import Path

GPU = Path(__file__).resolve().parents[1]
REPO = GPU.parents[1]
BUILT = ("librmlever.so", "librmtap.so", "gpuload", "exercise", "simload", "simsmi", "conduct")


def parse_version(text: str) -> str:
    """580.105.08 of /proc/driver/nvidia/version."""
    found = re.search(r" (\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else "unknown"


def is_simulated(text: str, proc: Path = Path("/proc/driver/nvsim")) -> bool:
    return proc.exists() or "nvsim" in text.lower()


def read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def card() -> dict:
    """Model and PCI address of the first GPU, from the driver's own files."""
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.split(":", 1) for line in read(info).splitlines() if ":" in line)
        return {"model": fields.get("Model", "unknown").strip(), "bus": info.parent.name}
    return {"model": "unknown", "bus": ""}


def describe() -> dict:
    version = read("/proc/driver/nvidia/version")
    status = read("/proc/self/status")
    caps = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M)
    return {
        "driver": parse_version(version),
        "open_module": "Open Kernel Module" in version,
        "card": card()["model"],
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "simulated": is_simulated(version),
        "uid": os.geteuid(),
        "cap_sys_nice": bool(int(caps[1], 16) >> 23 & 1) if caps else False,
        "cpus": os.cpu_count(),
    }


def surroundings() -> dict:
    """What else tells one machine from another: nodes, programs, and a sandbox, which has a kernel of its own."""
    found = {
        "version": read("/proc/version").strip(),
        "nvidia": read("/proc/driver/nvidia/version").strip(),
        "params": read("/proc/driver/nvidia/params").strip(),
        "nodes": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
        "torch": importlib.util.find_spec("torch") is not None,
    }
    try:
        done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, errors="replace", timeout=20)
        found["nvidia-smi"] = done.stdout[-20000:]
    except (OSError, subprocess.SubprocessError) as error:
        found["nvidia-smi"] = str(error)
    return found


def build(out: Path) -> str:
    """Builds what is missing; gives what the compiler said where it failed, else nothing."""
    if all((out / name).exists() for name in BUILT):
        return ""
    try:
        done = subprocess.run(["make", "-s", "-C", GPU, f"OUT={out}"], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr or done.stdout)[-1000:]


def results_name(facts: dict) -> str:
    """<date>-<gpu>-<driver>, the name of a results directory."""
    model = re.sub(r"[^a-z0-9]+", "-", facts["card"].lower().replace("nvidia", "")).strip("-") or "unknown"
    return f"{facts['date'][:10]}-{model}-{facts['driver']}"
