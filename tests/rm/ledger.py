# SPDX-License-Identifier: MIT
"""What the module keeps of a container's objects, memory, mappings and OS events: its own tree and charges, compiled,
and the few lines around them of cgpu_km/intercept and cgpu_km/state as Python.

The names in comments are the module's functions that a method stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calltable import C, ffi, lib


@dataclass
class Memory:
    """struct ckm_mem: a charge that lives as long as a reference."""

    core: object
    host_bytes: int = 0
    under: Memory | None = None  #: a channel's keeps that of its TSG


@dataclass
class Object:
    """struct ckm_obj."""

    core: object
    file: int
    deps: object  #: what core.deps leads to
    memory: Memory | None = None
    userd: Memory | None = None
    aligned: bool = False  #: charged more than its size, for the place that it breaks
    cpu_maps: list[tuple[int, int]] = field(default_factory=list)  #: the driver's address, bytes of BAR1
    dma_maps: set[tuple[int, int, int]] = field(default_factory=set)  #: device, space, address

    @property
    def kind(self) -> int:
        return self.core.kind

    @property
    def name(self) -> tuple[int, int]:
        return self.core.hclient, self.core.hobject


class Ledger:
    """One container on one GPU without a limit."""

    def __init__(self) -> None:
        self.tree = ffi.new("struct cgpu_tree *")
        self.account = ffi.new("struct cgpu_ledger *")
        lib.cgpu_ledger_init(self.account, 1 << 60)
        self.objects: dict[tuple[int, int], Object] = {}
        self.os_events: dict[tuple[int, int], int] = {}  #: client, descriptor: the file it was made on
        self.host_bytes = 0
        self.overhead = 0

    @property
    def charged(self) -> int:
        """Bytes of video memory, with all of the overhead, of which the module leaves a part free of charge."""
        return self.account.used_bytes + self.overhead

    # ---- memory ----

    def charge(self, bytes_: int, host_bytes: int = 0) -> Memory:
        """ckm_mem_charge_locked()"""
        assert lib.cgpu_ledger_charge(self.account, bytes_) == 0
        self.host_bytes += host_bytes
        return Memory(ffi.new("struct cgpu_mem *", {"bytes": bytes_, "refs": 1}), host_bytes)

    def get(self, memory: Memory | None) -> Memory | None:
        if memory:
            lib.cgpu_mem_get(memory.core)
        return memory

    def put(self, memory: Memory | None) -> None:
        """ckm_mem_put_locked()"""
        while memory and lib.cgpu_mem_put(memory.core):
            assert lib.cgpu_ledger_uncharge(self.account, memory.core.bytes)
            self.host_bytes -= memory.host_bytes
            memory = memory.under

    # ---- objects ----

    def live(self, client: int, handle: int) -> Object | None:
        """ckm_obj_live_locked()"""
        obj = self.objects.get((client, handle))
        return obj if obj and lib.cgpu_tree_is_live(obj.core) else None

    def add(
        self, client: int, handle: int, cls: int, kind: int, parent: Object | None, file: int, dep: Object | None = None
    ) -> Object | None:
        """ckm_alloc_add_pending(); None: the module answers that itself."""
        if (client, handle) in self.objects:
            return None
        fields = {"hclient": client, "hobject": handle, "cls": cls, "kind": kind, "gpu": C.CGPU_NO_GPU}
        core = ffi.new("struct cgpu_obj *", fields | {"state": lib.CGPU_OBJ_LIVE, "owner": file})
        if kind == lib.CGPU_KIND_DEVICE:
            core.gpu = 0
        deps = ffi.new("struct cgpu_dep[]", C.CGPU_DEPS)
        if dep:
            deps[0].on = dep.core
            core.deps = deps
        if lib.cgpu_tree_add(self.tree, core, parent.core if parent else ffi.NULL):
            return None
        obj = self.objects[client, handle] = Object(core, core.owner, deps)
        if core.gpu != C.CGPU_NO_GPU:
            core.overhead = lib.cgpu_estimate_object_overhead(kind, cls)
            self.overhead += core.overhead
        return obj

    def remove(self, root: Object) -> None:
        """ckm_objs_remove()"""
        by_core = {int(ffi.cast("uintptr_t", obj.core)): obj for obj in self.objects.values()}
        while True:
            leaf = by_core[int(ffi.cast("uintptr_t", lib.cgpu_tree_leaf(root.core)))]
            del self.objects[leaf.name]
            lib.cgpu_tree_detach(self.tree, leaf.core)
            self.put(leaf.memory)
            self.put(leaf.userd)
            self.overhead -= leaf.core.overhead
            if leaf is root:
                return

    def free(self, client: int, handle: int, by_heap: bool = False) -> None:
        """post_free(): the driver answered NV_OK. NVOS32's free leaves the OS events of a client."""
        root = self.live(client, handle)
        assert root
        if root.kind == lib.CGPU_KIND_CLIENT and not by_heap:
            self.os_events = {name: file for name, file in self.os_events.items() if name[0] != client}
        self.remove(root)

    def close(self, file: int) -> None:
        """The end of a backing file: its clients, and the OS events that were made on it."""
        for obj in list(self.objects.values()):
            if obj.kind == lib.CGPU_KIND_CLIENT and obj.file == file:
                self.remove(obj)
        self.os_events = {name: on for name, on in self.os_events.items() if on != file}

    # ---- mappings ----

    def map_dma(self, memory: Object, name: tuple[int, int, int], bytes_: int) -> None:
        """file_map_locked()"""
        memory.dma_maps.add(name)
        tables = lib.cgpu_estimate_page_tables(bytes_)
        memory.core.overhead += tables
        self.overhead += tables

    def unmap_dma(self, memory: Object, name: tuple[int, int, int], bytes_: int) -> None:
        memory.dma_maps.discard(name)
        tables = lib.cgpu_estimate_page_tables(bytes_)
        memory.core.overhead -= tables
        self.overhead -= tables
