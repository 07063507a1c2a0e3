# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The rules of the source of cgpu_km/core and cgpu_km/pure, executable."""

import hashlib
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import _build
import pytest
from corelib import C, ffi

FOLDERS = {"core": _build.CORE, "pure": _build.PURE}
FILES = sorted(path for folder in FOLDERS.values() for path in folder.glob("*.[ch]"))
PURE = [p for p in FILES if p.name != "core_main.c"]
NUMBERS = {
    "nv_abi.h",
    "nv_struct.h",
    "nv_struct_control.h",
    "nv_call.c",
    "nv_branch.c",
}  # tables of the driver's numbers

# A file's part is the first word of its name; policies are rules of the scheduler.
PARTS = {"policy": "sched"}
# Which parts a part may use; core_ops, the table of the core's, may use each. Those of pure/, in another module, use
# the core's numbers and structs only (test_purity.py).
USES = {"text": {"mem", "sched"}, "mem": {"nv"}, "sched": set(), "nv": set()}
HOMES = {"text": "pure", "mem": "pure", "sched": "core", "nv": "core", "core": "core", "env": "core"}


def part(name):
    first = name.split("_")[0].split(".")[0]
    return PARTS.get(first, first)


def included(path):
    """The headers of both folders that @path includes, without env.h, which all include."""
    found = set(re.findall(r'^\s*#\s*include\s+"(?:\.\./core/)?(\w+\.h)"', path.read_text(), re.M))
    return found - {"env.h"}


#: Macros with arguments: the rows of a table.
MACROS = {"nv_struct.h": {"AT"}, "nv_table.h": {"DOC", "FD"}, "policy.h": {"CGPU_POLICY_DECLARATION"}}


def callees():
    """For every .c file the other files of which it uses functions or tables."""
    code = {p.name: re.sub(r"/\*.*?\*/|//[^\n]*", "", p.read_text(), flags=re.S) for p in PURE if p.suffix == ".c"}
    # Its rows come from a macro of uapi.h.
    rows = re.findall(r"POLICY\(\d+, \w+,\s+(\w+)\)", (_build.ROOT / "cgpu_km/uapi.h").read_text())
    code["policy.c"] += "".join(f"\n\t&cgpu_policy_{name}," for name in rows)
    home = {}
    for name, text in code.items():
        for found in re.findall(
            r"^(?!static\b|extern\b|typedef\b)\w[\w *]*?\b(cgpu_\w+)(?:\([^;{]*\)\n\{|(?:\[\w*\])? = \{)", text, re.M
        ):
            assert home.setdefault(found, name) == name, f"{found} is in {home[found]} and {name}"
    used = {
        name: {home[w] for w in re.findall(r"\bcgpu_\w+", text) if w in home} - {name} for name, text in code.items()
    }
    assert len(home) > 100 and "policy_soft.c" in used["policy.c"] and "nv_call.c" in used["core_ops.c"]
    return used


def is_cycle_free(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def functions(text):
    """(name, lines) of each function body, by the kernel's brace style."""
    name, start = None, 0
    for n, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = n
        elif line == "}" and start:
            yield name, n - start + 1
            start = 0
        elif found := re.match(r"^[a-z].*?\b(\w+)\(", line):
            name = found[1]


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.name)
def test_file(path):
    text = path.read_text()
    assert text.splitlines()[0] in (
        "// SPDX-License-Identifier: MIT OR GPL-2.0-only",
        "/* SPDX-License-Identifier: MIT OR GPL-2.0-only */",
    )
    assert len(text.splitlines()) <= (500 if path.suffix == ".c" else 220) or path.name in NUMBERS
    assert [name for name, lines in functions(text) if lines > 100] == []
    assert path.name == "env.h" or not re.search(r"^\s*#\s*include\s+<|__KERNEL__", text, re.M)


@pytest.mark.parametrize("path", [p for p in PURE if part(p.name) in USES], ids=lambda p: p.name)
def test_includes_its_own_part_and_those_below(path):
    mine = part(path.name)
    assert {name for name in included(path) if part(name) not in USES[mine] | {mine}} == set()


def test_every_file_belongs_to_a_part_and_is_in_its_folder():
    assert {p.name for p in PURE if part(p.name) not in USES} == {"core_ops.c", "core_ops.h", "env.h"}
    assert [p.name for p in PURE if p.parent != FOLDERS[HOMES[part(p.name)]]] == []


@pytest.mark.parametrize(("caller", "used"), sorted(callees().items()), ids=lambda v: v if isinstance(v, str) else "")
def test_calls_its_own_part_and_those_below(caller, used):
    mine = part(caller)
    assert mine == "core" or {name for name in used if part(name) not in USES[mine] | {mine}} == set()


def test_no_file_calls_back_to_its_caller():
    is_cycle_free(callees())


@pytest.mark.parametrize("path", [p for p in PURE if p.suffix == ".h" and p.name != "env.h"], ids=lambda p: p.name)
def test_headers_are_declarations(path):
    text = path.read_text()
    assert not re.search(r"^\s*(static\s+)?inline\b", text, re.M)
    macros = set(re.findall(r"^#define\s+(\w+)\(", text, re.M))
    assert macros == MACROS.get(path.name, set()), "no macro with arguments"


def test_every_public_function_has_its_comment():
    missing = []
    for path in PURE:
        if path.suffix != ".c" or path.name in NUMBERS | {"mem_tree.c", "core_ops.c"}:
            continue
        text = path.read_text()
        public = re.findall(r"^(?!static)[a-z][\w *]*?\b(cgpu_\w+)\([^;{]*\)\n\{", text, re.M)
        missing += [f"{path.name}: {name}" for name in public if f" * {name}() - " not in text]
    assert missing == []


def fields(kind, path="", at=0) -> Iterator[str]:
    """Name, offset and type of each number in a C type."""
    if kind.kind == "struct":
        for name, field in kind.fields:
            yield from fields(field.type, f"{path}.{name}", at + field.offset)
    elif kind.kind == "array":
        yield f"{path}[{kind.length}] of {ffi.sizeof(kind.item)}"
        yield from fields(kind.item, path, at)
    else:
        yield f"{path} {at} {kind.cname}"


def test_a_layout_has_a_version():
    """What a core takes over from another one is read by its version. Another digest: raise CGPU_SCHED_VERSION."""
    lines = list(fields(ffi.typeof("struct cgpu_sched")))
    assert len(lines) > 100 and any(line.startswith(".slot.wait.so_far_ns ") for line in lines)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert (C.CGPU_SCHED_VERSION, digest[:16]) == (30, "b579615f6d27d2e5")


def test_slots_agree_with_the_interface():
    constants = _build.constants()
    assert constants["CGPU_SLOTS"] == constants["CGPU_MAX_INST_MAX"]
    assert constants["CGPU_PARSE_ID_MAX"] == constants["CGPU_ID_MAX"]
    assert constants["CGPU_PARSE_GPUS"] == constants["CGPU_MAX_GPUS"]
