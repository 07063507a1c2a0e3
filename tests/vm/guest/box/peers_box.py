# SPDX-License-Identifier: MIT
"""A container with slices of two GPUs, and what nvidia-uvm needs before one reaches the other's memory."""

from __future__ import annotations

from typing import Self

from slicebox import MIB, PROC, command, fresh_id, until
from slicebox import nvclient as nv

PAIR, NO_NUMBER = 0x47, 0xFFFFFFFF  #: GET_P2P_CAPS: reads and writes over PCIe; no number of a peer
ENABLE, DISABLE = 29, 30  #: UVM_ENABLE_PEER_ACCESS, UVM_DISABLE_PEER_ACCESS
NV_ERR_INVALID_DEVICE = 0x26


class Pair:
    """with Pair(64, 128) as pair: so much of GPU 0 and of GPU 1. At the end nothing may be charged any more."""

    def __init__(self, mib: int, second_mib: int = 0) -> None:
        """@second_mib: 0: as @mib."""
        self.name = fresh_id()
        command(f"create {self.name} gpu=0,1 memsize={mib * MIB},{(second_mib or mib) * MIB}")
        self.dev = f"/dev/cgpu/{self.name[:12]}"

    def stat(self, key: str, gpu: int = 0) -> int:
        text = (PROC / str(gpu) / self.name[:12] / "stat").read_text()
        return int(dict(line.split() for line in text.splitlines())[key])

    def used(self) -> tuple[int, int]:
        return self.stat("used_bytes"), self.stat("used_bytes", gpu=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            until(lambda: self.used() == (0, 0))
        finally:
            command(f"destroy {self.name}")
        # Its last file may be closed after its process has ended.
        until(lambda: not (PROC / "0" / self.name[:12]).exists())


def shared_space(space: nv.Space, other: nv.Gpu) -> nv.Uvm:
    """The address space's nvidia-uvm file, with an address space of the other GPU too."""
    params = nv.in_branch(nv.FERMI_VASPACE_A, nv.VaspaceParams(flags=nv.VASPACE_FLAGS), other.rm.branch)
    status, vaspace = other.rm.alloc(nv.FERMI_VASPACE_A, other.device, params)
    nv.check("RM_ALLOC(0x90f1)", status)
    nv.check("UVM_REGISTER_GPU", space.uvm.register_gpu(other.uuid))
    nv.check("UVM_REGISTER_GPU_VASPACE", space.uvm.register_vaspace(other.uuid, other.rm, vaspace))
    return space.uvm


def access(uvm: nv.Uvm, call: int, one: nv.Gpu, other: nv.Gpu) -> int:
    """ENABLE or DISABLE between the two: status."""
    params = bytearray(one.uuid + other.uuid + bytes(4))
    assert uvm.raw(call, params) == 0
    return int.from_bytes(params[32:], "little")
