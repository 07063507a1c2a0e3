# SPDX-License-Identifier: MIT
"""Calls as cgpu_km makes them: nvidia_get_rm_ops()'s op, with the layouts of the module's own table."""

from __future__ import annotations

import struct

import nvclient as nv
from calltable import C, lib
from rm import Rm

OP_BYTES, UNION = 72, 8


class KernelClient:
    """The module's client, device and subdevice on one card."""

    DEVICE, SUBDEVICE = 0xC6700001, 0xC6700002

    def __init__(self, rm: Rm, index: int = 0):
        self.rm = rm
        self.abi = lib.cgpu_call_abi(int(rm.branch))
        status, self.handle = self.alloc(0, 0, 0, nv.NV01_ROOT_CLIENT)
        nv.check("op: RM_ALLOC(0x41)", status)
        status, _ = self.alloc(self.handle, self.handle, self.DEVICE, nv.NV01_DEVICE_0, bytes(nv.DeviceParams(index)))
        nv.check("op: RM_ALLOC(0x80)", status)
        status, _ = self.alloc(self.handle, self.DEVICE, self.SUBDEVICE, nv.NV20_SUBDEVICE_0, bytes(4))
        nv.check("op: RM_ALLOC(0x2080)", status)

    def alloc(self, client: int, parent: int, handle: int, cls: int, params: bytes = b"") -> tuple[int, int]:
        op = bytearray(OP_BYTES)
        struct.pack_into("<II4I", op, 0, C.NV04_ALLOC, 0, client, parent, handle, cls)
        struct.pack_into("<I", op, UNION + self.abi.op_alloc_params_size, len(params))
        data, _ = self.rm.kernel(bytes(op), [(UNION + 16, params)] if params else [])
        (status,) = struct.unpack_from("<I", data, UNION + self.abi.op_alloc_status)
        return status, struct.unpack_from("<I", data, UNION + 8)[0]

    def free(self, client: int, parent: int, handle: int) -> int:
        op = struct.pack("<II4I", C.NV01_FREE, 0, client, parent, handle, 0).ljust(OP_BYTES, b"\0")
        return struct.unpack_from("<I", self.rm.kernel(op)[0], UNION + 12)[0]

    def control(self, client: int, handle: int, cmd: int, params: bytes, nested=()) -> tuple[int, bytes]:
        """The status and the params afterwards; nested buffers afterwards are in .nested."""
        op = struct.pack("<II4IQII", C.NV04_CONTROL, 0, client, handle, cmd, 0, 0, len(params), 0)
        buffers = [(UNION + 16, params)] + [(offset | 1 << 16, data) for offset, data in nested]
        data, out = self.rm.kernel(op.ljust(OP_BYTES, b"\0"), buffers)
        self.nested = out[1:]
        return struct.unpack_from("<I", data, UNION + 28)[0], out[0]

    def share(self, client: int, handle: int, to: int, end: bool = False) -> int:
        """Lend an object to another client for dups, or end that (rm_calls: ckm_rm_lend)."""
        action = C.RS_SHARE_ACTION_FLAG_COMPOSE | (C.RS_SHARE_ACTION_FLAG_REVOKE if end else 0)
        op = struct.pack(
            "<II4IHBBI", C.NV04_SHARE, 0, client, handle, to, C.NV_SHARE_MAY_DUP, C.RS_SHARE_TYPE_CLIENT, action, 0, 0
        )
        return struct.unpack_from("<I", self.rm.kernel(op.ljust(OP_BYTES, b"\0"))[0], UNION + 20)[0]

    def close(self) -> None:
        self.free(self.handle, self.handle, self.handle)
