# SPDX-License-Identifier: MIT
"""make test-abi: our numbers, sizes and offsets against NVIDIA's public driver, branch by branch.

OGKM is a tree of its sources or its repository (a work tree or a bare one), of which the newest release of each branch
is taken, or those named in OGKM_TAGS, or "all". Of a branch that the repository does not have, what was read of it
(read.json) is compared. Writes tests/abi/outcome.json and build/branches.json when a repository was compared, and
tests/abi/releases.json when all of it was.
"""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), *(str(ROOT / f"tests/{name}") for name in ("unit/core", "hardware", "rmclient"))]

import calltable  # noqa: E402
import layouts  # noqa: E402
import nvheader  # noqa: E402
import ogkm  # noqa: E402
import prototypes  # noqa: E402
from corelib import lib  # noqa: E402
from hw import jsontext  # noqa: E402

OUTCOME = HERE / "outcome.json"
RELEASES = HERE / "releases.json"
READ = HERE / "read.json"
BRANCHES = ROOT / "build/branches.json"
UVM_FDS = {"rmCtrlFd": "UNUSED", "uvmFd": "UVM", "handleFd": "OTHER"}  # members of the structs, what they are
STRUCTS = nvheader.structs(*nvheader.ALL)
#: Of branches that no repository here has, where read.json has what was read; of a header that does not compile alone.
OPEN = {"struct nv_chan_params_610", "NV_LOCK_USER_PAGES_FLAGS_WRITE_YES"}
#: Fields whose offset the module uses in every branch, and the file: AT(nvos54, cmd).
USES = {
    (tag, re.sub(r"\[.*?\]", "", name)): path.name
    for path in sorted((ROOT / "cgpu_km").rglob("*.[ch]"))
    if path.name not in ("nv_branch.c", "nv_struct.h", "nv_struct_control.h")
    for tag, name in re.findall(r"\bAT\((\w+), ([\w.\[\]]+)\)", path.read_text())
}


@dataclass
class Outcome:
    """The outcome of one release."""

    tag: str
    branch: int
    compared: Counter = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    rows: set[calltable.Row] = field(default_factory=set)  # those whose size was compared
    names: set[str] = field(default_factory=set)  # the numbers of the headers that were compared
    fields: set[tuple[str, str]] = field(default_factory=set)  # the fields of their structs
    source: str = ""  # of a release that was read

    def compare(self, group: str, what: str, ours: int, theirs: int) -> None:
        self.compared[group] += 1
        if ours != theirs:
            self.differences.append(f"{what}: {ours} here, {theirs} there")


def numbers(path: Path) -> dict[str, tuple[int, list[str]]]:
    """Of a header of ours: name, number, NVIDIA's expressions."""
    return {n: (v, layouts.NAMES.get(n, [n])) for n, v in nvheader.defines(path).items()}


def common() -> dict[str, tuple[int, list[str]]]:
    """The offsets that all structs with the field share."""
    words = re.findall(r"^#define (NVOS_H_\w+)\s+AT\((\w+), (\w+)\)", nvheader.STRUCTS.read_text(), re.M)
    return {name: (getattr(STRUCTS[tag].ctype, at).offset, layouts.COMMON[name]) for name, tag, at in words}


def numbers_digest() -> str:
    """Of every number of the headers, its name and NVIDIA's expressions for it."""
    text = repr(sorted((numbers(nvheader.NUMBERS) | numbers(nvheader.NVSIM) | common()).items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(tag: str) -> str:
    """Of a struct's layout, with the branches that it is for."""
    one = STRUCTS[tag]
    text = f"{one.nvidia} {one.since} {one.before} {one.grows} {ctypes.sizeof(one.ctype)}"
    return hashlib.sha256(f"{text} {[*nvheader.offsets(one.ctype)]}".encode()).hexdigest()[:8]


# ---- the comparisons: the queries first, then the use of their results ----


def struct_of_control(row: calltable.Row, methods: dict) -> list[str]:
    """C types of a control's parameters: those that the driver exports, else one derived from the control's name."""
    found = [m.params for m in methods.get(row.number, [])]
    return found or [row.name.replace("_CMD_", "_") + "_PARAMS"]


def wanted(tree: ogkm.Tree | ogkm.Read, methods: dict, classes: dict) -> list[str]:
    """All expressions to evaluate in a release."""
    named = numbers(nvheader.NUMBERS) | numbers(nvheader.NVSIM) | common()
    exprs = [e for _, theirs in named.values() for e in theirs]
    exprs += [e for one in STRUCTS.values() if one.nvidia for e in (f"sizeof({one.nvidia})", *places(one).values())]
    exprs += [e for _, _, theirs in abi_of(tree.branch) for e in theirs]
    for row in calltable.every():
        exprs.append(row.name)
        if row.kind == "control":
            exprs += [f"sizeof({t})" for t in struct_of_control(row, methods) if t]
            exprs += layouts.CONTROL_FDS.get(row.number, [])
        elif row.kind == "class" and row.name in classes:
            exprs += [f"sizeof({classes[row.name].params})"] if classes[row.name].params else []
        elif row.kind == "uvm":
            exprs += [f"sizeof({row.name}_PARAMS)"]
            exprs += [f"offsetof({row.name}_PARAMS, {f})" for f in ("rmStatus", *UVM_FDS)]
        elif row.kind == "escape":
            exprs += [e for e in escape_exprs(row) if e]
    for cmd in nvsim_controls(tree.branch):
        exprs += [f"sizeof({m.params})" for m in methods.get(cmd, []) if m.params]
    return exprs


def places(one: nvheader.Struct) -> dict[str, str]:
    """Of each field, NVIDIA's offset."""
    return {name: f"offsetof({one.nvidia}, {name})" for name, _ in nvheader.offsets(one.ctype)}


def escape_exprs(row: calltable.Row) -> tuple[str, str, str]:
    """Size, offset of the status and of the file descriptor of an escape; "" for a missing one."""
    found = layouts.ESCAPES.get((row.name, row.size)) or layouts.ESCAPES[row.name]
    struct, status, fd = found
    return (
        f"sizeof({struct})" if struct else "",
        f"offsetof({struct}, {status})" if status else "",
        f"offsetof({struct}, {fd})" if fd else "",
    )


def abi_of(branch: int) -> list[tuple[str, int, list[str]]]:
    """struct cgpu_abi of a branch: what, our number, NVIDIA's expressions."""
    abi = lib.cgpu_call_abi(branch)
    union = 8
    handles = layouts.at("nv_ioctl_export_to_dma_buf_fd_t", "handles")
    return [
        ("struct cgpu_abi: dmabuf_handles", abi.dmabuf_handles, handles),
        ("struct cgpu_abi: util_stride", abi.util_stride, layouts.size(layouts.UTIL_SAMPLE)),
        ("struct cgpu_abi: util_pid", abi.util_pid, layouts.at(layouts.UTIL_SAMPLE, "gr.procId")),
        ("struct cgpu_abi: channel_h_userd", abi.channel_h_userd, layouts.at(layouts.CHANNEL, "hUserdMemory")),
        ("struct cgpu_abi: channel_h_ecc", abi.channel_h_ecc, layouts.at(layouts.CHANNEL, "hObjectEccError")),
        ("struct cgpu_abi: channel_engine", abi.channel_engine, layouts.at(layouts.CHANNEL, "engineType")),
        *(
            (f"struct cgpu_abi: {name}", union + getattr(abi, name), layouts.at("nvidia_kernel_rmapi_ops_t", field))
            for name, field in layouts.ABI.items()
        ),
    ]


def nvsim_releases() -> list[str]:
    """The releases that nvsim plays."""
    module = nvheader.NVSIM.parent
    default = re.search(r'NVSIM_VERSION_DEFAULT "([\d.]+)"', (module / "nvsim.h").read_text())[1]
    return [*re.findall(r'\{ "([\d.]+)", \d+ \}', (module / "version.c").read_text()), default]


def in_branch(line: str, branch: int) -> bool:
    """Whether a row of nvsim's tables is for @branch."""
    since = re.search(r"\.since = (\d+)", line)
    before = re.search(r"\.before = (\d+)", line)
    return (not since or branch >= int(since[1])) and (not before or branch < int(before[1]))


def nvsim_controls(branch: int) -> dict[int, int]:
    """The controls that nvsim has in @branch, and the size it requires."""
    found = {}
    for path in sorted(nvheader.NVSIM.parent.glob("rm_*.c")):
        for line in path.read_text().splitlines():
            row = re.match(r"\t\{ (0x[0-9a-f]+), (\d+), [A-Z]", line)
            if row and in_branch(line, branch):
                found[int(row[1], 16)] = int(row[2])
    return found


def check_nvsim_controls(out: Outcome, got: dict, methods: dict) -> None:
    """A control that the driver exports has the driver's size in nvsim too, whatever the branch."""
    for cmd, size in nvsim_controls(out.branch).items():
        for method in methods.get(cmd, []):
            theirs = got.get(f"sizeof({method.params})") if method.params else 0
            if theirs is not None:
                out.compare("nvsim sizes", f"nvsim control {cmd:#x}", size, theirs)


def check_structs(out: Outcome, got: dict) -> None:
    """Each size and offset of the structs of this branch; of the others those that the module uses all the same."""
    for tag, one in STRUCTS.items():
        size = got.get(f"sizeof({one.nvidia})")
        holds = one.nvidia and one.holds(out.branch)
        if holds and size is None and not out.source:
            out.differences.append(f"struct {tag}: {one.nvidia} is not there")
        elif holds and size is not None:
            ours = ctypes.sizeof(one.ctype)
            out.compare("struct", f"struct {tag}: size", min(ours, size) if one.grows else ours, size)
        for name, expr in places(one).items() if one.nvidia else ():
            if expr not in got:
                if holds and not one.grows and not out.source:
                    out.differences.append(f"struct {tag}: {name} is not there")
            elif holds or (tag, name) in USES:
                ours = dict(nvheader.offsets(one.ctype))[name]
                out.compare("struct", f"struct {tag}: {name}", ours, got[expr])
                out.fields.add((tag, name))


def check_names(out: Outcome, got: dict, group: str, names: dict[str, tuple[int, list[str]]]) -> set[str]:
    """The names that the release has."""
    compared = set()
    for name, (ours, theirs) in names.items():
        known = [e for e in theirs if e in got]
        for expr in known:
            out.compare(group, f"{name} ({expr})", ours, got[expr])
        if known:
            compared.add(name)
        elif theirs:
            out.unknown.append(name)
    return compared


def check_number(out: Outcome, got: dict, row: calltable.Row) -> bool:
    """A row that holds has its number under its name. False: the release does not name it."""
    if row.name not in got:
        return False
    out.compare(row.kind, f"{row.name} number", row.number, got[row.name])
    return True


def check_control(out: Outcome, got: dict, row: calltable.Row, methods: dict) -> None:
    named = check_number(out, got, row)
    exported = row.number in methods
    if not named and row.number not in layouts.UNNAMED:
        out.unknown.append(row.name)
    for struct in struct_of_control(row, methods):
        if not struct:
            out.compare("control", f"{row.name} size", row.size, 0)
        elif f"sizeof({struct})" in got:
            out.compare("control", f"{row.name} size", row.size, got[f"sizeof({struct})"])
        elif exported:
            out.differences.append(f"{row.name}: {struct} is not in a header")
    for expr in layouts.CONTROL_FDS.get(row.number, []):
        if expr in got:
            out.compare("control", f"{row.name} fd", row.fd_at, got[expr])


def check_class(out: Outcome, got: dict, row: calltable.Row, classes: dict) -> None:
    if not check_number(out, got, row):
        out.unknown.append(row.name)
    theirs = classes.get(row.name)
    if theirs:
        size = got[f"sizeof({theirs.params})"] if theirs.params else 0
        out.compare("class", f"{row.name} size", row.size, size)
    elif row.name not in layouts.CLOSED_CLASSES:
        out.differences.append(f"{row.name}: the driver cannot allocate it")


def check_uvm(out: Outcome, got: dict, row: calltable.Row) -> None:
    if not check_number(out, got, row):
        out.differences.append(f"{row.name}: not in the headers")
    size = got.get(f"sizeof({row.name}_PARAMS)", 0)
    out.compare("uvm", f"{row.name} size", row.size, size)
    out.compare("uvm", f"{row.name} status", row.status_at, got.get(f"offsetof({row.name}_PARAMS, rmStatus)", 0))
    for name, kind in UVM_FDS.items():
        at = got.get(f"offsetof({row.name}_PARAMS, {name})")
        if at is not None:
            out.compare("uvm", f"{row.name} {name}", row.fd_at, at)
            if row.fd_kind != kind:
                out.differences.append(f"{row.name}: {name} is not in the table")


def check_escape(out: Outcome, got: dict, row: calltable.Row) -> None:
    if not check_number(out, got, row):
        out.differences.append(f"{row.name}: not in the headers")
    for what, expr, ours in zip(
        ("size", "status", "fd"), escape_exprs(row), (row.size, row.status_at, row.fd_at), strict=True
    ):
        if expr in got:
            out.compare("escape", f"{row.name} {what}", ours, got[expr])
        elif expr:
            out.differences.append(f"{row.name}: {expr} is not there")


def check_absent(out: Outcome, got: dict, methods: dict, classes: dict) -> None:
    """A number that the driver has, and the table has in any branch, must have a row in this branch."""
    rows = calltable.every()
    live = {(r.kind, r.number) for r in rows if r.holds(out.branch)}
    for row in rows:
        if (row.kind, row.number) in live:
            continue
        there = {
            "control": row.number in methods and got.get(row.name) == row.number,
            "class": row.name in classes and got.get(row.name) == row.number,
            "uvm": f"sizeof({row.name}_PARAMS)" in got,
            "escape": got.get(row.name) == row.number and escape_exprs(row)[0] in got
            if row.kind == "escape"
            else False,
        }[row.kind]
        out.compared["absent"] += 1
        if there:
            out.differences.append(f"{row.name}: no row, but the driver has it")


def check_prototypes(out: Outcome, tree: ogkm.Tree | ogkm.Read) -> None:
    """Of a release that was read, those that were; the others are open."""
    here = prototypes.ours(out.branch)
    if isinstance(tree, ogkm.Read):
        there = prototypes.written(tree.prototypes)
        out.differences += [f"{name}: no function of the module's" for name in sorted(there.keys() - here.keys())]
        here = {name: mine for name, mine in here.items() if name in there}
    else:
        there = prototypes.theirs(tree, set(here))
    out.compared["prototype"] += len(here)
    out.differences += prototypes.differences(here, there)


def is_said(row: calltable.Row, got: dict, methods: dict, classes: dict) -> bool:
    """Whether a release says what the row's size is."""
    if row.kind == "control":
        return any(not s or f"sizeof({s})" in got for s in struct_of_control(row, methods))
    if row.kind == "class":
        theirs = classes.get(row.name)
        return bool(theirs) and (not theirs.params or f"sizeof({theirs.params})" in got)
    if row.kind == "uvm":
        return row.name in got
    size = escape_exprs(row)[0]
    return row.name in got and (not size or size in got)


def check_gone(out: Outcome, tree: ogkm.Read) -> None:
    """Calls that a release is known to have no more."""
    held = {row.name for row in calltable.every() if row.holds(tree.branch)}
    out.compared["absent"] += len(tree.gone)
    out.differences += [f"{name}: a row, but the driver has it no more" for name in sorted(held & tree.gone)]


def check(tree: ogkm.Tree | ogkm.Read) -> Outcome:
    """Checks every value of ours that must hold in this release."""
    out = Outcome(tree.tag, tree.branch, source=tree.source if isinstance(tree, ogkm.Read) else "")
    methods, classes = tree.methods(), tree.classes()
    got = tree.probe(wanted(tree, methods, classes))
    if tree.branch in calltable.BRANCHES:
        out.names = check_names(out, got, "core", numbers(nvheader.NUMBERS) | common())
        here = tree.branch == int(nvsim_releases()[-1].partition(".")[0])
        theirs = {n: v for n, v in numbers(nvheader.NVSIM).items() if here or n not in layouts.OF_NVSIM}
        out.names |= check_names(out, got, "nvsim", theirs)
        check_structs(out, got)
        if isinstance(tree, ogkm.Read):
            check_gone(out, tree)
        check_prototypes(out, tree)
        check_names(out, got, "shell", {f"shell {what}": (ours, theirs) for what, ours, theirs in abi_of(tree.branch)})
    for row in calltable.every():
        if not row.holds(tree.branch):
            continue
        if is_said(row, got, methods, classes):
            out.rows.add(row)
        elif out.source:
            continue
        if row.kind == "control":
            check_control(out, got, row, methods)
        elif row.kind == "class":
            check_class(out, got, row, classes)
        elif row.kind == "uvm":
            check_uvm(out, got, row)
        else:
            check_escape(out, got, row)
    check_absent(out, got, methods, classes)
    if tree.tag in nvsim_releases():
        check_nvsim_controls(out, got, methods)
    return out


def show(out: Outcome) -> None:
    groups = ", ".join(f"{n} {group}" for group, n in sorted(out.compared.items()))
    print(
        f"{out.tag}{' (read)' if out.source else ''}: {groups}; {len(set(out.unknown))} not named there; "
        f"{counts(out)['open']} rows open; {len(out.differences)} differences",
        flush=True,
    )
    for line in out.differences:
        print(f"  {line}")
    if os.environ.get("VERBOSE"):
        print("  not named: " + " ".join(sorted(set(out.unknown))))


def counts(out: Outcome) -> dict[str, int | str]:
    """The rows that hold in the branch, those whose size was compared, and those that the release does not tell."""
    rows = sum(row.holds(out.branch) for row in calltable.every())
    return {"release": out.tag, "rows": rows, "compared": len(out.rows), "open": rows - len(out.rows)}


def record(outcomes: list[Outcome]) -> None:
    """The last outcome, for make abi-doc."""
    rows = [
        {
            "tag": out.tag,
            "compared": dict(sorted(out.compared.items())),
            "unnamed": len(set(out.unknown)),
            "differences": out.differences,
            "rows": counts(out) | ({"read": out.source} if out.source else {}),
        }
        for out in outcomes
    ]
    BRANCHES.parent.mkdir(exist_ok=True)
    BRANCHES.write_text(json.dumps({out.branch: counts(out) for out in outcomes}, indent=1) + "\n")
    # The rows that were compared: make abi-doc prints the number of today's beside it.
    text = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(calltable.every()),
        # What was compared: a test without NVIDIA's sources finds a number or struct that is not as then.
        "names": numbers_digest(),
        "structs": [f"{tag} {digest(tag)}" for tag in sorted(compared_structs(outcomes))],
        "tags": rows,
    }
    OUTCOME.write_text(jsontext.text(text))


def compared_structs(outcomes: list[Outcome]) -> set[str]:
    """Those of which each field was compared in a release."""
    seen = set.union(*(out.fields for out in outcomes))
    return {tag for tag, one in STRUCTS.items() if one.nvidia and {(tag, name) for name in places(one)} <= seen}


def record_all(outcomes: list[Outcome]) -> None:
    """Releases that differ from the newest of their branch, for make abi-doc."""
    text = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "releases": len(outcomes),
        "differences": {out.tag: out.differences for out in outcomes if out.differences},
    }
    RELEASES.write_text(jsontext.text(text))


def main() -> int:
    source = os.environ.get("OGKM")
    if not source:
        print(
            "test-abi: OGKM must name NVIDIA's open-gpu-kernel-modules: a tree, a clone or a bare repository",
            file=sys.stderr,
        )
        return 2
    tags = os.environ.get("OGKM_TAGS", "").split()
    outcomes = []
    for tree in ogkm.trees(Path(source), tags):
        outcomes.append(check(tree))
        show(outcomes[-1])
    if len(outcomes) > 1 and not tags:
        have = {out.branch for out in outcomes}
        for read in ogkm.read_releases(READ):
            if read.branch not in have:
                outcomes.append(check(read))
                show(outcomes[-1])
        outcomes.sort(key=lambda out: out.branch)
    if tags == ["all"]:
        record_all(outcomes)
        return 0
    compared = {out.branch for out in outcomes}
    if len(outcomes) > 1 and not tags:
        record(outcomes)
        missing = set(calltable.BRANCHES) - compared
        nowhere = set.intersection(*(set(out.unknown) for out in outcomes if out.branch in calltable.BRANCHES))
        nowhere |= {f"struct {tag}" for tag, one in STRUCTS.items() if one.nvidia} - {
            f"struct {tag}" for tag in compared_structs(outcomes)
        }
        if nowhere - OPEN:
            print(f"in no release: {' '.join(sorted(nowhere - OPEN))}", file=sys.stderr)
            return 1
        if missing:
            print(f"no release of branch {', '.join(map(str, sorted(missing)))}", file=sys.stderr)
            return 1
    return 1 if not outcomes or any(out.differences for out in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
