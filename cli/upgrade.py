# SPDX-License-Identifier: MIT
"""Another core under running containers, and another cgpu_km when there are none (docs/upgrade.md)."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import drain
from .errors import ENROL, CgpuError, Exit
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
    signed_only,
    write_node,
)

#: As the kernel takes it; anything else is not written at all.
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
#: An answer by netlink takes milliseconds.
ASKED_S = 2.0
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
    """What a cold update came to. @before and @after are cgpu_km's own versions."""

    before: str | None
    after: str | None
    unloaded: list[str]
    loaded: list[str]
    core_before: str | None
    core_after: str


def _run(*words: str) -> str:
    """One of kmod's tools; what it printed. Its complaints are read: in the language in which they are known."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    except OSError as err:
        raise CgpuError(Exit.REFUSED, " ".join(words), err.strerror or str(err)) from err
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CgpuError(Exit.REFUSED, " ".join(words), lines[-1] if lines else "failed", "see the kernel log")
    return done.stdout.strip()


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
    found = cores(paths)
    if found:  # it goes last, to be put back first: the first one becomes active
        running = core_module(found.active)
        names.sort(key=lambda name: name == running)
    out: list[str] = []
    try:
        for name in [*names, MODULE] if (paths.modules / MODULE).is_dir() else []:
            _remove(name)
            out.append(name)
    except CgpuError as err:
        lost = _put_back(out)
        raise CgpuError(err.code, err.what, "; ".join([err.why, *lost]), err.hint) from err
    return out


def _remove(name: str) -> None:
    """Whoever asks the module something just now, cgpud above all, holds it until the answer is read."""
    end = time.monotonic() + ASKED_S
    while True:
        try:
            _run("rmmod", name)
        except CgpuError as err:
            if "in use" not in err.why or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _put_back(names: list[str]) -> list[str]:
    """What could not be, and why: where packages were updated, modprobe no longer finds what was loaded."""
    lost = []
    for name in reversed(names):
        try:
            _run("modprobe", name)
        except CgpuError as err:
            lost.append(f"{name} could not be put back: {err.why}")
    return lost


def _find(folder: Path | None, name: str) -> tuple[str, str]:
    """What modprobe, or insmod for a file of @folder, is to be given for @name; and its version."""
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
            "dkms status says for which kernels it was built",
        ) from err


def _age(file: Path) -> tuple[list[int], str]:
    """0.9.0 is older than 0.10.0."""
    return [int(number) for number in re.findall("[0-9]+", file.stem)], file.stem


def to_load(paths: Paths, folder: Path | None) -> list[str]:
    """Names for modprobe, or files for insmod, in their order. The core of cgpu_km's own version comes before all
    others: the first one becomes active.

    What would keep them from being loaded and can be known is looked for here, before anything is unloaded.
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
    for one in wanted:
        _insert(paths, "insmod" if folder else "modprobe", one)
    return [Path(one).stem for one in wanted]


#: What the tools say of a signature that the kernel does not accept; the other under lockdown alone.
NO_KEY = ("Key was rejected by service", "Required key not available")
LOCKED_DOWN = "Operation not permitted"


def _insert(paths: Paths, tool: str, module: str) -> None:
    try:
        _run(tool, module)
    except CgpuError as err:
        if err.why.endswith(NO_KEY) or (err.why.endswith(LOCKED_DOWN) and signed_only(paths)):
            raise _not_trusted(err.what, module, f"{err.why}: ") from err
        raise


def _not_trusted(what: str, module: str, said: str = "") -> CgpuError:
    why = f"{said}{Path(module).stem} is not signed by a key that this machine trusts"
    return CgpuError(Exit.REFUSED, what, why, f"DKMS signs with its own: {ENROL}")


def _swap(paths: Paths, folder: Path | None, wanted: list[str]) -> Cold:
    before, found = module_version(paths), cores(paths)
    unloaded = _unload(paths)
    loaded = _load(paths, folder, wanted)
    after = look(paths).active
    return Cold(before, module_version(paths), unloaded, loaded, found.active if found else None, after)


def cold(paths: Paths, folder: Path | None, wait: bool, timeout_s: float | None, say: Say) -> Cold:
    """Unload and load. No container can start in between: cgpud is told so first, and told when it is over.

    Where it was draining before, or waited, and this fails, it goes on draining and says so.
    """
    wanted = to_load(paths, folder)
    if not wait:
        _nobody_there(paths)
    began = drain.begin(paths)
    try:
        if wait:
            drain.wait(paths, timeout_s, say)
            wanted = to_load(paths, folder)  # hours may have passed
        _nobody_there(paths)
        done = _swap(paths, folder, wanted)
    except BaseException as err:
        if began and not wait:
            drain.undo(paths)
        elif not isinstance(err, CgpuError):
            say(drain.STILL_REFUSED)
        elif drain.STILL_REFUSED not in err.hint:
            err.hint = "; ".join(filter(None, (err.hint, drain.STILL_REFUSED)))
        raise
    drain.undo(paths)
    return done
