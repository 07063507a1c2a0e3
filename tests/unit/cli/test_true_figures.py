# SPDX-License-Identifier: MIT
"""Figures and sentences that a blind administrator found untrue: each was shown, and was not so."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_tree import ID1, ID2, Cli, Tree, write
from test_doctor import GOOD

from cgpu_cli import checks, node, rates
from cgpu_cli.facts import ROOT_ONLY, SKIPPED, WARNING
from cgpu_cli.main import cgpu
from cgpu_cli.names import Named, labels
from cgpu_common import proc
from cgpu_common.config import load
from cgpu_common.exits import Exit

NEAR = "0123456789abffff"
ALIKE = "0123456789abcdef" + "3" * 48


# ---- two outputs ----


@pytest.mark.parametrize(
    ("other", "sentence"),
    [("one", "is named for two outputs"), ("./one", "is named for two outputs"), ("link", "link: is a symbolic link")],
)
def test_two_outputs_are_two_files(tree: Tree, tmp_path: Path, other: str, sentence: str) -> None:
    """The picture took the place of the trace, and both were "wrote"."""
    (tmp_path / "link").symlink_to("one")
    first, second = tmp_path / "one", f"{tmp_path}/{other}"
    for words in (
        ("trace", "--gpu", "0", "--seconds", "0.05"),
        ("simulate", "--container", "name=a", "--seconds", "1"),
    ):
        result = Cli(tree).cgpu(*words, "--svg", str(first), "--perfetto", second)
        assert result.exit_code == Exit.USAGE and sentence in result.stderr
        assert not first.exists()


def test_an_output_that_fails_names_those_that_are_written(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cgpu_cli import simulate

    whole = simulate.write_file

    def full(path: Path, text: str) -> None:
        if path.suffix == ".svg":
            raise OSError(28, "No space left on device", str(path))
        whole(path, text)

    monkeypatch.setattr(simulate, "write_file", full)
    result = Cli(tree).cgpu("trace", "--gpu", "0", "--seconds", "0.05", "--svg", f"{tmp_path}/k.svg", "--perfetto",
                            f"{tmp_path}/ok.json")  # fmt: skip
    assert result.exit_code == Exit.OUTPUT, "it was carried out, and its output could not be written"
    assert f"k.svg: No space left on device (written: {tmp_path}/ok.json)" in result.stderr


# ---- cgpu nodes ----


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port, seen
    server.shutdown()
    server.server_close()


def test_a_port_is_never_another_one(listener: tuple[int, list[str]]) -> None:
    """99999 was taken for 34463, with the query and the token."""
    port, seen = listener
    result = CliRunner().invoke(cgpu, ["nodes", "--prometheus", f"http://127.0.0.1:{port + 65536}"])
    assert result.exit_code != 0 and "Port out of range" in result.stderr
    assert seen == []


# ---- cgpu doctor ----


def test_a_configuration_that_cgpud_has_not_read_is_not_in_force(tmp_path: Path) -> None:
    path = tmp_path / "cgpu.toml"
    path.write_text("# as it came\n[gpu]\npolicy = 2\n")
    first = load(path).fingerprint
    path.write_text("[gpu]\npolicy = 2 # a comment\n")
    assert load(path).fingerprint == first, "comments are no values"
    path.write_text('[gpu]\npolicy = "burst"\n')
    assert load(path).fingerprint != first
    (tmp_path / "cgpu.toml.d").mkdir()
    before = load(path).fingerprint
    (tmp_path / "cgpu.toml.d/x.toml").write_text("[container]\nmax_weight = 3\n")
    assert load(path).fingerprint != before
    finding = checks.configuration(replace(GOOD, config_is_read=False))
    assert (finding.status, finding.remedy) == (WARNING, "systemctl reload cgpud")
    assert "changed since cgpud has read it" in finding.text


def test_doctor_and_the_daemon_mean_the_same_files(tree: Tree) -> None:
    """Also without a file, and with one that is only in cgpu.toml.d."""
    assert (
        node.configuration(tree.root)[1].fingerprint == load(None, default=tree.root / "etc/cgpu/cgpu.toml").fingerprint
    )
    write(tree.root / "etc/cgpu/cgpu.toml.d/a.toml", "log_level = 'debug'\n")
    assert (
        node.configuration(tree.root)[1].fingerprint == load(None, default=tree.root / "etc/cgpu/cgpu.toml").fingerprint
    )


def test_who_may_not_ask_cgpud_finds_no_problem_of_it() -> None:
    facts = replace(GOOD, daemon_silence=ROOT_ONLY, daemon_remedy="be root", without_libcuda=None)
    finding = checks.daemon(facts)
    assert finding.status == SKIPPED and "not asked" in finding.text
    assert "is known to cgpud" not in checks.libcuda(facts).text


# ---- windows ----


def snapshots(tree: Tree, ages_s: list[float]) -> list[proc.Snapshot]:
    """Readings of a container that has all of the GPU in its last second, and had none of it before."""
    found = []
    for age in ages_s:
        ran = round((1.0 - min(age, 1.0)) * 1e9)
        write(tree.proc / "0" / ID1[:12] / "stat", f"gpu_ns {ran}\nwait_ns 0\nturns 5\nopened 1\n")
        one = proc.read_tree(proc.Paths.below(str(tree.root)))
        at = 10**12 - round(age * 1e9)
        gpus = [replace(gpu, slots=tuple(replace(slot, at_ns=at) for slot in gpu.slots)) for gpu in one.gpus]
        found.append(replace(one, at_ns=at, gpus=tuple(gpus)))
    return found


def test_a_window_is_the_one_that_was_asked_for(tree: Tree) -> None:
    """Of 10.5 s the first was left out, since 9.5 s were enough."""
    found = rates.rates(snapshots(tree, [10.5, 9.5, 8.5, 1.0, 0.0]), round(10.5e9))
    (one,) = [value for (gpu, folder), value in found.items() if (gpu, folder) == (0, ID1[:12])]
    assert one.share_got_pct == pytest.approx(100 / 10.5, rel=1e-6)


def test_one_that_neither_ran_nor_waited_has_no_wait(tree: Tree) -> None:
    """Under 0 and 3 it has its turns all the same: "0us" was shown for it."""
    readings = []
    for turns, at in ((5, 0), (105, 10**9)):
        write(tree.proc / "0" / ID1[:12] / "stat", f"gpu_ns 7\nwait_ns 9\nturns {turns}\nopened 1\n")
        one = proc.read_tree(proc.Paths.below(str(tree.root)))
        gpus = [replace(gpu, slots=tuple(replace(slot, at_ns=at) for slot in gpu.slots)) for gpu in one.gpus]
        readings.append(replace(one, at_ns=at, gpus=tuple(gpus)))
    assert rates.rates(readings)[0, ID1[:12]].wait_per_turn_us is None


# ---- names ----


def test_two_containers_have_two_names(tree: Tree) -> None:
    shown = labels([Named(ALIKE, "a"), Named(NEAR, "b"), Named(ID1, "c", "train"), Named("by-hand", "d")])
    assert shown[ALIKE] != shown[NEAR] and (shown[ID1], shown["by-hand"]) == ("train", "by-hand")
    assert all(one.startswith(shown[one]) for one in (ALIKE, NEAR))
    tree.slot(0, ALIKE)
    path = tree.slot(0, "39f1a2c9329b")
    write(path / "id", NEAR)
    text = Cli(tree).cgpu("policy", "show", "0").stdout
    assert "  0123456789abc: " in text and "  0123456789abf: " in text


def test_a_name_is_the_engine_s_or_none(tree: Tree) -> None:
    cli = Cli(tree)
    trace = json.loads(cli.cgpu("trace", "--gpu", "0", "--seconds", "0.05", "--json").stdout)
    names = {one["id"]: one["name"] for one in trace["gpus"][0]["containers"]}
    change = json.loads(cli.cgpu("policy", "set", "fixed", "--dry-run", "--json").stdout)
    names |= {f"set {one['id']}": one["name"] for gpu in change["changes"] for one in gpu["containers"]}
    assert {key.split()[-1]: name for key, name in names.items() if ID2 in key} == {ID2: None}
    assert names[ID1] == names[f"set {ID1}"] == "gpu_test1"


def test_a_trace_without_containers_has_no_period(tree: Tree) -> None:
    for folder in tree.proc.glob("[0-9]/[0-9a-f]*"):
        if (folder / "weight").exists():
            shutil.rmtree(folder)
    assert Cli(tree).cgpu("trace", "--seconds", "0.05").stdout == "no container shared a GPU\n"


# ---- one value of a container ----


def test_the_host_s_memory_is_of_no_gpu(tree: Tree) -> None:
    write(tree.proc / "0" / ID1[:12] / "host_memsize", "0\n")
    result = Cli(tree).cgpu("set", "container", ID1, "host_memsize", "1GiB", "--gpu", "0")
    assert result.exit_code == Exit.USAGE and "on all of its GPUs" in result.stderr
    result = Cli(tree).cgpu("set", "container", ID1, "host_memsize", "1GiB")
    assert result.stdout == f"container {ID1} host_memsize: none -> 1024 MiB\n", result.stderr


@pytest.mark.parametrize("read_ms", [0.1, 5])
def test_shares_add_up_however_slow_a_read_is(tree: Tree, monkeypatch: pytest.MonkeyPatch, read_ms: float) -> None:
    """67.2 and 33.8 % of one GPU: the first reading's time was taken three files after its counters, so that each
    window was too short."""
    now, real = [10**12], proc.read_file

    def slow(path: Path) -> str:
        now[0] += round(read_ms * 10**6 / 2)
        share = {ID1: 1, ID2: 2}.get(next((one for one in (ID1, ID2) if one[:12] == path.parent.name), ""), 0)
        text = f"gpu_ns {now[0] * share // 3}\nopened 1" if path.name == "stat" and share else real(path)
        now[0] += round(read_ms * 10**6 / 2)
        return text

    monkeypatch.setattr(proc, "read_file", slow)
    monkeypatch.setattr(proc.time, "monotonic_ns", lambda: now[0])
    before = proc.read_tree(proc.Paths.below(str(tree.root)), brief=True)
    now[0] += 10**9
    found = rates.rates([before, proc.read_tree(proc.Paths.below(str(tree.root)))])
    got = [found[0, one[:12]].share_got_pct for one in (ID1, ID2)]
    assert got == [pytest.approx(100 / 3, abs=0.01), pytest.approx(200 / 3, abs=0.01)]


def test_the_counters_of_a_gpu_are_read_before_anything_else_of_its_containers(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the windows of two containers begin milliseconds apart, and a slice falls into one of them only."""
    real, order = proc.read_file, []
    monkeypatch.setattr(proc, "read_file", lambda path: (order.append(path), real(path))[1])
    for brief in (True, False):
        order.clear()
        proc.read_tree(proc.Paths.below(str(tree.root)), brief=brief)
        own = [path.name for path in order if path.parent.name in (ID1[:12], ID2[:12])]
        assert own[:2] == ["stat", "stat"] and own.count("stat") == 2
