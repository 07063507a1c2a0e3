# SPDX-License-Identifier: MIT
"""Another core under running containers, and another cgpu_km when there are none (docs/upgrade.md)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import drain
from .errors import CgpuError, Exit
from .proc import (
    MODULE,
    Cores,
    Paths,
    core_module,
    cores,
    is_loaded,
    last_tried,
    module_version,
    no_module,
    write_node,
)

#: As the kernel takes it; anything else is not written at all.
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
Say = Callable[[str], None]


# ---- hot ----


def hot(paths: Paths, version: str) -> tuple[str, str]:
    """Make the registered core @version the active one; returns the versions before and after."""
    before = look(paths)
    if version not in (before.active, *before.others):
        there = ", ".join([before.active, *before.others])
        raise CgpuError(
            Exit.NOT_FOUND,
            f"upgrade to {version}",
            f"no such core is registered, there are: {there}",
            f"modprobe {core_module(version)}",
        )
    try:
        write_node(paths.proc / "upgrade", version, f"upgrade to {version}")
    except CgpuError as err:
        tried = look(paths).last
        if err.code is not Exit.REFUSED or tried is None or tried.version != version:
            raise
        hint = f"{before.active} runs on"
        raise CgpuError(Exit.REFUSED, f"upgrade to {version}", tried.why, hint) from err
    return before.active, look(paths).active


def look(paths: Paths) -> Cores:
    found = cores(paths)
    if found is None:
        raise _no_core(paths) if is_loaded(paths) else no_module(paths)
    return found


def _no_core(paths: Paths) -> CgpuError:
    own, tried = module_version(paths) or "", last_tried(paths)
    why = f"{MODULE} {own} is loaded and has no core"
    why += f"; {tried.version} was refused: {tried.why}" if tried and tried.result else ""
    return CgpuError(Exit.NOT_FOUND, "upgrade", why, f"modprobe {core_module(own)}")


# ---- cold ----


@dataclass(frozen=True)
class Cold:
    """What a cold update came to."""

    before: str | None
    after: str
    unloaded: list[str]
    loaded: list[str]


def _run(*words: str) -> None:
    """One tool that loads or unloads."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as err:
        raise CgpuError(Exit.REFUSED, " ".join(words), err.strerror or str(err)) from err
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CgpuError(Exit.REFUSED, " ".join(words), lines[-1] if lines else "failed", "see the kernel log")


def _nobody_there(paths: Paths) -> None:
    there = drain.left(paths)
    if there:
        raise CgpuError(
            Exit.REFUSED,
            "upgrade --cold",
            f"{len(there)} {'containers use' if len(there) > 1 else 'container uses'} it: "
            + "; ".join(drain.name_of(paths, one) for one in there),
            "--drain waits for their end",
        )


def _unload(paths: Paths) -> list[str]:
    """The cores, then cgpu_km; what is out is named. If one stays, those before it are put back."""
    holders = paths.modules / MODULE / "holders"
    names = sorted(entry.name for entry in holders.iterdir()) if holders.is_dir() else []
    out: list[str] = []
    try:
        for name in [*names, MODULE] if (paths.modules / MODULE).is_dir() else []:
            _run("rmmod", name)
            out.append(name)
    except CgpuError:
        for name in reversed(out):
            _run("modprobe", name)
        raise
    return out


def _load(paths: Paths, folder: Path | None) -> list[str]:
    """From @folder, or as modprobe finds them: the core is the one of cgpu_km's own version."""
    if folder is not None:
        files = [folder / f"{MODULE}.ko", *sorted(folder.glob("cgpu_core_*.ko"))]
        for file in files:
            _run("insmod", str(file))
        return [file.stem for file in files]
    _run("modprobe", MODULE)
    version = (paths.modules / MODULE / "version").read_text(encoding="utf-8").strip()
    core = f"cgpu_core_{version.replace('.', '_')}"
    _run("modprobe", core)
    return [MODULE, core]


def check_folder(folder: Path) -> None:
    """Before anything is unloaded."""
    for pattern in (f"{MODULE}.ko", "cgpu_core_*.ko"):
        if not any(folder.glob(pattern)):
            raise CgpuError(Exit.NOT_FOUND, f"upgrade --cold --from {folder}", f"there is no {pattern}")


def cold(paths: Paths, folder: Path | None, wait: bool, timeout_s: float | None, say: Say) -> Cold:
    """Unload and load. No container can start in between: cgpud is told so first, and told when it is over.

    Where it was draining before and this fails, it goes on draining.
    """
    if folder is not None:
        check_folder(folder)
    before = module_version(paths)
    if not wait:
        _nobody_there(paths)
    began = drain.begin(paths)
    try:
        if wait:
            drain.wait(paths, timeout_s, say)
        _nobody_there(paths)
        unloaded = _unload(paths)
        loaded = _load(paths, folder)
    except BaseException:
        if began and not wait:
            drain.undo(paths)
        raise
    drain.undo(paths)
    return Cold(before, look(paths).active, unloaded, loaded)
