#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""NVIDIA's container toolkit as far as cgpu-runtime meets it, by the name it is called by. Not NVIDIA's code.

nvidia-container-runtime        edits config.json as one of its modes does, hands over to the first runtime of its list
nvidia-container-runtime-hook   the prestart hook of the legacy mode: calls the CLI that its config.toml names
nvidia-container-cli            mounts the driver's files and, unless --no-devbind is given, the real nodes

The changes of each follow the toolkit's documents and sources (nvidia-container-toolkit 1.20: internal/modifier,
cmd/nvidia-container-runtime-hook; libnvidia-container: src/cli/configure.c, src/nvc_mount.c). The settings are in
nvidia.json beside this file; the CLI logs its arguments to nvidia.log there.
"""

import ctypes
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(sys.argv[0]).parent
SETTINGS = json.loads((HERE / "nvidia.json").read_text())
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
HOOK = str(HERE / "nvidia-container-runtime-hook")


def log(*words: str) -> None:
    with (HERE / "nvidia.log").open("a") as out:
        out.write(" ".join(words) + "\n")


# ---- the runtime ----


def bundle_of(argv: list[str]) -> Path:
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        if word in ("--bundle", "-b"):
            return Path(after)
        if word.startswith("--bundle="):
            return Path(word.partition("=")[2])
    return Path.cwd()


def driver_files() -> dict[str, str]:
    """Destination to source: those of the settings, or one that shows that files are mounted."""
    if mounts := SETTINGS.get("mounts"):
        return mounts
    library = HERE / "libcuda.so.1"
    library.write_text("not a library\n")
    return {"/lib/libcuda.so.1": str(library)}


def cdi_edits(spec: dict) -> None:
    """cdi and jit-cdi: nodes, their rules, the driver's files and hooks for them are written into the file."""
    linux = spec["linux"]
    for path in NODES:
        number = Path(path).stat().st_rdev
        node = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        linux.setdefault("devices", []).append({"path": path, **node})
        linux["resources"].setdefault("devices", []).append({"allow": True, **node, "access": "rwm"})
    for destination, source in driver_files().items():
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        spec["mounts"].append({"destination": destination, "source": source, "type": "bind", "options": options})
    hooks = spec.setdefault("hooks", {})
    hooks["prestart"] = [hook for hook in hooks.get("prestart", []) if hook["path"] != HOOK]
    hooks.setdefault("createContainer", []).append({"path": "/bin/true", "args": ["nvidia-cdi-hook", "update-ldcache"]})


def legacy_edits(spec: dict) -> None:
    """legacy: one prestart hook, which does the rest when the container is there."""
    spec.setdefault("hooks", {}).setdefault("prestart", []).append(
        {"path": HOOK, "args": ["nvidia-container-runtime-hook", "prestart"]}
    )


def as_runtime() -> None:
    if "create" in sys.argv:
        path = bundle_of(sys.argv) / "config.json"
        spec = json.loads(path.read_text())
        env = dict(pair.partition("=")[::2] for pair in spec["process"]["env"])
        if env.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void"):
            (legacy_edits if SETTINGS["mode"] == "legacy" else cdi_edits)(spec)
            path.write_text(json.dumps(spec))
    runtime = next(name for name in SETTINGS["runtimes"] if Path(name).exists())
    os.execv(runtime, [runtime, *sys.argv[1:]])


# ---- the hook and the CLI ----


def as_hook() -> None:
    named = [word.partition("=")[2] for word in sys.argv[1:] if word.lstrip("-").startswith("config=")]
    config = tomllib.loads(Path(named[0]).read_text()) if named else {}
    cli = config.get("nvidia-container-cli", {})
    state = json.load(sys.stdin)
    spec = json.loads((Path(state["bundle"]) / "config.json").read_text())
    words = [cli.get("path", str(HERE / "nvidia-container-cli")), "--load-kmods", "configure"]
    if cli.get("no-cgroups"):
        words.append("--no-cgroups")
    words += ["--device=0", "--compute", "--utility", f"--pid={state['pid']}", spec["root"]["path"]]
    sys.exit(subprocess.run(words, check=False).returncode)


def as_cli() -> None:
    log(*sys.argv[1:])
    rootfs = sys.argv[-1]
    pid = next(word.partition("=")[2] for word in sys.argv if word.startswith("--pid="))
    if "--no-devbind" in sys.argv:
        return
    # In the container's mount namespace the root is still the host's: mount the real nodes over the files there.
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if libc.setns(space, 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    for path in NODES:
        target = Path(rootfs + path)
        if not target.exists():
            target.touch()
        if libc.mount(path.encode(), str(target).encode(), None, 4096, None):
            sys.exit(f"{target}: {os.strerror(ctypes.get_errno())}")


ROLES = {
    "nvidia-container-runtime": as_runtime,
    "nvidia-container-runtime-hook": as_hook,
    "nvidia-container-cli": as_cli,
}
ROLES[Path(sys.argv[0]).name]()
