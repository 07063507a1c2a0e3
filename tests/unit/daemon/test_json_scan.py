# SPDX-License-Identifier: MIT
"""cgpu-runtime's JSON scanner against Python's json module, under ASan and UBSan, in one process for all inputs.

Bytes that are no JSON: tests/fuzz/text, whose corpus has what a fuzzer found, whole or cut off.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

RUNTIME = Path(__file__).resolve().parents[3] / "cgpud/runtime"
DRIVER = Path(__file__).with_name("json_scan_driver.c")
VALUE_SIZE = 64
PREFIXES = ("ALIYUN_COM_GPU_", "CGPU_DISABLE=", "NVIDIA_GPU_MEMORY_")


@dataclass
class Scanner:
    """The scanner in a process of its own."""

    process: subprocess.Popen[bytes]

    def __call__(self, document: bytes, key: str = "id") -> tuple[bool, str | None, bytes]:
        """(contains a cGPU variable, kind of the key's value, the value)."""
        name = key.encode()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(struct.pack("=II", len(name), len(document)) + name + document)
        self.process.stdin.flush()
        head = self.process.stdout.read(6)
        assert len(head) == 6, f"the scanner ended with {self.process.wait(10)} on {document!r}"
        found, kind, length = struct.unpack("=BBI", head)
        return bool(found), chr(kind) if kind else None, self.process.stdout.read(length)


@pytest.fixture(scope="session")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanner]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("json_scan") / "driver"
    sources = [DRIVER, RUNTIME / "json_scan.c", RUNTIME / "text.c"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", *sanitize, f"-I{RUNTIME}"]
    subprocess.run(["cc", *flags, *map(str, sources), "-o", str(program)], check=True)
    process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield Scanner(process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0, "leaks count too"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from strings(member)


def is_variable(text: str) -> bool:
    return text.startswith(PREFIXES) and "=" in text


#: Words that matter to the scanner, between any others.
WORDS = st.sampled_from(
    [
        "id",
        "ALIYUN_COM_GPU_MEM_DEV=15",
        "ALIYUN_COM_GPU_",
        "CGPU_DISABLE=",
        "CGPU_DISABLE",
        "X=ALIYUN_COM_GPU_A=1",
        "=",
        "NVIDIA_GPU_MEMORY_LIMIT=6000",
        "NVIDIA_GPU_MEMORY_",
    ]
)
# A NUL ends a string in C; a string with one is neither one of our variables nor an id.
TEXT = WORDS | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
DOCUMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 1, "\t"]))
@example({"a": ["ALIYUN_COM_GPU_MEM_DEV=15"]}, True, None)
@example({"a": ["X=ALIYUN_COM_GPU_MEM_DEV=15"]}, True, None)
def test_finds_variables_exactly_where_json_has_one(
    scan: Scanner, document: Any, ascii_only: bool, indent: int | str | None
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    assert scan(text)[0] is any(map(is_variable, strings(document)))


@pytest.mark.parametrize("name", ["ALIYUN_COM_GPU_MEM_DEV", "CGPU_DISABLE"])
@pytest.mark.parametrize("at", range(8))
def test_an_escaped_character_hides_no_variable(scan: Scanner, name: str, at: int) -> None:
    escaped = f"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"
    assert scan(f'["{escaped}=1"]'.encode())[0]
    assert not scan(f'["{escaped}"]'.encode())[0], "without a value it is no variable"


def expected_top(document: Any, key: str) -> tuple[str | None, bytes]:
    value = document.get(key) if isinstance(document, dict) else None
    if key not in (document if isinstance(document, dict) else ()) or isinstance(value, (dict, list)):
        return None, b""
    word = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return ('"' if isinstance(value, str) else "x", word) if len(word) < VALUE_SIZE else (None, b"")


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXT, DOCUMENTS, max_size=5) | DOCUMENTS, TEXT)
@example({"inner": {"id": "no"}, "id": "yes"}, "id")
@example([{"id": "no"}], "id")
@example({"x": "id", "id": 7}, "id")
@example({"id": "y" * 63}, "id")
@example({"id": "y" * 64}, "id")
def test_reads_members_of_the_outermost_object_only(scan: Scanner, document: Any, key: str) -> None:
    text = json.dumps(document, ensure_ascii=False).encode()
    assert scan(text, key)[1:] == expected_top(document, key)


def test_of_a_key_that_is_there_twice_the_first_counts(scan: Scanner) -> None:
    assert scan(b'{"id": "a", "id": "b"}')[1:] == ('"', b"a")
