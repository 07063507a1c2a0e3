# SPDX-License-Identifier: MIT
"""Conventions of every command: true exit codes, values that may be negative, output that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import leaves
from fake_tree import ID1, ID2, MIB, Cli, Tree, inst_line, write
from fakelink import FakeLink
from hypothesis import given
from hypothesis import strategies as st

from cgpu_cli import kernel, names
from cgpu_cli.main import cgpu
from cgpu_cli.names import Named
from cgpu_cli.smi import smi
from cgpu_common import pages, policies
from cgpu_common.app import Group
from cgpu_common.errors import KernelMissing, KernelRefused
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.kernel_abi import G, S

ROOT = Path(__file__).parents[3]


def shell(tree: Tree, command: str, program: str = "main") -> subprocess.CompletedProcess[str]:
    """A command of a shell, with $cgpu for the program on this tree."""
    run = f"import sys; from cgpu_cli.{program} import main; sys.argv[1:1] = ['--root', {str(tree.root)!r}]; main()"
    script = f'cgpu() {{ {sys.executable} -c "$code" "$@"; }}; {command}'
    return subprocess.run(["sh", "-c", script], env={"code": run}, capture_output=True, text=True, check=False)


def read(tree: Tree, path: str) -> str:
    return (tree.proc / path).read_text().strip()


# ---- output ----


@pytest.mark.parametrize("tail", ["", " --json"])
def test_a_change_whose_output_is_lost_is_not_exit_1(tree: Tree, tail: str) -> None:
    """1 would mean that nothing was changed."""
    done = shell(tree, f"cgpu set gpu 0 policy 3{tail} >/dev/full")
    assert (done.returncode, read(tree, "0/policy")) == (Exit.OUTPUT, "3")
    assert "No space left on device" in done.stderr
    assert "the command was carried out" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["--help", "-h", "--version", "", "set gpu --help", "policy list", "completion bash"])
def test_a_full_disk_is_exit_6(tree: Tree, words: str) -> None:
    done = shell(tree, f"cgpu {words} >/dev/full")
    assert done.returncode == Exit.OUTPUT
    assert re.fullmatch(r"cgpu: error: standard output: No space left on device \([^\n]*\)\n", done.stderr)


@pytest.mark.parametrize("program", ["main", "smi"])
def test_a_closed_output_is_said_before_anything_is_done(tree: Tree, program: str) -> None:
    words = "--no-sample" if program == "smi" else "set gpu 0 policy 3"
    done = shell(tree, f"cgpu {words} >&-", program)
    assert (done.returncode, read(tree, "0/policy")) == (Exit.REFUSED, "2")
    assert re.fullmatch(r"cgpu(-smi)?: error: standard output: is closed \([^\n]*\)\n", done.stderr)


def test_a_full_standard_error_stops_nothing(tree: Tree) -> None:
    assert shell(tree, "cgpu set gpu 0 policy 3 2>/dev/full").returncode == 0
    assert shell(tree, "cgpu set gpu 9 policy 3 2>/dev/full").returncode == Exit.NOT_FOUND


def test_a_name_that_the_terminal_cannot_show(tree: Tree) -> None:
    write(tree.root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps({"Name": "/жук"}))
    done = shell(tree, "PYTHONIOENCODING=latin-1 cgpu ps")
    assert done.returncode == 0
    assert "\\u0436\\u0443\\u043a" in done.stdout


# ---- the command line ----


@pytest.mark.parametrize("words", [(), ("set",)])
def test_a_group_alone_shows_its_help(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli.cgpu(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: cgpu ")
    assert "Commands:" in result.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("nonsense",), "cgpu --help"),
        (("set", "gpu"), "cgpu set gpu --help"),
        (("set", "gpu", "0", "policy", "2", "--bogus"), "cgpu set gpu --help"),
        (("create", "x"), "cgpu create --help"),
        (("upgrade", "--to", "x"), "cgpu upgrade --help"),
    ],
)
def test_the_hint_names_the_command(cli: Cli, words: tuple[str, ...], hint: str) -> None:
    result = cli.cgpu(*words)
    assert result.exit_code == Exit.USAGE
    assert f"({hint})" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "gpu", "0", "policy", "-1"), f"'-1' is not allowed ({policies.ALLOWED}"),
        (("set", "gpu", "-1", "policy", "2"), "-1 is not in the range"),
        (("set", "container", ID1, "weight", "-1"), "'-1' is not allowed"),
        (("set", "container", ID1, "memsize", "-1g"), "'-1g' is no size"),
        (("set", "container", ID1, "weight", "1", "--gpu", "-1"), "-1 is not in the range"),
        (("create", "\udcff", "--gpu", "0", "--memsize", "1g"), "printable ASCII"),
        (("create", "x", "--gpu", "-1", "--memsize", "1g"), "--gpu: '-1' is not allowed"),
        (("create", "x", "--gpu", "0", "--memsize", "1g", "--weight", "-2"), "--weight: '-2' is not allowed"),
        (("create", "x", "--gpu", "0", "--memsize", "1g", "--weight", "0"), "--weight: 0 is not allowed"),
        (("create", "x", "--gpu", "0", "--memsize", "1g", "--weight", "1,2"), "--weight has 2 values for 1 GPU"),
        (("create", "x", "--gpu", "0", "--memsize", "1g", "--cookie", "no"), "--cookie: 'no' is not allowed"),
        (("create", "x", "--gpu", "0", "--memsize", "1g", "--cookie", "0"), "--cookie: '0' is not allowed"),
    ],
)
def test_a_bad_value_is_named(cli: Cli, words: tuple[str, ...], said: str) -> None:
    before = {path: path.read_bytes() for path in cli.tree.proc.rglob("*") if path.is_file()}
    result = cli.cgpu(*words)
    assert result.exit_code == Exit.USAGE
    assert said in result.stderr
    assert {path: path.read_bytes() for path in before} == before


# ---- JSON ----


def test_every_json_has_its_version(cli: Cli) -> None:
    for words in (
        ("version",),
        ("ps",),
        ("drain",),
        ("uncordon",),
        ("upgrade",),
        ("set", "gpu", "0", "policy", "2"),
        ("set", "container", ID1, "weight", "1"),
        ("create", "new", "--gpu", "0", "--memsize", "1g"),
    ):
        result = cli.cgpu(*words, "--json")
        assert json.loads(result.stdout)["schema_version"] == 1, words
    assert json.loads(cli.cgpu("destroy", "none", "--json").stderr)["schema_version"] == 1


def test_nothing_prints_past_the_conventions() -> None:
    """click.echo() would turn a full disk into exit 1."""
    users = {
        path.name
        for folder in ("cli", "cgpu_common")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"click\.echo|\bprint\(", path.read_text())
    }
    assert users == {"output.py"}


# ---- which container ----

ALIKE = [Named("train-resnet-1", "a" * 12), Named("train-resnet-12", "b" * 12), Named("train-resnet-2", "c" * 12)]


def test_an_empty_word_destroys_nothing(tree: Tree) -> None:
    tree.listed(inst_line(ID1, 1))
    for key in ("", " "):
        result = Cli(tree).cgpu("destroy", key)
        assert result.exit_code in (Exit.USAGE, Exit.NOT_FOUND)
        assert "destroy" not in read(tree, "inst_ctl")
    assert "an empty word names no container" in Cli(tree).cgpu("destroy", "").stderr


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("train-resnet-1", 0),  # also the beginning of another
        ("train-resnet-12", 1),
        ("train-resnet-2", 2),
        ("b" * 12, 1),
        ("abc", 3),  # a name, and the beginning of an id
        ("abcd", 4),
    ],
)
def test_exact_before_beginning(key: str, place: int) -> None:
    there = [*ALIKE, Named("f" * 64, "f" * 12, "abc"), Named("abcdef", "e" * 12)]
    assert names.choose(key, there) == place


@pytest.mark.parametrize("key", ["train", "train-resnet-", "t"])
def test_an_ambiguous_beginning_lists_the_candidates(key: str) -> None:
    with pytest.raises(CgpuError) as caught:
        names.choose(key, ALIKE)
    assert caught.value.code is Exit.USAGE
    assert caught.value.why == "fits 3 containers: train-resnet-1, train-resnet-12, train-resnet-2"


@pytest.mark.parametrize(
    ("container_id", "name", "text"),
    [("a" * 64, "web", "web"), ("a" * 64, None, "a" * 12), ("by-hand-with-a-long-id", None, "by-hand-with-a-long-id")],
)
def test_what_a_container_is_called(container_id: str, name: str | None, text: str) -> None:
    """An id by hand is shown whole: its directory's name is a hash."""
    assert names.label(container_id, name) == text
    assert names.choose(text, [Named(container_id, "d" * 12, name), Named("b" * 64, "b" * 12)]) == 0


def test_two_containers_of_one_name_are_refused() -> None:
    with pytest.raises(CgpuError, match=r"fits 2 containers: a{12} \(web\), b{12} \(web\)"):
        names.choose("web", [Named("a" * 64, "a" * 12, "web"), Named("b" * 64, "b" * 12, "web")])


@given(st.lists(st.text("ab-", min_size=1, max_size=20), unique=True, max_size=12))
def test_shown_ids_differ_and_are_found(ids: list[str]) -> None:
    shown = names.shown_ids(ids)
    assert len(set(shown.values())) == len(ids)
    there = [Named(one, f"{place:012x}") for place, one in enumerate(ids)]
    for place, one in enumerate(ids):
        assert one.startswith(shown[one])
        assert names.choose(shown[one], there) == place


def test_rows_that_look_alike_are_told_apart(tree: Tree) -> None:
    twin = ID1[:12] + "9" * 52
    tree.slot(0, twin, id=twin)
    (tree.proc / "0" / twin[:12]).rename(tree.proc / "0" / "feedfeedfeed")
    tree.slot(0, ID1)
    tree.listed(inst_line(ID1, 1), inst_line(twin, 3), inst_line(ID2, 7))
    for text in (Cli(tree).cgpu("ps").stdout, Cli(tree).smi("--no-sample").stdout):
        assert {ID1[:13], twin[:13]} <= set(text.split())
        assert ID2[:12] in text.split()


# ---- the module's sentences ----


class Link(FakeLink):
    """A module that records the requests, and fails each with `refusal` if there is one."""

    def __init__(self, refusal: Exception | None = None) -> None:
        super().__init__()
        self.refusal = refusal
        self.seen: list[tuple[str, object]] = []

    async def _do(self, what: str, *values: object) -> None:
        self.seen.append((what, values))
        if self.refusal:
            raise self.refusal

    async def create(self, container_id: str, cookie: int, slots: object) -> None:  # type: ignore[override]
        await self._do("create", container_id, cookie, slots)

    async def destroy(self, container_id: str, cookie: int) -> bool:
        await self._do("destroy", container_id, cookie)
        return True

    async def set(self, container_id: str, cookie: int, values: object) -> None:  # type: ignore[override]
        await self._do("set", container_id, cookie, values)

    async def set_gpu(self, index: int, values: object) -> None:  # type: ignore[override]
        await self._do("set_gpu", index, values)


@pytest.fixture
def live(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Link:
    """The tree is the running module's; changes go to this link."""
    link = Link()
    monkeypatch.setattr(kernel, "LIVE", tree.proc)
    monkeypatch.setattr(kernel, "open_link", lambda: link)
    return link


def test_changes_go_through_netlink(cli: Cli, live: Link) -> None:
    assert cli.cgpu("set", "gpu", "0", "uvm", "account").exit_code == 0
    write(cli.tree.proc / "0/default_memsize", "1")
    assert cli.cgpu("set", "gpu", "0", "default_memsize", "1GiB").exit_code == 0
    assert cli.cgpu("set", "container", ID1, "weight", "0").exit_code == 0
    assert cli.cgpu("set", "container", ID2, "memsize", "1g").exit_code == 0
    assert cli.cgpu("destroy", ID2).exit_code == 0
    assert live.seen == [
        ("set_gpu", (0, {G.UVM: 1})),
        ("set_gpu", (0, {G.DEFAULT_MEMSIZE: 1 << 30})),
        ("set", (ID1, 1, {0: {S.WEIGHT: 0}})),
        ("set", (ID2, 7, {0: {S.LIMIT: 1 << 30}})),
        ("destroy", (ID2, 7)),
    ]


SENTENCES = [
    # (words, errno, the module's sentence, the line without "cgpu: error: ")
    (
        ("set", "gpu", "0", "policy", "6"),
        errno.EINVAL,
        "policy: no policy has this number",  # of an older module
        "out of range (no policy has this number)",
    ),
    (
        ("set", "gpu", "0", "policy", "2"),
        errno.EBUSY,
        "policy: max_inst is above 25, which only burst takes",
        "max_inst is above 25, which only burst takes (set max_inst first)",
    ),
    (
        ("set", "container", ID1, "weight", "30"),
        errno.EINVAL,
        "weight: 0 to max_inst",
        "out of range (0 to max_inst: GPU 0 has max_inst 20)",
    ),
    (
        ("set", "container", ID1, "memsize", "90g"),
        errno.ENOSPC,
        "memsize: the limits of this GPU's containers would exceed its memory",
        "the limits of this GPU's containers would exceed its memory (cgpu-smi shows the limits)",
    ),
    (("set", "gpu", "0", "max_inst", "1"), errno.ENOMEM, None, "the kernel is out of memory"),
    (
        ("create", "x", "--gpu", "0", "--memsize", "1g"),
        errno.EEXIST,
        "a container with this id is there",
        "a container with this id is there (cgpu inspect x; cgpu destroy x)",
    ),
    *(
        (("create", "x", "--gpu", "0", "--memsize", "1g"), code, sentence, sentence)
        for code, sentence in (
            (errno.EBUSY, "the container with this id ends when its last call has returned: repeat it then"),
            (errno.EINVAL, "an id is 1 to 128 printable characters without blanks, '/' and '=', and not . or .."),
            (errno.EINVAL, "a container needs 1 to 32 GPUs, each once"),
            (errno.EINVAL, "a memory limit is 1 MiB at least"),
            (errno.ENODEV, "no such GPU"),
            (errno.ENODEV, "no core module (cgpu_core) is loaded"),
            (errno.EINVAL, "weight must be 1 to max_inst and highprio 0 or 1"),
        )
    ),
]


@pytest.mark.parametrize(("words", "code", "sentence", "line"), SENTENCES)
def test_the_modules_sentence_is_shown(
    cli: Cli, live: Link, words: tuple[str, ...], code: int, sentence: str | None, line: str
) -> None:
    live.refusal = KernelRefused(code, f"cgpu_km: {sentence or os.strerror(code)}")
    (cli.tree.proc / "0/overcommit").unlink()  # an older module: the sentence is all that is known
    result = cli.cgpu(*words)
    assert result.exit_code == (Exit.NOT_FOUND if code == errno.ENODEV else Exit.REFUSED)
    assert result.stdout == ""
    assert result.stderr.startswith(f"cgpu: error: {words[0]} ")
    assert result.stderr.endswith(f": {line}\n")


def test_not_permitted_and_another_namespace(cli: Cli, live: Link) -> None:
    for refusal in (PermissionError(errno.EPERM, "no"), KernelRefused(errno.EPERM, "cgpu_km: x"), KernelMissing()):
        live.refusal = refusal
        assert cli.cgpu("set", "gpu", "0", "policy", "2").exit_code == Exit.NOT_PERMITTED


# ---- the weight that is granted ----


def test_less_weight_than_asked_is_an_error(cli: Cli, live: Link) -> None:
    """The tree has 17 free. Nothing is created."""
    words = ("create", "x", "--gpu", "0", "--memsize", "1g", "--weight", "18")
    result = cli.cgpu(*words)
    assert (result.exit_code, live.seen) == (Exit.REFUSED, [])
    assert "GPU 0 has 17 of its weight free, and 18 was requested" in result.stderr
    assert cli.cgpu(*words, "--allow-less").exit_code == 0
    ((what, (_, _, (slot,))),) = live.seen
    assert (what, slot.weight) == ("create", 17)


class Granting(Link):
    """Another container takes the weight just before."""

    def __init__(self, tree: Tree, weight: int) -> None:
        super().__init__()
        self.tree, self.weight = tree, weight

    async def create(self, container_id: str, cookie: int, slots: object) -> None:  # type: ignore[override]
        await super().create(container_id, cookie, slots)
        self.tree.slot(0, container_id, weight=self.weight, memsize=MIB)
        self.tree.listed(inst_line(ID1, 1), inst_line(container_id, 9))


@pytest.mark.parametrize(("given", "code"), [(("--weight", "3"), Exit.REFUSED), ((), Exit.OK)])
def test_a_grant_that_is_less_is_taken_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], code: Exit
) -> None:
    link = Granting(tree, 0)
    monkeypatch.setattr(kernel, "LIVE", tree.proc)
    monkeypatch.setattr(kernel, "open_link", lambda: link)
    result = Cli(tree).cgpu("create", "f" * 64, "--gpu", "0", "--memsize", "1MiB", *given)
    assert result.exit_code == code
    if given:
        assert link.seen[-1] == ("destroy", ("f" * 64, 9))
        assert "GPU 0 has 0 of its weight free, and 3 was requested" in result.stderr
    else:
        assert "  GPU 0: 1 MiB, weight 0\n" in result.stdout
        assert "note: GPU 0: weight 0: under policy 2 (weighted) it does not run until" in result.stdout


@pytest.mark.parametrize(
    ("policy", "weight", "said"),
    [
        (5, 0, "policy 5 (native) ignores weights, so it runs"),
        (5, 3, "policy 5 (native) ignores the size of a weight: 3 has the same effect as 1"),
        (0, 3, "policy 0 (fair) ignores the size of a weight"),
        (3, 0, "under policy 3 (fixed) it does not run"),
        (3, 3, None),
        (5, 1, None),
    ],
)
def test_a_weight_says_what_it_will_do(tree: Tree, policy: int, weight: int, said: str | None) -> None:
    tree.gpu(0, policy=policy)
    text = Cli(tree).cgpu("set", "container", ID1, "weight", str(weight)).stdout
    assert (said in text) if said else ("note" not in text)


# ---- the start ----


HEAVY = {
    *("asyncio", "ssl", "subprocess", "importlib.metadata", "tomllib", "json", "csv", "shutil", "logging", "socket"),
    *("aiohttp", "cffi", "msgspec", "prometheus_client", "pynvml", "pyroute2", "rich", "structlog"),
    *("click.shell_completion", "cgpud", "cgpu_cli.simulate", "cgpu_common.config", "cgpu_common.netlink"),
}
NO_TEXT = {"cgpu_cli.query", "cgpu_cli.view", "cgpu_cli.status", "cgpu_cli.show", "cgpu_cli.admin"}


@pytest.mark.parametrize(
    ("program", "args", "absent"),
    [
        ("main", ["--help"], HEAVY - {"shutil"} | NO_TEXT),  # click asks it for the width
        ("main", ["ps"], HEAVY - {"json"}),  # Docker's own files, for names
        ("main", ["set", "--help"], HEAVY - {"shutil"}),
        (
            "smi",
            ["--help"],
            HEAVY - {"shutil"} | NO_TEXT - {"cgpu_cli.view"},
        ),  # the columns have their words themselves
        ("smi", ["--no-sample"], HEAVY - {"json"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_start_imports_little(tree: Tree, program: str, args: list[str], absent: set[str]) -> None:
    """No library that this call does not need: each costs milliseconds, which scripts pay at every call."""
    code = (
        f"import sys; sys.argv = ['x', '--root', {str(tree.root)!r}, *{args!r}]\n"
        f"from cgpu_cli.{program} import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end\n"
        f"bad = {absent!r} & set(sys.modules); sys.exit(str(sorted(bad)) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


#: Of the interpreter with click alone, which takes 45 ms of an idle processor: 2.2 times that is the bar of 0.1 s.
START_MOST = 2.2


def processor_s(code: str) -> float:
    """The processor time of a Python program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", [["--help"], ["ps"]], ids=lambda words: words[0])
def test_the_start_takes_a_tenth_of_a_second(tree: Tree, words: list[str]) -> None:
    """As a multiple of what click takes, measured in turn: the time itself doubles on a busy machine."""
    argv = ["cgpu", "--root", str(tree.root), *words]
    ours = f"import sys; sys.argv = {argv!r}\nfrom cgpu_cli.main import main\nmain()"
    click_s, start_s = [], []
    for _ in range(40):
        click_s.append(processor_s("import click"))
        start_s.append(processor_s(ours))
        if len(start_s) >= 5 and min(start_s) <= START_MOST * min(click_s):
            return
    raise AssertionError(f"{min(start_s):.3f} s, click alone {min(click_s):.3f} s")


@pytest.mark.parametrize("group", [cgpu, smi], ids=["cgpu", "cgpu-smi"])
@pytest.mark.parametrize("limit", [20, 50, 10**6])
def test_the_list_of_commands_has_their_own_help(group: Group, limit: int) -> None:
    """It is written beside the commands' names, so that the list imports none of them."""
    ctx = click.Context(group)
    for name, (_, _, short) in group.lazy.items():
        command = group.get_command(ctx, name)
        assert command is not None
        assert click.Command(name, help=short).get_short_help_str(limit) == command.get_short_help_str(limit)


def test_every_command_can_be_loaded() -> None:
    ctx = click.Context(cgpu)
    assert all(cgpu.get_command(ctx, name) is not None for name in cgpu.list_commands(ctx))


#: Each command that writes a file whose name is given.
WRITERS = {
    "bundle": ("doctor", "--bundle"),
    "trace --svg": ("trace", "--seconds", "0.05", "--svg"),
    "trace --perfetto": ("trace", "--seconds", "0.05", "--perfetto"),
    "simulate --svg": ("simulate", "--container", "weight=1", "--seconds", "0.2", "--svg"),
    "simulate --perfetto": ("simulate", "--container", "weight=1", "--seconds", "0.2", "--perfetto"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_node_is_not_replaced_by_a_file(name: str, cli: Cli, tmp_path: Path) -> None:
    """As root --bundle /dev/null replaced the device node."""
    path = tmp_path / "node"
    os.mkfifo(path)
    found = cli.cgpu(*WRITERS[name], str(path))
    assert found.exit_code == Exit.USAGE, found.output
    assert f"cgpu: error: usage: {path}: is a FIFO, and only a plain file is replaced" in found.stderr
    assert path.is_fifo()


# ---- repeated options ----


def takes_one(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and not param.multiple and not param.is_flag and param.nargs == 1


def options() -> list[tuple[str, tuple[str, ...], str]]:
    """(program, command, option): of every command the first option with one value."""
    return [
        (program, path, param.opts[-1])
        for program, group in (("cgpu", cgpu), ("cgpu-smi", smi))
        for path, command in leaves(group)
        for param in list(filter(takes_one, command.params))[:1]
    ]


@pytest.mark.parametrize(("program", "path", "option"), options())
def test_an_option_that_takes_one_value_is_not_given_twice(
    cli: Cli, program: str, path: tuple[str, ...], option: str
) -> None:
    """`cgpu create --gpu 0 --gpu 1` made a container on GPU 1 only."""
    run = cli.smi if program == "cgpu-smi" else cli.cgpu
    result = run(*path, option, "0", option, "1")
    assert (result.exit_code, result.stdout) == (Exit.USAGE, ""), result.output
    assert "is given twice, and takes one value" in result.stderr


def test_options_that_take_several_still_do(cli: Cli) -> None:
    assert cli.cgpu("policy", "set", "native", "--gpu", "0", "--gpu", "0", "--dry-run").exit_code == 0
    assert cli.cgpu("ps", "-q", "-q").exit_code == 0


# ---- help ----


@pytest.mark.parametrize(("words", "same"), [((), ()), (("ps",), ("ps",)), (("policy", "set"), ("policy", "set"))])
def test_help_is_a_word_too(cli: Cli, words: tuple[str, ...], same: tuple[str, ...]) -> None:
    found = CliRunner().invoke(cgpu, ["help", *words], prog_name="cgpu")
    assert (found.exit_code, found.stdout) == (0, CliRunner().invoke(cgpu, [*same, "--help"], prog_name="cgpu").stdout)
    assert "Usage: cgpu" in found.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("polcy",), "did you mean policy?"),
        (("policy", "lst"), "did you mean list"),
        (("crate", "x"), "did you mean create"),
        (("zzz",), "No such command 'zzz'"),
    ],
)
def test_a_command_that_is_nearly_one(cli: Cli, words: tuple[str, ...], said: str) -> None:
    result = cli.cgpu(*words)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert said in result.stderr


def test_no_command_has_two_names() -> None:
    found: dict[int, tuple[str, ...]] = {}
    for prog, group in (("cgpu", cgpu), ("cgpu-smi", smi)):
        for words, command in leaves(group):
            assert found.setdefault(id(command), (prog, *words)) == (prog, *words)


def test_cgpud_has_a_version() -> None:
    from cgpud.__main__ import main

    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("cgpud ")


# ---- pages ----


def test_a_page_is_named_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages put docs/user/install.md below /usr/share/doc/cgpu, and messages named the sources' place."""
    text = (
        "modprobe nvidia; docs/user/install.md §2, see docs/architecture.md, docs/reference/cgpu-smi.schema.json "
        "and mydocs/user/x.md"
    )
    monkeypatch.setattr(pages, "FOLDERS", (str(tmp_path / "none"), str(tmp_path / "doc")))
    assert pages.located(text) == text, "no page is installed"
    (tmp_path / "doc/user").mkdir(parents=True)
    want = (
        f"modprobe nvidia; {tmp_path}/doc/user/install.md §2, see {tmp_path}/doc/architecture.md, "
        f"{tmp_path}/doc/reference/cgpu-smi.schema.json and mydocs/user/x.md"
    )
    assert pages.located(text) == want


def test_errors_help_and_doctor_name_it_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "FOLDERS", (str(tmp_path / "doc"),))
    (tmp_path / "doc/user").mkdir(parents=True)
    write(cli.tree.proc / "0/policy", "x")
    shown = (cli.cgpu("ps").stderr, cli.cgpu("setup", "-h").stdout, cli.cgpu("doctor").stdout)
    assert all(f"{tmp_path}/doc/" in "".join(text.split()) for text in shown[:2]), shown
    assert " docs/" not in " ".join(shown)
