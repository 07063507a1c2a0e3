# SPDX-License-Identifier: MIT
"""SET_GPU and SET over generic netlink: atomic messages, an error text for each refusal, one capability."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path

import forked
import pytest
from slicebox import MIB, PROC, Box

from cgpu_common import netlink
from cgpu_common.errors import KernelRefused
from cgpu_common.kernel_abi import G, S
from cgpu_common.model import KernelGpu, SlotWant
from cgpu_common.netlink import NetlinkLink
from cgpu_common.policies import Policy

pytestmark = [pytest.mark.debug_ok, pytest.mark.attached]

SWITCH_US = Path("/sys/module/cgpu_km/parameters/switch_us")
NODES = ("policy", "max_inst", "prio_ratio", "slice_us", "uvm", "overcommit", "default_memsize")
DEFAULTS = {
    G.POLICY: 5,
    G.MAX_INST: 20,
    G.PRIO_RATIO: 80,
    G.SLICE_US: 0,
    G.UVM: 0,
    G.OVERCOMMIT: 100,
    G.DEFAULT_MEMSIZE: 0,
}


def set_gpu(index: int, values: Mapping[G, int]) -> None:
    asyncio.run(NetlinkLink().set_gpu(index, values))


def gpu(index: int = 0) -> KernelGpu:
    return next(gpu for gpu in asyncio.run(NetlinkLink().gpus()) if gpu.index == index)


def nodes(index: int = 0) -> dict[str, str]:
    return {name: (PROC / str(index) / name).read_text() for name in NODES}


@pytest.fixture(autouse=True)
def box() -> Iterator[Box]:
    """A container, so that the GPU is there and the module attached; the defaults before and afterwards."""
    with Box("5e7717795" + "0" * 55, mib=64) as box:
        set_gpu(0, DEFAULTS)
        yield box
        set_gpu(0, DEFAULTS)


def test_what_a_switch_takes_is_named_as_assumed_or_set(box: Box) -> None:
    """nvsim's chip is of the profile's architecture. A parameter over 10 ms is taken as 10 ms."""
    arch = Path("/sys/module/nvsim/parameters/arch").read_text().strip()
    assumed = {"ampere": ("85", "a100"), "hopper": ("205", "h100")}.get(arch, ("140", "between"))

    def switch() -> tuple[str, str]:
        stat = dict(line.split(" ", 1) for line in (PROC / "0/stat").read_text().splitlines())
        return stat["switch_us"], stat["switch_source"]

    assert switch() == assumed
    for text, us in (("123", "123"), ("20000", "10000")):
        SWITCH_US.write_text(text)
        try:
            assert switch() == (us, "set")
        finally:
            SWITCH_US.write_text("0")
    assert switch() == assumed


def test_every_value_is_set_and_read_back(box: Box) -> None:
    values = {
        G.POLICY: 5,
        G.MAX_INST: 7,
        G.PRIO_RATIO: 33,
        G.SLICE_US: 4321,
        G.UVM: 1,
        G.OVERCOMMIT: 150,
        G.DEFAULT_MEMSIZE: 5 * MIB,
    }
    before = gpu()
    assert (before.slice_is_set, before.overcommit, before.uvm) == (False, 100, 0)
    set_gpu(0, values)
    after = gpu()
    got = (after.policy, after.max_inst, after.prio_ratio, after.slice_us, after.uvm, after.overcommit)
    assert got == (5, 7, 33, 4321, 1, 150)
    assert (after.slice_is_set, after.default_memsize, after.born) == (True, 5 * MIB, before.born)
    assert nodes() == {
        "policy": "5\n",
        "max_inst": "7\n",
        "prio_ratio": "33\n",
        "slice_us": "4321\n",
        "uvm": "account\n",
        "overcommit": "150\n",
        "default_memsize": f"{5 * MIB}\n",
    }
    set_gpu(0, DEFAULTS)
    assert (gpu().slice_is_set, gpu().default_memsize) == (False, int((PROC / "default_memsize").read_text()))


def test_memory_by_the_drivers_account(box: Box) -> None:
    stat = dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())
    seen = gpu()
    assert seen.driver_free is not None
    assert seen.used == int(stat["used_bytes"])
    assert seen.driver_free + int(stat["driver_used_bytes"]) <= int(stat["total_bytes"])
    assert seen.driver_free > seen.total // 2


BAD = [
    ({G.POLICY: len(Policy)}, errno.EINVAL, "policy: no policy has this number"),
    ({G.MAX_INST: 0}, errno.EINVAL, "max_inst: 1 to 25"),
    ({G.MAX_INST: 26}, errno.EINVAL, "max_inst: 1 to 25"),
    ({G.MAX_INST: 1}, errno.EBUSY, "max_inst: more containers or weight"),
    ({G.PRIO_RATIO: 100}, errno.EINVAL, "prio_ratio: 20 to 99 percent"),
    ({G.SLICE_US: 999}, errno.EINVAL, "slice_us: 1000 to 100000 microseconds"),
    ({G.UVM: 2}, errno.EINVAL, "uvm: 0 (deny) or 1 (account)"),
    ({G.OVERCOMMIT: 99}, errno.EINVAL, "overcommit: 100 to 1000 percent"),
    ({G.OVERCOMMIT: 1001}, errno.EINVAL, "overcommit: 100 to 1000 percent"),
    ({G.DEFAULT_MEMSIZE: MIB - 1}, errno.EINVAL, "default_memsize: at least 1048576 bytes"),
    ({G.DEFAULT_MEMSIZE: 1 << 63}, errno.EINVAL, "default_memsize: at least 1048576 bytes"),
    ({G.TOTAL: 1}, errno.EINVAL, ""),
    ({G.FREE_WEIGHT: 1}, errno.EINVAL, ""),
    ({G.BORN: 1}, errno.EINVAL, ""),
]


@pytest.mark.parametrize(("bad", "code", "sentence"), BAD, ids=[str(row[0]) for row in BAD])
def test_one_wrong_value_and_none_is_set(box: Box, bad: dict[G, int], code: int, sentence: str) -> None:
    good = {
        G.MAX_INST: 9,
        G.PRIO_RATIO: 44,
        G.SLICE_US: 5555,
        G.UVM: 1,
        G.OVERCOMMIT: 200,
        G.DEFAULT_MEMSIZE: 9 * MIB,
    }
    with Box("5e77177950" + "1" * 54, mib=64):
        before, seen = nodes(), gpu()
        with pytest.raises(KernelRefused) as caught:
            set_gpu(0, good | bad)
        assert caught.value.code == code
        assert sentence in str(caught.value)
        assert nodes() == before
        assert gpu().slice_is_set == seen.slice_is_set


def test_a_gpu_that_is_not_there_and_a_message_without_values(box: Box) -> None:
    with pytest.raises(KernelRefused, match="no such GPU") as caught:
        set_gpu(31, {G.POLICY: 5})
    assert caught.value.code == errno.ENODEV
    before = nodes()
    set_gpu(0, {})
    assert nodes() == before


ALL = (1 << 64) - 1
NET_ADMIN = 1 << forked.CAP_NET_ADMIN


def alone(
    capabilities: int, request: Callable[[], Coroutine[None, None, object]], pid_namespace: bool = False
) -> subprocess.CompletedProcess[str]:
    """Makes a request in a process of its own with these capabilities; exit status 1 if it is refused or answered."""

    def before() -> None:
        if pid_namespace:
            forked.enter_pid_namespace()
        forked.keep_capabilities(capabilities)

    return forked.call(lambda: sys.exit(bool(asyncio.run(request()))), before=before)


def test_the_right_that_is_needed(box: Box) -> None:
    """CAP_NET_ADMIN is sufficient and necessary; /proc requires CAP_SYS_ADMIN."""

    def change(value: int) -> Callable[[], Coroutine[None, None, None]]:
        return lambda: NetlinkLink().set_gpu(0, {G.PRIO_RATIO: value})

    done = alone(NET_ADMIN, change(55))
    assert done.returncode == 0, done.stderr
    assert (PROC / "0/prio_ratio").read_text() == "55\n"
    done = alone(ALL & ~NET_ADMIN, change(66))
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
    assert (PROC / "0/prio_ratio").read_text() == "55\n"
    with pytest.raises(subprocess.CalledProcessError):
        bare = ["setpriv", "--bounding-set", "-all,+net_admin", "--inh-caps", "-all,+net_admin"]
        subprocess.run([*bare, "sh", "-c", f"echo 66 > {PROC}/0/prio_ratio"], check=True, stderr=subprocess.DEVNULL)


COMMANDS: dict[str, Callable[[str], Coroutine[None, None, object]]] = {
    "create": lambda _: NetlinkLink().create("5e77" + "9" * 60, 0, [SlotWant(0, 0, 64 << 20, 1)]),
    "destroy": lambda name: NetlinkLink().destroy(name, 0),
    "set": lambda name: NetlinkLink().set(name, 0, {0: {S.LIMIT: 128 << 20, S.WEIGHT: 1}}),
    "set_gpu": lambda _: NetlinkLink().set_gpu(0, {G.PRIO_RATIO: 77}),
    "list": lambda _: NetlinkLink().list(),
    "gpus": lambda _: NetlinkLink().gpus(),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_inside_a_container_administers(box: Box, command: str) -> None:
    """Nor a process without CAP_NET_ADMIN. Else CAP_NET_ADMIN and the host's network would suffice in a container."""
    before = (nodes(), slots(box.name), (PROC / "inst_ctl").read_text())
    for inside, capabilities in ((False, ALL & ~NET_ADMIN), (True, NET_ADMIN)):
        done = alone(capabilities, lambda: COMMANDS[command](box.name), pid_namespace=inside)
        assert done.returncode != 0 or command in ("list", "gpus"), "a dump that is refused may look empty"
        if done.returncode:
            assert "Operation not permitted" in done.stderr or "inside a container" in done.stderr, done.stderr
    assert (nodes(), slots(box.name), (PROC / "inst_ctl").read_text()) == before


def slots(name: str) -> list[tuple[int, int, int, bool, int]]:
    there = next(found for found in asyncio.run(NetlinkLink().list()) if found.id == name)
    return [(slot.gpu, slot.limit, slot.weight, slot.highprio, slot.ceiling) for slot in there.slots]


def test_a_create_does_not_take_a_limit_of_system_memory(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """SET does. A create that ignored it would leave a container without the limit that it was given."""
    name = "5e7717795" + "3" * 55
    slot = [("GPU", 0), ("LIMIT", 64 * MIB), ("HOST_LIMIT", 8 * MIB)]
    monkeypatch.setattr(netlink, "slot_attrs", lambda _: slot)
    with pytest.raises(KernelRefused, match="host_memsize") as caught:
        asyncio.run(NetlinkLink().create(name, 0, [SlotWant(0, 0, 64 * MIB)]))
    assert caught.value.code == errno.EINVAL
    assert name not in (PROC / "inst_ctl").read_text()


class Parts:
    """The values of a SET, as NetlinkLink.set() takes them, in which one GPU can occur twice."""

    def __init__(self, *slots: SlotWant):
        self._slots = slots

    def items(self) -> list[tuple[int, dict[S, int]]]:
        return [
            (s.gpu, {S.LIMIT: s.limit, S.WEIGHT: s.weight, S.HIGHPRIO: int(s.highprio), S.CEILING: s.ceiling})
            for s in self._slots
        ]


@pytest.mark.gpus(2)
def test_set_changes_all_of_a_container_or_nothing(box: Box) -> None:
    name = "5e771779502" + "2" * 53
    link = NetlinkLink()
    total = [gpu(0).total, gpu(1).total]
    with Box(name, mib=64, gpu="0,1"):
        before = slots(name)
        bad = [
            [SlotWant(0, 0, 128 * MIB, 5, True), SlotWant(1, 1, total[1] + 1, 5, True)],
            [SlotWant(0, 0, 128 * MIB, 5, True), SlotWant(1, 1, 128 * MIB, 21, True)],
            [SlotWant(0, 0, 128 * MIB, 20, True), SlotWant(1, 1, 128 * MIB, 1, True)],
            [SlotWant(0, 0, 128 * MIB, 5, True), SlotWant(0, 0, 64 * MIB, 5, True)],
            [SlotWant(0, 0, 128 * MIB, 5, True), SlotWant(31, 1, 64 * MIB, 5, True)],
            [SlotWant(number, number, 128 * MIB, 5, True) for number in (0, 1, 0)],
            [SlotWant(0, 0, 128 * MIB, 5, True, 6), SlotWant(1, 1, 128 * MIB, 5, True, 4)],
        ]
        said = []
        for wanted in bad:
            with pytest.raises(KernelRefused) as caught:
                asyncio.run(link.set(name, 0, Parts(*wanted)))
            said.append((errno.errorcode[caught.value.code], str(caught.value)))
            assert slots(name) == before, wanted
        assert [code for code, _ in said] == ["ENOSPC", "EINVAL", "ENOSPC", "EINVAL", "ENODEV", *["EINVAL"] * 2]
        for (_, text), needle in zip(
            said, ("memsize", "weight", "weight", "twice", "no slot", "more slots", "ceiling"), strict=True
        ):
            assert needle in text
        asyncio.run(link.set(name, 0, Parts(SlotWant(1, 1, 96 * MIB, 3, True, 4), SlotWant(0, 0, 80 * MIB, 2, False))))
        assert slots(name) == [(0, 80 * MIB, 2, False, 0), (1, 96 * MIB, 3, True, 4)]
        for weight, ceiling in ((9, 9), (1, 1), (2, 0), (5, 20)):  # the bound of both is the new ceiling
            asyncio.run(link.set(name, 0, Parts(SlotWant(0, 0, 80 * MIB, weight, False, ceiling))))
            assert slots(name)[0] == (0, 80 * MIB, weight, False, ceiling)
        assert (PROC / "0" / name[:12] / "memsize").read_text() == f"{80 * MIB}\n"


@pytest.mark.alone  # sums over all containers
@pytest.mark.once
def test_three_writers_at_once(box: Box) -> None:
    """Echo, SET_GPU and SET on the same GPU: the sums hold in every order."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def again(work) -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                with contextlib.suppress(KernelRefused):
                    work(number)
        except BaseException as error:
            failures.append(error)

    def echo(number: int) -> None:
        (box.proc / "weight").write_text(f"{1 + number % 3}\n")

    def limit(mib: int) -> dict[int, dict[S, int]]:
        return {0: {S.LIMIT: mib * MIB, S.WEIGHT: 1}}

    writers = [
        lambda number: set_gpu(0, {G.MAX_INST: 3 + number % 20, G.SLICE_US: 1000 + number}),
        lambda number: asyncio.run(
            NetlinkLink().set(box.name, 0, {0: {S.LIMIT: (64 + number % 9) * MIB, S.WEIGHT: 1}})
        ),
        echo,
    ]
    threads = [threading.Thread(target=again, args=(work,)) for work in writers]
    for thread in threads:
        thread.start()
    stop.wait(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    seen = gpu()
    assert seen.free_weight == seen.max_inst - int((box.proc / "weight").read_text())
    stat = dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())
    assert int(stat["limits_bytes"]) == int((box.proc / "memsize").read_text())
