# SPDX-License-Identifier: MIT
"""Plays recorded calls on the simulated driver alone and in a container, and checks the charge at marked points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import CLIENTS, PROC, REPO, Box, fb_used, until

sys.path.insert(0, str(REPO / "tests/abi/replay"))

import player
import tracefile

pytestmark = [pytest.mark.once, pytest.mark.attached]

ROOT = REPO / "tests/abi/replay/traces"
#: Those of NVIDIA's user space play on its own branch, where a boot has it.
RECORDED = sorted((ROOT / (os.environ.get("NVIDIA") or "550")).glob("*.trace"))
#: Those of a card play on the branch that nvsim is by itself, in the boots without NVIDIA's user space.
ON_A_CARD = sorted(ROOT.glob("580-*/*.trace"))
#: Of these make test plays the shortest.
FEW = ("nvidia-smi", "walk")


def one_of(path: Path, *marks: pytest.MarkDecorator) -> object:
    """A trace of a user space; the long ones are for make test-all."""
    more = () if path.stem in FEW else (pytest.mark.more,)
    return pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[*marks, *more])


def traces() -> list[object]:
    return [
        *(pytest.param(path, id=path.stem) for path in sorted(ROOT.glob("*.trace"))),
        *(one_of(path, pytest.mark.cuda) for path in RECORDED),
        *(one_of(path) for path in ON_A_CARD),
    ]


NAME = "4e" * 32


def machine(trace: tracefile.Trace, side: str, dev: str, **more: object) -> player.Machine:
    """These nodes, with this card's classes for those of the trace."""
    return player.Machine(side, dev, player.cards(dev), classes=player.classes(dev, trace), **more)


def stat(key: str) -> int:
    return int(dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())[key])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = fb_used()
    yield
    until(lambda: fb_used() == before)


@pytest.fixture(scope="module")
def context_bytes() -> int:
    """The size of a context, measured once; the module estimates it until then."""
    with Box("5e" * 32) as box:
        with box.client() as rm:
            rm.gpu().space().group().channel()
        until(lambda: box.used == 0)
    return stat("context_bytes")


def settled(box: Box) -> int:
    """Waits until the charge is stable: a closed file is released a moment later."""
    seen = [box.used]
    until(lambda: seen.append(box.used) or seen[-1] == seen[-2])
    return seen[-1]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    for path in PROC.glob("[0-9]*/uvm"):
        path.write_text("deny")


def play_alone(trace: tracefile.Trace, **more: object) -> player.Player:
    with player.Player(trace, machine(trace, "nvsim", "/dev"), **more) as run:
        run.run()
    return run


def play_in_container(trace: tracefile.Trace, context_bytes: int) -> player.Player:
    numbers = range(int(trace.header.get("gpus", "1")))
    gpus = ",".join(map(str, numbers))
    for number in numbers:
        (PROC / str(number) / "uvm").write_text(trace.header.get("uvm", "deny"))
    with Box(NAME, int(trace.header.get("memsize", 1 << 30)) >> 20, gpus) as box:
        box.proc = PROC / "0" / box.dir  # checks read the first GPU's
        here = machine(trace, "cgpu", box.dev, ledger=lambda: settled(box), context_bytes=context_bytes)
        with player.Player(trace, here) as run:
            run.run()
        until(lambda: box.used == 0)
        return run


@pytest.mark.parametrize("path", traces())
def test_on_the_driver_alone(path: Path):
    assert play_alone(tracefile.load(path)).calls


@pytest.mark.parametrize("path", traces())
def test_in_a_container(path: Path, request: pytest.FixtureRequest):
    """Our own client measures a context's size with the structures of one branch: only if the trace checks contexts."""
    trace = tracefile.load(path)
    counts = any("contexts" in event.fields for event in tracefile.flat(trace.events))
    assert play_in_container(trace, request.getfixturevalue("context_bytes") if counts else 0).calls


# ---- the recorder, on a driver that answers ----

PROGRAM = """
import os, socket, struct, sys
sys.path.insert(0, {nvsim!r})
import nvclient as nv

ours, theirs = socket.socketpair()
child = os.fork()
if not child:
    _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
    with nv.Client() as rm:
        gpu = rm.gpu()
        status, answer = rm.control(rm.handle, 0x3D06, struct.pack("<iIIII", fd, 1, gpu.device, gpu.device, 0))
        assert status == 0
        gpu.free(struct.unpack("<iIIII", answer)[4])
    os.close(fd)
    theirs.send(b"x")
    os._exit(0)
with nv.Client() as rm, nv.Ctl() as carrier:
    gpu = rm.gpu()
    space = gpu.space()
    channel = space.group().channel()
    channel.submit(kernel_ns=1000)
    channel.wait()
    for _ in range(10):
        status, memory = gpu.alloc_vidmem(4 << 20)
        _, base = space.map(memory, 4 << 20)
        gpu.free(memory)
        space.unmap(base)
        space.next_va = base
    status, memory = gpu.alloc_vidmem(2 << 20)
    gpu.map_cpu(memory, 4096).write32(0, 7)
    status, copy = rm.dup(gpu.device, rm, memory)
    export = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory, carrier.fd, 0)
    assert rm.control(rm.handle, 0x3D05, export)[0] == 0
    socket.send_fds(ours, [b"x"], [carrier.fd])
    ours.recv(1)
    os.waitpid(child, 0)
    gpu.free(copy)
    gpu.name()
    print(gpu.memory()["total"] > 0, gpu.processes() != {{}}, rm.control(rm.handle, 0x1FF, 4)[0])
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A trace of a program on the simulated driver, made as one is made on a real machine."""
    logs = tmp_path_factory.mktemp("rmtap")
    env = {**os.environ, "LD_PRELOAD": str(CLIENTS / "librmtap.so"), "RMTAP_DIR": str(logs)}
    argv = [sys.executable, "-c", PROGRAM.format(nvsim=str(REPO / "tests/rmclient"))]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True 86\n"
    out = logs / "recorded.trace"
    script = REPO / "tests/hardware/rmtap/normalise.py"
    normalise = [sys.executable, script, "--program", "test_replay", "--gpu", "nvsim"]
    subprocess.run([*normalise, "--out", out, *logs.glob("*.raw")], check=True)
    return out


def test_a_recorded_trace_passes_the_table(recorded: Path):
    """All calls but the unknown control that the program invents."""
    checker = [sys.executable, REPO / "tests/abi/replay/check.py", recorded]
    done = subprocess.run(checker, capture_output=True, text=True)
    problems = [line for line in done.stdout.splitlines() if ".trace:" in line and "does not know" in line]
    assert len(problems) == 1, done.stdout
    assert done.stdout.splitlines()[-1].endswith("1 problems"), done.stdout


def test_a_recorded_trace_on_the_driver_alone(recorded: Path):
    run = play_alone(tracefile.load(recorded))
    assert run.calls > 80
    assert not run.skipped


def test_a_recorded_trace_in_a_container(recorded: Path, context_bytes: int):
    run = play_in_container(tracefile.load(recorded), context_bytes)
    assert run.calls > 80
    assert not run.skipped


def test_what_is_not_as_recorded_is_named(recorded: Path):
    """The file and line, the call, the result and the recorded one; in an answer too."""
    text = recorded.read_text()
    at = text.index("class=0x40:NV01_MEMORY_LOCAL_USER -> new=")
    wrong = text[:at] + text[at:].replace("status=0x0", "status=0x51", 1)
    line = text[:at].count("\n") + 1
    with pytest.raises(player.Mismatch) as caught:
        play_alone(tracefile.parse(wrong, "bad.trace"))
    assert str(caught.value) == f"bad.trace:{line}: on nvsim: 0x2b/48:NV_ESC_RM_ALLOC: status 0x0, recorded 0x51"
    wrong = (ROOT / "nvml.trace").read_text().replace("out params+0x8: 00000010", "out params+0x8: 00000011")
    with pytest.raises(player.Mismatch) as caught:
        play_alone(tracefile.parse(wrong, "bad.trace"))
    assert "0x2a/32:NV_ESC_RM_CONTROL: params+0x8: 00000010, recorded 00000011" in str(caught.value)


def test_a_wrong_charge_is_named(context_bytes: int):
    text = (ROOT / "cumemcreate.trace").read_text().replace("check bytes=4194304", "check bytes=4194305", 1)
    with pytest.raises(player.Mismatch, match="4194304 bytes are charged, 4194305 should be"):
        play_in_container(tracefile.parse(text, "bad.trace"), context_bytes)


#: nvsim has no confidential computing: the second call is skipped because its object is missing.
UNKNOWN_CLASS = """\
expect nvsim status=0x22
call @ctl1 0x2b/48:NV_ESC_RM_ALLOC root=$client1 parent=$client1 class=0xcb33:NV_CONFIDENTIAL_COMPUTE \
-> new=$cc1! status=0x0
  in params 4: $client1
call @ctl1 0x29/16:NV_ESC_RM_FREE root=$client1 parent=$client1 old=$cc1 -> status=0x0
"""


def test_what_nvsim_lacks_is_marked():
    """A trace of a real machine has calls that nvsim does not implement: each is marked once, then the trace plays."""
    text = (ROOT / "nvml.trace").read_text().replace("\ncheck bytes=0\n", f"\n{UNKNOWN_CLASS}check bytes=0\n")
    bare = "".join(line + "\n" for line in text.splitlines() if not line.startswith("expect nvsim"))
    with pytest.raises(player.Mismatch, match=r"status 0x(22|56), recorded 0x0"):
        play_alone(tracefile.parse(bare))
    trace = tracefile.parse(bare)
    play_alone(trace, mark=True)
    assert trace.text().count("expect nvsim") == text.count("\nexpect nvsim")
    assert play_alone(tracefile.parse(trace.text())).skipped
