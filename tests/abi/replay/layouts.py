# SPDX-License-Identifier: MIT
"""Fields of the structs that calls take, by the call's number and the struct's size.

Source: nvos.h, nv-ioctl.h, nv-unix-nvos-params-wrappers.h, uvm_ioctl.h and uvm_linux_ioctl.h of the public driver,
branches 535 to 595. A call without a layout is one block of bytes, `arg`.

A field is name:kind and marks. Kinds: u8 u16 u32 (the default) s32 u64; h handle; addr an address; fd a file that the
driver looks up; ptr a pointer to a block of the field's name; uuid 16 bytes; tN text; bN a block in the struct itself;
_N bytes that are not read. Marks: > written by the driver, < read by it (the default).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

SIZES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "h": 4, "addr": 8, "fd": 4, "ptr": 8, "uuid": 16}
IOCTL, UVM = "ioctl", "uvm"

ALLOC_MEMORY, RM_ALLOC, RM_CONTROL, RM_FREE, XFER = 0x27, 0x2B, 0x2A, 0x29, 211

# fmt: off
ESCAPES = {
    (0x27, 56): "root:h parent:h new:h<> class flags _4 memory:addr limit:u64 status> _4 fd:fd _4",
    (0x29, 16): "root:h parent:h old:h status>",
    (0x2A, 32): "client:h object:h cmd flags params:ptr params_size status>",
    (0x2B, 32): "root:h parent:h new:h<> class params:ptr params_size status>",
    (0x2B, 48): "root:h parent:h new:h<> class params:ptr rights:ptr params_size flags status> _4",
    (0x34, 28): "client:h parent:h new:h<> client_src:h source:h flags status>",
    (0x4A, 184): "root:h parent:h function vaspace:h ivc_heap:u16 _2 status> total:u64> free:u64> data:b144<>",
    (0x4E, 56): "client:h device:h memory:h _4 offset:u64 length:u64 address:addr<> status> flags fd:fd _4",
    (0x4F, 32): "client:h device:h memory:h _4 address:addr status> flags",
    (0x52, 16): "event:ptr more> status>",
    (0x57, 56): "client:h device:h dma:h memory:h offset:u64 length:u64 flags _4 dma_offset:addr<> status> _4",
    (0x57, 64): "client:h device:h dma:h memory:h offset:u64 length:u64 flags flags2 kind _4 dma_offset:addr<> "
                "status> _4",
    (0x58, 40): "client:h device:h dma:h memory:h flags _4 dma_offset:addr status> _4",
    (0x58, 48): "client:h device:h dma:h memory:h flags _4 dma_offset:addr size:u64 status> _4",
    (0x5E, 40): "client:h device:h memory:h _4 old:addr new_address:addr status> _4",
    (201, 4): "ctl_fd:fd",
    (206, 16): "client:h device:h fd status>",
    (207, 16): "client:h device:h fd status>",
    (210, 72): "cmd reply> text:t64<>",
    (213, 8): "intr> status>",
    (214, 8): "memblock_size:u64>",
    (218, 8): "rc> adapter_status>",
}
RANGE = "base:addr length:u64 status> _4"
UVM_CALLS = {
    (23, 16): "id:u64> status> _4",
    (24, 16): "id:u64 status> _4",
    (25, 32): "uuid:uuid ctl_fd:fd client:h vaspace:h status>",
    (26, 20): "uuid:uuid status>",
    (27, 56): "uuid:uuid ctl_fd:fd client:h channel:h _4 base:addr length:u64 status> _4",
    (28, 12): "client:h channel:h status>",
    (28, 28): "uuid:uuid client:h channel:h status>",
    (29, 36): "uuid_a:uuid uuid_b:uuid status>",
    (30, 36): "uuid_a:uuid uuid_b:uuid status>",
    (31, 32): "id:u64 base:addr length:u64 status> _4",
    (33, 1200): "base:addr length:u64 offset:u64 attributes:b1152 gpu_count:u64 ctl_fd:fd client:h memory:h status>",
    (33, 9264): "base:addr length:u64 offset:u64 attributes:b9216 gpu_count:u64 ctl_fd:fd client:h memory:h status>",
    (34, 16): "base:addr status> _4",
    (34, 24): RANGE,
    (37, 40): "uuid:uuid numa_enabled:u8> _3 numa_node:s32> ctl_fd:fd client:h smc_part:h status>",
    (38, 20): "uuid:uuid status>",
    (39, 8): "access:u8> _3 status>",
    (42, 40): "base:addr length:u64 uuid:uuid cpu_node:s32 status>",
    (43, 24): RANGE,
    (44, 24): RANGE,
    (45, 24): RANGE,
    (46, 40): "base:addr length:u64 uuid:uuid status> _4",
    (47, 40): "base:addr length:u64 uuid:uuid status> _4",
    (51, 80): "base:addr length:u64 uuid:uuid flags _4 semaphore:addr payload cpu_node:s32 user_base:u64> "
              "user_length:u64> status> _4",
    (65, 40): "base:addr length:u64 uuid:uuid status> _4",
    (66, 40): "base:addr length:u64 uuid:uuid status> _4",
    (70, 24): "uuid:uuid access:u8> _3 status>",
    (72, 24): RANGE,
    (73, 24): RANGE,
    (75, 8): "uvm_fd:fd status>",
    (80, 32): "base:addr length:u64 flags:u64 status> _4",
    (0x30000001, 16): "flags:u64 status> _4",
}
# fmt: on

# Pointers inside parameters: cmd: [(offset of the pointer, offset of the count, bytes of an element, written back)].
# ctrl0000system.h, ctrl0080gpu.h, ctrl0080fifo.h, ctrl2080gpu.h, ctrl2080fb.h, ctrl2080gr.h, ctrl0041.h, ctrl906f.h
POINTERS = {
    0x101: [(8, 0, 1, True), (16, 0, 1, True), (24, 0, 1, True)],
    0x410110: [(8, 0, 8, True)],
    0x800201: [(8, 0, 4, True)],
    0x80170D: [(8, 0, 4, False), (16, 0, 4, True)],
    0x20800123: [(8, 0, 4, True)],
    0x20801201: [(8, 0, 8, True)],
    0x20801301: [(8, 0, 8, True)],
    0x20801802: [(8, 0, 8, True)],
}


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    at: int
    size: int
    read: bool
    written: bool


@functools.cache
def fields(way: str, number: int, size: int) -> tuple[Field, ...] | None:
    """The struct's fields without gaps; None: bytes."""
    text = (ESCAPES if way == IOCTL else UVM_CALLS).get((number, size))
    if text is None:
        return None
    found, at = [], 0
    for word in text.split():
        marks = re.search(r"[<>]*$", word)[0]
        name, _, kind = word.removesuffix(marks).partition(":")
        if name.startswith("_"):
            at += int(name[1:])
            continue
        kind = kind or "u32"
        bytes_ = int(kind[1:]) if kind[0] in "bt" else SIZES[kind]
        found.append(Field(name, kind[0] if kind[0] in "bt" else kind, at, bytes_, marks != ">", ">" in marks))
        at += bytes_
    assert at == size, f"{way} {number:#x}: the layout has {at} bytes of {size}"
    return tuple(found)


def request(number: int, size: int) -> int:
    """_IOWR('F', number, size)"""
    return 3 << 30 | size << 16 | ord("F") << 8 | number
