# SPDX-License-Identifier: MIT
"""The command cgpu: its writes, its errors, its exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from commands import refused
from fake_daemon import daemon_at, packed
from fake_tree import ID1, ID2, Cli, Tree, inst_line, write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cgpu_cli import change, kernel, refusals
from cgpu_common import exits, proc
from cgpu_common.exits import CgpuError, Exit


def read(tree: Tree, path: str) -> str:
    return (tree.proc / path).read_text().strip()


def test_version_names_what_is_missing(cli: Cli) -> None:
    result = cli.cgpu("version")
    assert result.exit_code == 0
    assert "module        0.1.0" in result.stdout
    assert "driver        580.105.08" in result.stdout
    assert "missing: cgpud is not running" in result.stdout


def versions(tree: Tree) -> dict:
    return json.loads(Cli(tree).cgpu("version", "--json").stdout)


def test_version_without_module(empty: Tree) -> None:
    shutil.rmtree(empty.proc)
    data = versions(empty)
    assert data["module"] is None
    assert "module cgpu_km is not loaded (modprobe cgpu_km)" in data["missing"]


def test_the_module_has_another_version_than_its_core(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/cgpu_km/version is that of the active core. The package has the same version, the module an older one."""
    monkeypatch.setattr("cgpu_common.versions.package_version", lambda: "0.1.1")
    write(empty.proc / "version", "0.1.1")
    write(empty.proc / "upgrade", "0.1.1\n0.1.0")
    data = versions(empty)
    assert (data["module"], data["core"], data["other_cores"]) == ("0.1.0", "0.1.1", ["0.1.0"])
    assert "package 0.1.1 and module 0.1.0 differ" in data["missing"]
    assert "module        0.1.0\ncore          0.1.1 (also 0.1.0)\n" in Cli(empty).cgpu("version").stdout


def test_a_copied_tree_does_not_have_the_modules_version(empty: Tree) -> None:
    shutil.rmtree(empty.root / "sys")
    data = versions(empty)
    assert (data["module"], data["core"]) == ("unknown", "0.1.0")
    assert not [what for what in data["missing"] if "module" in what]


@pytest.mark.parametrize(("types", "mounted", "said"), [("cgpu", True, 0), ("cgpu", False, 1), ("tmpfs", False, 0)])
def test_version_without_nodes(empty: Tree, types: str, mounted: bool, said: int) -> None:
    write(empty.root / "proc/filesystems", f"nodev\tsysfs\nnodev\t{types}\n")
    write(empty.root / "proc/self/mounts", f"cgpu {empty.root}/dev/cgpu cgpu rw 0 0\n" if mounted else "")
    assert len([what for what in versions(empty)["missing"] if "mount -t cgpu cgpu /dev/cgpu" in what]) == said


def test_version_without_core(empty: Tree) -> None:
    (empty.proc / "upgrade").write_text("")
    data = versions(empty)
    assert (data["module"], data["core"]) == ("0.1.0", None)
    assert "module cgpu_km has no core (modprobe cgpu_core_0_1_0)" in data["missing"]


@pytest.mark.parametrize(
    ("file", "text", "reported"),
    [
        ("sys/module/module/parameters/sig_enforce", "Y", True),
        ("sys/module/module/parameters/sig_enforce", "N", False),
        ("sys/kernel/security/lockdown", "none [integrity] confidentiality", True),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality", False),
    ],
)
def test_where_only_signed_modules_are_loaded_that_is_told(empty: Tree, file: str, text: str, reported: bool) -> None:
    shutil.rmtree(empty.proc)
    write(empty.root / file, text)
    for said in (Cli(empty).cgpu("version").stdout, Cli(empty).cgpu("ps").stderr, Cli(empty).smi().stderr):
        assert "not loaded (modprobe cgpu_km" in said
        assert ("if its key is not trusted: mokutil --import /var/lib/dkms/mok.pub" in said) is reported


def test_version_is_that_of_the_running_daemon(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the package's whenever any socket lay in /run/cgpu."""
    monkeypatch.setattr("cgpu_common.versions.package_version", lambda: "0.2.0")
    with daemon_at(empty.root, {"status": packed({"ok": True, "version": "0.1.9"})}):
        data = versions(empty)
    assert data["daemon"] == "0.1.9"
    assert "cgpud 0.1.9 runs, and the package is 0.2.0 (systemctl restart cgpud)" in data["missing"]


def test_a_socket_that_was_left_behind_is_no_daemon(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """After kill -9 the socket stays, and `nothing missing` was the result; so it was beside another's socket."""
    (empty.root / "run/cgpu").mkdir(parents=True)
    monkeypatch.chdir(empty.root / "run/cgpu")
    for name, why in (("kube.sock", "is not running (systemctl"), ("cgpud.sock", "it left its socket behind")):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(name)
        data = versions(empty)
        assert data["daemon"] is None
        assert any(why in one for one in data["missing"]), data["missing"]


def test_an_answer_without_a_version_is_an_earlier_daemons(empty: Tree) -> None:
    with daemon_at(empty.root, {"status": packed({"ok": True})}):
        assert versions(empty)["daemon"] == "unknown"
    with daemon_at(empty.root, {"status": packed({"ok": False, "error": "busy"})}):
        assert any("cgpud refuses the request: busy" in one for one in versions(empty)["missing"])


def test_ps(cli: Cli) -> None:
    lines = cli.cgpu("ps").stdout.splitlines()
    assert lines[1].split()[:7] == ["012b2edccd7a", "gpu_test1", "0", "1", "256", "6043", "running"]
    rows = json.loads(cli.cgpu("ps", "--json").stdout)["containers"]
    assert [(row["gpu"], row["id"]) for row in rows] == [(0, ID1), (0, ID2)]


def test_a_slice_by_the_files_word(cli: Cli) -> None:
    """cgpu.toml and the lines of what differs say auto; the kernel's number for it is 0."""
    assert cli.cgpu("set", "gpu", "0", "slice_us", "auto").stdout == "gpu 0 slice_us: 5000 -> 0\n"
    assert cli.cgpu("set", "gpu", "0", "slice_us", "automatic").exit_code == Exit.USAGE


@pytest.mark.parametrize(("value", "text"), [("3", "3"), ("fixed", "3"), ("Fair", "0"), ("native", "5")])
def test_set_policy_by_number_or_name(cli: Cli, value: str, text: str) -> None:
    assert cli.cgpu("set", "gpu", "0", "policy", value).stdout == f"gpu 0 policy: 2 -> {text}\n"
    assert read(cli.tree, "0/policy") == text


@pytest.mark.parametrize("key", [ID1, ID1[:12], ID1[:3], "gpu_test1"])
def test_set_container_by_any_of_its_names(cli: Cli, key: str) -> None:
    result = cli.cgpu("set", "container", key, "weight", "4", "--json")
    assert json.loads(result.stdout)["changes"] == [{"gpu": 0, "node": "weight", "before": "1", "after": "4"}]
    assert read(cli.tree, f"0/{ID1[:12]}/weight") == "4"


def test_set_a_ceiling(cli: Cli) -> None:
    """Under policy 2 it has no effect, and that is said; under 6 what it changes is shown before it is set."""
    result = cli.cgpu("set", "container", ID1, "ceiling", "4")
    assert read(cli.tree, f"0/{ID1[:12]}/ceiling") == "4"
    assert "note: GPU 0: ceiling 4: policy 2 (weighted) ignores ceilings: only burst has them" in result.stdout
    assert "weight 1 of 20, ceiling 4:" in cli.cgpu("inspect", ID1).stdout
    cli.cgpu("set", "gpu", "0", "policy", "burst")
    result = cli.cgpu("set", "container", ID1, "ceiling", "2", "--dry-run", "--json")
    assert read(cli.tree, f"0/{ID1[:12]}/ceiling") == "4"
    assert cli.cgpu("set", "container", ID1, "ceiling", "2").stdout.count("note") == 0


def test_a_module_older_than_its_package_has_no_ceilings(cli: Cli) -> None:
    (cli.tree.proc / "0" / ID1[:12] / "ceiling").unlink()
    rows = json.loads(cli.cgpu("ps", "--json").stdout)["containers"]
    assert [row["id"] for row in rows] == [ID1, ID2]


@pytest.mark.parametrize(
    ("size", "number"), [("6336544768", 6336544768), ("6043MiB", 6336544768), ("2g", 2 << 30), ("1GiB", 1 << 30)]
)
def test_sizes(cli: Cli, size: str, number: int) -> None:
    assert cli.cgpu("set", "container", ID1, "memsize", size).exit_code == 0
    assert read(cli.tree, f"0/{ID1[:12]}/memsize") == str(number)


@pytest.mark.parametrize("size", ["", "-1", "1.5G", "6GB", "six", "6 g", "６"])
def test_bad_sizes_are_usage(cli: Cli, size: str) -> None:
    assert cli.cgpu("set", "container", ID1, "memsize", "--", size).exit_code == Exit.USAGE


def test_set_on_all_gpus_or_none(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.gpu(1)
    tree.slot(1, ID1)
    tree.listed(inst_line(ID1, 1, gpus="0:4,1:5"))
    cli = Cli(tree)
    assert cli.cgpu("set", "container", ID1, "weight", "3").exit_code == 0
    assert (read(tree, f"0/{ID1[:12]}/weight"), read(tree, f"1/{ID1[:12]}/weight")) == ("3", "3")
    assert cli.cgpu("set", "container", ID1, "weight", "2", "--gpu", "1").exit_code == 0
    assert (read(tree, f"0/{ID1[:12]}/weight"), read(tree, f"1/{ID1[:12]}/weight")) == ("3", "2")

    fail_writes(monkeypatch, errno.ENOSPC, lambda path: "/1/" in path)
    result = cli.cgpu("set", "container", ID1, "weight", "9")
    assert result.exit_code == Exit.REFUSED
    assert "the sum of weights would exceed max_inst" in result.stderr
    assert (read(tree, f"0/{ID1[:12]}/weight"), read(tree, f"1/{ID1[:12]}/weight")) == ("3", "2")


def fail_writes(monkeypatch: pytest.MonkeyPatch, number: int, which: Callable[[str], bool]) -> None:
    """Make opening for writing fail with an errno if which(path) is true."""
    real = os.open

    def fake(path: str, flags: int, *args: int) -> int:
        if flags & os.O_WRONLY and which(str(path)):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *args)

    monkeypatch.setattr(proc.os, "open", fake)


ERRNOS = [
    (errno.EINVAL, Exit.REFUSED),
    (errno.EBUSY, Exit.REFUSED),
    (errno.EOPNOTSUPP, Exit.REFUSED),
    (errno.EPERM, Exit.NOT_PERMITTED),
    (errno.EACCES, Exit.NOT_PERMITTED),
    (errno.EOWNERDEAD, Exit.REFUSED),
]


@pytest.mark.parametrize(("number", "code"), ERRNOS)
def test_errno_to_exit_code(cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int, code: Exit) -> None:
    fail_writes(monkeypatch, number, lambda _path: True)
    for argv in (("set", "gpu", "0", "policy", "1"), ("create", "x", "--gpu", "0", "--memsize", "1g")):
        assert refused(cli.cgpu(*argv), code=code).startswith("cgpu: error: ")
    result = cli.cgpu("set", "gpu", "0", "policy", "1", "--json")
    assert json.loads(result.stderr)["error"]["exit"] == code


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_has_words(number: int) -> None:
    for node in ("policy", "weight", "inst_ctl"):
        err = exits.refused("do it", node, OSError(number, os.strerror(number)))
        assert err.why
        assert "\n" not in err.line("cgpu")


def test_create_and_destroy_write_inst_ctl(empty: Tree) -> None:
    cli = Cli(empty)
    args = ("--gpu", "0", "--memsize", "6043MiB", "--weight", "2", "--highprio", "--cookie", "0x9")
    assert cli.cgpu("create", "box", *args).exit_code == 0
    want = "create box gpu=0 memsize=6336544768 weight=2 highprio=1 cookie=0x9"
    assert read(empty, "inst_ctl") == want
    empty.listed(inst_line(ID1, 1))
    assert cli.cgpu("destroy", ID1[:5]).exit_code == 0
    assert read(empty, "inst_ctl") == f"destroy {ID1} cookie=0x1"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("set", "gpu", "7", "policy", "1"), Exit.NOT_FOUND),
        (("set", "container", "nobody", "weight", "1"), Exit.NOT_FOUND),
        (("set", "container", ID1, "weight", "1", "--gpu", "3"), Exit.NOT_FOUND),
        (("destroy", "nobody"), Exit.NOT_FOUND),
        (("set", "gpu", "x", "policy", "1"), Exit.NOT_FOUND),
        (("set", "gpu", "0", "free_weight", "1"), Exit.USAGE),
        (("set", "gpu", "0", "policy", "1 2"), Exit.USAGE),
        (("nonsense",), Exit.USAGE),
    ],
)
def test_failures(cli: Cli, argv: tuple[str, ...], code: Exit) -> None:
    assert refused(cli.cgpu(*argv), code=code).startswith("cgpu: error: ")


@pytest.mark.parametrize("argv", [("ps",), ("set", "gpu", "0", "policy", "1"), ("destroy", "x")])
def test_module_not_loaded(empty: Tree, argv: tuple[str, ...]) -> None:
    shutil.rmtree(empty.proc)
    result = Cli(empty).cgpu(*argv)
    assert result.exit_code == Exit.NO_MODULE
    assert result.stderr.endswith("the module cgpu_km is not loaded (modprobe cgpu_km)\n")


def test_no_traceback_even_for_a_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_args: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(proc, "read_tree", boom)
    result = cli.cgpu("ps")
    assert result.exit_code == Exit.REFUSED
    assert result.stderr == "cgpu: error: internal: RuntimeError: two lines (CGPU_DEBUG=1 shows the traceback)\n"


def is_internal(result: Result) -> bool:
    """A fault of the command's own. The text itself may have the word."""
    return bool(result.stderr) and json.loads(result.stderr)["error"]["what"] == "internal"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(text=st.text(max_size=200))
@example(text="internal")
def test_any_text_in_the_tree_is_survived(cli: Cli, text: str) -> None:
    """Whatever a newer module prints, the answer is output or one line."""
    for node in ("inst_ctl", "0/stat", f"0/{ID2[:12]}/meminfo", f"0/{ID2[:12]}/stat", "0/max_inst"):
        path = cli.tree.proc / node
        before = path.read_text()
        path.write_text(text, encoding="utf-8", errors="replace")
        result = cli.smi("--no-sample", "--json")
        path.write_text(before)
        assert result.exit_code in (0, 1)
        assert not is_internal(result)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(text=st.text(max_size=200) | st.text(max_size=60).map(lambda name: f"0.1.0\nlast: {name} -22 no version"))
def test_any_text_of_upgrade_is_survived(cli: Cli, text: str) -> None:
    """A core that is refused is reported by the version that it gave itself."""
    (cli.tree.proc / "upgrade").write_text(text, encoding="utf-8", errors="replace")
    for command in ("upgrade", "version"):
        result = cli.cgpu(command, "--json")
        assert result.exit_code in (0, 5)
        assert not is_internal(result)


@given(st.integers(0, 2**40), st.sampled_from(["", "k", "M", "g", "Ki", "Mi", "Gi", "KiB", "MiB", "GiB"]))
def test_parse_size_multiplies(number: int, unit: str) -> None:
    assert change.parse_size(f"{number}{unit}") == number * change.parse_size(f"1{unit}")


def test_errors_fit_one_line() -> None:
    err = CgpuError(Exit.REFUSED, "a\nb", "c", "d")
    assert err.line("cgpu") == "cgpu: error: a b: c (d)"


# ---- sentences with the thing and the limit ----


def test_a_size_is_shown_as_it_is_written(cli: Cli) -> None:
    """`memsize: 6336544768 -> 5368709120` for 5GiB."""
    found = cli.cgpu("set", "container", "gpu_test1", "memsize", "5GiB").stdout
    assert found == "container gpu_test1 gpu 0 memsize: 6043 MiB -> 5120 MiB\n"
    dry = cli.cgpu("set", "container", "gpu_test1", "memsize", "6GiB", "--dry-run").stdout
    assert "gpu 0 memsize: 5120 MiB -> 6144 MiB\n" in dry


def test_a_limit_below_the_use_has_a_note(cli: Cli) -> None:
    result = cli.cgpu("set", "container", "gpu_test1", "memsize", "100MiB")
    assert (
        "note: GPU 0: it uses 156 MiB more than that: it keeps them, and its allocations are refused" in result.stdout
    )
    data = json.loads(cli.cgpu("set", "container", "gpu_test1", "memsize", "90MiB", "--json").stdout)
    assert "it uses 166 MiB more" in data["notes"][0]


@pytest.mark.parametrize("size", ["1GB", "6gb", "500MB", "7kb"])
def test_a_unit_of_two_meanings(cli: Cli, size: str) -> None:
    result = cli.cgpu("set", "container", "gpu_test1", "memsize", size)
    assert result.exit_code == Exit.USAGE
    assert f"{size[-2:]} is 1000 or 1024 to a power ({size[:-1]} or {size[:-1]}iB" in result.stderr


def test_too_large_has_the_figure_that_is_free(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cli.tree.proc / "0/overcommit", "100")

    def full(*_: object, **__: object) -> None:
        why = "the limits of this GPU's containers would exceed its memory"
        raise CgpuError(Exit.REFUSED, "x", why, "", errno.ENOSPC)

    monkeypatch.setattr(kernel.Files, "create", full)
    monkeypatch.setattr(kernel.Files, "set_container", full)
    next_step = "(choose a smaller size, end a holder, or cgpu set gpu N overcommit PERCENT)"
    made = cli.cgpu("create", "new", "--gpu", "0", "--memsize", "2GiB").stderr
    assert "GPU 0 has 1008 of its 15109 MiB left and 2048 MiB were requested; held by: gpu_test1 6043 MiB, " in made
    assert made.endswith(f"aabbccddeeff 8058 MiB {next_step}\n")
    grown = cli.cgpu("set", "container", "gpu_test1", "memsize", "8GiB").stderr
    assert "GPU 0 has 7051 of its 15109 MiB left and 8192 MiB were requested; held by: aabbccddeeff 8058 MiB (" in grown
    cli.tree.slot(0, ID1, memsize=6000 * change.MIB)
    made = cli.cgpu("create", "new", "--gpu", "0", "--memsize", "2GiB").stderr
    assert "gpu_test1 6000 MiB, aabbccddeeff 8058 MiB, destroyed containers 43 MiB (/proc/cgpu_km/ended names" in made
    write(cli.tree.proc / "0/overcommit", "200")
    huge = cli.cgpu("create", "new", "--gpu", "0", "--memsize", "15110MiB").stderr
    assert "GPU 0 has 15109 MiB in all and 15110 MiB were requested" in huge


def test_an_id_that_is_taken_has_no_figures_of_memory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a container with this id is there (GPU 0 has …)`"""

    def taken(*_: object, **__: object) -> None:
        raise CgpuError(Exit.REFUSED, "create a", "a container with this id is there", "", errno.EEXIST)

    write(cli.tree.proc / "0/overcommit", "100")
    monkeypatch.setattr(kernel.Files, "create", taken)
    assert "GPU 0 has" not in cli.cgpu("create", "a", "--gpu", "0", "--memsize", "90GiB").stderr


@pytest.mark.parametrize("words", [("set", "gpu", "0", "policy", "fixed"), ("policy", "set", "fixed")])
def test_a_policy_that_max_inst_forbids_has_the_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def busy(*_: object, **__: object) -> None:
        why = "max_inst is above 25, which only burst takes"
        raise CgpuError(Exit.REFUSED, "x", why, "set max_inst first", errno.EBUSY)

    write(cli.tree.proc / "0/max_inst", "100")
    monkeypatch.setattr(kernel.Files, "set_gpu", busy)
    assert "(GPU 0 has max_inst 100: cgpu set gpu 0 max_inst 25, or less, first)" in cli.cgpu(*words).stderr


def test_a_name_that_the_user_may_not_look_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are in a directory of root's: `there is no such container` was not true."""
    assert "there is no such container (cgpu ps" in cli.cgpu("inspect", "web").stderr
    monkeypatch.setattr(refusals, "names_are_hidden", lambda _paths: True)
    for words in (("set", "container", "web", "weight", "1"), ("stats", "web", "--no-stream")):
        result = cli.cgpu(*words)
        assert result.exit_code == Exit.NOT_FOUND
        assert "directory, and only root may look up the name web (give the id" in result.stderr
    assert "only root may look up the name web" in cli.smi("-c", "web", "--no-sample").stderr


@pytest.mark.parametrize(("error", "hidden"), [(PermissionError, True), (FileNotFoundError, False), (None, False)])
def test_names_are_hidden_where_the_directory_is_roots(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, error: type[OSError] | None, hidden: bool
) -> None:
    def listing(_path: Path) -> Iterator[Path]:
        if error:
            raise error
        return iter(())

    monkeypatch.setattr(Path, "iterdir", listing)
    assert refusals.names_are_hidden(proc.Paths.below(str(tree.root), None)) is hidden
