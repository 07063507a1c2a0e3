# SPDX-License-Identifier: MIT
"""cgpu upgrade and cgpu drain, on a tree where directories stand for modules and scripts for kmod's tools."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from fake_tree import ID1, ID2, Cli, Tree, inst_line, write

from cgpu_cli import drain, upgrade
from cgpu_common.proc import Paths

CORE = "cgpu_core_0_1_0"


TOOL = """#!/bin/sh
tool=${{0##*/}}
disk() {{ case $1 in *.ko) echo "$1" ;; *) echo {top}/disk/"$1" ;; esac; }}
if [ $tool = modinfo ]; then
    [ -f "$(disk "$3")" ] || {{ echo "modinfo: ERROR: Module $3 not found." >&2; exit 1; }}
    [ $2 = signer ] && exec cat {top}/signer
    exec cat "$(disk "$3")"
fi
name=$(basename "$1" .ko)
case $tool in
mount | umount)
    echo "$tool $*" >>{top}/log
    [ -f {top}/says/$tool ] && {{ echo "$tool: $(cat {top}/says/$tool)" >&2; exit 1; }}
    if [ $tool = mount ]; then echo "cgpu $4 cgpu rw 0 0" >>{mounts}; else sed -i 1d {mounts}; fi
    exit 0 ;;
esac
echo "$tool $1" >>{top}/log
refusal={top}/says/$tool-$name
if [ -f $refusal ]; then
    echo "$tool: ERROR: $(cat $refusal)" >&2
    [ -e $refusal.once ] && rm $refusal $refusal.once
    exit 1
fi
if [ $tool = rmmod ]; then
    rm -r {modules}/$name
    [ $name = cgpu_km ] && exec rm -r {proc}
    rmdir {modules}/cgpu_km/holders/$name
    version=$(echo ${{name#cgpu_core_}} | tr _ .)
    grep -vxF "$version" {proc}/upgrade >{top}/left; exec cp {top}/left {proc}/upgrade
fi
[ -f "$(disk "$1")" ] || {{ echo "modprobe: FATAL: Module $1 not found." >&2; exit 1; }}
mkdir -p {modules}/$name {modules}/cgpu_km/holders {proc}
if [ $name = cgpu_km ]; then
    cp "$(disk "$1")" {modules}/cgpu_km/version; : >{proc}/inst_ctl; : >{proc}/upgrade
else
    mkdir -p {modules}/cgpu_km/holders/$name
    cat "$(disk "$1")" >>{proc}/upgrade
fi
if [ -s {proc}/upgrade ]; then head -1 {proc}/upgrade; else cat {modules}/cgpu_km/version; fi >{proc}/version
exit 0
"""


class Tools:
    """kmod's tools as scripts that change the tree as the tools change the kernel, and log their arguments.

    0.1.0 is loaded, modprobe finds 0.2.0 and the core that is loaded.
    """

    def __init__(self, tree: Tree, top: Path) -> None:
        self.tree, self.top, self.modules = tree, top, tree.root / "sys/module"
        for name, version in (("cgpu_km", "0.2.0"), ("cgpu_core_0_2_0", "0.2.0"), (CORE, "0.1.0")):
            write(top / "disk" / name, version)
        write(top / "signer", "DKMS module signing key")
        self.has_loaded(CORE)
        (top / "log").touch()
        self.mounts = tree.root / "proc/self/mounts"
        for name in ("rmmod", "insmod", "modprobe", "modinfo", "mount", "umount"):
            write(top / "bin" / name, TOOL.format(top=top, modules=self.modules, proc=tree.proc, mounts=self.mounts))
            (top / "bin" / name).chmod(0o755)

    def has_mounted(self, times: int = 1) -> str:
        """The nodes are mounted; returns the path."""
        where = str(self.tree.root / "dev/cgpu")
        write(self.mounts, f"cgpu {where} cgpu rw,nosuid 0 0\n" * times)
        write(self.tree.root / "proc/filesystems", "nodev\tproc\nnodev\tcgpu\n\text4\n")
        (self.tree.root / "dev").mkdir(exist_ok=True)
        return where

    def has_loaded(self, core: str) -> None:
        (self.modules / f"cgpu_km/holders/{core}").mkdir(parents=True)
        (self.modules / core).mkdir()

    def finds_no(self, name: str) -> None:
        (self.top / "disk" / name).unlink()

    def refuses(self, tool: str, name: str, words: str, *, once: bool = False) -> None:
        """With `once` only the first call fails, as if the module's last user went a moment later."""
        refusal = self.top / "says" / f"{tool}-{name}"
        write(refusal, words)
        if once:
            refusal.with_name(f"{refusal.name}.once").touch()

    def folder(self, **versions: str) -> Path:
        """A folder of modules' files."""
        for name, version in versions.items():
            write(self.top / "new" / f"{name}.ko", version)
        return self.top / "new"

    @property
    def asked(self) -> list[str]:
        return (self.top / "log").read_text().splitlines()


@pytest.fixture
def tools(empty: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.setenv("PATH", f"{tmp_path}/tools/bin:/usr/bin:/bin")
    monkeypatch.setattr(upgrade, "BUSY_S", 0.2)
    return Tools(empty, tmp_path / "tools")


def error(result) -> dict:
    return json.loads(result.stderr.splitlines()[-1])["error"]


def test_what_runs_and_what_was_tried(empty: Tree, empty_cli: Cli) -> None:
    assert empty_cli.cgpu("upgrade").stdout == "running 0.1.0\n"
    write(empty.proc / "upgrade", "0.1.1\n0.1.0\nlast: 0.1.2 -5 its self-test failed (-84)")
    assert empty_cli.cgpu("upgrade").stdout == (
        "running 0.1.1\nready   0.1.0\nlast    0.1.2 refused (EIO): its self-test failed (-84)\n"
    )
    assert json.loads(empty_cli.cgpu("upgrade", "--json").stdout) == {
        "schema_version": 1,
        "active": "0.1.1",
        "others": ["0.1.0"],
        "last": {"version": "0.1.2", "result": 5, "why": "its self-test failed (-84)"},
    }
    shown = json.loads(empty_cli.cgpu("version", "--json").stdout)
    assert (shown["core"], shown["other_cores"]) == ("0.1.1", ["0.1.0"])


def test_a_version_is_written_or_refused(empty: Tree, empty_cli: Cli) -> None:
    result = empty_cli.cgpu("upgrade", "--to", "0.9.0", "--json")
    assert result.exit_code == 5
    assert "registered are: 0.1.0" in error(result)["why"]
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


def test_cold_unloads_and_loads(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    assert empty_cli.cgpu("upgrade", "--cold").stdout == "cgpu_km 0.1.0 -> 0.2.0\n"
    assert tools.asked == [
        f"rmmod {CORE}",
        "rmmod cgpu_km",
        "modprobe cgpu_km",
        "modprobe cgpu_core_0_2_0",
    ]
    assert not (empty.root / "run/cgpu/drain").exists(), "containers may start again"


@pytest.mark.parametrize("times", [1, 2])
def test_the_nodes_are_unmounted_first_and_mounted_last(empty_cli: Cli, tools: Tools, times: int) -> None:
    where = tools.has_mounted(times)
    assert empty_cli.cgpu("upgrade", "--cold").exit_code == 0
    assert tools.asked[:times] == [f"umount {where}"] * times
    assert tools.asked[times] == f"rmmod {CORE}"
    assert tools.asked[-1] == f"mount -t cgpu cgpu {where}"


def test_nodes_that_were_not_mounted_are_afterwards(empty_cli: Cli, tools: Tools) -> None:
    where = tools.has_mounted(0)
    assert empty_cli.cgpu("upgrade", "--cold").exit_code == 0
    assert tools.asked[0] == f"rmmod {CORE}"
    assert tools.asked[-1] == f"mount -t cgpu cgpu {where}"


def test_nodes_that_are_in_use_stay(empty_cli: Cli, tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "BUSY_S", 0.2)
    where = tools.has_mounted()
    write(tools.top / "says/umount", f"{where}: target is busy.")
    said = error(empty_cli.cgpu("upgrade", "--cold", "--json"))
    assert said["why"] == f"umount: {where}: target is busy."
    assert len(tools.asked) > 1
    assert set(tools.asked) == {f"umount {where}"}


def test_nodes_come_back_with_a_module_that_stays(empty_cli: Cli, tools: Tools) -> None:
    where = tools.has_mounted()
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use")
    assert empty_cli.cgpu("upgrade", "--cold").exit_code == 1
    assert tools.asked[-1] == f"mount -t cgpu cgpu {where}"
    assert tools.mounts.read_text().split()[1] == where


def test_cold_from_a_folder(empty_cli: Cli, tools: Tools) -> None:
    folder = tools.folder(cgpu_km="0.2.0")
    result = empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json")
    assert (result.exit_code, tools.asked) == (5, []), "looked at before anything is unloaded"
    assert error(result)["why"] == "there is no cgpu_core_0_2_0.ko"
    tools.folder(cgpu_core_0_2_0="0.2.0")
    done = json.loads(empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json").stdout)
    assert done == {
        "schema_version": 1,
        "before": "0.1.0",
        "after": "0.2.0",
        "unloaded": [CORE, "cgpu_km"],
        "loaded": ["cgpu_km", "cgpu_core_0_2_0"],
        "core_before": "0.1.0",
        "core_after": "0.2.0",
    }


def test_of_several_cores_in_a_folder_that_of_the_module_runs(empty_cli: Cli, tools: Tools) -> None:
    """The first one becomes active. The others follow by their version, not by their letters."""
    folder = tools.folder(
        cgpu_km="0.9.1",
        cgpu_core_0_10_0="0.10.0",
        cgpu_core_0_9_0="0.9.0",
        cgpu_core_0_9_1="0.9.1",
        cgpu_core_next="0.11.0",
    )
    done = json.loads(empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json").stdout)
    assert done["loaded"] == [
        "cgpu_km",
        "cgpu_core_0_9_1",
        "cgpu_core_next",
        "cgpu_core_0_9_0",
        "cgpu_core_0_10_0",
    ]
    assert (done["after"], done["core_after"]) == ("0.9.1", "0.9.1")


def test_cold_tells_the_modules_versions_not_the_cores(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    write(empty.proc / "version", "0.1.1")
    write(empty.proc / "upgrade", "0.1.1\n0.1.0")
    assert empty_cli.cgpu("upgrade", "--cold").stdout == "cgpu_km 0.1.0 -> 0.2.0\n"


@pytest.mark.parametrize("name", ["cgpu_km", "cgpu_core_0_2_0"])
def test_what_modprobe_does_not_find_is_told_before_anything_goes(
    empty: Tree, empty_cli: Cli, tools: Tools, name: str
) -> None:
    tools.finds_no(name)
    for words in ((), ("--drain",)):
        result = empty_cli.cgpu("upgrade", "--cold", *words, "--json")
        assert (result.exit_code, tools.asked) == (5, [])
        assert f"modprobe finds no {name} for the kernel {os.uname().release}: " in error(result)["why"]
        assert error(result)["hint"] == "dkms status shows the kernels for which it was built"
        assert not (empty.root / "run/cgpu/drain").exists()


def test_what_is_not_signed_is_told_before_anything_goes(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    (tools.top / "signer").write_text("")
    write(empty.root / "sys/kernel/security/lockdown", "none [integrity] confidentiality")
    result = empty_cli.cgpu("upgrade", "--cold", "--json")
    assert (result.exit_code, tools.asked) == (1, [])
    assert error(result)["why"] == "cgpu_km is not signed by a key that this machine trusts"
    write(empty.root / "sys/kernel/security/lockdown", "[none] integrity confidentiality")
    assert empty_cli.cgpu("upgrade", "--cold").exit_code == 0


NOT_TRUSTED = [
    ("Key was rejected by service", "none", True),
    ("Required key not available", "none", True),
    ("Operation not permitted", "integrity", True),
    ("Operation not permitted", "none", False),
    ("Invalid module format", "integrity", False),
]


@pytest.mark.parametrize(("words", "lockdown", "key"), NOT_TRUSTED)
def test_a_key_that_is_not_trusted_is_told_with_the_way_to_it(
    empty: Tree, empty_cli: Cli, tools: Tools, words: str, lockdown: str, key: bool
) -> None:
    write(empty.root / "sys/kernel/security/lockdown", f"[{lockdown}]")
    tools.refuses("modprobe", "cgpu_km", f"could not insert 'cgpu_km': {words}")
    result = empty_cli.cgpu("upgrade", "--cold", "--json")
    assert result.exit_code == 1
    said = error(result)
    assert said["why"].startswith(f"modprobe: ERROR: could not insert 'cgpu_km': {words}")
    assert said["why"].endswith("cgpu_km is not signed by a key that this machine trusts") is key
    assert ("mokutil --import /var/lib/dkms/mok.pub" in said["hint"]) is key


def test_cold_is_refused_while_containers_are_there(tree: Tree, cli: Cli, tools: Tools) -> None:
    result = cli.cgpu("upgrade", "--cold", "--json")
    assert result.exit_code == 1
    assert error(result)["why"] == (f"2 containers use it: gpu_test1 ({ID1[:12]}, GPU 0); {ID2[:12]} (GPU 0)")
    assert tools.asked == []
    assert not (tree.root / "run/cgpu/drain").exists()


def test_what_does_not_go_is_put_back(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use")
    result = empty_cli.cgpu("upgrade", "--cold", "--json")
    assert result.exit_code == 1
    assert error(result)["why"] == "rmmod: ERROR: Module cgpu_km is in use"
    assert list(dict.fromkeys(tools.asked)) == [f"rmmod {CORE}", "rmmod cgpu_km", f"modprobe {CORE}"]
    assert not (empty.root / "run/cgpu/drain").exists()


@pytest.mark.parametrize("module, loaded", [("cgpu_km", []), ("cgpu_core_0_2_0", ["cgpu_km"])])
def test_what_cannot_be_loaded_leaves_the_old_modules(
    empty: Tree, empty_cli: Cli, tools: Tools, module: str, loaded: list[str]
) -> None:
    where = tools.has_mounted()
    folder = tools.folder(cgpu_km="0.2.0", cgpu_core_0_2_0="0.2.0")
    tools.refuses("insmod", module, "Invalid module format")
    result = empty_cli.cgpu("upgrade", "--cold", "--from", str(folder), "--json")
    assert result.exit_code == 1
    assert error(result)["why"].endswith("Invalid module format")
    last = tools.asked[tools.asked.index(f"insmod {folder / module}.ko") + 1 :]
    unloaded = [f"rmmod {name}" for name in loaded]
    assert last == [*unloaded, "modprobe cgpu_km", f"modprobe {CORE}", f"mount -t cgpu cgpu {where}"]
    assert not (empty.root / "run/cgpu/drain").exists()


def test_a_module_in_use_for_a_moment_is_unloaded_again(
    empty_cli: Cli, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BUSY_S", 60.0)
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use", once=True)
    assert empty_cli.cgpu("upgrade", "--cold").stdout == "cgpu_km 0.1.0 -> 0.2.0\n"
    assert tools.asked.count("rmmod cgpu_km") == 2


def test_the_core_that_ran_is_put_back_first(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    write(empty.proc / "upgrade", "0.1.0\n0.1.1")
    tools.has_loaded("cgpu_core_0_1_1")
    write(tools.top / "disk/cgpu_core_0_1_1", "0.1.1")
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use")
    assert empty_cli.cgpu("upgrade", "--cold").exit_code == 1
    assert empty_cli.cgpu("upgrade").stdout == "running 0.1.0\nready   0.1.1\n"


def test_why_it_failed_comes_before_what_could_not_be_put_back(empty_cli: Cli, tools: Tools) -> None:
    """A package update has taken the old core from disk; cgpu_km is left without one, and that has its own sentence."""
    tools.finds_no(CORE)
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use")
    said = error(empty_cli.cgpu("upgrade", "--cold", "--json"))
    assert said["what"] == "rmmod cgpu_km"
    assert said["why"] == (
        "rmmod: ERROR: Module cgpu_km is in use; "
        f"{CORE} could not be put back: modprobe: FATAL: Module {CORE} not found."
    )
    result = empty_cli.cgpu("upgrade")
    assert result.exit_code == 5
    assert result.stderr == (
        "cgpu: error: upgrade: cgpu_km 0.1.0 is loaded and has no core (modprobe cgpu_core_0_1_0)\n"
    )


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
    reported = " ".join(name.split())
    assert empty_cli.cgpu("upgrade").stdout == (
        f"running 0.1.0\nready   0.1.1\nlast    {reported} refused (EINVAL): {why}\n"
    )
    assert empty_cli.cgpu("version").exit_code == 0


def test_drain_waits_tells_and_goes_on(tree: Tree, cli: Cli, tools: Tools) -> None:
    """Its end is seen, not assumed: first one container goes, then the other, of which something is held then."""
    seen: list[str] = []
    held = tree.root / "proc/cgpu_km/ended"

    def hold() -> None:
        held.write_text(f"{ID2} cookie=0x7 dir={ID2[:12]} gpu=0:8388608\n")
        tree.listed()

    gone = [lambda: tree.listed(inst_line(ID2, 7)), hold, held.unlink]

    def report(line: str) -> None:
        seen.append(line)
        threading.Timer(0.2, gone.pop(0)).start()

    paths = Paths.below(str(tree.root))
    assert drain.begin(paths)
    drain.wait(paths, 30, report)
    assert seen == [
        f"waiting for 2: gpu_test1 ({ID1[:12]}, GPU 0); {ID2[:12]} (GPU 0)",
        f"waiting for 1: {ID2[:12]} (GPU 0)",
        f"waiting for 1: {ID2[:12]} (GPU 0, dying)",
    ]
    assert cli.cgpu("upgrade", "--cold", "--drain").exit_code == 0
    assert not drain.is_on(paths)


def test_a_drain_that_takes_too_long_stays(tree: Tree, cli: Cli, tools: Tools) -> None:
    result = cli.cgpu("upgrade", "--cold", "--drain", "--timeout", "0", "--json")
    assert result.exit_code == 1
    assert "still there: gpu_test1" in error(result)["why"]
    assert tools.asked == []
    assert error(result)["hint"] == "new starts are still refused: cgpu uncordon"
    result = cli.cgpu("create", "ab", "--gpu", "0", "--memsize", "1GiB", "--json")
    assert (result.exit_code, error(result)["why"]) == (1, "this node is being drained")
    assert cli.cgpu("drain").stdout.splitlines()[0] == "new slices are refused already, 2 left"
    assert json.loads(cli.cgpu("uncordon", "--json").stdout)["draining"] is False
    assert not (tree.root / "run/cgpu/drain").exists()


def test_what_fails_after_the_wait_tells_that_the_mark_stays(empty: Tree, empty_cli: Cli, tools: Tools) -> None:
    tools.refuses("rmmod", "cgpu_km", "Module cgpu_km is in use")
    for words in (("--drain",), ()):  # the second one finds the mark of the first
        said = error(empty_cli.cgpu("upgrade", "--cold", *words, "--json"))
        assert said["hint"] == "see the kernel log; new starts are still refused: cgpu uncordon"
        assert (empty.root / "run/cgpu/drain").exists()


def test_who_is_interrupted_is_told_that_the_mark_stays(
    tree: Tree, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cgpu_cli.drain.time.sleep", interrupted)
    result = Cli(tree).cgpu("upgrade", "--cold", "--drain")
    assert result.exit_code == 130
    assert "new starts are still refused: cgpu uncordon" in result.stderr.splitlines()
    assert tools.asked == []
