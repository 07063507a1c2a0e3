# SPDX-License-Identifier: MIT
"""docs/reference/proc.md against the running module: the table row by row, then each sentence below it.

Modes and error lists are not repeated in this file: they are read from the page.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import pytest

from cgpu_common.policies import TABLE

pytestmark = pytest.mark.debug_ok

PROC = Path("/proc/cgpu_km")
PAGE = Path(__file__).resolve().parents[4] / "docs/reference/proc.md"
MIB = 1 << 20
GPU = PROC / "0"
DECIMAL = r"(0|[1-9][0-9]*)\n"


@dataclass(frozen=True)
class Row:
    """One row of the table of docs/reference/proc.md."""

    path: str
    mode: int
    errors: frozenset[str]

    @property
    def node(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def writable(self) -> bool:
        return bool(self.mode & 0o200)


def table() -> list[Row]:
    rows = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 6 and re.fullmatch(r"0[0-7]{3}", cells[1]):
            rows.append(Row(cells[0].strip("`"), int(cells[1], 8), frozenset(cells[5].split())))
    return rows


ROWS = table()
NAME = rb"(?!\.{1,2}\n?$)[!-.0-<>-~]{0,128}\n?"
FORMATS = {
    "default_memsize": DECIMAL,
    "ended": r"([!-~]+ cookie=0x[0-9a-f]+ dir=[0-9a-f]{12} gpu=\d+:\d+(,\d+:\d+)*\n)*",
    "inst_ctl": r"([!-~]+ cookie=0x[0-9a-f]+ dir=[0-9a-f]{12} major=\d+ ctl=\d+ uvm=\d+ state=(live|dying) "
    r"gpu=\d+:\d+(,\d+:\d+)*\n)*",
    "upgrade": r"(\d+\.\d+\.\d+\n)+(last: [!-~]+ (0|-\d+) [ -~]+\n)?",
    "version": r"\d+\.\d+\.\d+\n",
    "N/pci": r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\n",
    "N/stat": r"([a-z0-9_]+ [^\n]+\n)+",
    "N/uuid": r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n",
    "N/uvm": r"(deny|account)\n",
    "N/C/id": r"[!-~]{1,128}\n",
    "N/C/ipc": r"[!-~]{0,128}\n",
    "N/C/meminfo": r"Free: \d+\n(PID: \d+ Mem: \d+\n)*",
    "N/C/stat": r"([a-z0-9_]+ \d+\n)+",
}


def names_of_stat(place: str) -> list[str]:
    """The names in the table of docs/reference/proc.md §4, in its order."""
    part = PAGE.read_text().split(f"\n`{place}`, in this order:", 1)[1]
    cells = (line.split("|")[1] for line in part.split("\n\n")[1].splitlines()[2:])
    return [name for cell in cells for name in names_of_cell(cell)]


def names_of_cell(cell: str) -> list[str]:
    """`a`, `b`: both; `x_1`, … `x_8`: also those between, each number twice the one before."""
    names = re.findall(r"`(\w+)`", cell)
    if "…" not in cell:
        return names
    (stem, first), (_, last) = (name.rsplit("_", 1) for name in names)
    doubled = itertools.takewhile(lambda number: number <= int(last), (int(first) << n for n in itertools.count()))
    return [f"{stem}_{number}" for number in doubled]


SLOT_STAT = names_of_stat("N/C/stat")
GPU_STAT = names_of_stat("N/stat")

GARBAGE: list[bytes] = [
    b"\n", b" ", b"x", b"policy", b"-1", b"+1", b" 1", b"1 ", b"1\n\n", b"1 2", b"0x1", b"1.0", b"1e3", b"1\0", b"\0",
    b"\xff\xfe", "１".encode(), b"18446744073709551616", b"99999999999999999999999999", b"1," * 40, b"9" * 4096,
    b"a" * 4097, b"1\n2\n", b"%s%n", b"create", b"create x", b"create x gpu=0", b"destroy", b"../../etc/passwd",
]  # fmt: skip


def read(path: Path) -> str:
    return path.read_text()


def value(path: Path) -> int:
    return int(read(path))


def stats(path: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in read(path / "stat").splitlines())


def write(path: Path, text: bytes | str | int, offset: int = 0) -> None:
    data = text if isinstance(text, bytes) else f"{text}\n".encode()
    fd = os.open(path, os.O_RDWR if offset else os.O_WRONLY)
    try:
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def destroy(name: str) -> None:
    """Destroy a container, if it is there, and wait until its directories are gone."""
    line = next((line for line in read(PROC / "inst_ctl").splitlines() if line.split()[0] == name), None)
    if line is None:
        return
    with contextlib.suppress(FileNotFoundError):
        write(PROC / "inst_ctl", f"destroy {name}")
    end = time.monotonic() + 20
    while any(line.split()[0] == name for line in read(PROC / "inst_ctl").splitlines()):
        assert time.monotonic() < end, f"{name} is still there: {line}"
        time.sleep(0.01)


def refused(path: Path, text: bytes | str | int, offset: int = 0) -> str:
    """The name of the error that a write must end with."""
    with pytest.raises(OSError) as caught:
        write(path, text, offset)
    return errno.errorcode[caught.value.errno or 0]


def settings() -> dict[str, str]:
    """The parts of the tree that only a successful write changes: `upgrade` also shows failed ones."""
    files = [path for path in sorted(PROC.rglob("*")) if path.is_file() and path.name not in ("stat", "meminfo")]
    return {str(path): read(path).partition("last: ")[0] for path in files}


def dir_of(container_id: str) -> str:
    """The directory name of an id that collides with no other."""
    head = container_id[:12]
    if re.fullmatch(r"[0-9a-fA-F]{12}", head):
        return head.lower()
    return hashlib.sha256(container_id.encode()).hexdigest()[:12]


Create = Callable[..., Path]
_numbers = itertools.count(1)


def fresh_id() -> str:
    return hashlib.sha256(f"test_proc {next(_numbers)} {os.getpid()}".encode()).hexdigest()


@pytest.fixture
def create() -> Iterator[Create]:
    """create(id, memsize=…, weight=…, gpu=…) -> its directory on GPU 0; destroyed at the end."""
    made: list[str] = []

    def make(container_id: str | None = None, memsize: int = 64 * MIB, **options: object) -> Path:
        name = container_id or fresh_id()
        words = {"gpu": 0, "memsize": memsize, **options}
        write(PROC / "inst_ctl", " ".join([f"create {name}", *(f"{key}={item}" for key, item in words.items())]))
        made.append(name)
        listed = next(line for line in read(PROC / "inst_ctl").splitlines() if line.split()[0] == name)
        return GPU / dict(word.split("=", 1) for word in listed.split()[1:])["dir"]

    yield make
    for name in made:
        destroy(name)


@pytest.fixture(scope="module")
def keeper() -> Iterator[str]:
    """One container for the whole file: without any the module lets go of the driver, and N/ may not be there."""
    name = fresh_id()
    write(PROC / "inst_ctl", f"create {name} gpu=0 memsize={64 * MIB}")
    yield name
    destroy(name)


@pytest.fixture(autouse=True)
def as_before(keeper: str, create: Create) -> Iterator[None]:
    """Before and after each test only the keeper is there and GPU 0 has its defaults."""
    slice_us = read(GPU / "slice_us")
    yield
    for line in read(PROC / "inst_ctl").splitlines():
        if line.split()[0] != keeper:
            destroy(line.split()[0])
    kept = GPU / dir_of(keeper)
    defaults = {GPU / "policy": 5, GPU / "max_inst": 20, GPU / "prio_ratio": 80, GPU / "slice_us": int(slice_us)}
    defaults |= {PROC / "default_memsize": 8 << 30, GPU / "default_memsize": 0, GPU / "overcommit": 100}
    defaults |= {kept / "ceiling": 0, kept / "weight": 1, kept / "memsize": 64 * MIB, kept / "highprio": 0}
    defaults |= {kept / "host_memsize": 0}
    for path, number in defaults.items():
        write(path, number)


def places(row: Row) -> list[Path]:
    """Where a row of the table is in this tree."""
    gpus = sorted(path for path in PROC.iterdir() if path.name.isdecimal())
    if row.path.startswith("N/C/"):
        return [slot / row.node for gpu in gpus for slot in sorted(gpu.iterdir()) if slot.is_dir()]
    if row.path.startswith("N/"):
        return [gpu / row.node for gpu in gpus]
    return [PROC / row.node]


def test_table_is_read() -> None:
    """All documented nodes are rows: a typing error in the page must not switch a test off."""
    assert len(ROWS) == 27
    assert {row.path for row in ROWS} >= {"default_memsize", "inst_ctl", "upgrade", "version", "N/policy", "N/C/weight"}


def test_tree_is_the_table(create: Create) -> None:
    create()
    files = {path for path in PROC.rglob("*") if not path.is_dir()}
    assert files == {place for row in ROWS for place in places(row)}
    for row in ROWS:
        for place in places(row):
            assert stat.S_IMODE(place.stat().st_mode) == row.mode, place
    for path in (PROC, *(path for path in PROC.rglob("*") if path.is_dir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o555, path


def test_formats(create: Create) -> None:
    create()
    for row in ROWS:
        for place in places(row):
            text = read(place)
            assert re.fullmatch(FORMATS.get(row.path, DECIMAL), text), (place, text)


def test_defaults(create: Create) -> None:
    slot = create(memsize=100 * MIB)
    want = {"policy": 5, "max_inst": 20, "prio_ratio": 80, "free_weight": 18}
    assert {node: value(GPU / node) for node in want} == want
    assert value(PROC / "default_memsize") == 8 << 30
    assert {node: value(slot / node) for node in ("weight", "highprio", "memsize")} == {
        "weight": 1,
        "highprio": 0,
        "memsize": 100 * MIB,
    }
    assert read(slot / "meminfo") == f"Free: {100 * MIB}\n"


def test_stat_names_in_order(create: Create) -> None:
    slot = create(memsize=77 * MIB)
    assert list(stats(slot))[: len(SLOT_STAT)] == SLOT_STAT
    assert list(stats(GPU))[: len(GPU_STAT)] == GPU_STAT
    assert stats(slot)["limit_bytes"] == str(77 * MIB)
    gpu = stats(GPU)
    assert int(gpu["instances"]) == 2
    assert int(gpu["limits_bytes"]) == (64 + 77) * MIB
    assert set(gpu["control"].split(",")) <= {"freeze", "timeslice", "none"}
    assert set(stats(slot)) <= set(SLOT_STAT) and set(gpu) <= set(GPU_STAT), "a name the page does not have"


def test_reads_in_pieces(create: Create) -> None:
    create()
    for path in (PROC / "inst_ctl", GPU / "policy", GPU / "uuid"):
        whole = path.read_bytes()
        with path.open("rb", buffering=0) as stream:
            assert b"".join(iter(lambda stream=stream: stream.read(1), b"")) == whole
        fd = os.open(path, os.O_RDONLY)
        try:
            assert os.pread(fd, 4096, 2) == whole[2:]
        finally:
            os.close(fd)


@pytest.mark.parametrize("row", [row for row in ROWS if row.writable], ids=lambda row: row.path.replace("/", "_"))
def test_garbage_changes_nothing(row: Row, create: Create) -> None:
    create()
    before = settings()
    for place, text in itertools.product(places(row), GARBAGE):
        if row.path == "N/C/ipc" and re.fullmatch(NAME, text):
            continue
        name = refused(place, text)
        assert name in row.errors - {"EPERM"}, (place, text)
        if re.fullmatch(rb"[0-9]{20,99}", text) and "ERANGE" in row.errors:
            assert name == "ERANGE", (place, text)
    assert refused(places(row)[0], b"1", offset=1) == "EINVAL"
    assert settings() == before


@pytest.mark.parametrize("row", [row for row in ROWS if not row.writable], ids=lambda row: row.path.replace("/", "_"))
def test_read_only_nodes_refuse(row: Row) -> None:
    before = settings()
    for place in places(row):
        with pytest.raises(OSError):
            write(place, 1)
    assert settings() == before


RANGES = {
    "N/policy": ([0, 6, 5], [7, 255, 2**32, 2**63]),
    "N/max_inst": ([1 + 1, 25], [0, 26, 2**32 + 5]),
    "N/prio_ratio": ([20, 99], [19, 100, 0, 2**32 + 50]),
    "N/slice_us": ([1000, 100000], [1, 999, 100001, 2**32 + 5000]),
    "N/overcommit": ([100, 101, 1000], [0, 99, 1001, 2**32 + 150]),
    "N/default_memsize": ([MIB, 2**63 - 1], [1, MIB - 1, 2**63]),
    "N/C/ceiling": ([1, 20, 0], [21, 101, 2**32 + 2]),
    "N/C/highprio": ([0, 1], [2, 2**32]),
    "N/C/weight": ([0, 1, 19], [21, 26, 2**32 + 1]),
    "N/C/memsize": ([MIB, MIB + 1, 100 * MIB], [0, 1, MIB - 1]),
    "N/C/host_memsize": ([MIB, 2**63 - 1, 0], [1, MIB - 1, 2**63]),
    "default_memsize": ([MIB, 2**63 - 1], [0, MIB - 1, 2**63]),
}


@pytest.mark.parametrize("path", RANGES)
def test_ranges(path: str, create: Create) -> None:
    """Each bound is accepted and read back; just outside is EINVAL and changes nothing."""
    create()
    row = next(row for row in ROWS if row.path == path)
    place = places(row)[0]
    old = read(place)
    good, bad = RANGES[path]
    for number in good:
        try:
            write(place, number)
        except OSError as err:
            # The control of this policy does not work on this machine.
            assert path == "N/policy" and err.errno == errno.EOPNOTSUPP
            continue
        assert read(place) == f"{number}\n"
    before = settings()
    for number in bad:
        assert refused(place, number) == "EINVAL", number
    assert settings() == before
    write(place, old.strip())


def test_what_a_gpu_gives_follows_what_all_give(create: Create) -> None:
    assert read(GPU / "default_memsize") == read(PROC / "default_memsize")
    write(GPU / "default_memsize", 3 * MIB)
    write(PROC / "default_memsize", 5 * MIB)
    assert value(GPU / "default_memsize") == 3 * MIB
    write(GPU / "default_memsize", 0)
    assert value(GPU / "default_memsize") == 5 * MIB


def test_overcommit(create: Create) -> None:
    total = int(stats(GPU)["total_bytes"])
    write(GPU / "overcommit", 150)
    create(memsize=total)
    with pytest.raises(OSError) as caught:
        create(memsize=total // 2)  # and the keeper's
    assert caught.value.errno == errno.ENOSPC
    create(memsize=total // 2 - 64 * MIB)
    with pytest.raises(OSError):
        create(memsize=total + 1)  # no container has more than the card
    before = settings()
    assert refused(GPU / "overcommit", 149) == "EBUSY"
    assert settings() == before


def test_echo_and_no_newline(create: Create) -> None:
    slot = create()
    subprocess.run(["sh", "-c", f"echo 4 > {slot}/weight"], check=True)
    assert value(slot / "weight") == 4
    write(slot / "weight", b"3")
    assert value(slot / "weight") == 3
    write(slot / "weight", b"0005\n")
    assert read(slot / "weight") == "5\n"


def test_every_policy_that_works_can_be_chosen_while_containers_live(create: Create) -> None:
    create()
    controls = set(stats(GPU)["control"].split(","))
    for policy, facts in TABLE.items():
        if not facts.control or facts.control in controls:
            write(GPU / "policy", policy)
            assert value(GPU / "policy") == policy
        else:
            assert refused(GPU / "policy", policy) == "EOPNOTSUPP"


def test_a_ceiling_is_not_below_the_weight(create: Create) -> None:
    one = create(weight=2, ceiling=5)
    assert (value(one / "weight"), value(one / "ceiling")) == (2, 5)
    assert refused(one / "weight", 6) == "EINVAL"
    assert refused(one / "ceiling", 1) == "EINVAL"
    assert (value(one / "weight"), value(one / "ceiling")) == (2, 5)
    write(one / "ceiling", 0)
    write(one / "weight", 6)
    assert value(create(weight=1) / "ceiling") == 0
    assert value(GPU / "free_weight") == 20 - 1 - 6 - 1


def test_weight_sum(create: Create) -> None:
    one, two = create(weight=2), create(weight=3)
    assert value(GPU / "free_weight") == 20 - 1 - 2 - 3
    write(one / "weight", 16)
    assert value(GPU / "free_weight") == 0
    assert refused(two / "weight", 4) == "ENOSPC"
    assert (value(one / "weight"), value(two / "weight")) == (16, 3)
    write(two / "weight", 0)
    assert value(GPU / "free_weight") == 3


def test_no_free_weight_gives_weight_zero_and_too_little_refuses(create: Create) -> None:
    big = create(weight=17)
    with pytest.raises(OSError) as caught:
        create(weight=3)
    assert caught.value.errno == errno.ENOSPC
    write(big / "weight", 19)
    assert value(create(weight=3) / "weight") == 0


def test_max_inst_below_use_is_busy(create: Create) -> None:
    create(weight=4)
    assert refused(GPU / "max_inst", 4) == "EBUSY"  # the sum of weights is 5
    write(GPU / "max_inst", 5)
    assert value(GPU / "free_weight") == 0
    create()
    assert refused(GPU / "max_inst", 2) == "EBUSY"
    assert value(GPU / "max_inst") == 5


def test_memory_sum(create: Create) -> None:
    slot = create()
    total, limits = int(stats(GPU)["total_bytes"]), int(stats(GPU)["limits_bytes"])
    assert total > 0
    rest = total - limits
    assert refused(slot / "memsize", 64 * MIB + rest + 1) == "ENOSPC"
    with pytest.raises(OSError) as caught:
        create(memsize=total)
    assert caught.value.errno == errno.ENOSPC
    assert value(slot / "memsize") == 64 * MIB
    write(slot / "memsize", 64 * MIB + rest // 2)
    assert read(slot / "meminfo") == f"Free: {64 * MIB + rest // 2}\n"


def test_25_containers_and_the_26th_is_refused(create: Create) -> None:
    write(GPU / "max_inst", 25)
    slots = [create(memsize=16 * MIB) for _ in range(24)]  # and the keeper
    assert len({slot.name for slot in slots}) == 24
    assert (value(GPU / "free_weight"), stats(GPU)["instances"]) == (0, "25")
    before = settings()
    with pytest.raises(OSError) as caught:
        create(memsize=16 * MIB)
    assert caught.value.errno == errno.ENOSPC
    assert settings() == before
    minors = [line.split("gpu=0:")[1] for line in read(PROC / "inst_ctl").splitlines()]
    assert len(set(minors)) == 25


@pytest.mark.parametrize(
    "name",
    ["policy", "stat", "...", ".x", "my-container", "ABCDEF012345" + "0" * 52, "x" * 128, "0123456789a", "%s%n", "~"],
)
def test_ids_of_every_shape(name: str, create: Create) -> None:
    before = read(GPU / "policy")
    slot = create(name)
    assert slot.name == dir_of(name)
    assert read(slot / "id") == f"{name}\n"
    assert read(GPU / "policy") == before
    destroy(name)
    assert not slot.exists()


def test_ids_equal_in_12_characters(create: Create) -> None:
    head = hashlib.sha256(b"head").hexdigest()[:12]
    first, second = head + "0" * 52, head + "1" * 52
    one, two = create(first, memsize=20 * MIB), create(second, memsize=30 * MIB)
    assert (one.name, two.name) == (head, hashlib.sha256(second.encode()).hexdigest()[:12])
    assert (read(one / "id"), read(two / "id")) == (f"{first}\n", f"{second}\n")
    write(two / "weight", 2)
    assert (value(one / "weight"), value(one / "memsize")) == (1, 20 * MIB)
    destroy(first)
    assert not one.exists() and read(two / "id") == f"{second}\n"


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 129, "a/b", "a=b", "a b", "ä", "a\tb", "a\x7f"])
def test_bad_ids(name: str) -> None:
    before = settings()
    assert refused(PROC / "inst_ctl", f"create {name} gpu=0 memsize={64 * MIB}") == "EINVAL"
    assert settings() == before


BAD_COMMANDS = [
    ("create q gpu=0 memsize=0", "EINVAL"),
    ("create q gpu=0,0 memsize=67108864", "EINVAL"),
    ("create q gpu=0 memsize=67108864,67108864", "EINVAL"),
    ("create q gpu=0 memsize=67108864 weight=0", "EINVAL"),
    ("create q gpu=0 memsize=67108864 weight=21", "EINVAL"),
    ("create q gpu=0 memsize=67108864 highprio=2", "EINVAL"),
    ("create q gpu=0 memsize=67108864 ceiling=21", "EINVAL"),
    ("create q gpu=0 memsize=67108864 weight=3 ceiling=2", "EINVAL"),
    ("create q gpu=0 memsize=67108864 colour=red", "EINVAL"),
    ("create q gpu=0 memsize=67108864 gpu=0", "EINVAL"),
    ("create q  gpu=0 memsize=67108864", "EINVAL"),
    ("create q gpu=-1 memsize=67108864", "EINVAL"),
    ("create q gpu=0 memsize=67108864 cookie=0", "EINVAL"),
    ("create q gpu=0 memsize=99999999999999999999", "EINVAL"),
    ("create q gpu=31 memsize=67108864", "ENODEV"),
    ("create q gpu=0,31 memsize=67108864", "ENODEV"),
    ("Create q gpu=0 memsize=67108864", "EINVAL"),
    ("destroy nobody", "ENOENT"),
]


@pytest.mark.parametrize(("command", "name"), BAD_COMMANDS, ids=[command for command, _ in BAD_COMMANDS])
def test_bad_commands(command: str, name: str) -> None:
    before = settings()
    assert refused(PROC / "inst_ctl", command) == name
    assert settings() == before


def test_cookie_and_twice(create: Create) -> None:
    name = fresh_id()
    create(name, cookie="0xabcdef")
    assert f"{name} cookie=0xabcdef " in read(PROC / "inst_ctl")
    assert refused(PROC / "inst_ctl", f"create {name} gpu=0 memsize={64 * MIB}") == "EEXIST"
    assert refused(PROC / "inst_ctl", f"destroy {name} cookie=1") == "ENOENT"
    write(PROC / "inst_ctl", f"destroy {name} cookie={0xABCDEF}")
    destroy(name)  # once more while it is dying is no error
    assert refused(PROC / "inst_ctl", f"destroy {name}") == "ENOENT"


def test_a_refusal_names_who_holds_the_card(create: Create, kernel_log: Any) -> None:
    one = create(memsize=96 * MIB, weight=2)
    kernel_log.news()
    total = int(stats(GPU)["total_bytes"])
    assert refused(PROC / "inst_ctl", f"create {fresh_id()} gpu=0 memsize={total}") == "ENOSPC"
    assert refused(PROC / "inst_ctl", f"create {fresh_id()} gpu=0 memsize={MIB} weight=20") == "ENOSPC"
    lines = [line for line in kernel_log.news().splitlines() if f" {one.name} 96 MiB" in line]
    assert ["would exceed its memory" in line for line in lines] == [True, False]
    assert all(f" of {total // MIB} MiB, " in line and " instances, " in line for line in lines)


def test_a_refused_write_is_logged_with_its_sentence(create: Create, kernel_log: Any) -> None:
    """For who writes by hand; each with the file's name. The log takes ten of these in 5 s."""
    one = create(memsize=64 * MIB)
    cases = (
        (PROC / "default_memsize", "1", "cgpu_km/default_memsize not written: at least 1048576 bytes (-22)"),
        (GPU / "max_inst", "two", "cgpu_km/0/max_inst not written: a decimal number, without a unit (-22)"),
        (GPU / "uvm", "yes", "cgpu_km/0/uvm not written: account or deny (-22)"),
        (GPU / "prio_ratio", "101", "cgpu_km/0/prio_ratio not written: prio_ratio: "),
        (one / "weight", "21", f"0/{one.name}/weight not written: weight: 0 to max_inst, at most the ceiling (-22)"),
        (one / "ipc", "a/b", f"0/{one.name}/ipc not written: a name as an id, or nothing (-22)"),
        (PROC / "upgrade", "x", "cgpu_km/upgrade not written: a version of a core that is loaded, as 1.2.3 (-22)"),
    )
    for place, text, sentence in cases:
        end = time.monotonic() + 15
        kernel_log.news()
        while True:
            assert refused(place, text)
            if sentence in kernel_log.news():
                break
            assert time.monotonic() < end, sentence
            time.sleep(1)
    write(GPU / "uvm", read(GPU / "uvm").strip())
    assert "not written" not in kernel_log.news()


def test_a_name_is_free_when_destroy_returns() -> None:
    name = fresh_id()
    for _ in range(30):
        write(PROC / "inst_ctl", f"create {name} gpu=0 memsize={64 * MIB}")
        write(PROC / "inst_ctl", f"destroy {name}")


def test_a_file_kept_open_outlives_its_container(create: Create) -> None:
    """Reading and writing through a descriptor of a destroyed container fails and has no other effect."""
    slot = create()
    fds = [os.open(slot / node, os.O_RDWR) for node in ("weight", "memsize", "highprio")]
    destroy(read(slot / "id").strip())
    assert not slot.exists()
    for fd in fds:
        with pytest.raises(OSError):
            os.write(fd, b"1\n")
        with contextlib.suppress(OSError):
            os.pread(fd, 100, 0)
        os.close(fd)


def test_readers_while_containers_come_and_go(create: Create) -> None:
    stop = threading.Event()
    failures: list[tuple[str, OSError]] = []

    def read_quietly(path: str) -> None:
        try:
            Path(path).read_text()
        except OSError as err:
            if err.errno not in (
                errno.EIO,
                errno.ENOENT,
                errno.ESRCH,
                errno.ENODEV,
                errno.ENXIO,
                errno.ENOTDIR,
                errno.EINVAL,
            ):
                failures.append((path, err))

    def reader() -> None:
        while not stop.is_set():
            for folder, _, names in os.walk(PROC):
                for name in names:
                    read_quietly(f"{folder}/{name}")

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        name = fresh_id()
        create(name)
        destroy(name)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_upgrade_lists_the_active_core_first() -> None:
    def versions() -> list[str]:
        return [line for line in read(PROC / "upgrade").splitlines() if not line.startswith("last: ")]

    before = versions()
    assert before[0] == read(PROC / "version").strip()
    assert len(set(before)) == len(before)
    assert refused(PROC / "upgrade", "99.99.99") == "ENOENT"
    assert read(PROC / "upgrade").endswith("last: 99.99.99 -2 it is not registered\n")
    write(PROC / "upgrade", before[0])
    assert versions() == before
    assert read(PROC / "upgrade").endswith(f"last: {before[0]} 0 it was active\n")


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("where", ["--pid --fork", "--user --map-root-user"])
def test_other_namespaces_see_nothing(where: str) -> None:
    for node in ("version", "0/policy", "inst_ctl"):
        done = shell("unshare", *where.split(), "cat", str(PROC / node))
        assert done.returncode != 0
        assert done.stdout == ""
        assert "Operation not permitted" in done.stderr
    before = settings()
    done = shell("unshare", *where.split(), "sh", "-c", f"echo 4 > {PROC}/0/policy")
    assert done.returncode != 0
    assert settings() == before


def test_root_without_sys_admin_may_not_write() -> None:
    before = settings()
    bare = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    done = shell(*bare, "sh", "-c", f"echo 4 > {PROC}/0/policy")
    assert done.returncode != 0
    assert "ermi" in done.stderr or "Operation not permitted" in done.stderr
    assert settings() == before


def test_a_descriptor_does_not_carry_the_right_along() -> None:
    """Opened with CAP_SYS_ADMIN, written without: refused."""
    before = settings()
    with (GPU / "policy").open("w") as stream:
        bare = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
        done = subprocess.run([*bare, "sh", "-c", "echo 4"], stdout=stream, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode != 0
    assert settings() == before


def test_nobody_may_read_but_not_write() -> None:
    assert shell("setpriv", "--reuid=65534", "--clear-groups", "cat", f"{PROC}/version").returncode == 0
    assert shell("setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", f"echo 4 > {PROC}/0/policy").returncode != 0


def test_the_command_line_reads_this_tree(create: Create) -> None:
    """cgpu-smi and cgpu on the real thing, not on a copy of it."""
    slot = create(memsize=100 * MIB, weight=2)
    name = read(slot / "id").strip()
    done = shell("cgpu", "ps")  # the installed script; below in copies of this process
    assert done.returncode == 0, done.stderr
    assert name[:12] in done.stdout
    assert forked.command("cgpu", "set", "container", name, "weight", "3").returncode == 0
    assert value(slot / "weight") == 3
    done = forked.command("cgpu", "set", "container", name, "weight", "20")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the sum of weights would exceed max_inst" in done.stderr
    done = forked.command("cgpu", "set", "container", name, "weight", "21")
    assert (done.returncode, done.stdout) == (1, "")
    assert ": out of range (0 to max_inst, at most the ceiling: GPU 0 has max_inst " in done.stderr
    assert forked.command("cgpu", "destroy", "nobody").returncode == 5
    assert forked.command("cgpu", "destroy", "").returncode == 2
    assert (slot / "id").exists()


@pytest.mark.once
def test_the_command_line_creates_what_was_asked(create: Create) -> None:
    """By netlink, and with the module's own sentences. A weight that is not free creates nothing."""
    create(memsize=100 * MIB, weight=15)
    words = ("--gpu", "0", "--memsize", "10MiB")
    for asked, sentence in (
        ((*words, "--weight", "18"), "of its weight free, and 18 was requested"),
        (("--gpu", "0,0", "--memsize", "10MiB"), "a container needs 1 to 32 GPUs, each once"),
        (("--gpu", "31", "--memsize", "10MiB"), "no such GPU"),
    ):
        done = forked.command("cgpu", "create", "by-hand", *asked)
        assert (done.returncode in (1, 5), done.stdout) == (True, ""), asked
        assert sentence in done.stderr
        assert "by-hand" not in read(PROC / "inst_ctl")
    done = forked.command("cgpu", "create", "by-hand", *words, "--weight", "18", "--allow-less", "--json")
    try:
        assert done.returncode == 0, done.stderr
        (slot,) = json.loads(done.stdout)["created"]["slots"]
        assert (1 <= slot["weight"] <= 5, slot["limit_bytes"]) == (True, 10 * MIB), slot
        assert "a container with this id is there" in forked.command("cgpu", "create", "by-hand", *words).stderr
        bad = forked.command("cgpu", "create", "a=b", *words).stderr
        assert "'a=b' is no id (1 to 128 printable" in bad
        done = shell("sh", "-c", "cgpu set container by-hand weight 2 >/dev/full")
        assert done.returncode == 6
        assert "by-hand" in forked.command("cgpu", "ps").stdout
        done = forked.command("cgpu", "doctor", "--json")
        states = {one["check"]: one["status"] for one in json.loads(done.stdout)["findings"]}
        good = ("kernel", "module", "driver's nodes", "containers' nodes", "stale containers")
        assert {states[name] for name in good} == {"ok"}, done.stdout
        assert states["driver"] == "warning", "580.105.08 is without later fixes"
        done = forked.command("cgpu", "inspect", "by-hand", "--json")
        (slot,) = json.loads(done.stdout)["containers"][0]["gpus"]
        assert (slot["weight"], slot["memory"]["limit_bytes"]) == (2, 10 * MIB)
        done = forked.command("cgpu", "policy", "set", "weighted", "--dry-run")
        assert (done.returncode, "by-hand: " in forked.command("cgpu", "policy", "show").stdout) == (0, True), (
            done.stderr
        )
    finally:
        assert forked.command("cgpu", "destroy", "by-hand").returncode == 0
