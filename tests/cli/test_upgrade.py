# SPDX-License-Identifier: MIT
"""cgpu upgrade and cgpu drain, on a tree whose modules are directories and whose tools are scripts."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from fake_tree import ID1, ID2, Cli, Tree, inst_line, write

from cgpu_cli import drain
from cgpu_cli.proc import Paths

CORE = "cgpu_core_0_1_0"


@pytest.fixture
def tools(empty: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """rmmod, insmod and modprobe that write down what they were asked and do it to the tree; `stuck` names a module
    that does not go. Returns the file they write to.
    """
    modules, log = empty.root / "sys/module", tmp_path / "log"
    write(modules / "cgpu_km/version", "0.1.0")
    (modules / f"cgpu_km/holders/{CORE}").mkdir(parents=True)
    (modules / CORE).mkdir()
    script = f"""#!/bin/sh
echo "${{0##*/}} $1" >>{log}
[ "$1" = "$(cat {tmp_path}/stuck 2>/dev/null)" ] && {{ echo "rmmod: $1 is in use" >&2; exit 1; }}
case $0 in
*rmmod) [ "$1" = cgpu_km ] && rm -r {modules}/cgpu_km {empty.proc} ;;
*) mkdir -p {modules}/cgpu_km/holders {empty.proc}; echo 0.2.0 >{modules}/cgpu_km/version
   echo 0.2.0 >{empty.proc}/version; echo 0.2.0 >{empty.proc}/upgrade; : >{empty.proc}/inst_ctl ;;
esac
exit 0
"""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("rmmod", "insmod", "modprobe"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    log.touch()
    return log


def error(result) -> dict:
    return json.loads(result.stderr.splitlines()[-1])["error"]


def test_what_runs_and_what_was_tried(empty: Tree, empty_cli: Cli) -> None:
    assert empty_cli.cgpu("upgrade").stdout == "running 0.1.0\n"
    write(empty.proc / "upgrade", "0.1.1\n0.1.0\nlast: 0.1.2 -5 its self-test failed (-84)")
    assert empty_cli.cgpu("upgrade").stdout == (
        "running 0.1.1\nready   0.1.0\nlast    0.1.2 refused (EIO): its self-test failed (-84)\n"
    )
    assert json.loads(empty_cli.cgpu("upgrade", "--json").stdout) == {
        "active": "0.1.1",
        "others": ["0.1.0"],
        "last": {"version": "0.1.2", "result": 5, "why": "its self-test failed (-84)"},
    }
    shown = json.loads(empty_cli.cgpu("version", "--json").stdout)
    assert (shown["core"], shown["other_cores"]) == ("0.1.1", ["0.1.0"])


def test_a_version_is_written_or_refused(empty: Tree, empty_cli: Cli) -> None:
    result = empty_cli.cgpu("upgrade", "--to", "0.9.0", "--json")
    assert result.exit_code == 5
    assert "there are: 0.1.0" in error(result)["why"]
    write(empty.proc / "upgrade", "0.1.0\n0.1.1")
    assert empty_cli.cgpu("upgrade", "--to", "0.1.1").stdout == "core 0.1.0 -> 0.1.1\n"


def test_usage(empty_cli: Cli) -> None:
    for words in (("--to", "1", "--cold"), ("--drain",), ("--timeout", "1"), ("--from", "/")):
        assert empty_cli.cgpu("upgrade", *words).exit_code == 2
    for version in ("", " ", "new", "0.1.", "0.1.1 ", "0.1.1\n", "٠.١"):
        for words in ((), ("--cold",)):
            result = empty_cli.cgpu("upgrade", "--to", version, *words)
            assert (result.exit_code, result.stdout) == (2, "")
            assert f"{version!r} is no version X.Y.Z" in " ".join(result.stderr.split())
    assert empty_cli.cgpu("drain", "--undo", "--wait").exit_code == 2


def test_cold_unloads_and_loads(empty: Tree, empty_cli: Cli, tools: Path) -> None:
    assert empty_cli.cgpu("upgrade", "--cold").stdout == "cgpu_km 0.1.0 -> 0.2.0\n"
    assert tools.read_text().splitlines() == [
        f"rmmod {CORE}",
        "rmmod cgpu_km",
        "modprobe cgpu_km",
        "modprobe cgpu_core_0_2_0",
    ]
    assert not (empty.root / "run/cgpu/drain").exists(), "containers may start again"


def test_cold_from_a_folder(empty_cli: Cli, tools: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    result = empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json")
    assert (result.exit_code, tools.read_text()) == (5, ""), "looked at before anything is unloaded"
    for name in ("cgpu_km.ko", "cgpu_core_0_2_0.ko"):
        (folder / name).touch()
    done = json.loads(empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json").stdout)
    assert done == {
        "before": "0.1.0",
        "after": "0.2.0",
        "unloaded": [CORE, "cgpu_km"],
        "loaded": ["cgpu_km", "cgpu_core_0_2_0"],
    }


def test_cold_is_refused_while_containers_are_there(tree: Tree, cli: Cli, tools: Path) -> None:
    result = cli.cgpu("upgrade", "--cold", "--json")
    assert result.exit_code == 1
    assert error(result)["why"] == (f"2 containers use it: gpu_test1 ({ID1[:12]}, GPU 0); {ID2[:12]} (GPU 0)")
    assert tools.read_text() == ""
    assert not (tree.root / "run/cgpu/drain").exists()


def test_what_does_not_go_is_put_back(empty: Tree, empty_cli: Cli, tools: Path, tmp_path: Path) -> None:
    (tmp_path / "stuck").write_text("cgpu_km")
    result = empty_cli.cgpu("upgrade", "--cold", "--json")
    assert result.exit_code == 1
    assert error(result)["why"] == "rmmod: cgpu_km is in use"
    assert tools.read_text().splitlines() == [f"rmmod {CORE}", "rmmod cgpu_km", f"modprobe {CORE}"]
    assert not (empty.root / "run/cgpu/drain").exists()


def test_a_module_without_a_core_tells_which_one_was_refused(empty: Tree, empty_cli: Cli) -> None:
    (empty.proc / "upgrade").write_text("last: 0.1.0 -84 its self-test failed (-84)\n")
    for words in ((), ("--to", "0.1.0")):
        said = error(empty_cli.cgpu("upgrade", *words, "--json"))
        assert said["code"] == "not_found"
        assert said["why"].endswith("has no core; 0.1.0 was refused: its self-test failed (-84)")
        assert said["hint"] == "modprobe cgpu_core_0_1_0"


@pytest.mark.parametrize("name", ["new one", "new\none", " new  one", "new 22 one"])
def test_the_version_of_a_refused_core_may_be_anything(empty: Tree, empty_cli: Cli, name: str) -> None:
    why = "it has no version of the form X.Y.Z"
    write(empty.proc / "upgrade", f"0.1.0\n0.1.1\nlast: {name} -22 {why}")
    told = " ".join(name.split())
    assert empty_cli.cgpu("upgrade").stdout == (
        f"running 0.1.0\nready   0.1.1\nlast    {told} refused (EINVAL): {why}\n"
    )
    assert empty_cli.cgpu("version").exit_code == 0


def test_drain_waits_tells_and_goes_on(tree: Tree, cli: Cli, tools: Path) -> None:
    """Its end is seen, not assumed: first one container goes, then the other."""
    seen: list[str] = []
    gone = [lambda: tree.listed(inst_line(ID2, 7)), lambda: (tree.proc / "inst_ctl").write_text("")]

    def say(line: str) -> None:
        seen.append(line)
        threading.Timer(0.2, gone.pop(0)).start()

    paths = Paths.below(str(tree.root))
    assert drain.begin(paths)
    drain.wait(paths, 30, say)
    assert seen == [
        f"waiting for 2: gpu_test1 ({ID1[:12]}, GPU 0); {ID2[:12]} (GPU 0)",
        f"waiting for 1: {ID2[:12]} (GPU 0)",
    ]
    assert cli.cgpu("upgrade", "--cold", "--drain").exit_code == 0
    assert not drain.is_on(paths)


def test_a_drain_that_takes_too_long_stays(tree: Tree, cli: Cli, tools: Path) -> None:
    result = cli.cgpu("upgrade", "--cold", "--drain", "--timeout", "0", "--json")
    assert result.exit_code == 1
    assert "still there: gpu_test1" in error(result)["why"]
    assert tools.read_text() == ""
    result = cli.cgpu("create", "ab", "--gpu", "0", "--memsize", "1GiB", "--json")
    assert (result.exit_code, error(result)["why"]) == (1, "this node is being drained")
    assert cli.cgpu("drain").stdout.splitlines()[0] == "new containers are refused already, 2 left"
    assert json.loads(cli.cgpu("drain", "--undo", "--json").stdout)["draining"] is False
    assert not (tree.root / "run/cgpu/drain").exists()
