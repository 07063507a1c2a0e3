# SPDX-License-Identifier: MIT
"""pyproject against the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from cgpu_cli.main import cgpu
from cgpu_common.exits import Exit

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


DATA = {"cgpu_cli.sim.csrc", "cgpu_cli.sim.csrc.core", "cgpu_cli.sim.profiles"}


def test_package_list_is_the_tree() -> None:
    found = {
        ".".join(path.relative_to(ROOT).parts[:-1]).replace("cli", "cgpu_cli", base == "cli")
        for base in ("cgpu_common", "cli", "cgpud", "cgpu_kube")
        for path in (ROOT / base).rglob("__init__.py")
    }
    assert found | DATA == set(PROJECT["tool"]["setuptools"]["packages"])


def test_each_program_of_the_wheel_is_installed() -> None:
    """By scripts/install, of which make install, the packages and the node installer's image are made."""
    (loop,) = re.findall(r"for name in ((?:[\w-]+:[\w.]+[ \\\n]*)+);", (ROOT / "scripts/install").read_text())
    there = dict(word.split(":") for word in loop.replace("\\", "").split())
    assert there == {name: where.removesuffix(":main") for name, where in PROJECT["project"]["scripts"].items()}


def test_kubectls_plugin_needs_no_library_of_cgpu_kube() -> None:
    """It is installed where these are not, and with a Python of which cgpu-kube's asyncio is too new."""
    code = "import sys, cgpu_kube.inspect; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"aiohttp", "grpclib", "google", "yaml", "asyncio"} & set(done.stdout.split())


def test_version_is_one_and_in_the_changelog() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_each_dependency_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("]", text.index("dependencies = ["))]
    for line in block.splitlines()[1:]:
        assert re.search(r'",\s+# \S', line), line


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def test_the_page_names_every_command() -> None:
    named = set(re.findall(r"^\| `cgpu ([a-z ]*[a-z])", (ROOT / "docs/user/cli.md").read_text(), re.M))
    assert named == set(commands(cgpu))


def test_the_manual_pages(tmp_path: Path) -> None:
    """Every command, column, exit code and key is there, and groff has no complaint."""
    subprocess.run([sys.executable, ROOT / "scripts/cli-docs", tmp_path], check=True)
    pages = {path.name: path.read_text() for path in tmp_path.glob("man/*/*")}
    assert set(pages) == {"cgpu.1", "cgpu-smi.1", "cgpud.8", "cgpu.toml.5"}
    for name in commands(cgpu):
        assert f"\n.SS cgpu {name} " in pages["cgpu.1"].replace("\\-", "-"), name
    for page in (pages["cgpu.1"], pages["cgpu-smi.1"]):
        for one in Exit:
            assert f"\n.B {one.value} {one.name.lower()}\n" in page
    keys = set(re.findall(r"^(?:# )?([a-z_]+) = ", (ROOT / "systemd/cgpu.toml.example").read_text(), re.M))
    assert {key for key in keys if f"\n.B {key} = " not in pages["cgpu.toml.5"]} == set()
    if shutil.which("groff"):
        for path in tmp_path.glob("man/*/*"):
            done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", path], capture_output=True, check=True)
            assert done.stderr == b"", path.name
