# SPDX-License-Identifier: MIT
"""Each allocation of the module, and each copy to or from user space, fails once in the life of a container.

A step of that life runs again and again, each time with the next call failing (failbox.py). The process must get an
error; no charge, memory of the card, container or allocation may be left; the last run, without a fault, must succeed.
What only gives something back must not allocate. On the debug kernel, which watches memory, the allocations fail too
that the kernel or the simulated driver makes in a call of the module.
"""

from __future__ import annotations

import asyncio
import os
import select
import struct
from collections.abc import Callable, Iterator

import pytest
from corebox import NEXT, OLD, insmod, leave_only_the_product, running, swap
from failbox import Injector, Step, each
from slicebox import MIB, PROC, Box, command, fb_used, until
from slicebox import nvclient as nv

from cgpu_common.kernel_abi import G, S
from cgpu_common.model import SlotWant
from cgpu_common.netlink import NetlinkLink
from cgpu_common.policies import TABLE, Policy

pytestmark = [pytest.mark.long, pytest.mark.debug_ok, pytest.mark.needs("ftrace")]

ID = "e5" * 32
OTHER = "0e" * 32
LIMIT_MIB = 256
OS_EVENT = 0x79
EXPORT_ONE, IMPORT_ONE = 0x3D05, 0x3D06


# ---- the steps: calls fail from the yield on ----


def attach(box: None) -> Step:
    """The first container of all GPUs, by inst_ctl."""
    yield
    command(f"create {ID} gpu=0 memsize={LIMIT_MIB * MIB} weight=1")
    command(f"destroy {ID}")


def beside(box: Box) -> Step:
    """One more container, by inst_ctl."""
    yield
    command(f"create {OTHER} gpu=0 memsize={LIMIT_MIB * MIB} weight=1 highprio=0 cookie=7")
    command(f"destroy {OTHER} cookie=7")


def netlink(box: Box) -> Step:
    """The same by netlink, with every setting."""
    link, loop = NetlinkLink(), asyncio.new_event_loop()
    loop.run_until_complete(link.gpus())
    yield

    async def life() -> None:
        await link.create(OTHER, 7, [SlotWant(gpu=0, nv_minor=0, limit=LIMIT_MIB * MIB, weight=1, highprio=False)])
        await link.set(OTHER, 7, {0: {S.LIMIT: 64 * MIB, S.WEIGHT: 2}})
        await link.set_gpu(0, {G.POLICY: 2, G.SLICE_US: 4000})
        assert len(await link.list()) == 2 and await link.gpus()
        await link.set_gpu(0, {G.POLICY: 5, G.SLICE_US: 0})
        assert await link.destroy(OTHER, 7)

    loop.run_until_complete(life())


def settings(box: Box) -> Step:
    """Every policy, and every node that is written."""
    yield
    for policy in sorted(TABLE, key=lambda one: one == Policy.NATIVE):
        (PROC / "0/policy").write_text(str(policy))
    for name in ("max_inst", "prio_ratio", "slice_us", "overcommit", "default_memsize", "uvm"):
        path = PROC / "0" / name
        path.write_text(path.read_text())
    for name in ("memsize", "weight", "highprio"):
        path = box.proc / name
        path.write_text(path.read_text())


def reads(box: Box) -> Step:
    """Every node below /proc, with a process that has a context."""
    box.client().gpu(0).space().group().channel()
    yield
    for path in (*PROC.iterdir(), *(PROC / "0").iterdir(), *box.proc.iterdir()):
        if path.is_file():
            path.read_text()


def nodes(box: Box) -> Step:
    """The nodes of the GPU."""
    yield
    with nv.Ctl(box.dev) as ctl, nv.Uvm(box.dev):
        assert ctl.cards()
        with nv.Node("nvidia0", box.dev) as node:
            node.register(ctl)


def client(box: Box) -> Step:
    """A client with a device, and the questions that a program asks first."""
    yield
    with box.client() as rm:
        gpu = rm.gpu(0)
        assert gpu.name() and gpu.memory()["total"] == LIMIT_MIB * MIB
        gpu.processes()


def memory(box: Box) -> Step:
    """Memory that is allocated, passed on, mapped for the processor and the GPU, and freed."""
    rm = box.client()
    gpu = rm.gpu(0)
    space = gpu.space()
    yield
    status, handle = gpu.alloc_vidmem(4 * MIB)
    nv.check("RM_ALLOC", status)
    status, dup = rm.dup(gpu.device, rm, handle)
    nv.check("RM_DUP_OBJECT", status)
    with gpu.open_node() as node:
        node.register(rm.ctl)
        nv.check("RM_MAP_MEMORY", rm.map_memory(node, gpu.device, dup, 2 * MIB)[0])
        node.mmap(2 * MIB).close()
    status, va = rm.map_dma(gpu.device, space.vaspace, handle, 2 * MIB)
    nv.check("RM_MAP_MEMORY_DMA", status)
    nv.check("RM_UNMAP_MEMORY_DMA", rm.unmap_dma(gpu.device, space.vaspace, handle, va))
    nv.check("RM_FREE", gpu.free(handle))
    nv.check("RM_FREE", gpu.free(dup))


def uvm(box: Box) -> Step:
    """An address space, memory mapped into it, a pool of semaphores, managed memory."""
    gpu = box.client().gpu(0)
    status, handle = gpu.alloc_vidmem(2 * MIB)
    nv.check("RM_ALLOC", status)
    yield
    space = gpu.space()
    status, base = space.map(handle, 2 * MIB)
    nv.check("UVM_MAP_EXTERNAL_ALLOCATION", status)
    pool = nv.reserve(2 * MIB)
    nv.check("UVM_ALLOC_SEMAPHORE_POOL", space.uvm.pool(pool, 2 * MIB))
    space.uvm.mapped(pool, 2 * MIB).close()
    managed = space.uvm.managed(4 * MIB)
    nv.check("UVM_MIGRATE", space.uvm.migrate(gpu.uuid, managed.addr, 4 * MIB))
    managed.unmap(2 * MIB, 2 * MIB)
    managed.close()
    nv.check("UVM_FREE", space.unmap(base))
    space.close()


def channel(box: Box) -> Step:
    """A group with a channel, and work on it."""
    space = box.client().gpu(0).space()
    yield
    group = space.group()
    ring = group.channel()
    ring.submit(kernel_ns=100_000, count=4)
    ring.wait()
    ring.close()
    group.close()


def events(box: Box) -> Step:
    """An event that a process waits for."""
    gpu = box.client().gpu(0)
    yield
    with nv.Ctl(box.dev) as listener:
        listener.register(gpu.rm.ctl)
        arg = nv.OsEvent(client=gpu.rm.handle, fd=listener.fd)
        listener.call(nv.NV_ESC_ALLOC_OS_EVENT, arg)
        nv.check("ALLOC_OS_EVENT", arg.status)
        params = nv.EventParams(gpu.rm.handle, gpu.subdevice, OS_EVENT, 0, listener.fd)
        status, event = gpu.rm.alloc(OS_EVENT, gpu.subdevice, params)
        nv.check("RM_ALLOC(0x79)", status)
        assert select.select([listener.fd], [], [], 0) == ([], [], [])
        nv.check("RM_FREE", gpu.rm.free(event, gpu.subdevice))


def ipc(box: Box) -> Step:
    """Memory passed on by a control file, and as a dma-buf."""
    rm = box.client()
    gpu = rm.gpu(0)
    status, handle = gpu.alloc_vidmem(2 * MIB)
    nv.check("RM_ALLOC", status)
    yield
    with nv.Ctl(box.dev) as carrier:
        params = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, handle, carrier.fd, 0)
        nv.check("EXPORT", rm.control(rm.handle, EXPORT_ONE, params)[0])
        params = struct.pack("<iIIII", carrier.fd, 1, gpu.device, gpu.device, 0)
        nv.check("IMPORT", rm.control(rm.handle, IMPORT_ONE, params)[0])
    status, fd = gpu.export_dmabuf(handle, size=2 * MIB)
    nv.check("EXPORT_TO_DMABUF_FD", status)
    os.close(fd)


def used_client(box: Box) -> nv.Client:
    """A client with work, memory and mappings."""
    gpu = box.client().gpu(0)
    ring = gpu.space().group().channel()
    ring.submit(kernel_ns=100_000, count=4)
    nv.check("RM_ALLOC", gpu.alloc_vidmem(4 * MIB)[0])
    return gpu.rm


def free_of_all(box: Box) -> Step:
    """Work, memory and mappings that end with their client."""
    rm = used_client(box)
    yield
    nv.check("RM_FREE", rm.free())


def exit_of_all(box: Box) -> Step:
    """Work, memory and mappings that end with their files."""
    rm = used_client(box)
    yield
    rm.close()


def core_swap(box: Box) -> Step:
    """To another core and back, with a channel."""
    if running() != OLD:  # the run before failed half way
        swap(OLD)
    box.client().gpu(0).space().group().channel()
    yield
    swap(NEXT)
    swap(OLD)


ALONE: tuple[Callable[..., Step], ...] = (attach,)
#: These only give back: they may not depend on memory.
GIVE_BACK = (free_of_all, exit_of_all)
USE = (beside, netlink, settings, reads, nodes, client, memory, uvm, channel, events, ipc, core_swap)
#: Where the kernel copies for the module: text by memdup_user_nul(), an allocation here, netlink, seq_file. Closing a
#: file copies nothing.
NO_COPIES = (attach, beside, netlink, settings, reads, core_swap, exit_of_all)
CASES = [
    pytest.param(step, kind, id=f"{step.__name__}-{kind}", marks=[pytest.mark.debug_only] if kind == "below" else [])
    for step in ALONE + USE + GIVE_BACK
    for kind in ("allocations", "copies", "below")
    if kind != "copies" or step not in NO_COPIES
]


@pytest.fixture
def injector(kind: str) -> Iterator[Injector]:
    with Injector(kind) as injector:
        yield injector


@pytest.fixture
def other_core() -> Iterator[None]:
    assert insmod("test_core_next")
    (PROC / "0/uvm").write_text("account\n")
    try:
        yield
    finally:
        (PROC / "0/uvm").write_text("deny\n")
        leave_only_the_product()


@pytest.mark.parametrize(("step", "kind"), CASES)
def test_each_call_fails(injector: Injector, kind: str, step: Callable[[Box | None], Step], other_core: None) -> None:
    before = fb_used()
    if step in ALONE:
        failed, unnoticed = each(injector, lambda: step(None), None)
    else:
        with Box(ID, LIMIT_MIB, weight=1) as box:
            failed, unnoticed = each(injector, lambda: step(box), box)
    until(lambda: fb_used() == before)
    print(f"{step.__name__}: {failed} {kind} failed; without an error: {unnoticed}")
    if kind == "below":  # the kernel has a second way for some of them: a smaller page, another allocator
        assert failed or step in GIVE_BACK
        return
    assert bool(failed) == (kind == "copies" or step not in GIVE_BACK)
    assert not unnoticed
