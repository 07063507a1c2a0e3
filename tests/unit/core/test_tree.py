# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The tree of a container's objects: what goes with what, and that no function walks what lies below an object."""

import errno

import pytest
from corelib import C, ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st


class Tree:
    """Objects by number; 0 is a client, 1 a device below it."""

    def __init__(self):
        self.tree = ffi.new("struct cgpu_tree *")
        self.objects, self.deps = [], []
        self.client = self.add(lib.CGPU_KIND_CLIENT, None)
        self.device = self.add(lib.CGPU_KIND_DEVICE, self.client)

    def new(self, kind, *deps):
        obj = ffi.new("struct cgpu_obj *", {"kind": kind, "gpu": 0xFFFFFFFF, "state": lib.CGPU_OBJ_LIVE})
        obj.hobject = len(self.objects)
        if deps:
            obj.deps = self.keep(ffi.new("struct cgpu_dep[]", C.CGPU_DEPS))
            for n, on in enumerate(deps):
                obj.deps[n].on = on
        self.objects.append(obj)
        return obj

    def keep(self, memory):
        self.deps.append(memory)
        return memory

    def add(self, kind, parent, *deps):
        obj = self.new(kind, *deps)
        assert lib.cgpu_tree_add(self.tree, obj, parent or ffi.NULL) == 0
        return obj

    def remove(self, root):
        """As the module does it: numbers in the order in which they go."""
        gone = []
        while True:
            leaf = lib.cgpu_tree_leaf(root)
            gone.append(leaf.hobject)
            lib.cgpu_tree_detach(self.tree, leaf)
            assert leaf.state == lib.CGPU_OBJ_DETACHED
            if leaf == root:
                return gone


@pytest.fixture
def tree():
    return Tree()


def live(obj):
    return lib.cgpu_tree_is_live(obj)


def test_freeing_hides_all_that_goes_with_it(tree):
    page = tree.add(lib.CGPU_KIND_SYSMEM, tree.device)
    group = tree.add(lib.CGPU_KIND_TSG, tree.device)
    channel = tree.add(lib.CGPU_KIND_CHANNEL, group, page)
    engine = tree.add(lib.CGPU_KIND_COMPUTE, channel)
    other = tree.add(lib.CGPU_KIND_CHANNEL, group)
    assert lib.cgpu_tree_free_begin(page) == 0
    assert [live(obj) for obj in (page, channel, engine, other, group)] == [False, False, False, True, True]
    lib.cgpu_tree_free_cancel(page)
    assert all(live(obj) for obj in tree.objects)
    assert not lib.cgpu_tree_unpin(page)
    assert tree.remove(page) == [engine.hobject, channel.hobject, page.hobject]
    assert live(other) and tree.tree.objects == 4


@pytest.mark.parametrize("pinned", ["page", "channel", "engine"])
def test_nothing_pinned_is_freed(tree, pinned):
    """Nor what it goes with, the page that its channel depends on included."""
    page = tree.add(lib.CGPU_KIND_SYSMEM, tree.device)
    group = tree.add(lib.CGPU_KIND_TSG, tree.device)
    channel = tree.add(lib.CGPU_KIND_CHANNEL, group, page)
    engine = tree.add(lib.CGPU_KIND_COMPUTE, channel)
    held = {"page": page, "channel": channel, "engine": engine}[pinned]
    lib.cgpu_tree_pin(held)
    for obj in (page, tree.device, tree.client):
        assert lib.cgpu_tree_free_begin(obj) == -errno.EBUSY
    assert (lib.cgpu_tree_free_begin(group) == 0) == (pinned == "page")
    if pinned == "page":
        lib.cgpu_tree_free_cancel(group)
        lib.cgpu_tree_unpin(group)
    assert not lib.cgpu_tree_unpin(held)
    assert lib.cgpu_tree_free_begin(tree.client) == 0


def test_of_two_frees_of_one_object_the_second_is_refused(tree):
    memory = tree.add(lib.CGPU_KIND_VIDMEM, tree.device)
    assert lib.cgpu_tree_free_begin(memory) == 0
    for obj in (memory, tree.device, tree.client):
        assert lib.cgpu_tree_free_begin(obj) == -errno.EBUSY


def test_the_last_unpin_frees_what_was_removed(tree):
    memory = tree.add(lib.CGPU_KIND_VIDMEM, tree.device)
    lib.cgpu_tree_pin(memory)
    lib.cgpu_tree_pin(memory)
    tree.remove(tree.client)
    assert tree.tree.objects == 0
    assert [lib.cgpu_tree_unpin(memory), lib.cgpu_tree_unpin(memory)] == [False, True]


def test_levels_are_bounded(tree):
    at = tree.device
    for _ in range(C.CGPU_TREE_DEPTH - 2):
        at = tree.add(lib.CGPU_KIND_PLAIN, at)
    assert lib.cgpu_tree_add(tree.tree, tree.new(lib.CGPU_KIND_PLAIN), at) == -errno.EINVAL
    assert tree.tree.objects == C.CGPU_TREE_DEPTH


def test_what_is_depended_on(tree):
    group = tree.add(lib.CGPU_KIND_TSG, tree.device)
    page = tree.add(lib.CGPU_KIND_SYSMEM, tree.device)
    peers = tree.add(lib.CGPU_KIND_PEERS, tree.client)
    subdevice = tree.add(lib.CGPU_KIND_SUBDEVICE, tree.device)
    stray = tree.add(lib.CGPU_KIND_SUBDEVICE, peers)
    notifier = tree.add(lib.CGPU_KIND_NOTIFIER, tree.device, page)
    for kind, parent, dep in (
        (lib.CGPU_KIND_PEERS, tree.client, tree.device),
        (lib.CGPU_KIND_PEERS, tree.client, stray),
        (lib.CGPU_KIND_SUBDEVICE, tree.device, subdevice),
        (lib.CGPU_KIND_CHANNEL, group, group),
        (lib.CGPU_KIND_PEERS, tree.client, notifier),
        (lib.CGPU_KIND_NOTIFIER, tree.device, notifier),
        (lib.CGPU_KIND_SYSMEM, tree.device, page),
        (lib.CGPU_KIND_SYSMEM, group, None),
        (lib.CGPU_KIND_VIDMEM, tree.client, None),
    ):
        assert lib.cgpu_tree_add(tree.tree, tree.new(kind, *[dep] * bool(dep)), parent) == -errno.EINVAL
    assert tree.tree.objects == 8


def test_a_channel_goes_with_its_notifiers_memory(tree):
    """The driver frees a notifier with its memory, and the firmware writes on where the channel's was."""
    page = tree.add(lib.CGPU_KIND_SYSMEM, tree.device)
    for root in (page, None):
        notifier = tree.add(lib.CGPU_KIND_NOTIFIER, tree.device, page)
        channel = tree.add(lib.CGPU_KIND_CHANNEL, tree.device, ffi.NULL, notifier)
        root = root or notifier
        lib.cgpu_tree_pin(channel)
        assert [lib.cgpu_tree_free_begin(obj) for obj in (page, notifier)] == [-errno.EBUSY] * 2, "a call uses it"
        lib.cgpu_tree_unpin(channel)
        assert lib.cgpu_tree_free_begin(root) == 0
        assert [live(channel), live(notifier), live(page)] == [False, False, root == notifier]
        lib.cgpu_tree_free_cancel(root)
        lib.cgpu_tree_unpin(root)
        assert all(live(obj) for obj in (page, notifier, channel))
        assert (page.pins_within, notifier.pins_within, channel.pins_within) == (0, 0, 0)
        if root == page:
            lib.cgpu_tree_pin(channel)
        gone = tree.remove(root)
        assert gone == [obj.hobject for obj in (channel, notifier, page)[: 3 if root == page else 2]]
        if root == page:
            assert lib.cgpu_tree_unpin(channel), "the last use of it"
            page = tree.add(lib.CGPU_KIND_SYSMEM, tree.device)
    assert tree.tree.objects == 3
    assert page.pins_within == tree.device.pins_within == 0


def test_peers_go_with_the_subdevice_of_either_gpu(tree):
    devices = [tree.device, tree.add(lib.CGPU_KIND_DEVICE, tree.client)]
    subdevices = [tree.add(lib.CGPU_KIND_SUBDEVICE, device) for device in devices]
    for root in (*subdevices, *devices):
        peers = tree.add(lib.CGPU_KIND_PEERS, tree.client, *subdevices)
        lib.cgpu_tree_pin(peers)
        assert lib.cgpu_tree_free_begin(root) == -errno.EBUSY, "a call uses them"
        lib.cgpu_tree_unpin(peers)
        assert lib.cgpu_tree_free_begin(root) == 0
        assert not live(peers)
        lib.cgpu_tree_free_cancel(root)
        lib.cgpu_tree_unpin(root)
        assert live(peers)
        leaf = lib.cgpu_tree_leaf(root)
        assert leaf == peers
        lib.cgpu_tree_detach(tree.tree, leaf)
    assert tree.remove(tree.client)[-1] == tree.client.hobject
    assert tree.tree.objects == 0


def test_each_of_several_takes_the_channel_along(tree):
    pages = [tree.add(lib.CGPU_KIND_SYSMEM, tree.device) for _ in range(C.CGPU_DEPS)]
    group = tree.add(lib.CGPU_KIND_TSG, tree.device)
    for page in pages:
        channel = tree.add(lib.CGPU_KIND_CHANNEL, group, *pages)
        for other in pages:
            assert lib.cgpu_tree_free_begin(other) == 0
            assert not live(channel)
            lib.cgpu_tree_free_cancel(other)
            lib.cgpu_tree_unpin(other)
        assert live(channel)
        assert tree.remove(page) == [channel.hobject, page.hobject]
        pages = [other for other in pages if other != page]
        assert not any(other.dependant for other in pages)


def goes_with(obj):
    """Its parent and what it depends on."""
    on = [obj.deps[n].on for n in range(C.CGPU_DEPS)] if obj.deps else []
    return [other for other in (obj.parent, *on) if other]


@settings(max_examples=60)
@given(
    shape=st.lists(
        st.tuples(st.sampled_from("tcdp"), st.integers(0, 99), st.lists(st.integers(0, 99), max_size=3), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    root=st.integers(0, 99),
)
def test_any_tree_goes_whole_and_leaves_the_rest(shape, root):
    """Against a model: what is removed is what the driver frees, children first, and no count of a pin is left."""
    tree = Tree()
    groups, channels, pages = [], [], []
    for what, n, depends, pin in shape:
        if what == "t":
            groups.append(tree.add(lib.CGPU_KIND_TSG, tree.device))
        elif what == "d":
            pages.append(tree.add(lib.CGPU_KIND_SYSMEM, tree.device))
        elif what == "c" and groups:
            deps = [pages[number % len(pages)] for number in depends if pages]
            channels.append(tree.add(lib.CGPU_KIND_CHANNEL, groups[n % len(groups)], *deps))
        elif what == "p" and channels:
            tree.add(lib.CGPU_KIND_PLAIN, channels[n % len(channels)])
        if pin:
            lib.cgpu_tree_pin(tree.objects[-1])
    root = tree.objects[root % len(tree.objects)]
    expected, grown = {root.hobject}, True
    while grown:
        more = {o.hobject for o in tree.objects if any(p.hobject in expected for p in goes_with(o))}
        grown = not more <= expected
        expected |= more
    parents = {o.hobject: [p.hobject for p in goes_with(o)] for o in tree.objects}
    gone = tree.remove(root)
    assert len(gone) == len(set(gone)) and set(gone) == expected
    at = {number: place for place, number in enumerate(gone)}
    assert all(at[n] < at[p] for n in gone for p in parents[n] if p in at)
    assert tree.tree.objects == len(tree.objects) - len(gone)
    for obj in tree.objects:
        for _ in range(obj.pin_count):
            lib.cgpu_tree_unpin(obj)
    assert [o.pins_within for o in tree.objects] == [0] * len(tree.objects)
