# SPDX-License-Identifier: MIT OR GPL-2.0-only
import errno
import hashlib
import re

import pytest
from corelib import C, ffi, lib
from hypothesis import example, given
from hypothesis import strategies as st

MIB = C.CGPU_MIB
ids = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, blacklist_characters="/="), min_size=1, max_size=128
).filter(lambda s: s not in (".", ".."))


def alone(text: bytes):
    """No byte behind it may be read (test_asan.py). Python's own bytes end with one more."""
    buffer = ffi.new("char[]", len(text))
    ffi.buffer(buffer)[:] = text
    return buffer


def parse_u64(text: bytes):
    value = ffi.new("u64 *", 4711)
    err = lib.cgpu_parse_u64(alone(text), len(text), value)
    assert err == 0 or value[0] == 4711, "an error changes nothing"
    return value[0] if err == 0 else err


def parse_inst(text: bytes):
    cmd, at = ffi.new("struct cgpu_inst_cmd *"), ffi.new("size_t *")
    err = lib.cgpu_parse_inst(alone(text), len(text), cmd, at)
    assert at[0] <= len(text)
    return (None, at[0]) if err else (cmd, at[0])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"0", 0),
        (b"12\n", 12),
        (b"007", 7),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", -errno.ERANGE),
        (b"9" * 4000 + b"\n", -errno.ERANGE),
        (b"", -errno.EINVAL),
        (b"\n", -errno.EINVAL),
        (b"1\n\n", -errno.EINVAL),
        (b" 1", -errno.EINVAL),
        (b"1 ", -errno.EINVAL),
        (b"+1", -errno.EINVAL),
        (b"-1", -errno.EINVAL),
        (b"0x1", -errno.EINVAL),
        (b"1\0", -errno.EINVAL),
        (b"1 2", -errno.EINVAL),
        (b"9" * 40 + b"x", -errno.EINVAL),
        (b"1e3", -errno.EINVAL),
    ],
)
def test_scalars(text, want):
    assert parse_u64(text) == want


@given(st.binary(max_size=40) | st.text("0123456789\n +x", max_size=24).map(str.encode))
def test_any_bytes_as_a_scalar(text):
    got = parse_u64(text)
    if re.fullmatch(rb"[0-9]+\n?", text):
        value = int(text)
        assert got == (value if value < 2**64 else -errno.ERANGE)
    else:
        assert got == -errno.EINVAL


@given(st.binary(max_size=300))
@example(b"create " + b"a" * 129 + b" gpu=0 memsize=1048576")
@example(b"create x gpu=" + b"0," * 400)
def test_no_bytes_are_too_wild(text):
    parse_inst(text)
    parse_inst(b"create x gpu=0 memsize=1048576 " + text)
    parse_inst(b"destroy " + text)


@st.composite
def creates(draw):
    gpus = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=C.CGPU_PARSE_GPUS, unique=True))
    n = len(gpus)
    mem = draw(st.lists(st.integers(MIB, 2**63 - 1), min_size=1, max_size=n))
    weight = draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=n))
    ceiling = draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=n))
    highprio = draw(st.none() | st.integers(0, 1))
    cookie = draw(st.none() | st.integers(1, 2**64 - 1))
    words = [f"gpu={','.join(map(str, gpus))}", f"memsize={','.join(map(str, mem))}"]
    if weight is not None:
        words.append(f"weight={','.join(map(str, weight))}")
    if ceiling is not None:
        words.append(f"ceiling={','.join(map(str, ceiling))}")
    if highprio is not None:
        words.append(f"highprio={highprio}")
    if cookie is not None:
        words.append(f"cookie={draw(st.sampled_from(['%d', '0x%x']))}" % cookie)
    words = draw(st.permutations(words))
    ident = draw(ids)
    line = f"create {ident} {' '.join(words)}{draw(st.sampled_from(['', chr(10)]))}"
    fill = lambda values: [values[min(i, len(values) - 1)] for i in range(n)]  # noqa: E731
    return line, ident, gpus, fill(mem), fill(weight or [1]), fill(ceiling or [0]), highprio or 0, cookie or 0


@given(creates())
def test_create_round_trip(case):
    line, ident, gpus, mem, weight, ceiling, highprio, cookie = case
    cmd, _ = parse_inst(line.encode())
    assert cmd is not None, line
    n = cmd.gpus
    assert cmd.verb == lib.CGPU_VERB_CREATE
    assert ffi.string(cmd.id).decode() == ident
    assert (list(cmd.gpu[0:n]), list(cmd.memsize[0:n]), list(cmd.weight[0:n])) == (gpus, mem, weight)
    assert list(cmd.ceiling[0:n]) == ceiling
    assert (cmd.highprio, cmd.cookie) == (highprio, cookie)


@given(ids, st.none() | st.integers(1, 2**64 - 1))
def test_destroy_round_trip(ident, cookie):
    cmd, _ = parse_inst(f"destroy {ident}{'' if cookie is None else f' cookie={cookie}'}\n".encode())
    assert (cmd.verb, ffi.string(cmd.id).decode(), cmd.cookie) == (lib.CGPU_VERB_DESTROY, ident, cookie or 0)


# The text, and where in it the first wrong byte is (None: its end).
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("create", 0),
        ("remove a", 0),
        (" create a", 0),
        ("create ", 7),
        ("create  a", 7),
        ("create a/b", 8),
        ("create . gpu=0 memsize=1048576", 7),
        (f"create {'a' * 129} gpu=0 memsize=1048576", 7 + 128),
        ("create a gpu=0", None),
        ("create a memsize=1048576", None),
        ("create a gpu= memsize=1048576", 13),
        ("create a gpu=0,x memsize=1048576", 15),
        ("create a gpu=0 gpu=1 memsize=1048576", 15),
        ("create a gpu=0  memsize=1048576", 15),
        ("create a gpu=0 memsize=1048576 ", None),
        ("create a gpu=0 memsize=-1", 23),
        ("create a gpu=4294967296 memsize=1048576", 13),
        ("create a gpu=0 memsize=18446744073709551616", 23),
        ("create a gpu=0 memsize=1048575", None),
        ("create a gpu=0 memsize=9223372036854775808", None),
        ("create a gpu=0 memsize=1048576,1048576", None),
        ("create a gpu=0 memsize=1048576 weight=1,1", None),
        ("create a gpu=0 memsize=1048576 ceiling=1,1", None),
        ("create a gpu=0,0 memsize=1048576", None),
        ("create a gpu=0 memsize=1048576 highprio=2", 40),
        ("create a gpu=0 memsize=1048576 cookie=0", 38),
        ("create a gpu=0 memsize=1048576 cookie=0x", None),
        ("create a gpu=0 memsize=1048576\n\n", 30),
        ("create a gpu=0 memsize=1048576\nx", 30),
        ("create a gpu=0 memsize=1048576 colour=1", 31),
        ("destroy", 0),
        ("destroy a b", 10),
        ("destroy a gpu=0", 10),
        ("destroy a cookie=1 cookie=1", 26),
    ],
)
def test_refused_with_the_place(text, at):
    cmd, where = parse_inst(text.encode())
    assert cmd is None
    assert where == (len(text) if at is None else at)


@pytest.mark.parametrize(
    ("ident", "ok"),
    [
        (b"a", 1),
        (b"a" * 128, 1),
        (b"a" * 129, 0),
        (b"", 0),
        (b"a b", 0),
        (b"a/b", 0),
        (b"a=b", 0),
        (b"\x7f", 0),
        (b"\xc3\xa4", 0),
        (b"a\0", 0),
        (b".", 0),
        (b"..", 0),
        (b"...", 1),
        (b".a", 1),
        (b"a,b", 1),
    ],
)
def test_ids(ident, ok):
    assert lib.cgpu_parse_check_id(alone(ident), len(ident)) == (0 if ok else -errno.EINVAL)


def directory(ident: str, collides=False) -> str:
    name = ffi.new("char[13]", b"#" * 12)
    lib.cgpu_parse_dir(alone(ident.encode()), len(ident), collides, name)
    return ffi.string(name).decode()


@given(st.text("0123456789abcdefABCDEF", min_size=12, max_size=128))
def test_directory_of_a_hex_id(ident):
    assert directory(ident) == ident[:12].lower()
    assert directory(ident, True) == hashlib.sha256(ident.encode()).hexdigest()[:12]


@given(ids)
def test_directory_of_any_id(ident):
    if not re.match("[0-9a-fA-F]{12}", ident):
        assert directory(ident) == hashlib.sha256(ident.encode()).hexdigest()[:12]


@pytest.mark.parametrize("length", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 121, 127, 128, 200])
def test_sha256_at_the_edges_of_its_blocks(length):
    data = bytes(range(length))
    digest = ffi.new("u8[32]")
    lib.cgpu_sha256(data, length, digest)
    assert bytes(digest) == hashlib.sha256(data).digest()
