# SPDX-License-Identifier: MIT
"""NVIDIA's public kernel driver as a source of facts: numbers, sizes and offsets by branch.

Numbers come from its headers through the compiler, the parameters of calls from the driver's own tables (the
generated list of controls, the list of classes). Nothing of it is kept.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CC = os.environ.get("CC", "cc")
SDK = "src/common/sdk/nvidia/inc"
UNIX = "src/nvidia/arch/nvalloc/unix/include"
COMMON = "kernel-open/common/inc"
UVM = "kernel-open/nvidia-uvm"
GENERATED = "src/nvidia/generated"
RAM = "src/common/inc/swref/published/maxwell/gm107"  # dev_ram.h: the USERD of every card since
CLASSES = "src/nvidia/src/kernel/rmapi/resource_list.h"
# The needed parts of a release; without the rest a release is small.
PATHS = ("version.mk", SDK, UNIX, COMMON, UVM, GENERATED, RAM, CLASSES)
OLDEST = 535  # the first branch of the call table

HEADERS = (
    "nvtypes.h",
    "nvos.h",
    "nvstatuscodes.h",
    "nvlimits.h",
    "nvmisc.h",
    "rs_access.h",
    "nv_escape.h",
    "nv-ioctl.h",
    "nv-ioctl-numbers.h",
    "nv-ioctl-numa.h",
    "nv-unix-nvos-params-wrappers.h",
    "nv-kernel-rmapi-ops.h",
    "nv-chardev-numbers.h",
    "nv-gpu-info.h",
    "dev_ram.h",
    "nv_uvm_types.h",
    "uvm_linux_ioctl.h",
)

# Most of nv.h is of the resource manager only, and its nv_stdarg.h includes what the kernel's build makes.
NV_H = """#define NVRM
#define NV_KERNEL_INTERFACE_LAYER
#define _NV_STDARG_H_
#include <stdarg.h>
#if __has_include("nv.h")
#include "nv.h"
#endif
"""


def probe(prelude: str, flags: list[str], exprs: list[str], what: str) -> dict[str, int]:
    """The value of each constant expression that compiles after @prelude."""
    # The compiler takes seconds to suggest alternatives for an unknown name: use only names that are there.
    seen = subprocess.run(
        [CC, "-E", "-dD", "-P", *flags, "-x", "c", "-"], input=prelude, capture_output=True, text=True, check=True
    ).stdout
    names = set(re.findall(r"[A-Za-z_]\w*", seen)) | {"sizeof", "offsetof"}
    left = [e for e in dict.fromkeys(exprs) if names.issuperset(re.findall(r"[A-Za-z_]\w*", e))]
    first = prelude.count("\n") + 1
    while True:
        text = prelude + "".join(f"unsigned long long e{i} = (unsigned long long)({e});\n" for i, e in enumerate(left))
        done = subprocess.run(
            [CC, "-fsyntax-only", "-fmax-errors=0", *flags, "-x", "c", "-"], input=text, capture_output=True, text=True
        )
        if done.returncode == 0:
            break
        # An error inside a macro is in a header; a note has the number of our line that used it.
        bad = {int(n) - first for n in re.findall(r"^<stdin>:(\d+):\d+: (?:error|note):", done.stderr, re.M)}
        if not bad & set(range(len(left))):
            raise RuntimeError(f"{what} does not compile: {done.stderr[:500]}")
        left = [e for i, e in enumerate(left) if i not in bad]
    return dict(zip(left, run(text, flags, len(left)), strict=True))


def run(text: str, flags: list[str], count: int) -> list[int]:
    """The values of e0, e1 … of a program without main."""
    prints = "".join(f'printf("%llu\\n", e{i});' for i in range(count))
    with tempfile.TemporaryDirectory() as tmp:
        exe = Path(tmp) / "probe"
        subprocess.run(
            [CC, *flags, "-x", "c", "-", "-o", str(exe)],
            input=f"{text}int main(void) {{ {prints} return 0; }}\n",
            text=True,
            check=True,
        )
        out = subprocess.run([exe], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in out.split()]


@dataclass(frozen=True)
class Method:
    """A control as the driver dispatches it."""

    cmd: int
    flags: int
    access: int
    params: str  # C type, "" when there is none


@dataclass(frozen=True)
class Alloc:
    """A class as the driver allocates it."""

    name: str
    need: str  # RS_REQUIRED, RS_OPTIONAL or RS_NONE
    params: str


@dataclass
class Tree:
    """One release, unpacked."""

    root: Path
    tag: str
    prelude: str = field(default="", repr=False)

    @property
    def branch(self) -> int:
        return int(self.tag.split(".")[0])

    def flags(self) -> list[str]:
        return ["-w", "-std=gnu11", *(f"-I{self.root / d}" for d in (SDK, UNIX, COMMON, UVM, RAM))]

    def includes(self) -> str:
        """Every header about calls."""
        if not self.prelude:
            sdk = self.root / SDK
            found = [p.relative_to(sdk) for d in ("ctrl", "class", "alloc") for p in sorted((sdk / d).rglob("*.h"))]
            lines = ["#include <stddef.h>", "#include <stdio.h>"]
            for name in [*HEADERS, *map(str, found)]:
                lines += [f'#if __has_include("{name}")', f'#include "{name}"', "#endif"]
            self.prelude = "\n".join(lines) + "\n" + NV_H
        return self.prelude

    def probe(self, exprs: list[str]) -> dict[str, int]:
        """The value of each constant expression that this release has; the others are left out."""
        return probe(self.includes(), self.flags(), exprs, self.tag)

    def methods(self) -> dict[int, list[Method]]:
        """Every control that the driver exports, by number (a number may have several classes)."""
        found: dict[int, list[Method]] = {}
        entry = re.compile(
            r"/\*flags=\*/\s*(0x[0-9a-f]+)u,\s*/\*accessRight=\*/\s*(0x[0-9a-f]+)u,\s*"
            r"/\*methodId=\*/\s*(0x[0-9a-f]+)u,\s*/\*paramSize=\*/\s*(?:sizeof\(([\w ]+)\)|0u?)\s*(?:/\*.*?\*/)?\s*,",
            re.I,
        )
        for path in sorted((self.root / GENERATED).glob("g_*_nvoc.c")):
            for flags, access, cmd, params in entry.findall(path.read_text()):
                method = Method(int(cmd, 16), int(flags, 16), int(access, 16), params)
                rows = found.setdefault(method.cmd, [])
                if method not in rows:
                    rows.append(method)
        return found

    def classes(self) -> dict[str, Alloc]:
        """Every class that can be allocated, by its name."""
        text = (self.root / CLASSES).read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        found = {}
        for name, need, params in re.findall(
            r"RS_ENTRY\(\s*(\w+)\s*,.*?(RS_REQUIRED|RS_OPTIONAL|RS_NONE)(?:\s*\(\s*([\w ]+?)\s*\))?\s*,", text, re.S
        ):
            found.setdefault(name, Alloc(name, need, params))
        return found


@dataclass(frozen=True)
class Read:
    """A release whose sources no repository here has: what was read of it (read.json), and nothing else.

    Stands in for a Tree. What it does not say is open.
    """

    tag: str
    source: str
    values: dict[str, int]
    params: dict[str, str]
    gone: frozenset[str]
    prototypes: dict[str, str]

    @property
    def branch(self) -> int:
        return int(self.tag.split(".")[0])

    def probe(self, exprs: list[str]) -> dict[str, int]:
        return {e: self.values[e] for e in exprs if e in self.values}

    def methods(self) -> dict[int, list[Method]]:
        return {}

    def classes(self) -> dict[str, Alloc]:
        return {name: Alloc(name, "", params) for name, params in self.params.items()}


def read_releases(path: Path) -> list[Read]:
    """The releases of read.json, oldest first."""
    return [
        Read(tag, one["source"], one["values"], one["classes"], frozenset(one["gone"]), one.get("prototypes", {}))
        for tag, one in sorted(json.loads(path.read_text()).items(), key=lambda item: release(item[0]))
    ]


def release(tag: str) -> list[int]:
    """The numbers of a release's tag, to sort by."""
    return [int(part) for part in tag.split(".")]


def all_tags(git_dir: Path) -> list[str]:
    """Every release of the branches in range, oldest first."""
    tags = subprocess.run(["git", f"--git-dir={git_dir}", "tag"], capture_output=True, text=True, check=True).stdout
    found = [tag for tag in tags.split() if re.fullmatch(r"\d+(\.\d+)+", tag)]
    return sorted((tag for tag in found if release(tag)[0] >= OLDEST), key=release)


def newest_tags(git_dir: Path) -> list[str]:
    """The newest release of each branch in range."""
    return list({release(tag)[0]: tag for tag in all_tags(git_dir)}.values())


def unpack(git_dir: Path, tag: str, to: Path) -> Tree:
    """The parts of a release that are needed, below @to."""
    have = subprocess.run(
        ["git", f"--git-dir={git_dir}", "ls-tree", "--name-only", tag, *PATHS],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    data = subprocess.run(
        ["git", f"--git-dir={git_dir}", "archive", tag, *have], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(to / tag)
    return Tree(to / tag, tag)


def trees(source: Path, tags: list[str]) -> Iterator[Tree]:
    """One release if @source is a tree; if it is a repository, @tags ("all") or the newest of each branch, in turn."""
    git_dir = source / ".git" if (source / ".git").exists() else source
    if (git_dir / "objects").is_dir():
        for tag in all_tags(git_dir) if tags == ["all"] else tags or newest_tags(git_dir):
            with tempfile.TemporaryDirectory(prefix="ogkm-") as tmp:
                yield unpack(git_dir, tag, Path(tmp))
        return
    version = re.search(r"^NVIDIA_VERSION\s*=\s*(\S+)", (source / "version.mk").read_text(), re.M)
    yield Tree(source, version[1])
