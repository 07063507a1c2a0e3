# SPDX-License-Identifier: MIT
"""The recorder on a machine without a GPU: real programs, nodes and a driver that are none (fake_nodes.c).

Answers of a complete driver are recorded in the machine, tests/vm/guest/intercept/test_replay.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import raw
from check import check
from fold import fold
from layouts import POINTERS
from normalise import normalise
from tracefile import Event, Trace, TraceError, flat, parse, unfolded

REPO = Path(__file__).resolve().parents[3]
RMTAP = REPO / "tests/hardware/rmtap"
PRELUDE = f"import os, sys; sys.path.insert(0, {str(REPO / 'tests/rmclient')!r}); import nvclient as nv\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rmtap")
    subprocess.run(["make", "-s", "-C", RMTAP, f"OUT={out}"], check=True)
    fake = RMTAP / "fake_nodes.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", fake, "-o", out / "fake.so"], check=True)
    return out


class Tap:
    """Runs programs under the recorder and gives their traces."""

    def __init__(self, built: Path, logs: Path):
        self.built, self.logs = built, logs

    def run(self, program: str, tapped: bool = True, check: bool = True, **env: str) -> str:
        """The output of a Python program."""
        libraries = [self.built / "librmtap.so"] * tapped + [self.built / "fake.so"]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(str, libraries)),
            "RMTAP_DIR": str(self.logs),
            "RMTAP_DRIVER": "580.105.08",
            **env,
        }
        argv = [sys.executable, "-c", PRELUDE + program]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def play(self, change=lambda text: text) -> str:
        """The player's output for the trace."""
        path = self.logs / "recorded.trace"
        path.write_text(change(self.trace().text()))
        argv = [sys.executable, REPO / "tests/abi/replay/player.py", path]
        environment = {**os.environ, "LD_PRELOAD": str(self.built / "fake.so")}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
        assert not done.stderr
        return done.stdout.replace(f"{self.logs}/", "")

    def raw(self) -> list[Path]:
        return sorted(self.logs.glob("*.raw"))

    def trace(self) -> Trace:
        trace, _ = normalise(self.raw(), "test", "fake")
        return parse(trace.text(), "recorded")


@pytest.fixture
def tap(built, tmp_path) -> Tap:
    return Tap(built, tmp_path)


CONTEXT = """
with nv.Client() as rm:
    gpu = rm.gpu()
    channel = gpu.space().group().channel()
    print(gpu.name(), gpu.alloc_vidmem(2 << 20)[0], rm.ctl.raw(nv.request(0x41, 56), bytearray(56)))
"""


def words(trace: Trace, number: str) -> list[Event]:
    return [e for e in flat(trace.events) if e.verb == "call" and e.words[1].startswith(number)]


def test_a_context_is_a_trace_that_the_table_takes(tap):
    tap.run(CONTEXT)
    trace = tap.trace()
    checker = check(trace)
    assert not checker.problems
    assert trace.header["driver"] == "580.105.08"
    assert trace.header["arch"] == "turing"
    (channel,) = (e for e in words(trace, "0x2b/48") if "TURING_CHANNEL" in e.fields["class"])
    assert channel.fields["parent"] == "$tsg1"
    assert channel.result["new"] == "$channel1!"
    assert str(channel.block("in", "params")).startswith("  in params 368: $mem1 00000000 $va1+0xc00 00000040")
    (name,) = (e for e in words(trace, "0x2a/32") if "NAME_STRING" in e.fields["cmd"])
    assert (name.fields["object"], name.block("in", "params").size) == ("$subdevice1", 132)
    (listed,) = words(trace, "0xc8/2304")
    assert str(listed.block("out", "arg")) == "  out arg+0x10: $gpu0.id", "and not an address that looks like it"
    (idle,) = words(trace, "0x41/56")
    assert idle.result == {"errno": "EINVAL"}
    assert idle.expects[0].refused, "refused calls are marked"
    assert [b.path for b in idle.blocks] == ["arg"], "a call without a layout is there as bytes, once"


def test_the_program_does_not_notice(tap):
    """The same output, errno and all, with the recorder, without it, and with nowhere to write."""
    plain = tap.run(CONTEXT, tapped=False)
    assert plain == "Fake 0 22\n"
    assert tap.run(CONTEXT) == plain
    assert tap.run(CONTEXT, RMTAP_DIR="/nonexistent") == plain
    assert len(tap.raw()) == 1


def test_errno_of_what_is_not_ours(tap):
    program = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
seen = []
for call in (lambda: libc.ioctl(99, 0xc020462a, 0), lambda: libc.close(99), lambda: libc.open(b"/no/such", 0),
             lambda: libc.dup2(99, 98), lambda: libc.ioctl(0, 0x5401, 0)):
    ctypes.set_errno(0)
    seen.append((call(), errno.errorcode.get(ctypes.get_errno())))
print(seen)
"""
    assert tap.run(program) == tap.run(program, tapped=False)
    assert not tap.raw(), "nothing of an NVIDIA node, no file"


def test_wrong_pointers_fail_the_call_and_not_the_program(tap):
    program = """
with nv.Client() as rm:
    arg = nv.Control(client=rm.handle, object=rm.handle, cmd=0x1f0, params=0x10, params_size=4)
    rm.ctl.call(nv.NV_ESC_RM_CONTROL, arg)
    arg.params_size = 1 << 30
    rm.ctl.call(nv.NV_ESC_RM_CONTROL, arg)
    print("alive")
"""
    assert tap.run(program) == "alive\n"
    assert [e.fields["params_size"] for e in words(tap.trace(), "0x2a/32")] == ["0x4", "0x40000000"]


def test_a_call_with_a_null_argument(tap):
    """NVML ends with UVM_DEINITIALIZE, which takes no struct."""
    program = """
import fcntl
with nv.Uvm() as uvm:
    fcntl.ioctl(uvm.fd, 0x30000002, 0)
    print("alive")
"""
    assert tap.run(program) == "alive\n"
    trace = tap.trace()
    (call,) = words(trace, "0x30000002")
    assert call.words[1].endswith(":UVM_DEINITIALIZE")
    assert (call.blocks, call.result) == ([], {"ok": ""})
    assert not check(trace).problems
    assert tap.play().endswith(" calls, 0 skipped\n")


def test_a_mapping_that_another_is_put_over(tap):
    """libcuda unmaps by putting its reservation back, of which the mapping was a part."""
    program = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 2, 0x10, 0x20
with nv.Ctl() as ctl:
    base = libc.mmap(None, 8192, 0, PRIVATE | ANONYMOUS, -1, 0)
    assert libc.mmap(base, 4096, 3, SHARED | FIXED, ctl.fd, 0) == base
    assert libc.mmap(base, 8192, 0, PRIVATE | ANONYMOUS | FIXED, -1, 0) == base
"""
    tap.run(program)
    events = [event.head() for event in tap.trace().events]
    assert events[1:3] == ["mmap $addr1 @ctl1 length=0x1000", "munmap $addr1 length=0x1000"]


def test_small_numbers_are_no_addresses(tap):
    """libcuda's addresses begin at 8 GiB: in a control's parameters a 0 and a 2 are numbers."""
    program = """
import struct
with nv.Client() as rm, nv.Uvm() as uvm:
    uvm.create_range(2 << 32, 2 << 20)
    rm.control(rm.handle, 0x214, struct.pack("<II", 0, 2) + bytes(376))
"""
    tap.run(program)
    (asked,) = (e for e in words(tap.trace(), "0x2a/32") if e.fields["cmd"].startswith("0x214:"))
    assert str(asked.block("in", "params")).startswith("  in params 384: 00000000 00000002 00000000*")


def test_a_loop_folds(tap):
    program = """
with nv.Client() as rm:
    gpu = rm.gpu()
    space = gpu.space()
    for _ in range(50):
        space.next_va = nv.FIRST_VA
        status, memory = gpu.alloc_vidmem(2 << 20)
        space.map(memory, 2 << 20)
        gpu.free(memory)
        space.unmap(nv.FIRST_VA)
"""
    tap.run(program)
    trace = tap.trace()
    assert not check(trace).problems
    repeats = [e for e in trace.events if e.verb == "repeat"]
    assert [(e.words, len(e.body)) for e in repeats] == [(["49"], 5)]
    assert len(trace.text()) < 6000 < tap.raw()[0].stat().st_size


def test_a_file_over_a_socket(tap):
    """Two processes: the child forked before, the file exported onto and sent."""
    program = """
import socket, struct
ours, theirs = socket.socketpair()
if os.fork() == 0:
    _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
    with nv.Client() as rm:
        gpu = rm.gpu()
        params = struct.pack("<iIIII", fd, 1, gpu.device, gpu.device, 0x5c000001)
        assert rm.control(rm.handle, 0x3d06, params)[0] == 0
        rm.free(0x5c000001, gpu.device)
    os._exit(0)
with nv.Client() as rm, nv.Ctl() as carrier:
    gpu = rm.gpu()
    _, memory = gpu.alloc_vidmem(2 << 20)
    params = struct.pack("<IIIIiI", 1, gpu.device, gpu.device, memory, carrier.fd, 0)
    assert rm.control(rm.handle, 0x3d05, params)[0] == 0
    socket.send_fds(ours, [b"x"], [carrier.fd])
    os.wait()
"""
    tap.run(program)
    assert len(tap.raw()) == 2
    trace = tap.trace()
    assert not check(trace).problems
    assert [e.words for e in trace.events if e.verb in ("fork", "send")] == [["p2"], ["@ctl2", "p2", "@ctl4"]]
    (taken,) = (e for e in words(trace, "0x2a/32") if "IMPORT_OBJECT_FROM" in e.fields["cmd"])
    assert str(taken.block("in", "params")).startswith("  in params 20: @ctl4 00000001 $device")

    assert tap.play().endswith(" calls, 0 skipped\n")


def test_a_recorded_trace_plays(tap):
    """On the same nodes, by another process with other handles, files and addresses; a changed answer is seen."""
    tap.run(CONTEXT)
    assert tap.play().endswith(" calls, 0 skipped\n")
    assert "status 0x0, recorded 0x51" in tap.play(lambda text: text.replace("status=0x0", "status=0x51", 3))
    wrong = tap.play(lambda text: text.replace("out params: $gpu0.id", "out params: 00000077"))
    assert "0x2a/32:NV_ESC_RM_CONTROL: params+0x0: 00004100, recorded 00000077" in wrong


def test_threads_and_a_killed_process(tap):
    program = """
import signal, threading
def work():
    with nv.Client() as rm:
        for _ in range(100):
            assert rm.control(rm.handle, 0x1f0, 4)[0] == 0
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
os.kill(os.getpid(), signal.SIGKILL)
"""
    tap.run(program, check=False)
    trace = tap.trace()
    assert not check(trace).problems
    assert sum(e.verb == "open" for e in unfolded(trace.events)) == 4
    records = raw.read(tap.raw()[0])[1]
    assert sum(r.verb == "ioctl" for r in records) == 4 * 101


def test_payload_can_be_left_out(tap):
    program = """
import ctypes, struct
with nv.Client() as rm:
    secret = ctypes.create_string_buffer(b"secret", 64)
    rm.control(rm.handle, 0x101, struct.pack("<IIQQQII", 64, 0, ctypes.addressof(secret), 0, 0, 0, 0))
"""
    tap.run(program)
    tap.run(program, RMTAP_PAYLOAD="0")
    with_it, without = (path.read_text() for path in sorted(tap.raw(), key=lambda path: path.stat().st_mtime_ns))
    assert b"secret".hex() in with_it
    assert b"secret".hex() not in without


def test_no_path(tap):
    tap.run(CONTEXT)
    text = tap.raw()[0].read_text()
    assert "/" not in text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.105.08", "580.105.08"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)", "570.86.15"),
        ("NVRM version: none", "unknown"),
    ],
)
def test_the_drivers_version(tap, text, version):
    """As /proc/driver/nvidia/version has it."""
    tap.run("nv.Ctl().close()", RMTAP_DRIVER=text)
    assert tap.raw()[0].read_text().split("\n")[0].split()[3] == version
    if version == "unknown":
        with pytest.raises(TraceError, match="RMTAP_DRIVER"):
            tap.trace()


def test_the_pointers_in_c_are_those_of_the_layouts():
    table = re.search(r"pointers\[\] = \{(.*?)\n\};", (RMTAP / "capture.c").read_text(), re.S)
    rows = [tuple(int(word, 0) for word in row.split(",")) for row in re.findall(r"\{ (.*?) \}", table[1])]
    assert rows == [(cmd, *place[:3]) for cmd, places in sorted(POINTERS.items()) for place in places]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not written by rmtap"),
        ("rmtap 1 5 580.1\n1 5 ioctl 3 nvidiactl c020462a 0 0 -1:0:8:_9_:=\n", ":2: 9 and 9 bytes"),
        ("rmtap 1 5 580.1\n1 5 ioctl 3 nvidiactl c020462a 0 0 -1:0:8:zz:=\n", ":2: no hex"),
        ("rmtap 1 5 580.1\nnonsense\n", ":2: "),
    ],
)
def test_a_bad_log_is_named_by_line(tmp_path, text, what):
    path = tmp_path / "bad.raw"
    path.write_text(text)
    with pytest.raises(raw.RawError, match=what):
        raw.read(path)


def test_a_file_from_nowhere_is_said(tmp_path):
    path = tmp_path / "lone.raw"
    path.write_text("rmtap 1 5 580.1\n1 5 ioctl 7 nvidiactl c00446c9 0 0 -1:0:4:00000000:=\n")
    with pytest.raises(TraceError, match=r"lone.raw:2: file 7 .* came from elsewhere"):
        normalise([path], "test", "fake")


def raw_of(tmp_path: Path, *calls: str) -> Path:
    path = tmp_path / "made.raw"
    lines = ["rmtap 1 5 580.1", "1 5 open 3 nvidiactl 2", *(f"2 5 ioctl 3 nvidiactl {call}" for call in calls)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_addresses_of_the_kernel_are_not_kept(tmp_path):
    """The driver writes one over the event's, and a program that uses the struct again hands it back."""
    user, kernel = "0010000000700000", "88e6494481 88ffff".replace(" ", "")
    top = "-1:0:48:f600d0c1f600d0c10100005c79000000_32_:= "
    head = "f600d0c1000000007900000001000000"
    path = raw_of(
        tmp_path,
        "c030462b 0 0 -1:0:48:_48_:_8_f600d0c141_35_",
        f"c030462b 0 0 {top}0:16:24:{head}{user}:{head}{kernel}",
        f"c030462b 0 0 {top}0:16:24:{head}{kernel}:{head}99{kernel[2:]}",
    )
    trace, _ = normalise([path], "test", "fake", whole=True)
    text = trace.text()
    assert "44e68" not in text
    assert "ffff88" not in text
    first, second = words(trace, "0x2b/48")[1:]
    assert [str(b) for b in first.blocks][1:] == ["  out params+0x10: ?*8"]
    assert [str(b) for b in second.blocks] == [
        "  in params 24: $client1 00000000 00000079 00000001 00000000*2",
        "  out params+0x10: ?*4",
    ]


def test_of_an_unknown_control_small_numbers_are_kept(tmp_path):
    """What else stands there is not known: it may be a name or what was left on the stack. Of a known one all is."""
    call = "c020462a 0 0 -1:0:32:f600d0c1f600d0c1{}_8_2000000008000000_4_:="
    data = "0:16:8:05000000deadbeef:06000000deadbee0"
    path = raw_of(tmp_path, "c030462b 0 0 -1:0:48:_48_:_8_f600d0c141_35_")
    made = path.read_text()
    for cmd, blocks in (
        ("2f858020", ["  in params 8: 00000005 00000000"]),
        ("7b020000", ["  in params 8: 00000005 efbeadde"]),
    ):
        path.write_text(f"{made}3 5 ioctl 3 nvidiactl {call.format(cmd)} {data}\n")
        trace, _ = normalise([path], "test", "fake")
        (control,) = words(trace, "0x2a/32")
        assert [str(block) for block in control.blocks] == blocks


def test_folding_keeps_every_event():
    letters = "ababababcddeeeeeeeeabcabcabcabc"
    folded = fold([Event("close", [f"@{c}"]) for c in letters])
    assert "".join(e.words[0][1:] for e in unfolded(folded)) == letters
    assert len(folded) < len(letters) / 2
