# SPDX-License-Identifier: MIT
"""Pages of a size that a chip does not have: what RM answers, and that the module refuses exactly those before RM."""

import struct

import nvclient as nv
import pytest
from calltable import C, lib
from client import ALLOC_VIRTUAL, ATTR_NONCONTIGUOUS, CLASS_VIRTUAL, Client
from kernel import KernelClient
from rm import BRANCHES, Rm

NV_ERR_STATE_IN_USE = 0x63

MIB = 1 << 20
ARCHITECTURES = {"TU104": 0x160, "GA100": 0x170, "GA102": 0x170, "GH100": 0x180, "AD102": 0x190}
HUGE = 3 << 23
#: (attr, attr2)
PAGES = {
    "default": (0, 0), "4K": (1 << 23, 0), "big": (2 << 23, 0), "huge": (HUGE, 0), "2M": (HUGE, 1 << 20),
    "512M": (HUGE, 2 << 20), "big, 512M": (2 << 23, 2 << 20),
}  # fmt: skip


def video(gpu, attr, attr2):
    return gpu.memory(MIB, attr=attr, attr2=attr2)[0]


def system(gpu, attr, attr2):
    return gpu.memory(MIB, nv.NV01_MEMORY_SYSTEM, attr=attr | nv.ATTR_LOCATION_PCI | ATTR_NONCONTIGUOUS, attr2=attr2)[0]


def virtual(gpu, attr, attr2):
    rm = gpu.rm
    space = gpu.space()
    params = nv.MemoryParams(owner=rm.handle, size=1 << 30, flags=ALLOC_VIRTUAL, vaspace=space, attr=attr, attr2=attr2)
    return rm.alloc(CLASS_VIRTUAL, gpu.device, params)[0]


def module_has(chip, pages):
    return lib.cgpu_call_has_page_size(ARCHITECTURES[chip], *PAGES[pages])


def test_architecture_as_the_module_learns_it(machine):
    """MC_GET_ARCH_INFO from the kernel, on the module's own subdevice."""
    module = KernelClient(machine.rm)
    params = bytes(machine.rm.control_info(C.NV2080_CTRL_CMD_MC_GET_ARCH_INFO)[3])
    assert len(params) == 16
    status, data = module.control(module.handle, module.SUBDEVICE, C.NV2080_CTRL_CMD_MC_GET_ARCH_INFO, params)
    module.close()
    assert (status, struct.unpack_from("<I", data)[0]) == (0, ARCHITECTURES[machine.chip])


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("kind", [video, virtual])
def test_the_module_refuses_what_rm_refuses(machine, kind, pages):
    """Video memory that the module refuses is in the test below: it can take the GPU's lock away."""
    gpu = machine.client().gpu()
    if module_has(machine.chip, pages):
        assert kind(gpu, *PAGES[pages]) == 0
    elif kind is not video:
        assert kind(gpu, *PAGES[pages]) == C.NV_ERR_INVALID_STATE


def test_system_memory_has_no_such_pages(machine):
    """On no chip, and the GPU's lock comes back: this the module leaves to RM where the chip has 512 MiB pages."""
    gpu = machine.client().gpu()
    assert system(gpu, *PAGES["512M"]) == C.NV_ERR_INVALID_STATE
    assert video(gpu, *PAGES["default"]) == 0


def test_chips_without_pages_of_512_mib():
    assert [chip for chip in ARCHITECTURES if not module_has(chip, "512M")] == ["TU104"]
    assert not lib.cgpu_call_has_page_size(0, *PAGES["512M"]), "of an unknown architecture"
    assert lib.cgpu_call_has_page_size(0, *PAGES["2M"])


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_page_size_that_the_chip_lacks(tmp_path, branch):
    """512 MiB pages on Turing: refused. 535 keeps the GPU's lock on that path, and every later call fails."""
    with Rm(branch, "TU104", log=tmp_path / "log") as rm:
        assert rm.start()
        gpu = Client(rm).gpu()
        assert video(gpu, *PAGES["512M"]) == C.NV_ERR_INVALID_STATE
        assert video(gpu, *PAGES["default"]) == (NV_ERR_STATE_IN_USE if branch == "535" else 0)
