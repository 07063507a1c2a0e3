# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The layers of cgpu_km/, held without a compiler.

A file includes its own layer and those below. Each function is declared by the header of
the file that defines it and by no other, so no call goes up where no include does.
"""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3] / "cgpu_km"

# Lowest first; "" is the base, the files of cgpu_km/ itself.
LAYERS = ["core", "pure", "", "driver", "state", "sched", "intercept", "admin", "main.c"]
LINES = 500

# What cgpu_km.ko exports to the modules of cores: declared for both sides of the module
# boundary, and included by these two files of the tree alone.
EXPORTS, EXPORTERS = "core_link.h", {"admin/core_swap.c", "core/core_main.c"}
# A symbol of nvidia.ko, looked up by symbol_get(); a function that is written in assembly.
FOREIGN = {("driver/driver.c", "nvidia_p2p_put_pages")}
ASSEMBLY = {"ckm_call_original"}
# Kbuild writes it: the answers to probe.h.
GENERATED = {"probed.h": ""}


def sources(root):
    paths = [*root.rglob("*.c"), *root.rglob("*.h")]
    return {str(p.relative_to(root)): p.read_text() for p in sorted(paths) if not p.name.endswith(".mod.c")}


def layer(name):
    return LAYERS.index(name if name in LAYERS else name.rpartition("/")[0])


def is_core(name):
    return name.startswith("core/")


def is_pure(name):
    """Compiled in user space too: without a lock, and without a header of the module but uapi.h."""
    return name.startswith(("core/", "pure/"))


def code(text):
    """Without comments and the contents of strings."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def includes(name, text, files):
    """Of this tree: by the including file's folder first, then from cgpu_km/ on."""
    for header in re.findall(r'^#\s*include\s+"([^"]+)"', text, re.MULTILINE):
        folder = name.rpartition("/")[0]
        near = str((Path("/") / folder / header).resolve())[1:]
        yield near if near in files else header


def upward(files):
    return [
        f"{name} includes {header}"
        for name, text in files.items()
        for header in includes(name, text, files)
        if header not in files | GENERATED
        or (header == EXPORTS and name not in EXPORTERS)
        or (
            layer(header) > layer(name)
            and not (is_pure(name) and header == "uapi.h")
            and not (is_core(name) and header == EXPORTS)
        )
    ]


def cycles(files):
    """Units, a .c and its header, that include one another by whatever way."""
    graph = {}
    for name, text in files.items():
        unit = name[:-2]
        graph.setdefault(unit, set()).update(h[:-2] for h in includes(name, text, files) if h[:-2] != unit)
    reach = {}
    for unit in graph:
        seen, todo = set(), list(graph[unit])
        while todo:
            if (at := todo.pop()) not in seen:
                seen.add(at)
                todo += graph.get(at, ())
        reach[unit] = seen
    return sorted(unit for unit in graph if unit in reach[unit])


def declared(text):
    """Functions that are only declared: name, whether static."""
    found = re.findall(
        r"^(static |extern |)(?!static\b|extern\b|typedef\b)[a-z][\w \t*]*?\b(\w+)\([^;{}]*\)[^;{}=]*;",
        code(text),
        re.MULTILINE,
    )
    return {name: kind.strip() for kind, name in found}


def defined(text):
    """Functions with a body that other files can call."""
    return set(
        re.findall(r"^(?!static\b|typedef\b)[a-z][\w \t*()]*?\b(\w+)\([^;{}]*\)\s*\n\{", code(text), re.MULTILINE)
    )


def foreign(files):
    """Functions and data that a file declares and another one has."""
    wrong = []
    for name, text in files.items():
        if is_core(name):
            continue
        own = defined(text if name.endswith(".c") else files.get(name[:-2] + ".c", "")) | ASSEMBLY
        if name == EXPORTS:
            own = set().union(*(defined(files.get(n, "")) for n in EXPORTERS))
        if name.endswith(".c"):
            bad = {n for n, kind in declared(text).items() if kind != "static" and n not in own}
            bad |= set(
                re.findall(r"^\s*extern\b[^;]*?\b(\w+)\s*(?:\[[^]]*\])?(?:\([^;]*\))?;", code(text), re.MULTILINE)
            )
        else:
            bad = {n for n in declared(text) if n not in own}
            data = re.findall(r"^extern\b[^;(]*?\b(\w+)\s*(?:\[[^]]*\])?;", code(text), re.MULTILINE)
            there = code(files.get(name[:-2] + ".c", ""))
            bad |= {n for n in data if not re.search(rf"^(?!static\b|extern\b)\S[^\n;]*\b{n}\b", there, re.MULTILINE)}
        wrong += [f"{name} declares {n}" for n in sorted(bad) if (name, n) not in FOREIGN]
    return wrong


def undeclared(files):
    """Functions that other files could call and the own header does not have."""
    wrong = []
    for name, text in files.items():
        if not name.endswith(".c") or is_core(name):
            continue
        header = files.get(name[:-2] + ".h", "") + (files.get(EXPORTS, "") if name in EXPORTERS else "")
        wrong += [f"{name}: {n}" for n in sorted(defined(text)) if n not in declared(header)]
    return wrong


def too_long(files):
    return [f"{name}: {n}" for name, text in files.items() if (n := len(text.splitlines())) > LINES]


def without_opening(files):
    """Line 2 of a .c: one comment, in the shell with what it owns and its locks."""
    wrong = []
    for name, text in files.items():
        if not name.endswith(".c"):
            continue
        first, second = [*text.splitlines(), "", ""][:2]
        fine = first == "// SPDX-License-Identifier: MIT OR GPL-2.0-only" and re.fullmatch(r"/\*( .+)?", second)
        if not fine or not (is_pure(name) or re.fullmatch(r"/\* [A-Z].+\. .*lock.*\. \*/", second)):
            wrong.append(name)
    return wrong


FILES = sources(TREE)
SHELL = {name: text for name, text in FILES.items() if not is_core(name)}
CORE = {name: text for name, text in FILES.items() if is_core(name)}


def test_the_tree_is_found():
    assert {layer(name) for name in FILES} == set(range(len(LAYERS)))
    assert len(SHELL) > 80


def test_no_include_goes_up():
    assert upward(FILES) == []


def test_no_files_include_each_other():
    assert cycles(FILES) == []


def test_no_call_goes_up():
    """With the direction of includes: a file that calls a function includes the header of that function's file."""
    assert foreign(FILES) == []
    assert undeclared(FILES) == []


def test_no_file_is_long():
    assert too_long(FILES) == []


def test_every_file_opens_with_what_it_owns_and_locks():
    assert without_opening(SHELL) == []
    assert without_opening(CORE) == []


def test_the_order_of_locks_is_in_one_place():
    assert [name for name, text in FILES.items() if "Lock order, outermost first:" in text] == ["registry.h"]


# ---- the rules, on trees that break one each

SPDX = "// SPDX-License-Identifier: MIT OR GPL-2.0-only\n"
GOOD = {
    "state/gpu.c": SPDX
    + '/* Owns GPUs. Takes gpu->lock. */\n#include "state/gpu.h"\n\nint ckm_gpu(void)\n{\n\treturn 0;\n}\n',
    "state/gpu.h": "int ckm_gpu(void);\n",
    "admin/proc.c": SPDX
    + '/* Shows them. Takes no lock. */\n#include "state/gpu.h"\n\nstatic int show(void)\n{\n\treturn ckm_gpu();\n}\n',
}


def test_a_tree_that_keeps_the_rules_is_found_good():
    for rule in (upward, cycles, foreign, undeclared, too_long, without_opening):
        assert rule(GOOD) == []


@pytest.mark.parametrize(
    ("rule", "path", "text", "found"),
    [
        (upward, "state/gpu.h", '#include "admin/proc.h"\n', "state/gpu.h includes admin/proc.h"),
        (upward, "state/gpu.h", '#include "gone.h"\n', "state/gpu.h includes gone.h"),
        (upward, "core/sched_config.c", '#include "registry.h"\n', "core/sched_config.c includes registry.h"),
        (upward, "core/sched_config.c", '#include "../pure/mem.h"\n', "core/sched_config.c includes pure/mem.h"),
        (upward, "pure/mem.c", '#include "registry.h"\n', "pure/mem.c includes registry.h"),
        (upward, "call.c", '#include "core_link.h"\n', "call.c includes core_link.h"),
        (cycles, "state/gpu.h", '#include "state/slot.h"\n', "state/gpu"),
        (foreign, "state/slot.c", "extern int ckm_gpu(void);\n", "state/slot.c declares ckm_gpu"),
        (foreign, "state/slot.c", "int ckm_gpu(void);\n", "state/slot.c declares ckm_gpu"),
        (foreign, "state/slot.c", "struct ckm_gpu *ckm_gpu(int a,\n\t\tint b);\n", "state/slot.c declares ckm_gpu"),
        (foreign, "state/slot.c", "{\n\textern int ckm_gpus;\n}\n", "state/slot.c declares ckm_gpus"),
        (foreign, "state/slot.h", "int ckm_proc(void);\n", "state/slot.h declares ckm_proc"),
        (foreign, "state/slot.h", "extern const int ckm_table[];\n", "state/slot.h declares ckm_table"),
        (undeclared, "state/slot.c", "int ckm_slot(void)\n{\n}\n", "state/slot.c: ckm_slot"),
        (too_long, "state/slot.c", "\n" * 501, "state/slot.c: 501"),
        (without_opening, "state/slot.c", SPDX + "#include <linux/slab.h>\n", "state/slot.c"),
        (without_opening, "state/slot.c", SPDX + "/* Owns slots. */\n", "state/slot.c"),
        (without_opening, "state/slot.c", "/* Owns slots. Takes gpu->lock. */\n", "state/slot.c"),
    ],
)
def test_a_tree_that_breaks_a_rule_is_found(rule, path, text, found):
    headers = {
        "registry.h": "",
        "pure/mem.h": "",
        "core_link.h": "",
        "admin/proc.h": "",
        "state/slot.h": '#include "state/gpu.h"\n',
    }
    assert found in rule({**GOOD, **headers, path: text})
