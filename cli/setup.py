# SPDX-License-Identifier: MIT
"""cgpu setup: add cgpu-runtime in front of runc to an engine's configuration, and remove it.

The file before and after is recorded below /var/lib/cgpu/setup. JSON has no comments for a mark, and an identical line
may have been written by hand: only the record shows what --undo may change. It also restores every byte of a file that
has not changed since.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import glob
import json
import os
import shutil
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from cgpu_common.app import Command
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.files import write_file
from cgpu_common.output import result
from cgpu_common.proc import Paths

from .admin import with_notes
from .edit import BY_HAND, TOOLKIT, EditRefused, Record, SetupRequest
from .engines import ELSEWHERE, ENGINES, OPERATOR_HINT, Engine

MAX_OTHERS = 100  # a bound for files that import each other

EPILOG = """\b
With NVIDIA's container toolkit installed:
  cgpu setup nvidia-container-runtime
Without it cgpu-runtime is the runtime "nvidia" itself:
  cgpu setup docker --dry-run      show what would change
  cgpu setup docker                change it
  systemctl reload docker          the next step that the command shows
  docker run --runtime=nvidia ...
  cgpu setup docker --undo         restore the file

Other keys, comments, owner and mode of the file stay. A file that does not parse, or has a runtime of that name
already, is not changed. Nothing is restarted. Details: docs/user/cli.md section 6.
"""


def _real(root: Path, path: Path) -> Path:
    """The file behind links. Refuses a target outside of /etc: it may be generated, and our change would be lost."""
    try:
        real = path.resolve()
    except RuntimeError:
        raise CgpuError(Exit.REFUSED, str(path), "is a link to itself") from None
    if not real.is_relative_to((root / "etc").resolve()):
        raise CgpuError(Exit.REFUSED, str(path), f"leads out of /etc, to {real}", "change it at its source")
    return real


def _read(path: Path) -> str | None:
    """A file's text with its own line ends; None: no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CgpuError(Exit.REFUSED, str(path), "is not a regular file")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CgpuError(Exit.REFUSED, str(path), "is not UTF-8 text") from None


def _replace(path: Path, text: str, mode: int, dir_mode: int) -> None:
    """Replace a file atomically. It keeps owner, mode and attributes; `mode` is for a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=dir_mode)
    except OSError as err:
        raise OSError(err.errno, err.strerror, str(path)) from err
    write_file(path, text, mode, keep=True)


def _record(engine: Engine, text: str) -> Record:
    """Parse a record. EditRefused: it is invalid. A valid record undoes its own `after`."""
    try:
        record = msgspec.json.decode(text, type=Record)
        if engine.take(record.after, record) == record.after:
            raise EditRefused("its text was not written by cgpu setup")
    except msgspec.MsgspecError as err:
        raise EditRefused(str(err)) from None
    return record


def _load(engine: Engine, path: Path, file: Path) -> Record | None:
    hint = f"remove it, and remove the text of cgpu setup from {file} by hand"
    try:
        text = _read(path)
        return None if text is None else _record(engine, text)
    except EditRefused as err:
        raise CgpuError(Exit.REFUSED, str(path), f"is not a record of cgpu setup: {err.why}", hint) from None
    except CgpuError as err:
        raise CgpuError(Exit.REFUSED, str(path), f"is not a record of cgpu setup: it {err.why}", hint) from None


def _keep(path: Path, record: Record | None) -> None:
    """Write or remove a record. Readable by root only: a daemon.json may contain a proxy's password."""
    if record:
        _replace(path, json.dumps(asdict(record), indent=2) + "\n", 0o600, 0o700)
    else:
        path.unlink(missing_ok=True)


def _undone(engine: Engine, text: str | None, record: Record | None) -> str | None:
    """The file without the changes of cgpu setup; None: no file."""
    if text is None or record is None:
        return text
    if text == record.after:
        return record.before
    rest = engine.take(text, record)
    return None if record.before is None and rest != text and not rest.strip() else rest


def _lines(text: str | None) -> list[str]:
    if not text:
        return []
    return text[:-1].split("\n") if text.endswith("\n") else f"{text}\n\\ No newline at end of file".split("\n")


def _diff(file: Path, old: str | None, new: str | None) -> str:
    was, is_now = ("/dev/null" if text is None else str(file) for text in (old, new))
    return "\n".join(difflib.unified_diff(_lines(old), _lines(new), was, is_now, lineterm=""))


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:  # no folder, or none that may be read
        return []


def _matching(root: Path, pattern: str) -> list[str]:
    """As glob.glob(), hidden files too: its include_hidden is of Python 3.11."""
    places, before = [""], "/" if pattern.startswith("/") else ""
    for part in filter(None, pattern.split("/")):
        if glob.has_magic(part):
            inside = ((place, _names(root / (before + place))) for place in places)
            found = ((place, name) for place, names in inside for name in fnmatch.filter(names, part))
        else:
            found = ((place, part) for place in places if os.path.lexists(root / (before + place) / part))
        places = [f"{place}/{name}" if place else name for place, name in found]
    return [before + place for place in places]


def _others(root: Path, engine: Engine, real: Path, text: str) -> dict[str, str]:
    """The files that an engine's file imports, and their imports, in the order in which the engine reads them."""
    found: dict[str, str] = {}
    read, pending = {engine.file}, [(engine.file, text)]
    while pending:
        for pattern in engine.others(*pending.pop(0)):
            for name in sorted(_matching(root, pattern)):
                if name in read:
                    continue
                if len(read) > MAX_OTHERS:
                    raise EditRefused(f"imports more than {MAX_OTHERS} other files, up to {root / name}", BY_HAND)
                read.add(name)
                pending.append((name, _read(root / name) or ""))
                if os.path.realpath(root / name) != str(real):
                    found[str(root / name)] = pending[-1][1]
    return found


RUNTIME = "cgpu-runtime"


def _there(root: Path) -> str:
    """The path of cgpu-runtime on this node, in the order of cgpu doctor; if there is none, that of the packages."""
    named = [f"/{place}/{RUNTIME}" for place in ("usr/bin", "usr/local/bin")]
    found = next((one for one in named if (root / one[1:]).is_file()), None)
    return found or (shutil.which(RUNTIME) if root == Path("/") else None) or named[0]


def _check_runtime(root: Path, runtime: str) -> None:
    if not (runtime.startswith("/") and runtime.isprintable()):
        raise CgpuError(Exit.USAGE, "usage", f"--runtime {runtime!r} is no absolute path")
    path = root / runtime.lstrip("/")
    if not path.is_file():
        raise CgpuError(
            Exit.NOT_FOUND, str(path), "there is no such program", "--runtime sets the path of cgpu-runtime"
        )
    if not os.access(path, os.X_OK):
        raise CgpuError(Exit.REFUSED, str(path), "is not executable")


PLACES = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")


def _check_reader(root: Path, name: str, file: Path, text: str | None) -> list[str]:
    """Refuses a new file that no program reads; returns notes about other engines of the node."""
    from cgpu_common import toolkit

    engine = ENGINES[name]
    others = [one for one in ELSEWHERE if one.engine == name and (root / one.seen).exists()]
    notes = [f"{one.name} does not read this file, but its own in /{one.seen}: {one.remedy}" for one in others]
    if any((root / place / program).is_file() for place in PLACES for program in engine.programs):
        return notes
    if name == TOOLKIT and text is None and (root / toolkit.OPERATOR).is_file():
        why = "is written anew at each start of the GPU Operator's toolkit container"
        raise CgpuError(Exit.REFUSED, str(root / toolkit.OPERATOR), why, OPERATOR_HINT)
    if others and text is None:
        raise CgpuError(Exit.REFUSED, str(file), f"{others[0].name} reads /{others[0].seen}", others[0].remedy)
    missing = f"there is no {engine.programs[0]} in /{', /'.join(PLACES)}"
    if text is None:
        raise CgpuError(Exit.NOT_FOUND, str(file), f"no program reads it: {missing}", f"install {engine.package}")
    return [*notes, f"{missing}: a program elsewhere must read this file"]


def _next(root: Path, engine: Engine) -> str:
    """The step after a change. An engine that is not running reads the file at its start."""
    if engine.sockets and not any((root / socket).exists() for socket in engine.sockets):
        return f"nothing, {engine.programs[0]} is not running and reads the file at its start"
    return engine.then


def _missing(path: Path, record: Record | None) -> tuple[str, ...]:
    """Folders to be made for a file, or those that an earlier cgpu setup made."""
    return record.folders if record else tuple(str(one) for one in path.parents if not one.exists())


def _remove(folders: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError):  # not empty
        for folder in folders:
            Path(folder).rmdir()


def _commit(real: Path, text: str | None, kept: Path, records: tuple[Record | None, Record | None]) -> None:
    """Write the file and its record. The record exists as long as the file may contain our changes."""
    old, new = records
    if new:
        _keep(kept, new)
    try:
        if text is None:
            real.unlink()
            _remove(old.folders if old else ())
        else:
            _replace(real, text, 0o644, 0o755)
    except BaseException:
        _keep(kept, old)
        raise
    if not new:
        _keep(kept, None)


def change(paths: Paths, name: str, request: SetupRequest, undo: bool, dry_run: bool) -> dict[str, Any]:
    """Set an engine up, or undo it; returns the output of --json."""
    engine = ENGINES[name]
    file, kept = paths.root / engine.file, paths.root / f"var/lib/cgpu/setup/{name}.json"
    real = _real(paths.root, file)
    text, record = _read(real), _load(engine, kept, file)
    after: Record | None = None
    notes: list[str] = []
    try:
        if undo:
            new = _undone(engine, text, record)
        else:
            _check_runtime(paths.root, request.runtime)
            notes = _check_reader(paths.root, name, file, text)
            others = _others(paths.root, engine, real, text or "")
            new = engine.put(text or "", replace(request, others=others)) or text
            if new is not None and new != text:
                after = Record(request.runtime, _undone(engine, text, record), new, _missing(real, record))
    except EditRefused as err:
        raise CgpuError(Exit.REFUSED, str(file), err.why, err.hint) from None
    changed = new != text
    if changed and not dry_run:
        _commit(real, new, kept, (record, after))
    elif undo and record and not dry_run:
        _keep(kept, None)  # our text was already removed by hand
    return {
        "engine": name,
        "file": str(file),
        "undo": undo,
        "dry_run": dry_run,
        "changed": changed,
        "removed": changed and new is None,
        "diff": _diff(file, text, new) if changed else "",
        "next": _next(paths.root, engine) if changed else "",
        "notes": notes,
    }


def _text(done: dict[str, Any]) -> str:
    if not done["changed"]:
        why = "has no changes of cgpu setup" if done["undo"] else "is set up already"
        return with_notes([f"{done['file']} {why}: nothing changed"], done["notes"])
    if done["dry_run"]:
        return with_notes([done["diff"], "dry run: nothing was written"], done["notes"])
    did = "removed" if done["removed"] else "wrote"
    then = done["next"] or "nothing, the file is read at every start of a container"
    return with_notes([done["diff"], f"{did} {done['file']}", f"next: {then}"], done["notes"])


@click.command("setup", cls=Command, epilog=EPILOG)
@click.argument("engine", type=click.Choice(list(ENGINES)))
@click.option(
    "--runtime", metavar="PATH", help="The program. Default: cgpu-runtime in /usr/bin, in /usr/local/bin, or in PATH."
)
@click.option(
    "--default",
    is_flag=True,
    help="docker, containerd: as the default runtime too, for containers and pods that name none.",
)
@click.option("--cdi", is_flag=True, help="containerd: enable_cdi too, which claims need with 1.7.")
@click.option("--dry-run", is_flag=True, help="Show the difference, write nothing.")
@click.option("--undo", is_flag=True, help="Remove the changes of this command, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
@click.make_pass_decorator(Paths)
def setup(
    paths: Paths, engine: str, runtime: str | None, default: bool, cdi: bool, dry_run: bool, undo: bool, as_json: bool
) -> None:
    """Put cgpu-runtime in front of runc in the configuration of ENGINE.

    Shows the difference, writes the file, and shows the next step.
    """
    if default and engine not in ("docker", "containerd"):
        raise click.UsageError(f"--default is for docker and containerd, not for {engine}")
    if cdi and engine != "containerd":
        raise click.UsageError(f"--cdi is for containerd, not for {engine}")
    if (default or cdi) and undo:
        one = "--default" if default else "--cdi"
        raise click.UsageError(f"--undo goes without {one}: it removes all changes of this command")
    program = _there(paths.root) if runtime is None else runtime
    done = change(paths, engine, SetupRequest(program, default, cdi), undo, dry_run)
    result(as_json, done, _text(done))
