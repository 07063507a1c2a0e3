# SPDX-License-Identifier: MIT
"""ps, inspect, gpu, policy and completion on a copied tree."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from fake_tree import ID1, ID2, MIB, Cli, Tree, inst_line, write
from test_cgpu import fail_writes

from cgpu_cli import daemon, show
from cgpu_cli.main import cgpu
from cgpu_cli.smi import smi
from cgpu_common import policies
from cgpu_common.exits import Exit


def read(tree: Tree, path: str) -> str:
    return (tree.proc / path).read_text().strip()


@pytest.fixture
def two(tree: Tree) -> Tree:
    """A second GPU with the first container."""
    tree.gpu(1, policy=5, free_weight=19)
    tree.slot(1, ID1)
    tree.listed(inst_line(ID1, 1, gpus="0:4,1:5"), inst_line(ID2, 7))
    for number in (0, 1):
        write(tree.proc / str(number) / "overcommit", "150")
        write(tree.proc / str(number) / "default_memsize", str(8 << 30))
    return tree


# ---- ps ----


def test_ps_quiet_is_for_scripts(two: Tree) -> None:
    cli = Cli(two)
    assert cli.cgpu("ps", "-q").stdout == f"{ID1}\n{ID2}\n"
    assert cli.cgpu("ps", "-q", "--gpu", "1").stdout == f"{ID1}\n"
    assert ID2 in cli.cgpu("ps", "--no-trunc").stdout
    assert ID2 not in cli.cgpu("ps").stdout
    assert cli.cgpu("ps", "--gpu", "7").exit_code == Exit.NOT_FOUND


def test_ps_quiet_without_containers_prints_nothing(empty_cli: Cli) -> None:
    result = empty_cli.cgpu("ps", "-q")
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(empty_cli.cgpu("ps", "-q", "--json").stdout)["containers"] == []


# ---- inspect ----

INSPECTED = f"""\
Id         {ID1}
Name       gpu_test1
Directory  012b2edccd7a
Cookie     0x1
State      live
Nodes      240:1 nvidiactl, 240:2 nvidia-uvm
cgpud      bound, pid 321, cgroup /docker/x
GPU 0      Tesla T4 (simulated), policy 2 (weighted)
  State     running; memory limit: enforced; share: ?
  Node      240:4 as /dev/nvidia0
  Memory    256 of 6043 MiB, peak 512 MiB, refused allocations: 3
  Compute   weight 1 of 20: 33.3% allowed, 0.0% got in the last second
  Turns     30, overruns: 1, refused calls: 0
  Processes 19772 python3 (256 MiB)
"""


def test_inspect(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tree.root / "proc/19772/comm", "python3")
    row = {"id": ID1, "phase": "bound", "pid": 321, "cgroup": "/docker/x"}
    cli = Cli(tree)
    assert "cgpud      is not running (systemctl start cgpud" in cli.cgpu("inspect", "gpu_test1").stdout
    monkeypatch.setattr(daemon, "ask", lambda _paths, _operation: {"containers": [row]})
    assert cli.cgpu("inspect", "gpu_test1").stdout == INSPECTED
    assert "cgpud      does not follow it" in cli.cgpu("inspect", ID2).stdout
    of_claim = {"id": "f" * 64, "slice": ID2, "phase": "bound", "pid": 322, "cgroup": "/docker/y"}
    monkeypatch.setattr(daemon, "ask", lambda _paths, _operation: {"containers": [row, of_claim]})
    assert "does not follow it" not in cli.cgpu("inspect", ID2).stdout
    monkeypatch.setattr(daemon, "ask", lambda _paths, _operation: {"containers": [row]})
    data = json.loads(cli.cgpu("inspect", "gpu_test1", ID2, "--json").stdout)
    assert data["schema_version"] == 1
    one, other = data["containers"]
    assert one["cgpud"] == {"phase": "bound", "pid": 321, "cgroup": "/docker/x"}
    assert one["nodes"] == {"major": 240, "ctl_minor": 1, "uvm_minor": 2}
    assert one["gpus"][0]["processes"] == [{"pid": 19772, "name": "python3", "used_bytes": 256 * MIB}]
    assert (other["id"], other["cgpud"], other["gpus"][0]["weight"]) == (ID2, None, 2)


def test_inspect_prints_no_control_character(tree: Tree) -> None:
    """A tenant names its processes: an escape sequence would write to the administrator's terminal."""
    write(tree.root / "proc/19772/comm", "\x1b]0;a\x07b\rc")
    text = Cli(tree).cgpu("inspect", "gpu_test1").stdout
    assert "Processes 19772 ?]0;a?b?c (256 MiB)" in text
    assert all(char.isprintable() for line in text.split("\n") for char in line)


def test_inspect_of_one_with_a_ceiling(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = "gpu_ns {}\nwait_ns {}\nthrottled_ns {}\nopened 1"
    path = tree.slot(0, ID1, ceiling=6, stat=stat.format(0, 2_000_000_000, 0))
    grown = stat.format(1_000_000, 2_003_000_000, 2_000_000)
    monkeypatch.setattr(show.time, "sleep", lambda _s: write(path / "stat", grown))
    text = Cli(tree).cgpu("inspect", ID1).stdout
    assert "  Throttled by its ceiling: 50.0% of that second\n" in text
    (gpu,) = json.loads(Cli(tree).cgpu("inspect", ID1, "--json").stdout)["containers"][0]["gpus"]
    assert (gpu["throttled_ns"], gpu["wait_ns"]) == (2_000_000, 2_003_000_000)


def test_memory_is_enforced_under_native_too(tree: Tree) -> None:
    """`enforced: no` was about the share alone."""
    write(tree.proc / "0/policy", "5")
    text = Cli(tree).cgpu("inspect", ID1).stdout
    assert "State     running; memory limit: enforced; share: left to the driver (native)\n" in text
    assert "- allowed, - got" in text


def test_inspect_of_an_unknown_container(cli: Cli) -> None:
    result = cli.cgpu("inspect", "gpu_test1", "nobody")
    assert (result.exit_code, result.stdout) == (Exit.NOT_FOUND, "")


# ---- gpu ----


def test_gpu_list_and_show(two: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"gpu": 1, "index": 1, "key": "policy", "configured": "fixed", "live": "native"}
    monkeypatch.setattr(daemon, "status", lambda _paths: {"drift": [row]})
    cli = Cli(two)
    first, second = cli.cgpu("gpu", "list").stdout.splitlines()[1:]
    assert "weighted" in first and "2/20" in first
    assert "native" in second and "1/20" in second
    text = cli.cgpu("gpu", "show", "1").stdout
    assert "Policy      5 (native): the driver's own sharing; memory limits only\n" in text
    assert "overcommit 150, default_memsize 8589934592" in text
    assert "Drift       policy is native, cgpu.toml has fixed\n" in text
    assert "Drift" not in cli.cgpu("gpu", "show", "0").stdout
    data = json.loads(cli.cgpu("gpu", "show", "1", "--json").stdout)["gpu"]
    assert (data["overcommit_pct"], data["default_memsize_bytes"], data["drift"]) == (150, 8 << 30, [row])
    assert len(json.loads(cli.cgpu("gpu", "list", "--json").stdout)["gpus"]) == 2
    assert cli.cgpu("gpu", "show", "9").exit_code == Exit.NOT_FOUND


@pytest.mark.parametrize(
    ("stat", "opened", "line", "source"),
    [
        ("run_state_source chram", 1, "known, by chram", "chram"),
        ("run_state_source none", 1, "not known (cgpu doctor, line run state)", "none"),
        ("run_state_source none", 0, "not known before a container opens the GPU", "none"),
        ("turns 1", 1, "-", None),
    ],
)
def test_gpu_show_says_whether_the_run_state_is_known(
    tree: Tree, stat: str, opened: int, line: str, source: str | None
) -> None:
    """howto.md, recipes.md and start.md send the reader here."""
    tree.gpu(0, stat=stat)
    for one in (ID1, ID2):
        tree.slot(0, one, stat=f"opened {opened}")
    assert f"Run state   {line}\n" in Cli(tree).cgpu("gpu", "show", "0").stdout
    data = json.loads(Cli(tree).cgpu("gpu", "show", "0", "--json").stdout)["gpu"]
    assert data["run_state_source"] == source


# ---- policy ----


def test_policy_list_without_the_module(empty: Tree) -> None:
    shutil.rmtree(empty.proc)
    lines = Cli(empty).cgpu("policy", "list").stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == list(policies.NAMES)


def test_policy_list_and_show(two: Tree) -> None:
    cli = Cli(two)
    data = json.loads(cli.cgpu("policy", "list", "--json").stdout)["policies"]
    assert [(one["name"], one["gpus"]) for one in data if one["gpus"]] == [("weighted", [0]), ("native", [1])]
    text = cli.cgpu("policy", "show").stdout
    assert "GPU 0: 2 (weighted): parts by weight" in text
    assert "  gpu_test1: weight 1, 33.3% allowed\n" in text
    assert "  gpu_test1: weight 1, - allowed\n" in text
    assert "GPU 1" not in cli.cgpu("policy", "show", "0").stdout
    (one,) = json.loads(cli.cgpu("policy", "show", "0", "--json").stdout)["gpus"]
    assert [row["share_allowed_pct"] for row in one["containers"]] == [33.33, 66.67]


def test_policy_set_shows_the_shares(two: Tree) -> None:
    cli = Cli(two)
    preview = cli.cgpu("policy", "set", "fixed", "--gpu", "0", "--dry-run").stdout
    assert preview == (
        "gpu 0 policy: 2 -> 3 (fixed)\n"
        "  gpu_test1     weight 1    33.3% ->   5.0%\n"
        "  aabbccddeeff  weight 2    66.7% ->  10.0%\n"
        f"  echo 3 > {two.proc}/0/policy\n"
        "dry run: nothing was changed, and the kernel has not checked the value\n"
    )
    assert read(two, "0/policy") == "2"
    result = cli.cgpu("policy", "set", "3", "--gpu", "0", "--json")
    (row,) = json.loads(result.stdout)["changes"]
    assert (row["before"], row["after"], read(two, "0/policy"), read(two, "1/policy")) == (2, 3, "3", "5")
    assert [one["share_allowed_after_pct"] for one in row["containers"]] == [5.0, 10.0]
    assert cli.cgpu("policy", "set", "fair").exit_code == 0
    assert (read(two, "0/policy"), read(two, "1/policy")) == ("0", "0")


def test_policy_set_is_all_or_none(two: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_writes(monkeypatch, errno.EOPNOTSUPP, lambda path: "/1/" in path)
    result = Cli(two).cgpu("policy", "set", "4")
    assert (result.exit_code, result.stdout) == (Exit.REFUSED, "")
    assert (read(two, "0/policy"), read(two, "1/policy")) == ("2", "5")


# ---- set --dry-run ----


def test_a_preview_of_a_weight(two: Tree) -> None:
    """With the share that the others lose."""
    before = {path: path.read_bytes() for path in two.proc.rglob("*") if path.is_file()}
    result = Cli(two).cgpu("set", "container", ID2, "weight", "3", "--dry-run")
    assert result.stdout == (
        "gpu 0 weight: 2 -> 3\n"
        "  gpu_test1     weight 1    33.3% ->  25.0%\n"
        "  aabbccddeeff  weight 2    66.7% ->  75.0%\n"
        f"  echo 3 > {two.proc}/0/aabbccddeeff/weight\n"
        "dry run: nothing was changed, and the kernel has not checked the value\n"
    )
    for words in (
        ("gpu", "0", "max_inst", "0"),
        ("gpu", "0", "uvm", "account"),
        ("gpu", "0", "policy", "6"),
        ("container", "gpu_test1", "highprio", "1"),
        ("container", "gpu_test1", "memsize", "1GiB", "--gpu", "1"),
    ):
        data = json.loads(Cli(two).cgpu("set", *words, "--dry-run", "--json").stdout)
        assert (data["schema_version"], data["dry_run"]) == (1, True)
    assert {path: path.read_bytes() for path in before} == before
    assert Cli(two).cgpu("set", "gpu", "0", "policy", "x", "--dry-run").exit_code == Exit.USAGE
    assert Cli(two).cgpu("set", "container", ID2, "weight", "3", "--gpu", "1", "--dry-run").exit_code == Exit.NOT_FOUND


def test_verbose_shows_the_shares_and_the_echo(two: Tree) -> None:
    """Of a change that is made; a wrong value changes nothing."""
    cli = Cli(two)
    assert cli.cgpu("set", "container", ID2, "weight", "3", "-v").stdout == (
        f"container {ID2} gpu 0 weight: 2 -> 3\n"
        "  gpu_test1     weight 1    33.3% ->  25.0%\n"
        "  aabbccddeeff  weight 2    66.7% ->  75.0%\n"
        f"  echo 3 > {two.proc}/0/aabbccddeeff/weight\n"
    )
    assert f"  echo 3 > {two.proc}/0/policy\n" in cli.cgpu("set", "gpu", "0", "policy", "fixed", "-v").stdout
    assert f"  echo 2 > {two.proc}/0/policy\n" in cli.cgpu("policy", "set", "weighted", "--gpu", "0", "-v").stdout
    assert (two.proc / "0/policy").read_text().strip() == "2"
    assert cli.cgpu("set", "gpu", "0", "policy", "purple", "-v").exit_code == Exit.USAGE


def test_a_preview_of_a_policy(two: Tree) -> None:
    data = json.loads(Cli(two).cgpu("set", "gpu", "0", "policy", "fixed", "--dry-run", "--json").stdout)
    (row,) = data["changes"]
    assert (row["node"], row["before"], row["after"]) == ("policy", "2", "3")
    assert [one["share_allowed_after_pct"] for one in row["shares"]] == [5.0, 10.0]


# ---- completion ----


def completed(tree: Tree, *words: str, program: click.Command = cgpu) -> set[str]:
    """What is offered for the last word."""
    *before, last = words
    found = ShellComplete(program, {}, "cgpu", "_CGPU_COMPLETE").get_completions(
        ["--root", str(tree.root), *before], last
    )
    return {one.value for one in found}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("destroy", "g"), {"gpu_test1"}),
        (("inspect", "aab"), {ID2[:12]}),
        (("set", "container", "012"), {ID1[:12]}),
        (("policy", "set", "w"), {name for name in policies.NAMES if name.startswith("w")}),
        (("policy", "set", "fair", "--gpu", ""), {"0", "1"}),
        (("set", "gpu", "0", "policy", "f"), {name for name in policies.NAMES if name.startswith("f")}),
        (("set", "gpu", "0", "uvm", ""), {"deny", "account"}),
        (("set", "gpu", ""), {"0", "1"}),
        (("gpu", "show", "1"), {"1"}),
        (("doc",), {"doctor"}),
        (("simulate", "--policy", "we"), {"weighted"}),
        (("simulate", "--profile", "h1"), {"h100"}),
        (("nodes", "--state", "dr"), {"draining"}),
    ],
)
def test_what_is_offered(two: Tree, words: tuple[str, ...], offered: set[str]) -> None:
    assert completed(two, *words) == offered


def test_the_last_field_of_a_query_is_completed(two: Tree) -> None:
    assert completed(two, "--query-gpu", "index,memory.u", program=smi) == {"index,memory.used"}


def test_the_program_answers_a_shell(two: Tree) -> None:
    """With what bash gets: the type of each word and the word."""
    words = ["cgpu", "--root", str(two.root), "destroy", "g"]
    env = {"_CGPU_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "from cgpu_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("plain,gpu_test1\n", "")


def test_nothing_is_offered_without_the_module(empty: Tree) -> None:
    shutil.rmtree(empty.proc)
    assert completed(empty, "destroy", "x") == set()
    assert completed(empty, "gpu", "show", "x") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(cli: Cli, shell: str, tmp_path: Path) -> None:
    result = cli.cgpu("completion", shell)
    assert result.exit_code == 0
    assert "_CGPU_COMPLETE" in result.stdout
    if shell == "bash":
        (tmp_path / "script").write_text(result.stdout)
        assert subprocess.run(["bash", "-n", tmp_path / "script"], check=False).returncode == 0


# ---- one word for a GPU, everywhere ----


@pytest.mark.parametrize("word", ["1", "GPU-00000001-1111-2222-3333-444455556666", "gpu-00000001", "0000:02:00.0"])
def test_a_gpu_by_number_uuid_or_address(two: Tree, word: str) -> None:
    """`-i` of cgpu-smi took them, the commands of cgpu numbers only."""
    cli = Cli(two)
    assert cli.cgpu("gpu", "show", word).stdout.startswith("GPU 1 ")
    assert cli.cgpu("policy", "show", word).stdout.startswith("GPU 1:")
    assert cli.cgpu("ps", "-q", "--gpu", word).stdout == f"{ID1}\n"
    assert "gpu 1 policy" in cli.cgpu("policy", "set", "fair", "--gpu", word, "--dry-run").stdout
    assert "gpu 1 policy" in cli.cgpu("set", "gpu", word, "policy", "fair", "--dry-run").stdout
    assert "gpu=1 " in created(cli, word)


def created(cli: Cli, word: str) -> str:
    cli.cgpu("create", "new", "--gpu", word, "--memsize", "1GiB")
    return (cli.tree.proc / "inst_ctl").read_text()


def test_a_drained_node_shows_it(tree: Tree) -> None:
    write(tree.root / "run/cgpu/drain", "")
    cli = Cli(tree)
    assert "draining: new slices are refused" in cli.smi("--no-sample").stdout
    assert json.loads(cli.smi("--no-sample", "--json").stdout)["draining"] is True
    found = cli.cgpu("ps")
    assert "draining" not in found.stdout and "draining: new slices are refused" in found.stderr
    assert json.loads(cli.cgpu("ps", "--json").stdout)["draining"] is True


def test_ps_is_in_the_order_of_names(tree: Tree) -> None:
    """It was that of the directories, which begin with an id."""
    write(tree.root / f"var/lib/docker/containers/{ID2}/config.v2.json", json.dumps({"Name": "/a_first"}))
    names = [line.split()[1] for line in Cli(tree).cgpu("ps").stdout.splitlines()[1:]]
    assert names == ["a_first", "gpu_test1"]
