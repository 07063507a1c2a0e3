# SPDX-License-Identifier: MIT
"""cgpu doctor --bundle: the state of the node as one archive for a bug report, without secrets.

What goes in is listed here. Left out: environments and command lines of processes, files of engines and of containers,
cgpu.toml as text (comments and unknown keys can hold anything). The rest passes redact().
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cgpu_common import policies
from cgpu_common.exits import CgpuError
from cgpu_common.files import check_target, write_file
from cgpu_common.proc import LIVE, MODULE, Paths, containers
from cgpu_common.toml import tomllib

from . import collect, daemon, overview
from .facts import Finding
from .redact import SECRET_NAME, redact
from .view import View

FILE_MAX = 1 << 20
FILES_MAX = 4096
LOG_LINES = 2000
COMMAND_S = 10
TOP = "cgpu-report"
#: Their texts can quote a value of a configuration file.
QUOTING = ("cgpu.toml", "engines", "container toolkit")
#: Words that a value of cgpu.toml may be; any other text is left out, and so are addresses and paths.
WORDS = frozenset(
    (
        *policies.NAMES,
        "deny",
        "account",
        "allow",
        "refuse",
        "auto",
        "optional",
        "required",
        "debug",
        "info",
        "warning",
        "error",
    )
)
KEY = re.compile(r"[a-z_]{1,24}")
#: Tables: [gpu], [container], and of one GPU by number, PCI address or UUID.
TABLE = re.compile(r"gpu|container|[0-9]{1,3}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|GPU-[0-9a-f-]{36}")
FACTS = ("etc/os-release", "proc/version", "proc/driver/nvidia/version", "proc/driver/nvidia/params",
         "sys/kernel/security/lockdown")  # fmt: skip
README = """A report of cgpu doctor --bundle.

It has names and ids of containers and pods, UUIDs of GPUs, names of processes, settings, and the logs of cgpud and of
the kernel as far as they name cgpu or the NVIDIA driver. It has no environments, no command lines, no files of
engines or containers, no cookies. Read it before you send it.
"""


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(FILE_MAX).decode(errors="replace")
    except OSError:
        return None


def _tree(folder: Path) -> Iterator[Path]:
    """The files below a folder, without links."""
    for name, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(name) / file for file in sorted(files))


def _settings(paths: Paths) -> str:
    """Values of cgpu.toml that are numbers or known words, and the number of the others."""
    found: dict[str, object] = {}
    for path in (paths.root / "etc/cgpu/cgpu.toml", *sorted((paths.root / "etc/cgpu/cgpu.toml.d").glob("*.toml"))):
        text = _text(path)
        if text is None:
            continue
        try:
            found[path.name] = _plain(tomllib.loads(text))
        except (ValueError, RecursionError):
            found[path.name] = "is no TOML"
    return json.dumps(found, indent=2)


def _is_plain(key: str, value: object) -> bool:
    """A number, a truth or a known word."""
    return KEY.fullmatch(key) is not None and (
        isinstance(value, (bool, int, float)) or (isinstance(value, str) and value in WORDS)
    )


def _plain(table: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = {}
    left_out = 0
    for key, value in table.items():
        if isinstance(value, Mapping) and TABLE.fullmatch(key):
            out[key] = _plain(value)
        elif _is_plain(key, value):
            out[key] = value
        else:
            left_out += 1
    return out | ({"keys left out": left_out} if left_out else {})


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMMAND_S, text=True, errors="replace",
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[-FILE_MAX:]


def _kernel_log() -> str | None:
    """The lines of our module and of the driver."""
    text = _output(["dmesg"])
    if text is None:
        return None
    lines = [line for line in text.splitlines() if "cgpu" in line or "NVRM:" in line]
    return "\n".join(line for line in lines if "ommand line" not in line)


def _known_secrets(paths: Paths, environment: Mapping[str, str]) -> set[str]:
    """Cookies of the containers in both forms, and values of our own variables whose names sound secret."""
    found = {value for name, value in environment.items() if SECRET_NAME.search(name)}
    try:
        there = containers(paths)
    except CgpuError:
        return found
    for one in there:
        try:
            number = one.cookie
        except ValueError:
            continue
        if number > 0xFFFF:  # a smaller one is any number
            found |= {str(number), f"{number:x}", f"{number:#x}"}
    return found


def _view(paths: Paths) -> View | None:
    try:
        return collect.once(paths, 1.0)
    except CgpuError:
        return None


def _without_quotes(finding: Finding) -> Finding:
    if finding.check in QUOTING and finding.status != "ok":
        return replace(finding, text="(left out: it can quote a configuration file)")
    return finding


def _parts(paths: Paths, findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """(name, text) of every file of the report, as it is."""
    yield "README", README
    yield "doctor.json", json.dumps([asdict(_without_quotes(one)) for one in findings], indent=2)
    found = daemon.found_versions(paths)
    yield "versions.json", json.dumps(asdict(found) | {"python": platform.python_version()}, indent=2)
    if view := _view(paths):
        yield "cgpu-smi.json", json.dumps(overview.as_json(view), indent=2)
        yield "cgpu-smi.txt", overview.text(view, None)
    yield "cgpu.toml.json", _settings(paths)
    for name in FACTS:
        if (text := _text(paths.root / name)) is not None:
            yield f"files/{name}", text
    for base, folder in (("proc/cgpu_km", paths.proc), ("parameters", paths.modules / MODULE / "parameters")):
        for number, path in enumerate(_tree(folder)):
            if number >= FILES_MAX:
                break
            if (text := _text(path)) is not None:
                yield f"files/{base}/{path.relative_to(folder)}", text
    if paths.proc == LIVE:
        for name, log in (
            (
                "cgpud.log",
                _output(["journalctl", "-u", "cgpud", "-n", str(LOG_LINES), "-o", "short-iso", "--no-pager"]),
            ),
            ("kernel.log", _kernel_log()),
            ("modules.txt", _output(["lsmod"])),
        ):
            if log:
                yield name, log


def _archive(parts: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in parts.items():
            body = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size, entry.mode = len(body), 0o600
            archive.addfile(entry, io.BytesIO(body))
    return data.getvalue()


def write(paths: Paths, target: Path, findings: Sequence[Finding], environment: Mapping[str, str] = os.environ) -> int:
    """Write the archive, readable by its owner only; returns the number of files in it. All or nothing."""
    check_target(target)
    secrets = _known_secrets(paths, environment)
    parts = {redact(name, secrets): redact(text, secrets) for name, text in _parts(paths, findings)}
    write_file(target, _archive(parts), 0o600)
    return len(parts)
