# SPDX-License-Identifier: MIT
"""The trace format: a written trace is read again, an error is refused with its line, bytes have their stated size."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import layouts
import nvheader
import pytest
import values
from calltable import table
from hypothesis import given
from hypothesis import strategies as st
from tracefile import Block, Event, Expect, Item, Trace, TraceError, parse, parse_items, symbols

HEADER = {"driver": "580.105.08", "gpu": "Tesla T4", "date": "2026-11-21", "program": "none", "made-by": "hand"}
HEAD = "cgpu-trace 1\n" + "".join(f"{key} {value}\n" for key, value in HEADER.items())

names = st.from_regex(r"[a-z]{1,8}[0-9]{1,3}", fullmatch=True)
counts = st.integers(1, 5000)
notes = st.one_of(st.just(""), st.from_regex(r"[a-z][a-z ,:]{0,30}[a-z]", fullmatch=True))
items = st.one_of(
    st.builds(Item, st.just("word"), st.from_regex(r"[0-9a-f]{8}", fullmatch=True), counts),
    st.builds(Item, st.just("byte"), st.from_regex(r"[0-9a-f]{2}", fullmatch=True), counts),
    st.builds(Item, st.just("symbol"), names.map(lambda n: f"${n}")),
    st.builds(Item, st.just("symbol"), st.builds(lambda n, v: f"${n}!{v:08x}", names, st.integers(0, 2**32 - 1))),
    st.builds(Item, st.just("symbol"), st.builds(lambda n, v: f"${n}+{v:#x}", names, st.integers(1, 2**32))),
    st.builds(Item, st.just("fd"), names.map(lambda n: f"@{n}")),
    st.builds(Item, st.just("text"), st.from_regex(r'"[ -!#-~]{0,20}"', fullmatch=True)),
    st.builds(Item, st.just("pointer"), st.just("&")),
    st.builds(Item, st.just("any"), st.just("?"), counts),
)
contents = st.lists(items, max_size=6)
paths = st.one_of(names, st.builds(lambda n, o: f"{n}@{o}", names, st.integers(0, 99)))
in_blocks = st.builds(lambda p, i: Block("in", p, i, 0, sum(x.size for x in i)), paths, contents)
out_blocks = st.builds(Block, st.sampled_from(["out", "cgpu"]), paths, contents, st.integers(0, 9999))
plain_values = st.from_regex(r"0x[0-9a-f]{1,8}(:[A-Z_]{1,9})?|-1|\$[a-z]{1,6}[0-9]!?|@[a-z]{1,6}[0-9]", fullmatch=True)
fields = st.dictionaries(names, plain_values, max_size=4)
results = st.one_of(st.just({"ok": ""}), st.just({"errno": "EINVAL"}), st.dictionaries(names, plain_values, min_size=1))
expects = st.builds(Expect, st.sampled_from(["cgpu", "nvsim"]), st.booleans(), results, notes)
calls = st.builds(
    Event,
    st.just("call"),
    st.builds(lambda n, c: [f"@{n}", c], names, st.sampled_from(["0x2b/48:NV_ESC_RM_ALLOC", "0xee/0"])),
    fields,
    results,
    notes,
    st.lists(st.one_of(in_blocks, out_blocks), max_size=4),
    st.lists(expects, max_size=2),
)
plain = st.one_of(
    st.builds(lambda n: Event("open", [f"@{n}", "nvidiactl"]), names),
    st.builds(lambda n: Event("close", [f"@{n}"]), names),
    st.builds(lambda n, f: Event("mmap", ["$addr1", f"@{n}"], f), names, fields),
    st.builds(lambda n: Event("check", [], {"bytes": str(n)}), counts),
    st.just(Event("exit")),
)
events = st.recursive(
    st.lists(st.one_of(calls, plain), max_size=4),
    lambda inner: st.lists(
        st.one_of(calls, plain, st.builds(lambda n, b: Event("repeat", [str(n)], body=b), counts, inner)), max_size=4
    ),
    max_leaves=6,
)


@given(events)
def test_what_is_written_is_read(found):
    trace = Trace(HEADER, found)
    assert parse(trace.text()) == trace


@given(contents)
def test_items(found):
    assert parse_items(" ".join(map(str, found))) == found


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        parse(HEAD + text)
    except TraceError as err:
        assert str(err).startswith("trace:")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("opne @ctl1 nvidiactl", 7, "no verb"),
        ("open @ctl1", 7, "words"),
        ("call @ctl1 0x2b/48:NV_ESC_RM_ALLOC class=0x41", 7, "needs a result"),
        ("  in params 4: 00000000", 7, "without a call"),
        ("call @a1 0x1/8 -> ok\n  in arg 8: 00000000", 8, "4 bytes, 8 are announced"),
        ("call @a1 0x1/8 -> ok\n  in arg: 00000000", 8, "has a size"),
        ("call @a1 0x1/8 -> ok\n  in arg 4: xyz", 8, "no item"),
        ("expect cgpu ok\nclose @ctl1", 8, "expect stands before"),
        ("end", 7, "without repeat"),
        ("repeat often\nend", 7, "how often"),
        ("call @a1 0x1/8 a=1 a=2 -> ok", 7, "no field"),
    ],
)
def test_what_is_wrong_is_named_by_line(text, line, what):
    with pytest.raises(TraceError, match=what) as caught:
        parse(HEAD + text + "\n", "some.trace")
    assert str(caught.value).startswith(f"some.trace:{line}:")


def test_an_open_repeat_or_a_lone_expect_at_the_end():
    for text in ("repeat 2\n", "expect cgpu ok\n"):
        with pytest.raises(TraceError, match="ends too early"):
            parse(HEAD + text)


class Fixed:
    """Names with values."""

    def __init__(self):
        self.bound = {"client1": 0xC1D00001, "va1": 0x123456789000, "gpu0.uuid": bytes(range(16))}

    def symbol(self, name):
        return self.bound[name]

    def bind(self, name, value):
        self.bound[name] = value

    def fd(self, name):
        return {"ctl1": 3}[name]


def call_of(text: str) -> Event:
    return parse(HEAD + text + "\n").events[0]


def test_a_struct_is_built_with_its_blocks():
    event = call_of(
        "call @ctl1 0x2b/48:NV_ESC_RM_ALLOC root=$client1 parent=$client1 new=$mem1!5c000001 class=0x40 -> status=0x0\n"
        '  in params 32: $va1+0x10 @ctl1 ff*2 00*2 "ok" 00*14'
    )
    built = values.build(event, values.target(event, "nvidiactl"), names := Fixed())
    assert built.top.hex(" ", 4).split()[:4] == ["0100d0c1", "0100d0c1", "0100005c", "40000000"]
    assert built.top[32:36] == (32).to_bytes(4, "little"), "params_size is the block's"
    assert built.blocks["params"].hex() == "109078563412000003000000ffff00006f6b" + "00" * 14
    assert built.pointers == {"params": ("", 16)}
    assert names.bound["mem1"] == 0x5C000001


def test_what_is_mapped_is_what_a_call_said_of_the_file():
    """So that a mmap is skipped with the call before it, until the file is opened anew."""
    call = "call @ctl1 0x4e/56:NV_ESC_RM_MAP_MEMORY client=$client1 memory=$mem1 length=0x1000 fd=@ctl2 -> status=0x0"
    assert symbols(call_of(call)) == ({"client1", "mem1"}, {"@ctl2"})
    assert symbols(call_of("mmap $addr1 @ctl2 length=0x1000")) == ({"@ctl2"}, {"addr1"})
    assert symbols(call_of("open @ctl2 nvidiactl")) == (set(), {"@ctl2"})


def test_answers_are_held_against_the_record():
    event = call_of(
        "call @ctl1 0x2b/48:NV_ESC_RM_ALLOC class=0x41 -> new=$client2! status=0x0\n"
        "  in params 16: 00000000*4\n  out params+0x4: $client2 ?*4 000000ff"
    )
    names = Fixed()
    built = values.build(event, values.target(event, "nvidiactl"), names)
    built.top[8:12] = (77).to_bytes(4, "little")
    assert values.result_wrong(event.result, built, 0, names) == ""
    assert names.bound["client2"] == 77
    block = event.block("out", "params")
    answer = bytes.fromhex("000000004d00000012345678ff000000")
    assert values.block_wrong(block, answer, names) == ""
    assert "000000fe" in values.block_wrong(block, answer.replace(b"\xff", b"\xfe"), names)
    built.top[40] = 0x51
    assert values.result_wrong(event.result, built, 0, names) == "status 0x51, recorded 0x0"
    assert values.result_wrong(event.result, built, 22, names) == "errno EINVAL, recorded none"
    assert values.result_wrong({"errno": "EINVAL"}, built, 0, names) == "errno none, recorded EINVAL"


@pytest.mark.parametrize("way", [layouts.IOCTL, layouts.UVM])
def test_layouts_are_the_tables(way):
    """Each layout has the size of a row, and its status and file at the row's offsets."""
    rows = table("escape" if way == layouts.IOCTL else "uvm")
    for number, size in layouts.ESCAPES if way == layouts.IOCTL else layouts.UVM_CALLS:
        fields = {f.name: f for f in layouts.fields(way, number, size)}
        mine = [r for r in rows if r.number == number and r.size == size and r.last >= 535]
        assert mine, f"{way} {number:#x}/{size}: no row"
        # One call has its status elsewhere before 550, in a struct of the same size: the newer one is the layout's.
        if mine[-1].status_at and "status" in fields:
            assert fields["status"].at == mine[-1].status_at, mine[-1]
        if mine[-1].fd_kind in ("CTL", "GPU", "RM", "UVM"):
            assert [f.at for f in fields.values() if f.kind == "fd"] == [mine[-1].fd_at], mine[-1]


def places(ctype: type[ctypes.Structure], at: int = 0) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each field, of structs within too."""
    for name, kind, *_ in ctype._fields_:
        here = at + getattr(ctype, name).offset
        yield here, ctypes.sizeof(kind)
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            yield from places(kind, here)


@pytest.mark.parametrize("way, number, size", [
    *((layouts.IOCTL, *key) for key in layouts.ESCAPES if key != (214, 8)),  # one number, in no header of ours
    *((layouts.UVM, *key) for key in layouts.UVM_CALLS),
])  # fmt: skip
def test_fields_are_where_a_struct_of_the_headers_has_some(way: str, number: int, size: int):
    """make test-abi compares those with NVIDIA's sources."""
    fields = {(field.at, field.size) for field in layouts.fields(way, number, size)}
    structs = [one.ctype for one in nvheader.structs(*nvheader.ALL).values() if ctypes.sizeof(one.ctype) == size]
    assert any(fields <= set(places(ctype)) for ctype in structs)
