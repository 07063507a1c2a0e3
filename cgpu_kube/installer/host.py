# SPDX-License-Identifier: MIT
"""Reads the facts of the host, whose root is mounted, and of the image; runs the host's programs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cgpu_common import proc, toolkit
from cgpu_common.exits import CgpuError
from cgpu_kube.installer.plan import PREFIX, TOOLS, Host, Image
from cgpu_kube.node.turn import Turn

LIST = "usr/local/lib/cgpu/MANIFEST"
BUILD = "usr/local/lib/cgpu/BUILD"  # written after the files: of an installation that broke off there is none
DUE = "var/lib/cgpu/install-due"  # a step a line; there while a round is at work, and after one that broke off
BEFORE = "var/lib/cgpu/before"  # the files that served until an update, until the new daemon has started
BROKEN = "var/lib/cgpu/install-failed"  # the build whose daemon did not start, and why
AGENT_LOCK = "var/lib/cgpu/kube/agent.lock"
PLACES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
PATH = ":".join(f"/{place}" for place in PLACES)
STEP_S = 1800.0  # of one program: a build by DKMS takes minutes
_SOURCES = re.compile(r"^file - /usr/src/cgpu-([^/]+)/dkms\.conf$", re.M)


class StepFailed(Exception):
    """A program of the host failed. The text has its name and its last line."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of what it printed, of errors first."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


class Programs:
    """The host's programs, below its root and in its mount namespace: a file system that is unmounted in the
    container's stays mounted on the host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *words: str, **environment: str) -> Done:
        """OSError: it cannot be started."""
        enter = ("nsenter", "--mount=/proc/1/ns/mnt", "--", *words)
        values = {"PATH": PATH, "LC_ALL": "C", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **environment}

        def inside() -> None:
            os.chroot(self.root)
            os.chdir("/")

        try:
            done = subprocess.run(
                enter,
                env=values,
                preexec_fn=inside,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=STEP_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Done(1, "", f"no end after {STEP_S:g} s")
        return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def must(self, *words: str, **environment: str) -> str:
        """Its output. Raises StepFailed."""
        done = self.run(*words, **environment)
        if done.code:
            raise StepFailed(f"{' '.join(words)}: {done.last}")
        return done.out


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _is_read_only(root: Path, folder: str) -> bool:
    """The nearest folder above that is there counts."""
    path = root / folder
    while not path.is_dir() and path != root:
        path = path.parent
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _tenants(paths: proc.Paths) -> tuple[str, ...]:
    try:
        return tuple(one.id[:12] for one in proc.containers(paths))
    except CgpuError:  # no module
        return ()


def has_core(root: Path) -> bool:
    """Of any version: without one the module refuses every container."""
    return proc.cores(proc.Paths.below(str(root))) is not None


def _is_other_build(root: Path, run: Callable[..., Done], kernel: str, version: str) -> bool:
    """srcversion is the sources' checksum, which modpost writes into a module that has a version."""
    for name in (proc.MODULE, proc.core_module(version)):
        loaded = _text(root / "sys/module" / name / "srcversion")
        done = run("modinfo", "-k", kernel, "-F", "srcversion", name) if loaded else Done(1, "", "")
        if done.code == 0 and done.out.strip() not in ("", loaded):
            return True
    return False


def _is_by_hand(root: Path) -> bool:
    """Of `make install`: what this installer puts has BUILD, or steps that are due. A removal that broke off may have
    taken both, and the programs before them."""
    return (root / f"{PREFIX[1:]}/bin/cgpud").exists() and not any((root / one).exists() for one in (BUILD, DUE))


def _owner(root: Path, installed: str | None) -> str | None:
    if installed is not None:
        return None
    if (root / LIST).exists():
        return "make install"
    if (root / "usr/bin/cgpud").exists():
        return "packages"
    # Without dkms.conf it is what a removal that broke off has left.
    sources = sorted((root / "usr/src").glob("cgpu-[0-9]*/dkms.conf"))
    return f"the installation with /{sources[0].parent.relative_to(root)}" if sources else None


def _has_agent(root: Path) -> bool:
    """One with another --state-dir is not seen."""
    try:
        return not Turn(root / AGENT_LOCK).is_free()
    except OSError:
        return False


def _has(root: Path, program: str) -> bool:
    """Links count, wherever they lead: an absolute one would be followed outside of @root."""
    return any(os.path.lexists(root / place / program) for place in PLACES)


def read(root: Path, run: Callable[..., Done]) -> Host:
    """@run: Programs.run. OSError: @root is no root of a host."""
    kernel, paths = os.uname().release, proc.Paths.below(str(root))
    missing = tuple(one for one in TOOLS if not _has(root, one))
    listed = None if _is_by_hand(root) else _text(root / LIST)
    found = _SOURCES.findall(listed or "")
    installed = (found[-1] if found else "unknown") if listed is not None else None
    version = run("modinfo", "-k", kernel, "-F", "version", proc.MODULE) if not missing else Done(1, "", "")
    on_disk = version.out.strip() or None if version.code == 0 else None
    loaded = proc.module_version(paths)
    headers = not missing and run("test", "-e", f"/lib/modules/{kernel}/build/Makefile").code == 0
    return Host(
        kernel=kernel,
        machine=os.uname().machine,
        systemd=(root / "run/systemd/system").is_dir(),
        read_only=tuple(f"/{one}" for one in ("usr/local", f"lib/modules/{kernel}", "etc") if _is_read_only(root, one)),
        missing=missing,
        installed=installed,
        build=_text(root / BUILD) if installed is not None else None,
        owner=_owner(root, installed),
        on_disk=on_disk,
        copied=_text(copied_to(root, kernel) / "BUILD"),
        loaded=loaded,
        has_core=has_core(root),
        other_build=loaded is not None and loaded == on_disk and _is_other_build(root, run, kernel, loaded),
        has_dkms=_has(root, "dkms"),
        has_headers=headers,
        is_active=not missing and run("systemctl", "is-active", "--quiet", "cgpud.service").code == 0,
        tenants=_tenants(paths),
        toolkit=_has(root, "nvidia-container-runtime"),
        operator=_text(root / toolkit.OPERATOR),
        has_agent=_has_agent(root),
        due=frozenset((_text(root / DUE) or "").splitlines()),
        broken=_text(root / BROKEN) or "",
        has_before=(root / BEFORE).is_dir(),
    )


def copied_to(root: Path, kernel: str) -> Path:
    """Where the image's modules for a kernel go: depmod prefers `updates`."""
    return root / "lib/modules" / kernel / "updates/cgpu"


#: In the image: what goes to the host, with the script that puts it there; and modules.
PAYLOAD = Path("/cgpu")
MODULES = Path("/opt/lib/modules")


def image(payload: Path = PAYLOAD, modules: Path = MODULES) -> Image:
    """OSError: it is none."""
    kernels = tuple(sorted(one.name for one in modules.iterdir())) if modules.is_dir() else ()
    build = hashlib.sha256((payload / "SHA256SUMS").read_bytes())
    for kernel in kernels:
        for path in sorted((modules / kernel).glob("*.ko")):
            build.update(path.name.encode() + path.read_bytes())
    version = (payload / "VERSION").read_text().strip()
    return Image(version, build.hexdigest()[:16], kernels)


def doctors_words(run: Callable[..., Done], checks: Sequence[str]) -> str:
    """The problems, and under Secure Boot the warning, that `cgpu doctor` finds in some of its checks; "": none."""
    done = run(f"{PREFIX}/bin/cgpu", "doctor", "--json")
    try:
        findings = json.loads(done.out)["findings"]
    except (ValueError, KeyError):
        return ""
    found = [one for one in findings if one["check"] in checks and one["status"] in ("problem", "warning")]
    return "; ".join(f"{one['text']} ({one['remedy']})" for one in found)
