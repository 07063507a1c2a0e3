# SPDX-License-Identifier: MIT
"""The tables of cgpu at 40, 60, 80 and 140 columns, and of cgpu simulate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_tree import ID1, ID2, ID3, MIB, Cli, Tree, inst_line, sample, write
from golden_files import golden

from cgpu_cli.columns import cells
from cgpu_cli.main import cgpu
from cgpu_common import policies

LONG = "k8s_trainer_llama-70b-finetune-experiment-42-worker-0_ml-platform-production"
TABLES = (("ps",), ("stats", "--no-stream"), ("gpu", "list"))
CLUSTER = """
[[pool]]
name = "a-pool-of-nodes-with-a-name-of-some-length-in-europe-west-4"
nodes = 3
gpus = [79, 79]
[[pod]]
name = "inference-of-a-model-with-a-long-name-and-a-version-7d9f8b6c54"
count = 20
memory = 24
core = 40
gpus = 2
"""


@pytest.fixture
def node(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Two GPUs, three containers, one with a long name and many processes."""
    tree.gpu(1, policy=1, max_inst=25, free_weight=24)
    many = "\n".join(f"PID: {4194200 + n} Mem: {n * MIB}" for n in range(12))
    tree.slot(1, ID3, memsize=80000 * MIB, meminfo=f"Free: 1\n{many}")
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7), inst_line(ID3, 9, gpus="1:5"))
    write(tree.root / f"var/lib/docker/containers/{ID3}/config.v2.json", json.dumps({"Name": "/" + LONG}))
    sample(monkeypatch)
    return tree


def shown(node: Tree, width: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    if width is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    return "\n".join(f"$ cgpu {' '.join(words)}\n{Cli(node).cgpu(*words).stdout}" for words in TABLES)


@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_tables(node: Tree, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = shown(node, width, monkeypatch)
    assert max(map(cells, text.splitlines())) <= width
    assert all(text.count(one[:12]) >= 2 for one in (ID1, ID2, ID3)), "an id is never shortened: it is what is typed"
    golden(f"tables-{width}.txt", text)


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_policies(node: Tree, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """No golden file, which each new policy would change."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = Cli(node).cgpu("policy", "list").stdout.splitlines()
    assert max(map(cells, lines)) <= width
    text = " ".join(lines)
    assert sorted(policies.NAMES, key=lambda name: text.index(f" {name} ")) == list(policies.NAMES)


def test_nothing_is_shortened_in_a_pipe(node: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(node, None, monkeypatch)
    assert "…" not in text and text.count(LONG) == 2


def simulate(width: int, *words: str) -> str:
    result = CliRunner(env={"COLUMNS": str(width), "LC_ALL": "C.UTF-8"}).invoke(cgpu, ["simulate", *words])
    assert result.exit_code in (0, 7), result.output
    return result.stdout


@pytest.mark.parametrize("width", [80, 140])
def test_a_simulation(width: int) -> None:
    """With every table and a name that is too long. No golden file: the figures change with the scheduler."""
    words = ("--seconds", "1", "--alone", "--container", f"name={LONG[:60]},weight=2,depth=150")
    text = simulate(width, *words, "--container", "name=serve,request_us=5000,requests_per_s=30")
    assert max(map(cells, text.splitlines())) <= width
    heads = {" ".join(line.split()) for line in text.splitlines() if line.startswith("Container")}
    assert heads == {
        "Container Weight Allowed Got Kernels/s Wait p50 Wait p99 Wait max",
        "Container Requests Open Requests/s p50 p99 max p99 of alone",
        "Container Got Alone Max-min fair",
    }
    assert text.count("k8s_trai") == 3 and text.count("serve ") == 4


def test_a_simulation_at_40_columns() -> None:
    """cli.md promises that a line that is no row of a table is folded."""
    text = simulate(40, "--seconds", "0.2", "--container", "name=train,ceiling=5", "--container", "name=serve")
    assert max(map(cells, text.splitlines())) <= 40


def test_doctor_at_40_columns(node: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word is not cut: it is a path or part of a command."""
    monkeypatch.setenv("COLUMNS", "40")
    lines = Cli(node).cgpu("doctor").stdout.splitlines()
    assert [line for line in lines if cells(line) > 40 and len(line.split()) > 1] == []


def test_a_simulated_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    text = simulate(80, "--cluster", str(tmp_path / "cluster.toml"))
    tables = [line for line in text.splitlines() if not line.startswith("  ")]
    assert max(map(cells, tables)) <= 80
    golden("cluster.txt", text)
