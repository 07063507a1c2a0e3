# SPDX-License-Identifier: MIT
"""Replace the core under running containers, or cgpu_km without containers (docs/user/upgrade.md)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cgpu_common.exits import ENROL, CgpuError, Exit
from cgpu_common.proc import (
    MODULE,
    NODES_TYPE,
    Cores,
    Paths,
    core_module,
    cores,
    is_loaded,
    last_swap,
    module_version,
    no_module,
    nodes_are_missing,
    nodes_are_mounted,
    signed_only,
    write_node,
)

from . import drain

#: The form that the kernel accepts; no other text is written.
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
#: A netlink request in progress ends within milliseconds.
BUSY_S = 2.0
Report = Callable[[str], None]


# ---- hot ----


def hot(paths: Paths, version: str) -> tuple[str, str]:
    """Make the registered core @version the active one; returns the versions before and after."""
    before = registered(paths)
    if version not in (before.active, *before.others):
        there = ", ".join([before.active, *before.others])
        raise CgpuError(
            Exit.NOT_FOUND,
            f"upgrade to {version}",
            f"no such core is registered; registered are: {there}",
            f"modprobe {core_module(version)}",
        )
    try:
        write_node(paths.proc / "upgrade", version, f"upgrade to {version}")
    except CgpuError as err:
        tried = registered(paths).last
        if err.code is not Exit.REFUSED or tried is None or tried.version != version:
            raise
        hint = f"{before.active} runs on"
        raise CgpuError(Exit.REFUSED, f"upgrade to {version}", tried.why, hint) from err
    return before.active, registered(paths).active


def registered(paths: Paths) -> Cores:
    found = cores(paths)
    if found is None:
        raise _no_core(paths) if is_loaded(paths) else no_module(paths)
    return found


def _no_core(paths: Paths) -> CgpuError:
    own, tried = module_version(paths) or "", last_swap(paths)
    why = f"{MODULE} {own} is loaded and has no core"
    why += f"; {tried.version} was refused: {tried.why}" if tried and tried.result else ""
    return CgpuError(Exit.NOT_FOUND, "upgrade", why, f"modprobe {core_module(own)}")


# ---- cold ----


@dataclass(frozen=True)
class Cold:
    """The result of a cold update. @before and @after are cgpu_km's own versions."""

    before: str | None
    after: str | None
    unloaded: list[str]
    loaded: list[str]
    core_before: str | None
    core_after: str


def _run(*words: str) -> str:
    """Run a tool of kmod or mount; returns its output. Its errors are parsed, hence LC_ALL=C."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    except OSError as err:
        raise CgpuError(Exit.REFUSED, " ".join(words), err.strerror or str(err)) from err
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CgpuError(Exit.REFUSED, " ".join(words), lines[-1] if lines else "failed", "see the kernel log")
    return done.stdout.strip()


def _require_no_containers(paths: Paths) -> None:
    there = drain.remaining(paths)
    if there:
        raise CgpuError(
            Exit.REFUSED,
            "upgrade --cold",
            f"{len(there)} {'containers use' if len(there) > 1 else 'container uses'} it: "
            + "; ".join(drain.names_of(paths, there)),
            "--drain waits for their end",
        )


def _unload(paths: Paths) -> list[str]:
    """Unload the cores, then cgpu_km; returns their names. After a failure, load the unloaded ones again."""
    holders = paths.modules / MODULE / "holders"
    names = sorted(entry.name for entry in holders.iterdir()) if holders.is_dir() else []
    found = cores(paths)
    if found:  # unload it last, to load it first in _put_back(): the first core becomes active
        running = core_module(found.active)
        names.sort(key=lambda name: name == running)
    out: list[str] = []
    try:
        for name in [*names, MODULE] if (paths.modules / MODULE).is_dir() else []:
            _when_free("rmmod", name)
            out.append(name)
    except CgpuError as err:
        lost = _put_back(out)
        raise CgpuError(err.code, err.what, "; ".join([err.why, *lost]), err.hint) from err
    return out


def _when_free(*words: str) -> None:
    """Run a command, retry while the module is in use: a request in progress, as by cgpud, holds a reference."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            _run(*words)
        except CgpuError as err:
            if not any(busy in err.why for busy in ("in use", "is busy")) or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _unmount_nodes(paths: Paths) -> bool:
    """Unmount the nodes, also if mounted repeatedly. True: they were mounted."""
    were = nodes_are_mounted(paths)
    while nodes_are_mounted(paths):
        _when_free("umount", str(paths.nodes))
    return were


def _mount_nodes(paths: Paths) -> None:
    """Mount the nodes, if the loaded module has them; earlier versions did not."""
    if nodes_are_missing(paths):
        paths.nodes.mkdir(exist_ok=True)
        _run("mount", "-t", NODES_TYPE, NODES_TYPE, str(paths.nodes))


def _put_back(names: list[str]) -> list[str]:
    """Load modules again; returns the failures: after an update of the packages modprobe may not find them."""
    lost = []
    for name in reversed(names):
        try:
            _run("modprobe", name)
        except CgpuError as err:
            lost.append(f"{name} could not be put back: {err.why}")
    return lost


def _find(folder: Path | None, name: str) -> tuple[str, str]:
    """The argument for modprobe (or insmod, with @folder) for the module @name, and its version."""
    where = str(folder / f"{name}.ko") if folder else name
    try:
        return where, _run("modinfo", "-F", "version", where)
    except CgpuError as err:
        if folder:
            why = err.why if Path(where).exists() else f"there is no {name}.ko"
            raise CgpuError(Exit.NOT_FOUND, f"upgrade --cold --from {folder}", why) from err
        raise CgpuError(
            Exit.NOT_FOUND,
            "upgrade --cold",
            f"modprobe finds no {name} for the kernel {os.uname().release}: {err.why}",
            "dkms status shows the kernels for which it was built",
        ) from err


def _age(file: Path) -> tuple[list[int], str]:
    """Sort key: 0.9.0 before 0.10.0."""
    return [int(number) for number in re.findall("[0-9]+", file.stem)], file.stem


def to_load(paths: Paths, folder: Path | None) -> list[str]:
    """Names for modprobe, or files for insmod, in order. The core of cgpu_km's own version comes first of the cores:
    the first one becomes active.

    Reports known obstacles to loading, before anything is unloaded.
    """
    module, version = _find(folder, MODULE)
    core, _ = _find(folder, core_module(version))
    found = [module, core]
    if folder:
        others = sorted(folder.glob("cgpu_core_*.ko"), key=_age)
        found += [str(other) for other in others if str(other) != core]
    for one in found if signed_only(paths) else []:
        if not _run("modinfo", "-F", "signer", one):
            raise _not_trusted("upgrade --cold", one)
    return found


def _load(paths: Paths, folder: Path | None, wanted: list[str]) -> list[str]:
    """Load the modules; returns their names. After a failure, unload those again that were loaded."""
    loaded: list[str] = []
    try:
        for one in wanted:
            _insert(paths, "insmod" if folder else "modprobe", one)
            loaded.append(Path(one).stem)
    except CgpuError:
        with contextlib.suppress(CgpuError):  # the first error is the cause
            for name in reversed(loaded):
                _when_free("rmmod", name)
        raise
    return loaded


#: Errors of the tools for a signature that the kernel does not accept; the second under lockdown only.
NO_KEY = ("Key was rejected by service", "Required key not available")
LOCKED_DOWN = "Operation not permitted"


def _insert(paths: Paths, tool: str, module: str) -> None:
    try:
        _run(tool, module)
    except CgpuError as err:
        if err.why.endswith(NO_KEY) or (err.why.endswith(LOCKED_DOWN) and signed_only(paths)):
            raise _not_trusted(err.what, module, f"{err.why}: ") from err
        raise


def _not_trusted(what: str, module: str, prefix: str = "") -> CgpuError:
    why = f"{prefix}{Path(module).stem} is not signed by a key that this machine trusts"
    return CgpuError(Exit.REFUSED, what, why, f"DKMS signs with its own: {ENROL}")


def _swap(paths: Paths, folder: Path | None, wanted: list[str]) -> Cold:
    before, found = module_version(paths), cores(paths)
    mounted = _unmount_nodes(paths)
    try:
        unloaded = _unload(paths)
    except CgpuError:
        if mounted:
            _mount_nodes(paths)
        raise
    try:
        loaded = _load(paths, folder, wanted)
    except CgpuError as err:
        lost = _put_back(unloaded) if folder else []  # else modprobe would find what it could not load
        if mounted and folder and not lost:
            _mount_nodes(paths)
        raise CgpuError(err.code, err.what, "; ".join([err.why, *lost]), err.hint) from err
    _mount_nodes(paths)
    after = registered(paths).active
    return Cold(before, module_version(paths), unloaded, loaded, found.active if found else None, after)


def cold(paths: Paths, folder: Path | None, wait: bool, timeout_s: float | None, report: Report) -> Cold:
    """Unload and load. The node drains meanwhile, so no container starts in between.

    If this fails, draining continues if it was on before or `wait` was given, and the error mentions it.
    """
    wanted = to_load(paths, folder)
    if not wait:
        _require_no_containers(paths)
    began = drain.begin(paths)
    try:
        if wait:
            drain.wait(paths, timeout_s, report)
            wanted = to_load(paths, folder)  # the files may have changed during the wait
        _require_no_containers(paths)
        done = _swap(paths, folder, wanted)
    except BaseException as err:
        if began and not wait:
            drain.undo(paths)
        elif not isinstance(err, CgpuError):
            report(drain.STILL_REFUSED)
        elif drain.STILL_REFUSED not in err.hint:
            err.hint = "; ".join(filter(None, (err.hint, drain.STILL_REFUSED)))
        raise
    drain.undo(paths)
    return done
