# SPDX-License-Identifier: MIT
"""Commands that keep their word: what each refuses, by which sentence and with which exit code."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_tree import ID1, ID2, Cli, Tree, inst_line, sample, write

from cgpu_cli import change, kernel
from cgpu_cli.columns import cells, folded
from cgpu_cli.main import cgpu
from cgpu_common import policies
from cgpu_common.exits import CgpuError, Exit

NEW = ("--gpu", "0", "--memsize", "1GiB")
RULE = "is no id (1 to 128 printable ASCII characters without blanks, '/' and '=', and neither . nor ..)"

NO_POLICY = str(len(policies.NAMES))


@pytest.mark.parametrize("word", ["", "..", ".", "a/b", "a=b", "a b", "é", "x" * 129])
def test_a_word_that_is_no_id_has_one_sentence(cli: Cli, word: str) -> None:
    result = cli.cgpu("create", word, *NEW)
    assert (result.exit_code, RULE in result.stderr) == (Exit.USAGE, True), result.stderr


@pytest.mark.parametrize("word", ["...", ".a", "~!", "x" * 128])
def test_ids_that_the_module_takes(cli: Cli, word: str) -> None:
    assert cli.cgpu("create", word, *NEW).exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("setup", "docker", "--default", "--undo"), "--undo goes without --default"),
        (("setup", "containerd", "--cdi", "--undo"), "--undo goes without --cdi"),
        (("setup", "docker", "--cdi"), "--cdi is for containerd, not for docker"),
        (("setup", "podman", "--default"), "--default is for docker and containerd, not for podman"),
        (("nodes", "--kubernetes", "--state", "bogus"), "'ok', 'draining', 'no module', 'down'"),
        (("nodes", "--prometheus", "127.0.0.1:1"), "'127.0.0.1:1' is no address of HTTP (http://"),
        (("nodes", "--prometheus", "ftp://x"), "'ftp://x' is no address of HTTP"),
        (("drain", "--timeout", "3"), "--timeout goes with --wait"),
        (("doctor", "--bundle", ""), "'--bundle': an empty word names no file"),
        (("doctor", "--bundle", "/tmp"), "'/tmp' is a directory"),
        (("trace", "--svg", ""), "'--svg': an empty word names no file"),
        (("simulate", "/tmp/none.toml"), "'/tmp/none.toml' does not exist"),
        (("simulate", "--cluster", "/tmp/none.toml"), "/tmp/none.toml: No such file"),
        (("simulate", "--trace", "/tmp/none.json"), "/tmp/none.json: No such file"),
        (("simulate", "--container", "weight=30"), "container c0: weight 30: out of range (0 to max_inst, 20)"),
        (("simulate", "--container", "weight=101"), "weight=101 is out of range (0 to 100)"),
        (("doctor", "--bundle", "/none/x.tar.gz"), "/none/x.tar.gz: there is no folder /none"),
        (("trace", "--svg", "/none/x.svg"), "/none/x.svg: there is no folder /none"),
        (("simulate", "--container", "weight=1", "--svg", "/none/x"), "/none/x: there is no folder /none"),
        (("nodes", "--prometheus", "http://x", "--token-file", "/none"), "'--token-file': File '/none' does not exist"),
        (("set", "container", ID1, "memsize", "0"), "memsize: 0 is not allowed (at least 1MiB)"),
        (("create", "a", "--gpu", "0", "--memsize", "0"), "--memsize: 0 is not allowed (at least 1MiB)"),
        (("set", "container", ID1, "memsize", "6"), "6 bytes is not allowed (a number alone is bytes: 6GiB? at least"),
        (
            ("set", "container", ID1, "memsize", "9000"),
            "memsize: 9000 bytes is not allowed (a number alone is bytes: 9000M",
        ),
        (("set", "container", ID1, "memsize", "6x"), "memsize: '6x' is no size (bytes, or with MiB or GiB (Mi, Gi))"),
        (("set", "gpu", "0", "uvm", "on"), "uvm: 'on' is no mode (deny or account)"),
        (("set", "gpu", "0", "max_inst", "x"), "max_inst: 'x' is not allowed"),
        (("policy", "set", NO_POLICY), f"policy: '{NO_POLICY}' is not allowed ({policies.ALLOWED}"),
        (("set", "gpu", "0", "policy", NO_POLICY), f"policy: '{NO_POLICY}' is not allowed ({policies.ALLOWED}"),
        (("create", "a", "--gpu", "0", "--memsize", "1000K"), "1024000 bytes is not allowed (at least 1MiB)"),
        (("set", "gpu", "0", "default_memsize", "15"), "default_memsize: 15 bytes is not allowed"),
        (("set", "container", ID1, "highprio", "yes"), "highprio: 'yes' is not allowed (0 or 1)"),
        (("set", "container", ID1, "highprio", "2", "--dry-run"), "'2' is not allowed (0 or 1)"),
        (("simulate", "--container", "name=a weight=3"), "'a weight=3' is no value of name (a comma separates"),
        (("policy", "set", "2", "--gpu", "0,1"), "'0,1' is more than one GPU: give the option again for each"),
        (("policy", "set", "weighted", "--gpu"), "requires an argument (cgpu policy set --help)"),
        (("events", "-n"), "requires an argument (cgpu events --help)"),
        (("--json", "ps"), "--json goes behind the command: cgpu COMMAND --json"),
        (("ps", "--proc", "/x"), "--proc goes before the command: cgpu --proc DIR"),
        (("setup", "docker", "--root", "x"), "--root goes before the command: cgpu --root DIR"),
    ],
)
def test_a_wrong_command_line(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    result = cli.cgpu(*words)
    text = "".join(result.stderr.splitlines())
    why = json.loads(text)["error"]["why"] if text.startswith("{") else text
    assert (result.exit_code, sentence in why) == (Exit.USAGE, True), result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("dmon", "-i", "0"), "-i goes before the command: cgpu-smi -i GPU ("),
        (("pmon", "--no-sample"), "--no-sample goes before the command: cgpu-smi --no-sample"),
        (("--query-gpu=",), "--query-gpu: no field is named (--help-query-gpu)"),
        (("--query-container", " "), "--query-container: no field is named (--help-query-container)"),
    ],
)
def test_a_wrong_command_line_of_cgpu_smi(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    result = cli.smi(*words)
    assert (result.exit_code, sentence in "".join(result.stderr.splitlines())) == (Exit.USAGE, True), result.stderr


@pytest.mark.parametrize(("what", "nodes"), [("gpu", change.GPU_NODES), ("container", change.CONTAINER_NODES)])
def test_the_help_has_a_line_for_each_node(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, what: str, nodes: tuple[str, ...]
) -> None:
    """The usage was a list of nodes, broken inside a word, and no value was named."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli.cgpu("set", what, "--help").stdout.splitlines()
    assert lines[0].endswith(" NODE VALUE") and max(map(len, lines)) <= 80
    assert tuple(line.split()[0] for line in lines[-len(nodes) :]) == nodes
    assert cli.cgpu("set", what, "0", "nod", "1").stderr.count("weight" if what == "container" else "max_inst") == 1


def test_the_help_of_a_gpu_has_no_range(cli: Cli) -> None:
    assert "x>=0" not in cli.cgpu("policy", "set", "--help").stdout


def test_drain_with_a_timeout_alone_drains_nothing(cli: Cli) -> None:
    cli.cgpu("drain", "--timeout", "3")
    assert not json.loads(cli.cgpu("ps", "--json").stdout)["draining"]


def refusing(monkeypatch: pytest.MonkeyPatch, call: str, code: Exit, why: str, hint: str = "", number: int = 0) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CgpuError(code, "x", why, hint, number)

    monkeypatch.setattr(kernel.Files, call, refuse)


def test_a_missing_gpu_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "create", Exit.NOT_FOUND, "no such GPU")
    result = cli.cgpu("create", "a", "--gpu", "0,7", "--memsize", "1GiB")
    assert (result.exit_code, "gpu 7: there is no such GPU (cgpu gpu list" in result.stderr) == (5, True)


@pytest.mark.parametrize(
    ("weight", "ceiling", "number", "figures"),
    [
        (
            "19",
            0,
            errno.ENOSPC,
            "(GPU 0 has 17 of its weight free, and the container has 1; cgpu ps shows the weights)",
        ),
        ("99", 0, errno.EINVAL, "(0 to max_inst: GPU 0 has max_inst 20)"),
        ("5", 4, errno.EINVAL, "(0 to max_inst: GPU 0 has max_inst 20, and the container has ceiling 4)"),
    ],
)
def test_a_refused_weight_has_the_figures(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, weight: str, ceiling: int, number: int, figures: str
) -> None:
    cli.tree.slot(0, ID1, ceiling=ceiling)
    refusing(monkeypatch, "set_container", Exit.REFUSED, "refused", "0 to max_inst", number)
    assert figures in cli.cgpu("set", "container", ID1, "weight", weight).stderr


@pytest.mark.parametrize("ceiling", ["5", "30"])
def test_a_refused_ceiling_has_the_figures(cli: Cli, monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    cli.tree.slot(0, ID1, weight=19)
    hint = "weight to max_inst, or 0 for none"
    refusing(monkeypatch, "set_container", Exit.REFUSED, "out of range", hint, errno.EINVAL)
    found = cli.cgpu("set", "container", ID1, "ceiling", ceiling).stderr
    assert f"out of range ({hint}: GPU 0 has max_inst 20, and the container has weight 19)" in found


def test_a_refused_max_inst_has_what_is_in_use(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "set_gpu", Exit.REFUSED, "more than that", "", errno.EBUSY)
    assert "(2 containers, weight 3 in use; cgpu ps shows them)" in cli.cgpu("set", "gpu", "0", "max_inst", "2").stderr


def test_no_name_is_none(cli: Cli) -> None:
    (cli.tree.proc / "0" / ID1[:12] / "ipc").write_text("\n", encoding="utf-8")
    assert cli.cgpu("set", "container", ID1, "ipc", "none").stdout.endswith(" ipc: none -> none\n")


def test_inspect_lists_a_container_once(cli: Cli) -> None:
    found = json.loads(cli.cgpu("inspect", ID1, "gpu_test1", "--json").stdout)["containers"]
    assert [one["id"] for one in found] == [ID1]


def test_no_process_is_none_everywhere(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(monkeypatch)
    tree.slot(0, ID1, meminfo="Free: 1")
    for words in (("ps",), ("stats", "--no-stream")):
        lines = Cli(tree).cgpu(*words).stdout.splitlines()
        assert [line.split()[-1] for line in lines if ID1[:12] in line] == ["none"]


def test_policy_show_marks_high_priority(cli: Cli) -> None:
    cli.tree.slot(0, ID1, highprio=1)
    assert "gpu_test1: weight 1 hp, " in cli.cgpu("policy", "show").stdout


def test_the_full_output_names_each_value_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(monkeypatch)
    tree.gpu(0, stat="total_bytes 0\ncontrol freeze\ncontrol_seen none")
    text = Cli(tree).smi("-q").stdout
    part = text.split("Container ")[1].split("Container ")[0]
    own = [line.split(" :")[0] for line in part.splitlines() if ":" in line]
    names = [name.strip() for name in own if len(name) - len(name.lstrip()) == 8]
    assert len(names) == len(set(names)) and {"GPU Time In All", "Ceiling Time In All"} <= set(names)
    assert "Control Seen                      : None" in text


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "words", [("dmon", "-c", "1"), ("pmon", "-c", "1"), ("policy", "show"), ("gpu", "show", "0")], ids=" ".join
)
def test_it_fits_the_terminal(tree: Tree, monkeypatch: pytest.MonkeyPatch, width: int, words: tuple[str, ...]) -> None:
    sample(monkeypatch)
    write(tree.root / "proc/19772/comm", "a-long-command")
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7))
    monkeypatch.setenv("COLUMNS", str(width))
    run = Cli(tree).smi if words[0].endswith("mon") else Cli(tree).cgpu
    text = run(*words).stdout
    assert max(map(cells, text.splitlines())) <= width, text
    own = {"pmon": ("19772", "256", ID2[:12]), "dmon": ("768",), "gpu": (ID2[:12], "15109"), "policy": (ID2[:12],)}
    assert all(figure in text for figure in own[words[0]])


def test_the_error_of_kubectl_is_not_doubled(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    said = "kubectl inspect cgpu: error: kubectl get nodes: The connection was refused"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    result = CliRunner().invoke(cgpu, ["nodes", "--kubernetes", "--kubectl", str(program)])
    assert f"{program} inspect cgpu: kubectl get nodes: The connection was refused (" in result.stderr
    assert "--context and KUBECONFIG choose the cluster" in result.stderr


@pytest.mark.parametrize("words", [["--bogus"], ["--log-format", "x"], ["--socket"]])
def test_cgpud_refuses_in_one_line(words: list[str]) -> None:
    from cgpud.__main__ import main

    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("cgpud: error: usage: ") and result.stderr.endswith(" (cgpud --help)\n")
    assert CliRunner().invoke(main, ["-h"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--format", "csv,noheader", "--no-sample"), "--format goes with --query-gpu and --query-container"),
        (("--no-sample", "--interval", "2"), "--interval and --no-sample exclude each other"),
    ],
)
def test_smi_ignores_no_option(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    result = cli.smi(*words)
    assert (result.exit_code, sentence in result.stderr) == (Exit.USAGE, True)


def test_an_event_has_the_id_that_ps_shows() -> None:
    from cgpu_cli.events import with_name

    hashed = {"container": "2a21fe6d592a", "id": "big"}
    assert with_name("container 2a21fe6d592a is gone", hashed, None) == "container big is gone"
    assert with_name("container 2a21fe6d592a is gone", hashed, "n") == "container big (n) is gone"
    own = {"container": ID1[:12], "id": ID1}
    assert with_name(f"container {ID1[:12]} is gone", own, None) == f"container {ID1[:12]} is gone"


def test_remedies_name_each_engine_and_the_restart() -> None:
    from cgpu_cli import checks, daemon, facts

    found = checks.engines(
        facts.Facts(engines=(facts.Engine("docker", True, False), facts.Engine("podman", True, False)))
    )
    assert found.remedy == "cgpu setup docker; cgpu setup podman"
    assert daemon._RESTART.startswith("systemctl restart cgpud")


def test_a_figure_stays_beside_its_unit() -> None:
    assert folded("shares of the last sample over 1.1 s", 35) == ["shares of the last sample over", "  1.1 s"]
