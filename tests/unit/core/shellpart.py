# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Single C files of the module outside of the core, compiled for user space.

Their includes of the kernel and of state/ become empty files, and shellpart.h has what they need of these. So a test
calls what a boot would reach only by many processes or a driver that refuses calls.
"""

import re
import subprocess
from pathlib import Path

from _build import CC, ROOT, SANITIZE, WARN
from cffi import FFI

KM = ROOT / "cgpu_km"
STUBS = Path(__file__).with_name("shellpart.h")
#: Headers that are what they are in the module too; others are empty.
REAL = ("core/", "pure/", "sched/freeze.h", "sched/timeslice.h", "state/gone.h")


def struct_of(header: str, name: str, *numbers: str) -> str:
    """A struct of the module's own header, behind `numbers` and those that its arrays need."""
    text = (KM / header).read_text()
    body = re.search(rf"^struct {name} \{{\n.*?^\}};\n", text, re.M | re.S)
    assert body, name
    used = {*numbers, *re.findall(r"\[(\w+)\]", body[0])}
    return "".join(re.findall(rf"^#define\s+(?:{'|'.join(used)})\s.*\n", text, re.M)) + body[0]


def function_of(source: str, name: str) -> str:
    """One function, with the numbers of its file."""
    text = (KM / source).read_text()
    body = re.search(rf"^\w[^\n;]*\b{name}\([^;{{]*\)\n\{{\n.*?^\}}\n", text, re.M | re.S)
    assert body, name
    return "".join(re.findall(r"^#define\s+\w+\s.*[^\\]\n", text, re.M)) + body[0]


def build(source: str, at: Path, cdef: str, more: str):
    """(ffi, lib) of one file, or of C that includes parts: @cdef declares what the test calls, @more is C behind it."""
    text = source if "\n" in source else (KM / source).read_text()
    for name in re.findall(r'^#include ["<]([^">]+)[">]', text, re.M):
        if not name.startswith(REAL):
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            (at / name).touch()
    (at / "linux").mkdir(exist_ok=True)
    (at / "linux" / "types.h").touch()
    (at / "taken.h").write_text(struct_of("state/gpu.h", "ckm_gone", "CKM_GONE_LOST_BITS", "CKM_GONE_LOST"))
    first = source if "\n" in source else f'#include "{KM / source}"\n'
    (at / "whole.c").write_text(f'#include "{STUBS}"\n{first}{more}')
    so = at / "whole.so"
    subprocess.run(
        [CC, *WARN, *SANITIZE, "-g", "-O1", "-shared", "-fPIC", f"-I{at}", f"-I{KM}", f"-I{KM / 'core'}", "-o", so,
         at / "whole.c"],
        check=True,
    )  # fmt: skip
    ffi = FFI()
    ffi.cdef(cdef)
    return ffi, ffi.dlopen(str(so))
