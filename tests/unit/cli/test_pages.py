# SPDX-License-Identifier: MIT
"""The pages of users: every command in them exists with its options, and each block of commands or of TOML is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fake_tree import Cli, Tree, write
from install.blocks import FENCE, unmarked

from cgpu_cli.main import cgpu
from cgpu_cli.smi import smi
from cgpu_common import config
from cgpu_kube.inspect import inspect as kubectl_inspect
from cgpu_kube.main import kube

ROOT = Path(__file__).parents[3]

PROGRAMS: dict[str, click.Command] = {"cgpu": cgpu, "cgpu-smi": smi, "cgpu-kube": kube}
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "decisions" not in path.parts
}
COMMAND = re.compile(r"(?<![\w/.-])(?:cgpu|cgpu-smi|cgpu-kube|kubectl inspect cgpu)(?= [a-z<\[-])[^`\n|;&>#]*")
#: In prose "cgpu is ..." is the project.
PROSE = re.compile(r"`((?:cgpu|cgpu-smi|cgpu-kube|kubectl inspect cgpu) [^`]+)`")


def commands(page: str) -> Iterator[str]:
    """Those in blocks, a line that ends with a backslash joined to the next, and those in code of the text."""
    for block in FENCE.finditer(page):
        for line in block[1].replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\||;", re.sub(r"^[$#] ", "", line.strip())):
                found = COMMAND.match(part.strip())
                if found and not part.strip().startswith("cgpu: "):
                    yield found[0].strip()
    for found in PROSE.finditer(FENCE.sub("", page)):
        yield found[1].strip()


def wrong(line: str) -> str:
    """Why this command does not exist; empty: it does. Values are not looked at."""
    line = line.replace("kubectl inspect cgpu", "kubectl-inspect-cgpu")
    words = [word for word in shlex.split(re.sub(r"[\[\]…]|'s\b", " ", line)) if word]
    program, *rest = words
    command = {"kubectl-inspect-cgpu": kubectl_inspect, **PROGRAMS}[program]
    known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    for word in rest:
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*(\|[a-z-]+)*", word):
            ctx = click.Context(command)
            found = [command.get_command(ctx, one) for one in word.split("|")]
            if None in found and not known & {"-c"}:
                return f"{command.name} has no command {word}"
            if found[0] is not None:
                command = found[0]
                known |= {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
        elif re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word) and word.partition("=")[0] not in known:
            return f"{command.name} has no option {word}"
    return ""


LINES = sorted({(name, line) for name, page in PAGES.items() for line in commands(page)})


@pytest.mark.parametrize(("page", "line"), LINES)
def test_the_command_exists(page: str, line: str) -> None:
    assert wrong(line) == "", page


def test_what_does_not_exist_is_found() -> None:
    assert len(LINES) > 100
    assert {"README.md", "docs/user/howto.md", "docs/user/tutorial.md"} <= {page for page, _ in LINES}
    assert wrong("cgpu policy sett fair") and wrong("cgpu set gpu 0 policy 3 --dry") and wrong("cgpu-smi --loops")
    assert not wrong("cgpu stats") and not wrong("cgpu-smi dmon -c 5")


# ---- the blocks that no mark gives to a boot ----

#: Page and first line of a block -> how it is run here: its commands on a fake tree, or which reader takes the TOML.
RUN = {
    ("README.md", "cgpu simulate --policy weighted"): "commands",
    ("docs/user/cli.md", "seconds = 10"): "simulate",
    ("docs/user/cli.md", 'order = "shuffled"'): "cluster",
    ("docs/user/cli.md", "cgpu trace --seconds 5"): "commands",
    ("docs/user/howto.md", "cgpu setup docker --default"): "commands",
    ("docs/user/howto.md", "# /etc/cgpu/cgpu.toml"): "cgpu.toml",
    ("docs/user/howto.md", "docker run -d --runtime=nvidia"): "commands",
    ("docs/user/kubernetes-node.md", "[container]"): "cgpu.toml",
    ("docs/user/tutorial.md", "cgpu doctor"): "commands",
    ("docs/user/troubleshooting.md", "cgpu doctor --bundle"): "commands",
}
#: And those that are not, with the reason.
NOT_RUN = {
    ("README.md", "# cgpu policy set"): "cut; the tutorial's blocks are the same and run in the Docker boot",
    ("README.md", "container    "): "a picture",
    ("README.md", "make demo"): "minutes each: they are levels of their own",
    ("README.md", "make wheel"): "minutes; test_the_wheel_is_installed_where_pip_may has the form of its lines",
    ("README.md", "2:52 |"): "output of make demo, checked by tests/demo",
    ("docs/user/cli.md", "cgpu: error:"): "output",
    ("docs/user/cli.md", "cgpu-smi [-l"): "the form of a command",
    ("docs/user/cli.md", "cgpu simulate [FILE]"): "the form of a command",
    ("docs/user/cli.md", "cgpu events [--json]"): "the form of a command",
    ("docs/user/cli.md", "cgpu setup docker|"): "the form of a command",
    ("docs/user/cli.md", "cgpu doctor [--json]"): "the form of a command",
    ("docs/user/cli.md", "cgpu nodes [--prometheus"): "the form of a command",
    ("docs/user/howto.md", "cgpud --check"): "needs systemd; test_systemd runs the reload",
    ("docs/user/howto.md", "nvidia-ctk runtime configure"): "NVIDIA's own program, and systemd",
    ("docs/user/howto.md", "systemctl reload cgpud"): "needs systemd; test_metrics runs the scrape",
    ("docs/user/tutorial.md", "export IMAGE="): "the reader's own program",
    ("docs/user/tutorial.md", "docker exec train nvidia-smi"): "needs NVIDIA's programs: the boots cuda",
}
TRIED = ("README.md", *(f"docs/user/{name}.md" for name in ("cli", "howto", "tutorial", "troubleshooting")))


def test_each_block_is_run_or_has_a_reason() -> None:
    left = [
        (page, line)
        for page in TRIED
        for line in unmarked(PAGES[page])
        if not any(page == one and line.startswith(begin) for one, begin in (*RUN, *NOT_RUN))
    ]
    assert left == []
    for one, begin in (*RUN, *NOT_RUN):
        assert any(line.startswith(begin) for line in unmarked(PAGES[one])), (one, begin)


def bodies(page: str, begin: str) -> list[str]:
    return [block[1] for block in FENCE.finditer(PAGES[page]) if block[1].strip().startswith(begin)]


@pytest.mark.parametrize(("page", "begin"), [key for key, how in RUN.items() if how == "commands"])
def test_its_commands_run(moving: Tree, page: str, begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = moving
    write(tree.root / "etc/docker/daemon.json", "{}")
    write(tree.root / "usr/bin/cgpu-runtime", "")
    (tree.root / "usr/bin/cgpu-runtime").chmod(0o755)
    (body,) = bodies(page, begin)
    ours = [line for line in commands(f"```\n{body}```\n") if line.startswith("cgpu ")]
    assert ours
    for line in ours:
        result = Cli(tree).cgpu(*shlex.split(line)[1:])
        assert result.exit_code == 0 or (result.exit_code == 7 and "doctor" in line), (line, result.stderr)
        assert "Traceback" not in result.output


@pytest.mark.parametrize(("page", "begin"), [key for key, how in RUN.items() if how != "commands"])
def test_its_file_is_read(tree: Tree, page: str, begin: str, tmp_path: Path) -> None:
    texts = bodies(page, begin)
    assert texts
    for text in texts:
        path = tmp_path / "file.toml"
        path.write_text(text)
        if RUN[page, begin] == "cgpu.toml":
            (tmp_path / "runtime.conf").write_text("ask = always\n")  # as the block demands
            config.load(path, tmp_path / "runtime.conf")
            continue
        words = ["--cluster", str(path)] if RUN[page, begin] == "cluster" else [str(path), "--seconds", "6"]
        result = Cli(tree).cgpu("simulate", *words)
        assert result.exit_code in (0, 7) and "simulated" in result.stdout, result.stderr


#: Lines with a load, to copy as they are.
SIMULATED = sorted(
    {
        line
        for _, line in LINES
        if line.startswith("cgpu simulate --") and "--container name=" in line and "…" not in line
    }
)


@pytest.mark.parametrize("line", SIMULATED)
def test_the_simulation_of_a_page_runs(tree: Tree, line: str) -> None:
    """Also that the options of a line go together: a t4 has no chram."""
    assert len(SIMULATED) > 5
    result = Cli(tree).cgpu(*shlex.split(line)[1:])
    assert result.exit_code == 0 and "simulated" in result.stdout, result.stderr


# ---- lines to copy ----


def blocks() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        yield from ((name, block[1].replace("\\\n", " ")) for block in FENCE.finditer(page))


def test_a_line_to_copy_names_its_gpu() -> None:
    """Without a GPU it takes its slice of each one of the node, of whatever size that card is."""
    lines = [(name, line) for name, block in blocks() for line in block.splitlines() if "GPU_MEM_CONTAINER=" in line]
    assert len(lines) > 5
    names = ("GPU_VISIBLE_DEVICES=", "$SIZE", " | ")  # SIZE has it, in a line of its own
    assert [one for one in lines if not any(name in one[1] for name in names)] == []


def test_a_pod_to_copy_has_the_runtime_class() -> None:
    """Without it and without --default of cgpu setup containerd, the default runtime starts it without a slice."""
    pods = [part for _, block in blocks() for part in block.split("---\n") if "kind: Pod\n" in part]
    assert len(pods) > 1
    assert [one for one in pods if "runtimeClassName: cgpu" not in one] == []


def test_the_wheel_is_installed_where_pip_may() -> None:
    """Debian 12 and Ubuntu 24.04 refuse pip outside of a virtual environment (externally-managed-environment)."""
    found = [(name, line) for name, page in PAGES.items() for line in re.findall(r".*pip install[^`\n]*", page)]
    of_wheels = [one for one in found if "build/wheels" in one[1]]
    assert len(of_wheels) >= 2
    assert [one for one in found if "v/bin/pip install" not in one[1] and "--target" not in one[1]] == []


def test_two_containers_of_a_recipe_fit_on_their_card() -> None:
    """A card offers a GiB less than it has: what the driver keeps (kubernetes-node.md, Amounts)."""
    size = next(line for line in PAGES["docs/user/recipes.md"].splitlines() if line.startswith("SIZE="))
    dev, each = (int(re.findall(rf"MEM_{name}=(\d+)", size)[0]) for name in ("DEV", "CONTAINER"))
    assert 2 * each <= dev - 1
    for name, block in blocks():
        asked = [int(one) for one in re.findall(r"aliyun.com/gpu-mem: (\d+)", block)]
        assert sum(asked) <= 79, (name, block)


def test_a_page_with_unsliced_refuse_says_what_a_default_runtime_loses() -> None:
    """kube-proxy is privileged: with both it does not start again."""
    for name, page in PAGES.items():
        both = "default_runtime_name" in page and re.search(r'unsliced = "?refuse', page)
        assert not both or "kube-proxy" in page, name


@pytest.mark.parametrize("page", ["docs/user/engines.md", "docs/user/howto.md", "docs/user/kubernetes.md"])
def test_a_default_runtime_has_a_line_with_and_without_the_toolkit(page: str) -> None:
    """cgpu setup refuses a runtime called nvidia that is the toolkit's."""
    assert "--set-as-default" in PAGES[page] and re.search(r"--default`?\b", PAGES[page])


def test_the_chart_with_its_own_scheduler_has_all_that_it_needs() -> None:
    """scheduler.image.repository is required, and without image.repository nothing serves the image."""
    lines = [
        (name, line) for name, block in blocks() for line in block.splitlines() if "scheduler.enabled=true" in line
    ]
    assert len(lines) > 2
    for name, line in lines:
        assert "--set scheduler.image.repository=" in line and "--set image.repository=" in line, (name, line)
        assert "REGISTRY" in line, name


@pytest.mark.parametrize("page", ["docs/user/kubernetes-node.md", "docs/user/start.md"])
def test_the_namespace_is_there_before_the_installer(page: str) -> None:
    """deploy/kubernetes/installer has no Namespace: surge has, and the chart's lines make it."""
    seen = 0
    for name, block in blocks():
        for what in re.finditer(r"deploy/kubernetes/installer|installer\.enabled=true", block if name == page else ""):
            seen += 1
            before = block[: what.start()]
            made = r"apply -k deploy/kubernetes/surge|create namespace cgpu-system|--create-namespace"
            assert re.search(made, before), block
    assert seen


def test_the_key_of_the_metrics_is_changed_where_it_stands(tmp_path: Path) -> None:
    """howto.md: the example has it set above [gpu], so that a line at the end is another table's."""
    text, line = (ROOT / "systemd/cgpu.toml.example").read_text(), 'metrics = "127.0.0.1:9400"'
    path = tmp_path / "cgpu.toml"
    path.write_text(re.sub(r"^metrics = .*$", line, text, flags=re.MULTILINE))
    assert config.load(path).metrics == "127.0.0.1:9400"
    for there in (text + line + "\n", line + "\n" + text):
        path.write_text(there)
        with pytest.raises(config.ConfigError):
            config.load(path)
    assert "change the line `metrics` above `[gpu]`" in " ".join(PAGES["docs/user/howto.md"].split())


def test_what_a_page_says_of_the_last_line_of_doctor_is_true() -> None:
    """It ends in the count of warnings, whatever that of problems is: the exit code says what a script asks."""
    assert not [name for name, page in PAGES.items() if re.search(r'ends? in "0 problems"', page)]


def test_programs_that_pages_call_of_the_package_are_installed() -> None:
    text = (ROOT / "scripts/install").read_text()
    assert all(f"{name}:" in text for name in (*PROGRAMS, "cgpud", "kubectl-inspect-cgpu"))


def test_a_value_that_is_set_by_hand_holds_as_long_as_the_daemon_lets_it() -> None:
    """Each page that says until the next boot says what ends it before: cgpud sets the keys of its files."""
    for name, page in PAGES.items():
        for part in re.split(r"\n\s*\n", page):
            words = " ".join(part.split())
            if "until the next boot" in words and "policy" in words:
                assert re.search(r"next reload or start", words), (name, words)
