# SPDX-License-Identifier: MIT
"""rmlever in a process whose driver says yes to all (rmtap/fake_nodes.c): what it learns, asks and answers."""

from __future__ import annotations

import json
import statistics
import struct
import subprocess

import pytest
from hw.lever import Lever, LeverError, status_text, took_us
from preloaded import CONTEXT, Process


def test_it_learns_clients_groups_and_channels(start):
    lever = Lever(start().socket)
    found = lever("list")
    (client,) = {c["client"] for c in found["clients"]}
    assert len(found["devices"]) == len(found["subdevices"]) == len(found["tsgs"]) == 1
    assert [c["class"] for c in found["channels"]] == ["c46f", "c46f"]
    assert all(c["parent"] == found["tsgs"][0]["handle"] and c["engine"] == 1 for c in found["channels"])
    assert lever.channels() == [f"{client}:{c['handle']}" for c in found["channels"]]


def test_what_is_freed_or_closed_is_forgotten(start):
    lever = Lever(start(CONTEXT + "rm.free(one.handle)\n").socket)
    assert len(lever("list")["channels"]) == 1
    gone = Lever(start(CONTEXT + "rm.close()\n").socket)
    assert gone("list")["clients"] == gone("list")["channels"] == []
    assert status_text(gone("restart")) == "no call"


def test_a_call_is_timed_and_has_its_status(start):
    lever = Lever(start().socket)
    for verb, calls in (("restart", 5), ("timeslice", 5), ("preempt", 5), ("pulse", 10)):
        answer = lever(verb, n=5)
        assert (answer["calls"], answer["failed"], status_text(answer)) == (calls, 0, "NV_OK"), verb
        assert len(took_us(answer)) == calls
        assert answer["begin_ns"] < answer["end_ns"]
    assert lever("freeze", list="1:2,3:4,5:6")["calls"] == 1
    assert lever("freeze", list=",".join(f"{i:x}:1" for i in range(1, 131)))["calls"] == 3, "64 to a call"
    assert lever("freeze", list="nonsense")["calls"] == 0


def test_a_wrong_word_is_said_to_be_one(start):
    lever = Lever(start().socket)
    with pytest.raises(LeverError, match="no such verb"):
        lever("explode")
    assert lever("list")["clients"], "and the connection lives"


def test_two_talk_to_one_process(start):
    process = start()
    first, second = Lever(process.socket), Lever(process.socket)
    assert second("list")["pid"] == first("list")["pid"] == process.process.pid


def test_a_child_has_nothing_and_the_parent_keeps_all(start, tmp_path):
    process = start(CONTEXT + "pid = os.fork()\nif not pid: os._exit(0)\nprint(os.waitpid(pid, 0)[1])")
    assert process.said == ["0"]
    assert len(Lever(process.socket)("list")["channels"]) == 2
    assert [p.name for p in tmp_path.glob("*.sock")] == [process.socket.name]
    assert process.end() == 0
    assert not list(tmp_path.glob("*.sock")), "the socket goes with the process"


def test_a_class_is_refused_and_the_driver_not_asked(start, tmp_path):
    log = tmp_path / "log"
    program = "rm = nv.Client().__enter__()\nprint(rm.alloc(0xde)[0], rm.alloc(0x503c)[0])"
    process = start(program, RMLEVER_REFUSE="de,503b", RMLEVER_LOG=str(log))
    assert process.said == [f"{0x22} 0"]
    assert log.read_text() == f"refused pid={process.process.pid} class=0xde\n"


def test_without_a_directory_there_is_no_socket(built, tmp_path):
    process = Process(built, tmp_path, CONTEXT, RMLEVER_DIR="")
    assert process.end() == 0
    assert not list(tmp_path.glob("*.sock"))


def test_samples_are_listed_by_their_times(start):
    """On a card the ring's tracker named the newest, not the oldest."""
    answer = Lever(start().socket)("samples")
    assert (answer["calls"], answer["failed"]) == (1, 0)
    pids = (102, 103, 100, 101)
    assert answer["samples"] == [[1_000_000_000 + i * 200_000_000, pid] for i, pid in enumerate(pids)]
    without = Lever(start("rm = nv.Client().__enter__()").socket)("samples")
    assert (without["calls"], without["samples"]) == (0, [])


# ---- conduct ----


def conduct(built, *argv: str, expect: int = 0) -> list[dict]:
    done = subprocess.run([built / "conduct", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_core_decides_and_the_processes_call(built, start):
    members = [f"{start().socket}:{weight}:2:1" for weight in (1, 2)]
    argv = ("--policy", "2", "--seconds", "3", "--slice-us", "20000", "--restart")
    *rounds, result = conduct(built, *argv, *members)
    assert len(rounds) >= 20, "of 60 ms"
    assert [r["round"] for r in rounds] == sorted(r["round"] for r in rounds)
    # Not at the end alone: what one is owed just then would be paid in the next round.
    ratios = [r["gpu_ns"][1] / r["gpu_ns"][0] for r in rounds[10:]]
    assert statistics.median(ratios) == pytest.approx(2, rel=0.1)
    assert result["failed"] == 0
    assert result["calls"] >= 3 * (result["turns"] - 2), "a thaw, a freeze, a restart"


def test_calls_that_cannot_be_made_are_counted(built, start):
    """A process without a context has no channel to freeze."""
    empty = start("rm = nv.Client().__enter__()")
    *_, result = conduct(built, "--seconds", "1", f"{start().socket}:1", f"{empty.socket}:1")
    assert result["calls"] > 0
    assert result["turns"] > 0


@pytest.mark.parametrize("argv", [(), ("--policy", "9", "{}:1"), ("--max-inst", "1", "{}:1", "{}:1"), ("/nowhere:1",)])
def test_what_cannot_be_conducted_is_refused(built, start, argv):
    socket = start().socket
    conduct(built, *(word.format(socket) for word in argv), expect=1)


def parts(result: dict) -> list[float]:
    got = [member["gpu_ns"] for member in result["member"]]
    return [one / sum(got) for one in got]


def members(start, words: tuple[int, ...], *highprio: int) -> list[str]:
    """A process for each word: not 0 while it has work."""
    found = []
    for i, word in enumerate(words):
        socket = start().socket
        socket.with_suffix(".state").write_bytes(struct.pack("I", word))
        found.append(f"{socket}:1:2:1:{int(i in highprio)}")
    return found


def test_a_process_without_work_gives_its_slices_away(built, start):
    argv = ("--policy", "2", "--seconds", "2", "--slice-us", "20000")
    both = members(start, (0, 1))
    *_, blind = conduct(built, *argv, *both)
    assert blind["readings"] == 0
    assert parts(blind)[0] == pytest.approx(0.5, abs=0.1)
    *_, seen = conduct(built, *argv, "--states", *both)
    assert seen["readings"] > 0
    assert parts(seen)[1] > 0.85, "the other one is idle"


def test_a_process_without_a_word_is_not_known_to_be_idle(built, start):
    """A missing word must not count as idle: it would never run."""
    (idle,) = members(start, (0,))
    unknown = f"{start().socket}:1:2:1"
    *_, result = conduct(built, "--seconds", "2", "--slice-us", "20000", "--states", idle, unknown)
    assert parts(result)[1] > 0.85


def test_high_priority_has_its_ratio_while_it_works(built, start):
    argv = ("--policy", "1", "--seconds", "3", "--slice-us", "20000", "--prio-ratio", "80", "--states")
    *_, result = conduct(built, *argv, *members(start, (1, 1), 0))
    assert parts(result)[0] == pytest.approx(0.8, abs=0.08)
    *_, result = conduct(built, *argv, *members(start, (0, 1), 0))
    assert parts(result)[1] > 0.85, "it has no work: the other one runs"
