# SPDX-License-Identifier: MIT
"""header.py > rm_abi.h: the numbers of rmabi.py and the structures of rmlayout.py for the clients in C.

The compiler checks each size and offset against ctypes.
"""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import rmabi
from rmlayout import BYTES, LAYOUTS, STRUCTURES, VARIANTS, fields

TYPES = {
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "s32": "int32_t",
    "u64": "uint64_t",
    "c": "char",
}

BYTES_C = """
/*
 * Bytes of the parameters of a class or control in @branch; where they never changed @size, which is
 * that of the struct above.
 */
static inline uint32_t abi_bytes(uint32_t branch, uint32_t number, uint32_t size)
{
	static const struct {
		uint32_t number, since, bytes;
	} changed[] = {
%s
	};

	for (size_t i = 0; i < sizeof(changed) / sizeof(changed[0]); i++)
		if (changed[i].number == number && branch >= changed[i].since)
			return size ? changed[i].bytes : 0;
	return size;
}"""


def numbers() -> Iterator[str]:
    """A #define for each number, written as in rmabi.py: the module's header may define the same one."""
    text = Path(rmabi.__file__).read_text()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Dict):
            continue
        names = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for name, value in zip(names, values, strict=True):
            plain = isinstance(value, ast.Constant)
            written = ast.get_source_segment(text, value).lower() if plain else f"{getattr(rmabi, name.id):#x}ull"
            yield f"#define {name.id} {written}"


def tag(name: str) -> str:
    """MapDma: nv_map_dma; UvmRange: uvm_range."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return snake if snake.startswith(("uvm_", "nvsim_")) else f"nv_{snake}"


def struct(name: str) -> Iterator[str]:
    yield f"struct {tag(name)} {{"
    for field, kind, count in fields(LAYOUTS[name]):
        ctype = TYPES.get(kind) or f"struct {tag(kind)}"
        yield f"\t{ctype} {field}[{count}];" if count else f"\t{ctype} {field};"
    yield "};"
    yield f"ABI_SIZE(struct {tag(name)}, {ctypes.sizeof(STRUCTURES[name])});"
    for field, _, _ in fields(LAYOUTS[name]):
        yield f"ABI_AT(struct {tag(name)}, {field}, {getattr(STRUCTURES[name], field).offset});"


def header() -> Iterator[str]:
    yield "/* SPDX-License-Identifier: MIT */"
    yield "/* The driver's user ABI for the test clients. Made by tests/rmclient/header.py. */"
    yield "#ifndef RM_ABI_H\n#define RM_ABI_H\n\n#include <stddef.h>\n#include <stdint.h>\n"
    yield "#define ABI_SIZE(type, bytes) \\"
    yield '\t_Static_assert(sizeof(type) == (bytes), #type " is not " #bytes " bytes")'
    yield "#define ABI_AT(type, field, offset) \\"
    yield '\t_Static_assert(offsetof(type, field) == (offset), #type "." #field " is not at " #offset)\n'
    yield from numbers()
    for name in LAYOUTS:
        yield ""
        yield from struct(name)
    yield "\n/* From this branch on. */"
    for variants in VARIANTS.values():
        since, newest = variants[0]
        yield f"#define {tag(newest).upper()}_FROM {since}"
    yield BYTES_C % "\n".join(
        f"\t\t{{ {number:#x}, {since}, {size} }}," for number, sizes in BYTES.items() for since, size in sizes
    )
    yield "\n/* Name, gpfifo, usermode, compute, copy. */"
    archs = (f'\t{{ "{name}", {", ".join(map(hex, arch))} }}' for name, arch in rmabi.ARCHS.items())
    yield "#define ABI_ARCHS { \\\n" + ", \\\n".join(archs) + " \\\n}"
    yield "\n#endif"


if __name__ == "__main__":
    print("\n".join(header()))
