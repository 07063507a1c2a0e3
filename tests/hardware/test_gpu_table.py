# SPDX-License-Identifier: MIT
"""rmlever applies the module's call table in a process whose driver says yes to all."""

from __future__ import annotations

import pytest
from hw import probes

#: A class, a control, an escape and a uvm call that no table has, and one call of managed memory.
CALLS = """
import ctypes

rm = nv.Client().__enter__()
uvm = nv.Uvm(initialize=False)

def errno(call, *arg):
    try:
        call(*arg)
    except OSError as error:
        return error.errno
    return 0

print(rm.alloc(0xbad)[0], rm.alloc(0x503c)[0])
print(rm.control(rm.handle, 0x20ff0001, bytes(4))[0])
status, params = rm.control(rm.handle, 0xa06c0104, bytes([7]) + bytes(7))
print(status, int.from_bytes(params, "little"))
print(errno(rm.ctl.call, 0xfe, ctypes.c_uint64()))
print(uvm.raw(9999, bytearray(16)), uvm.raw(42, bytearray(40)))
"""
MAPPED = """
rm = nv.Client().__enter__()
status, thing = rm.alloc(0xbad)
node = nv.Node("nvidia0")
os.write(node.fd, b"card" * 1024)
print(status, rm.map_memory(node, rm.handle, thing, 4096)[0])
print(*(hex(node.mmap(4096).read32(0)) for _ in range(2)))
"""
INVALID_CLASS, NOT_SUPPORTED, EINVAL = 0x22, 0x56, 22
CARD = "0x64726163"
REFUSED = ["class=0xbad", "control=0x20ff0001", "escape=0xfe", "uvm=0x270f"]


def test_what_the_table_has_not_is_refused_each_in_its_way(start, tmp_path):
    log = tmp_path / "log"
    said = start(CALLS, RMLEVER_TABLE="account", RMLEVER_LOG=str(log)).said
    assert said[0] == f"{INVALID_CLASS} 0"
    assert said[1] == f"{NOT_SUPPORTED}"
    assert said[2] == "0 1024", "a tenant reads the default, not what the driver says"
    assert said[3] == f"{EINVAL}"
    assert said[4] == f"{EINVAL} 0", "managed memory is charged"
    assert probes.refused_calls(log) == REFUSED


def test_deny_is_about_managed_memory(start, tmp_path):
    log = tmp_path / "log"
    said = start(CALLS, RMLEVER_TABLE="deny", RMLEVER_LOG=str(log)).said
    assert said[4] == f"{EINVAL} {EINVAL}"
    assert probes.refused_calls(log) == [*REFUSED, "uvm=0x2a"]


def test_watching_changes_nothing_and_names_all(start, tmp_path):
    log = tmp_path / "log"
    plain, watched = start(CALLS).said, start(CALLS, RMLEVER_TABLE="watch", RMLEVER_LOG=str(log)).said
    assert watched == plain == ["0 0", "0", "0 7", "0", "0 0"]
    assert probes.refused_calls(log) == [*REFUSED, "uvm=0x2a"]


def test_without_the_variable_there_is_no_table(start, tmp_path):
    log = tmp_path / "log"
    start(CALLS, RMLEVER_LOG=str(log), RMLEVER_ALLOW="bad", RMLEVER_SPACE_FLAGS="3")
    assert not log.exists()


@pytest.mark.parametrize("allowed", REFUSED)
def test_what_is_allowed_is_forwarded_and_nothing_else(start, tmp_path, allowed):
    log = tmp_path / "log"
    number = allowed.split("=0x")[1]
    start(CALLS, RMLEVER_TABLE="account", RMLEVER_ALLOW=f"1234,{number}", RMLEVER_LOG=str(log))
    assert probes.refused_calls(log) == [one for one in REFUSED if one != allowed]


def test_an_empty_class_is_made_and_its_mapping_shows_zeros(start, tmp_path):
    log = tmp_path / "log"
    said = start(MAPPED, RMLEVER_TABLE="account", RMLEVER_EMPTY="bad", RMLEVER_LOG=str(log)).said
    assert said == ["0 0", f"0x0 {CARD}"], "the file's next mapping is its own"
    assert "zeros pid=" in log.read_text()


def test_a_class_that_is_not_empty_is_mapped_as_it_is(start):
    env = {"RMLEVER_TABLE": "account", "RMLEVER_ALLOW": "bad", "RMLEVER_EMPTY": "de"}
    assert start(MAPPED, **env).said == ["0 0", f"{CARD} {CARD}"]


@pytest.mark.parametrize(("env", "flags"), [({}, 3), ({"RMLEVER_SPACE_FLAGS": "1"}, 1)])
def test_the_flags_of_the_space_are_added(start, env, flags):
    program = (
        "uvm, arg = nv.Uvm(initialize=False), nv.UvmInitialize(8)\nuvm.uvm(nv.UVM_INITIALIZE, arg)\nprint(arg.flags)"
    )
    assert start(program, RMLEVER_TABLE="account", **env).said == [str(8 | flags)]
    assert start(program, RMLEVER_TABLE="watch", **env).said == ["8"]


@pytest.mark.parametrize(("env", "status"), [({}, 0x10006), ({"RMLEVER_MM_STATUS": "0"}, 0)])
def test_the_table_answers_mm_initialize(start, env, status):
    program = "one = nv.Uvm(initialize=False)\nprint(one.mm_initialize(one))"
    assert start(program, RMLEVER_TABLE="account", **env).said == [str(status)]


def test_shared_data_shows_zeros_without_being_named(start):
    program = MAPPED.replace("0xbad", "0xde")
    assert start(program, RMLEVER_TABLE="account").said == ["0 0", f"0x0 {CARD}"]
    assert start(program, RMLEVER_TABLE="watch").said == ["0 0", f"{CARD} {CARD}"]


def test_mm_initialize_is_answered_with_a_status(start, tmp_path):
    log = tmp_path / "log"
    program = "one = nv.Uvm(initialize=False)\nprint(hex(one.mm_initialize(one)))"
    assert start(program, RMLEVER_MM_INITIALIZE="10006", RMLEVER_LOG=str(log)).said == ["0x10006"]
    assert "status=0x10006" in log.read_text()
