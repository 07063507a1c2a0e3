# SPDX-License-Identifier: MIT
"""make abi-diff: what one release of NVIDIA's public driver changes, as rows of the call table.

OGKM is the repository, FROM and TO two of its releases. A row is printed as it is to be written into the core's
nv_table_*.c, with the branch of TO; then the values of nv_branch.c, nv_abi.h and nv_struct.h and the prototypes that
differ, and what TO has that FROM has not: it is refused until it has a row. Without FROM and TO the newest releases of
all branches are compared, one with the next, and the rows with those of the table.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests/unit/core"), str(HERE.parents[1] / "tests/rmclient")]

import calltable  # noqa: E402
import check  # noqa: E402
import layouts  # noqa: E402
import nvheader  # noqa: E402
import ogkm  # noqa: E402
import prototypes  # noqa: E402
from calltable import Row  # noqa: E402

NON_PRIVILEGED = 8  # RMCTRL_FLAGS of a control
NODES = {1: "CGPU_NODE_CTL", 2: "CGPU_NODE_GPU", 3: "BOTH"}


@dataclass
class Release:
    """A tree and the answers to every expression of the table."""

    tree: ogkm.Tree
    got: dict[str, int]
    methods: dict[int, list[ogkm.Method]]
    classes: dict[str, ogkm.Alloc]

    @classmethod
    def of(cls, tree: ogkm.Tree) -> Release:
        methods, classes = tree.methods(), tree.classes()
        return cls(tree, tree.probe(check.wanted(tree, methods, classes)), methods, classes)


def became(row: Row, old: Release, new: Release) -> Row | None:
    """@row as it is in @new; None: the driver has the call no more. What a release does not say is unchanged."""
    got, known = new.got, row.name in new.got
    if row.kind == "control":
        number = got.get(row.name, row.number)
        if not known and number not in new.methods:
            return None if row.name in old.got or row.number in old.methods else row
        moved = replace(row, number=number)
        sizes = [got.get(f"sizeof({s})") if s else 0 for s in check.struct_of_control(moved, new.methods)]
        known_sizes = [size for size in sizes if size is not None]
        fds = [got[e] for e in layouts.CONTROL_FDS.get(number, []) if e in got]
        return replace(moved, size=known_sizes[0] if known_sizes else row.size, fd_at=fds[0] if fds else row.fd_at)
    if row.kind == "class":
        theirs = new.classes.get(row.name)
        if not theirs:
            return row if row.name in layouts.CLOSED_CLASSES else None
        return replace(row, size=got.get(f"sizeof({theirs.params})", row.size) if theirs.params else 0)
    if row.kind == "uvm":
        params = f"{row.name}_PARAMS"
        if not known:
            return None
        at = {name: got.get(f"offsetof({params}, {name})") for name in ("rmStatus", *check.UVM_FDS)}
        fds = [at[name] for name in check.UVM_FDS if at[name] is not None]
        status = at["rmStatus"]
        return replace(row, size=got.get(f"sizeof({params})", 0), status_at=status or 0, fd_at=fds[0] if fds else 0)
    size, status, fd = check.escape_exprs(row)
    if not known or (size and size not in got):
        return None
    return replace(
        row,
        size=got[size] if size else 0,
        status_at=got.get(status, 0) if status else row.status_at,
        fd_at=got.get(fd, row.fd_at) if fd else row.fd_at,
    )


def text_of(row: Row, branch: int) -> str:
    """The row in C. It has the words of the one before it."""
    number = {"escape": f"{row.number:#x}", "control": f"0x{row.number:08x}", "class": f"0x{row.number:04x}"}.get(
        row.kind, str(row.number) if row.number < 1 << 16 else f"{row.number:#x}"
    )
    if row.kind == "escape" and row.number >= 200:
        number = str(row.number)
    parts = [number, str(branch), str(row.size)]
    if row.kind == "escape":
        parts.append(NODES[row.nodes])
    parts.append(("CGPU_KIND_" if row.kind == "class" else "CGPU_") + row.verdict)
    if row.kind in ("escape", "uvm"):
        parts.append(str(row.status_at))
    if row.copied_in:
        parts.append(".copied_in = true")
    if row.fd_kind != "NONE":
        parts.append(f"FD({row.fd_at}, {row.fd_kind})")
    return "{ " + ", ".join(parts) + " },"


def gone(row: Row, branch: int) -> str:
    start = text_of(row, branch).split(", ")[0]
    return f"{start}, {branch}, {'KIND_GONE' if row.kind == 'class' else 'GONE'} }},"


def rows(old: Release, new: Release) -> list[str]:
    """The rows to write for the branch of @new after that of @old, with the call's name behind each."""
    branch, found = new.tree.branch, []
    there = [row for row in calltable.every() if row.holds(old.tree.branch)]
    changed = [(row, now) for row in there if (now := became(row, old, new)) != row]
    moved_to = {(now.kind, now.number) for _, now in changed if now}
    for row, now in changed:
        name = f"\t/* {row.kind} {row.name} */"
        if (not now or now.number != row.number) and (row.kind, row.number) not in moved_to:
            found.append(gone(row, branch) + name)
        if now:
            found.append(text_of(now, branch) + name)
    return found


def written(old: int, branch: int) -> list[str]:
    """The rows of the table that begin with @branch, of calls that it has in branch @old, in the same words."""
    names = {(row.kind, row.name) for row in calltable.every() if row.holds(old)}
    found = []
    for kind in calltable.KINDS:
        for raws in calltable.histories(kind):
            expanded = calltable.expanded(kind, raws)
            before = [row for row in expanded if row.holds(old)]
            began = [row for row in expanded if row.first == branch and (kind, row.name) in names]
            found += [f"{text_of(row, branch)}\t/* {kind} {row.name} */" for row in began]
            if before and any(raw.since == branch and calltable.row(kind, raw).verdict == "GONE" for raw in raws):
                found.append(f"{gone(before[-1], branch)}\t/* {kind} {before[-1].name} */")
    return found


def values(old: int, new: Release) -> list[str]:
    """Numbers of nv_abi.h, fields of nv_struct.h and values of nv_branch.c that are not those of branch @old."""
    names = check.numbers(nvheader.NUMBERS) | check.common()
    for tag, one in check.STRUCTS.items():
        if one.nvidia and one.holds(old):
            offsets = dict(nvheader.offsets(one.ctype))
            names |= {f"struct {tag}: {name}": (offsets[name], [e]) for name, e in check.places(one).items()}
    names |= {what: (ours, theirs) for what, ours, theirs in check.abi_of(old)}
    return [
        f"{name}: {ours} until now, {new.got[e]} here ({e})"
        for name, (ours, theirs) in names.items()
        for e in theirs
        if new.got.get(e, ours) != ours
    ]


def defined(tree: ogkm.Tree, pattern: str, folder: str) -> dict[str, int]:
    """Names and numbers of the #defines below @folder that match @pattern."""
    found = {}
    for path in sorted((tree.root / folder).rglob("*.h")):
        for name, number in re.findall(pattern, path.read_text(errors="replace"), re.M):
            found[name] = int(number, 0)
    return found


def added(old: Release, new: Release) -> list[str]:
    """What @new has and @old has not: refused until it has a row."""
    cmd = r"^#define\s+(NV\w+_CTRL_\w+)\s+\((0x[0-9a-fA-F]+)U?\)\s*/\* finn"
    names = {number: name for name, number in defined(new.tree, cmd, ogkm.SDK).items()}
    found = [
        f"control 0x{number:08x} {names.get(number, 'unnamed')}"
        for number, methods in sorted(new.methods.items())
        if number not in old.methods and any(m.flags & NON_PRIVILEGED for m in methods)
    ]
    found += [f"class {name}" for name in sorted(new.classes.keys() - old.classes.keys())]
    uvm = r"^#define\s+(UVM_\w+)\s+UVM_IOCTL_BASE\((\d+)\)"
    before, after = (defined(r.tree, uvm, ogkm.UVM) for r in (old, new))
    return found + [f"uvm {number} {name}" for name, number in after.items() if name not in before]


def unpacked(source: Path, tag: str, to: str) -> Release:
    git_dir = source / ".git" if (source / ".git").exists() else source
    return Release.of(ogkm.unpack(git_dir, tag, Path(to)))


def show(source: Path, old_tag: str, new_tag: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ogkm-") as tmp:
        old, new = unpacked(source, old_tag, tmp), unpacked(source, new_tag, tmp)
        branch = old.tree.branch
        ours = prototypes.ours(branch)
        proto = prototypes.differences(ours, prototypes.theirs(new.tree, set(ours)))
        for title, lines in (
            (f"rows of branch {new.tree.branch}, after those of {branch}", rows(old, new)),
            ("values that differ: cgpu_km/core/nv_branch.c, nv_abi.h or nv_struct.h", values(branch, new)),
            ("prototypes that differ: cgpu_km/driver/driver.c", proto),
            ("new, and refused until there is a row", added(old, new)),
        ):
            print(f"{title}: {len(lines)}")
            print("".join(f"\t{line}\n" for line in lines), end="")


def compare_all(source: Path) -> int:
    """Every branch against the next one. Returns how many rows are not those of the table."""
    wrong, old = 0, None
    for tree in ogkm.trees(source, []):
        new = Release.of(tree)
        if old:
            # A number that another call has from here on does not end.
            taken = {f"{gone(r, tree.branch)}" for r in calltable.every() if r.first == tree.branch}
            want = {line for line in rows(old, new) if line.split("\t")[0] not in taken}
            have = set(written(old.tree.branch, tree.branch))
            print(f"{old.tree.tag} to {tree.tag}: {len(want)} rows, {len(want & have)} as in the table", flush=True)
            for sign, lines in (("missing", want - have), ("not in the sources", have - want)):
                print("".join(f"\t{sign}: {line}\n" for line in sorted(lines)), end="")
            wrong += len(want ^ have)
        old = new
    return wrong


def main() -> int:
    source, old, new = (os.environ.get(name, "") for name in ("OGKM", "FROM", "TO"))
    if not source or bool(old) != bool(new):
        print("abi-diff: OGKM=<repository of open-gpu-kernel-modules> [FROM=<release> TO=<release>]", file=sys.stderr)
        return 2
    if old:
        show(Path(source), old, new)
        return 0
    return 1 if compare_all(Path(source)) else 0


if __name__ == "__main__":
    sys.exit(main())
