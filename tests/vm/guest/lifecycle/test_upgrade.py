# SPDX-License-Identifier: MIT
"""The core is replaced under running containers by one with another state layout and back (docs/user/upgrade.md)."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from corebox import NEXT, OLD, PRODUCT, SICK, insmod, last, leave_only_the_product, loaded, moody, refused, rmmod, swap
from corebox import running as running_core
from sharebox import FAIR, NATIVE, WEIGHTED, put
from slicebox import MIB, PROC, Box, command, fb_used, fresh_id, nvclient, until

HOUSE = 25


@pytest.fixture(autouse=True)
def cores() -> Iterator[None]:
    """All three are registered; afterwards the product's is alone and active."""
    assert insmod("test_core_next") and insmod("test_core_moody")
    try:
        yield
    finally:
        leave_only_the_product()


class Loaded:
    """A container with a process that keeps work queued and 64 MiB allocated."""

    def __init__(self, gpu: int = 0) -> None:
        self.box = Box(fresh_id(), 512, gpu)
        self.load = self.box.simload(
            *("--seconds", 0, "--kernel-us", 2000, "--depth", 8, "--alloc-mib", 64, "--poll-us", 50000)
        )

    def works(self) -> int:
        """Completed works, as the simulated GPU counts them."""
        lines = Path(f"/proc/driver/nvsim/{self.box.gpu}/tsgs").read_text().splitlines()
        found = [dict(word.split("=", 1) for word in line.split()) for line in lines]
        return sum(int(one["works"]) for one in found if one["engine"] == "1" and int(one["pid"]) == self.load.pid)

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.box.stat(key) for key in ("gpu_ns", "wait_ns", "turns", "peak_bytes", "waits", "waits_ns"))

    def end(self) -> None:
        self.load.terminate()
        self.load.communicate(timeout=60)
        self.box.destroy()


@contextlib.contextmanager
def house(count: int, policy: int) -> Iterator[list[Loaded]]:
    """@count containers at work; they still work at the end, and their memory is freed afterwards."""
    before = fb_used()
    put("max_inst", max(count, 8))
    made: list[Loaded] = []
    try:
        put("policy", policy)
        put("slice_us", 8000)  # the module's own choice depends on its measurements
        made.extend(Loaded() for _ in range(count))
        until(lambda: all(one.box.stat("turns") for one in made), 120)
        yield made
        assert [one.load.poll() for one in made] == [None] * count
    finally:
        put("policy", NATIVE)
        for one in made:
            one.end()
        put("slice_us", 0)
        put("max_inst", 20)
    assert until(lambda: fb_used() == before)


@contextlib.contextmanager
def meanwhile(work) -> Iterator[None]:
    """Repeats @work on a thread of its own; an exception from it fails the test."""
    stop, failed = threading.Event(), []

    def repeat() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


def settings() -> dict[str, str]:
    names = ("policy", "max_inst", "prio_ratio", "slice_us", "free_weight", "overcommit", "default_memsize")
    return {name: (PROC / "0" / name).read_text() for name in names}


def all_go_on(made: list[Loaded]) -> None:
    """Every container completes more work from now on, and no counter decreases."""
    before = [(one.works(), one.numbers()) for one in made]
    until(lambda: all(one.works() > works for one, (works, _) in zip(made, before, strict=True)), 120, step=0.2)
    for one, (_, old) in zip(made, before, strict=True):
        assert all(now >= was for now, was in zip(one.numbers(), old, strict=True))


@pytest.mark.checked
def test_a_swap_that_fails_leaves_everything_as_it_was(kernel_log) -> None:
    with house(3, WEIGHTED) as made:
        swap(NEXT)
        set_to = settings()
        for how, number, why in (
            ({"sick": "Y"}, errno.EIO, "its self-test failed (-84)"),
            ({"sick": "N", "fail_at": 1}, errno.EOPNOTSUPP, "GPU 0: it cannot take over state 1000"),
        ):
            moody(**how)
            kernel_log.news()
            assert refused(SICK) == number
            assert last()[:2] == (SICK, number) and why in last()[2]
            assert f"core {SICK} not taken: {why}" in kernel_log.news()
            assert running_core() == NEXT
            assert settings() == set_to
        swap(OLD)
        moody(fail_at=1)
        assert refused(SICK) == errno.EOPNOTSUPP
        moody(forgetful="Y")
        assert refused(SICK) == errno.EOPNOTSUPP
        assert last()[2] == "GPU 0: what it took over is not what was there"
        moody(forgetful="N")
        assert running_core() == OLD
        all_go_on(made)
        swap(SICK)
        all_go_on(made)


@pytest.mark.checked
@pytest.mark.gpus(2)
def test_the_second_gpu_fails_and_the_first_keeps_its_core() -> None:
    """All GPUs or none: the first GPU's converted state is discarded."""
    first, second = Loaded(0), Loaded(1)
    try:
        (PROC / "1/policy").write_text(str(WEIGHTED))
        put("policy", WEIGHTED)
        moody(fail_at=2)
        assert refused(SICK) == errno.EOPNOTSUPP
        assert last()[2].startswith("GPU 1:")
        assert running_core() == OLD
        all_go_on([first, second])
        swap(NEXT)
        swap(OLD)
        all_go_on([first, second])
    finally:
        for gpu in (0, 1):
            (PROC / str(gpu) / "policy").write_text(str(NATIVE))
        first.end()
        second.end()


def test_what_does_not_fit_is_refused_when_it_is_loaded() -> None:
    assert rmmod("test_core_moody")
    for how, why in (
        ({"abi": 99}, "it speaks ABI 99"),
        ({"ops_size": 8}, "its table is 8 bytes"),
        ({"version": "new"}, "it has no version"),
        ({"version": OLD}, "a core of that version is there"),
        ({"hollow": 1}, "its table lacks an operation"),
        ({"sick": 1}, "its self-test failed"),
    ):
        assert not insmod("test_core_moody", **how)
        assert last()[1] and last()[2].startswith(why)
        assert running_core() == OLD
    assert refused(SICK) == errno.ENOENT
    for nonsense in ("\n", "v1", f"{OLD} ", "1" * 40):
        assert refused(nonsense) == errno.EINVAL


@pytest.mark.checked
def test_two_writers_and_containers_that_come_and_go() -> None:
    def come_and_go() -> None:
        with Box(fresh_id(), 64) as box, box.client() as client:
            assert client.gpu().alloc_vidmem(8 * MIB)[0] == 0
            assert box.used >= 8 * MIB

    def write(first: str, second: str) -> None:
        swap(first)
        swap(second)

    with (
        house(3, FAIR) as made,
        meanwhile(come_and_go),
        meanwhile(lambda: write(NEXT, OLD)),
        meanwhile(lambda: write(OLD, NEXT)),
    ):
        time.sleep(2)
        all_go_on(made)
    assert running_core() in (OLD, NEXT)


@pytest.mark.once
def test_swaps_while_the_controls_are_slow_or_fail(personality) -> None:
    with house(3, FAIR) as made:
        for how in ({"control_us": 5000}, {"err40_pct": 50}):
            personality(**how)
            for _ in range(10):
                swap(NEXT)
                swap(OLD)
            all_go_on(made)
        personality(control_us=300, err40_pct=0)
        all_go_on(made)


@pytest.mark.checked
def test_a_limit_holds_to_the_byte_beside_200_swaps() -> None:
    """No core has a part in charges: each of two containers gets its limit, no byte more, whenever it asks."""
    limit_mib, piece_mib = 64, 8
    before, rounds, pieces = fb_used(), [0, 0], limit_mib // piece_mib
    with (
        Box(fresh_id(), limit_mib) as one,
        Box(fresh_id(), limit_mib) as two,
        one.client() as first,
        two.client() as second,
    ):
        gpus = [first.gpu(), second.gpu()]
        unused = fb_used()

        def fill(n: int) -> None:
            found = [gpus[n].alloc_vidmem(piece_mib * MIB) for _ in range(pieces)]
            assert [status for status, _ in found] == [0] * pieces
            assert gpus[n].alloc_vidmem(1)[0] == nvclient.NV_ERR_NO_MEMORY
            for _, memory in found:
                assert gpus[n].free(memory) == 0
            rounds[n] += 1

        with meanwhile(lambda: fill(0)), meanwhile(lambda: fill(1)):
            for n in range(200):
                swap(NEXT if n % 2 == 0 else OLD)
                assert max(one.used, two.used) <= limit_mib * MIB
            swapped = list(rounds)
            until(lambda: min(rounds) > max(2, *swapped))
        print(f"rounds beside 200 swaps: {swapped}")
        assert min(swapped) > 2
        assert (one.used, two.used, fb_used()) == (0, 0, unused)
        for box, count in ((one, rounds[0]), (two, rounds[1])):
            assert (box.stat("refused_allocs"), box.stat("peak_bytes")) == (count, limit_mib * MIB)
    assert until(lambda: fb_used() == before)


@pytest.mark.checked
def test_the_core_that_runs_stays_and_the_one_before_may_go() -> None:
    with house(2, FAIR) as made:
        assert not rmmod(PRODUCT), "it is pinned by the containers"
        swap(NEXT)
        assert not rmmod("test_core_next")
        assert rmmod(PRODUCT)
        assert refused(OLD) == errno.ENOENT
        with Box(fresh_id(), 64) as box, box.client() as client:
            assert client.gpu().alloc_vidmem(8 * MIB)[0] == 0
        all_go_on(made)
        assert insmod(PRODUCT)
        assert running_core() == NEXT, "to be there is not to be chosen"
        swap(OLD)
        assert rmmod("test_core_next")
        assert not loaded("test_core_next")
        all_go_on(made)


@pytest.mark.checked
def test_without_a_core_there_is_no_gpu() -> None:
    """Its files come and go with the only core: a reader or a writer has both or neither."""

    def use() -> None:
        for name, flags in (("stat", os.O_RDONLY), ("policy", os.O_RDONLY), ("policy", os.O_WRONLY)):
            try:
                fd = os.open(PROC / "0" / name, flags)
                try:
                    assert os.write(fd, b"0") if flags else os.read(fd, 4096)
                finally:
                    os.close(fd)
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.EIO), "gone before it was opened, or since"

    assert rmmod("test_core_next") and rmmod("test_core_moody")
    with meanwhile(use), meanwhile(lambda: (PROC / "version").read_text()):
        for _ in range(12):
            assert rmmod(PRODUCT)
            assert not (PROC / "0").exists()
            with pytest.raises(OSError, match="No such device") as caught:
                command(f"create {fresh_id()} gpu=0 memsize={MIB} weight=1")
            assert caught.value.errno == errno.ENODEV
            assert insmod(PRODUCT)
            assert (PROC / "0").exists()


@pytest.mark.more
def test_a_hundred_swaps_under_a_full_house() -> None:
    with house(HOUSE, FAIR) as made:
        used = [one.box.used for one in made]
        in_use, set_to = fb_used(), settings()
        with made[0].box.client() as client:
            gpu = client.gpu()
            mine, taken = made[0].box.used, fb_used()

            def allocate() -> None:
                status, memory = gpu.alloc_vidmem(2 * MIB)
                assert status == 0
                assert gpu.free(memory) == 0

            with meanwhile(allocate):
                for n in range(100):
                    numbers = [one.numbers() for one in made[:3]]
                    swap(NEXT if n % 2 == 0 else OLD)
                    for one, old in zip(made, numbers, strict=False):
                        assert all(now >= was for now, was in zip(one.numbers(), old, strict=True))
            assert (made[0].box.used, fb_used()) == (mine, taken), "not off by a byte"
        assert running_core() == OLD
        until(lambda: [one.box.used for one in made] == used)
        until(lambda: fb_used() == in_use)
        assert settings() == set_to
        all_go_on(made)
