# SPDX-License-Identifier: MIT
"""The layers of cgpu_kube: permitted imports, no cycle, small files; modules that decide are pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "cgpu_kube"
LINES_MAX = 500

#: Bottom up: a module imports modules of its own layer and of those before it.
LAYERS = {
    "values": "cgpu_kube cgpu_kube.errors cgpu_kube.quantity cgpu_kube.annotations cgpu_kube.node",
    "decisions": """
        cgpu_kube.mirror cgpu_kube.pods cgpu_kube.ledger cgpu_kube.extender cgpu_kube.extender.protocol
        cgpu_kube.extender.metrics cgpu_kube.extender.preempt cgpu_kube.dra cgpu_kube.report
        cgpu_kube.node.host cgpu_kube.node.figures cgpu_kube.node.podview cgpu_kube.node.decide cgpu_kube.node.claims
        cgpu_kube.installer cgpu_kube.installer.plan
    """,
    "outside": """
        cgpu_kube.parts cgpu_kube.api cgpu_kube.watch cgpu_kube.extender.binder cgpu_kube.extender.access
        cgpu_kube.extender.lease cgpu_kube.extender.listener
        cgpu_kube.node.rpc cgpu_kube.node.plugin cgpu_kube.node.keeper cgpu_kube.node.kubelet cgpu_kube.node.daemon
        cgpu_kube.node.modefile cgpu_kube.node.turn cgpu_kube.node.dra cgpu_kube.node.cluster cgpu_kube.node.probe
        cgpu_kube.node.marks cgpu_kube.node.evictor cgpu_kube.node.unasked cgpu_kube.node.cleaner
        cgpu_kube.node.claimcheck cgpu_kube.node.wire
        cgpu_kube.node.settings cgpu_kube.node.link cgpu_kube.installer.host cgpu_kube.installer.before
    """,
    "assembly": """
        cgpu_kube.extender.service cgpu_kube.extender.command cgpu_kube.node.counting cgpu_kube.node.agent
        cgpu_kube.installer.act
    """,
    "programs": """
        cgpu_kube.main cgpu_kube.inspect cgpu_kube.node.command cgpu_kube.node.host_keeper cgpu_kube.installer.command
    """,
}
#: No clock, file, process, socket, thread or chance in these.
PURE = ("values", "decisions")
IMPURE = {
    *("asyncio", "http", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "shutil", "signal"),
    *("socket", "ssl", "subprocess", "tempfile", "threading", "time"),
    *("aiohttp", "click", "google", "grpclib", "msgspec", "structlog", "yaml"),
}


def _modules() -> dict[str, Path]:
    found = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        found[".".join(["cgpu_kube", *parts]).removesuffix(".__init__")] = path
    return found


def _imported(name: str, path: Path) -> Iterator[str]:
    """Imports in functions and for type checkers count too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: an import relative to the package"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


MODULES = _modules()
IMPORTS = {name: set(_imported(name, path)) for name, path in MODULES.items()}
GRAPH = {name: {other for other in found if other in MODULES} - {name} for name, found in IMPORTS.items()}
RANKS = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names.split()}


def test_imports_go_down() -> None:
    assert set(GRAPH) == set(RANKS), "each module has a layer, and each name in a layer is a module"
    upward = [f"{a} imports {b}" for a, others in GRAPH.items() for b in others if RANKS[b] > RANKS[a]]
    assert upward == []
    TopologicalSorter(GRAPH).prepare()  # CycleError names the cycle


@pytest.mark.parametrize("name", [name for layer in PURE for name in LAYERS[layer].split()])
def test_pure_modules_import_nothing_from_outside(name: str) -> None:
    assert {module.split(".")[0] for module in IMPORTS[name]} & IMPURE == set()


def test_no_other_package_imports_it() -> None:
    for folder in ("cgpu_common", "cgpud", "cli"):
        for path in (REPO / folder).rglob("*.py"):
            assert "cgpu_kube" not in path.read_text(), path


def test_it_imports_neither_the_daemon_nor_the_command_line() -> None:
    assert {other.split(".")[0] for found in IMPORTS.values() for other in found} & {"cgpud", "cgpu_cli"} == set()


def test_files_are_small() -> None:
    large = [path for path in FOLDER.rglob("*.py") if len(path.read_text().splitlines()) > LINES_MAX]
    assert large == []
