# SPDX-License-Identifier: MIT
"""The layers of cgpu_common, cgpud, cli and cgpu-runtime: permitted imports, no cycle, small files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
FOLDERS = {"cgpu_common": REPO / "cgpu_common", "cgpud": REPO / "cgpud", "cgpu_cli": REPO / "cli"}
RUNTIME = REPO / "cgpud/runtime"
LINES_MAX = 500
TOO_LONG: set[str] = set()  # files above LINES_MAX; may only shrink

#: Bottom up: a module imports modules of its own layer and of those before it, of its package or cgpu_common.
LAYERS = {
    "values": """
        cgpu_common cgpu_common.errors cgpu_common.kernel_abi cgpu_common.policies cgpu_common.model cgpu_common.cards
        cgpu_common.attributes cgpu_common.toml cgpu_common.cgroup cgpu_common.address cgpu_common.cookie
        cgpu_common.exits cgpu_common.keys cgpu_common.mps cgpu_common.links
        cgpud cgpud.values cgpud.limits cgpud.labels cgpud.config_json cgpud.numbers
        cgpu_cli cgpu_cli.branches cgpu_cli.edit
    """,
    "decisions": """
        cgpu_common.settings cgpu_common.events cgpu_common.effect cgpu_common.share cgpu_common.placement
        cgpu_common.waits cgpu_common.figures
        cgpud.env cgpud.hooks cgpud.state cgpud.oci cgpud.admit cgpud.reconcile cgpud.unsliced cgpud.metrics
        cgpud.history cgpud.slices cgpud.mps cgpud.places
        cgpu_cli.names cgpu_cli.render cgpu_cli.describe cgpu_cli.facts cgpu_cli.checks cgpu_cli.containerd
        cgpu_cli.engines cgpu_cli.columns cgpu_cli.rates cgpu_cli.view cgpu_cli.query cgpu_cli.overview cgpu_cli.topview
        cgpu_cli.chrome cgpu_cli.samples cgpu_cli.redact cgpu_cli.ways cgpu_cli.fleet cgpu_cli.full
        cgpu_cli.inspected cgpu_cli.cells
    """,
    "outside": """
        cgpu_common.accepting
        cgpu_common.python cgpu_common.toolkit cgpu_common.log cgpu_common.notify cgpu_common.wire cgpu_common.config
        cgpu_common.frames cgpu_common.gpus cgpu_common.mps_nvml cgpu_common.files cgpu_common.pages
        cgpu_common.link cgpu_common.listener cgpu_common.netlink cgpu_common.server cgpu_common.output
        cgpu_common.proc cgpu_common.versions cgpu_common.dumpable cgpu_common.inotify cgpu_common.holders
        cgpud.bundle cgpud.store cgpud.host_paths cgpud.watch cgpud.nvml cgpud.grants cgpud.granted cgpud.kube
        cgpud.http cgpud.tls cgpud.apply cgpud.mps_control cgpud.mps_limits
        cgpu_cli.daemon cgpu_cli.drain cgpu_cli.kernel cgpu_cli.refusals cgpu_cli.change cgpu_cli.node cgpu_cli.sensors
        cgpu_cli.collect cgpu_cli.bundle cgpu_cli.sim cgpu_cli.sim.model cgpu_cli.sim.native cgpu_cli.sim.gpu
        cgpu_cli.sim.figures cgpu_cli.sim.draw cgpu_cli.sim.requests cgpu_cli.sim.run_state cgpu_cli.sim.config
        cgpu_cli.sim.samples cgpu_cli.sim.turns cgpu_cli.sim.run cgpu_cli.sim.playback cgpu_cli.sim.cluster
        cgpu_cli.sim.cluster_config cgpu_cli.terminal cgpu_cli.prometheus
    """,
    "assembly": """
        cgpu_common.app
        cgpud.dependencies cgpud.hostmem cgpud.inventory cgpud.sensors cgpud.named cgpud.queries cgpud.whole
        cgpud.report cgpud.orphans cgpud.mps_node cgpud.mps_unit cgpud.loop cgpud.exporter
        cgpu_cli.words
        cgpu_cli.complete cgpu_cli.admin cgpu_cli.show cgpu_cli.gpu cgpu_cli.doctor cgpu_cli.status cgpu_cli.monitor
        cgpu_cli.top cgpu_cli.stats cgpu_cli.trace cgpu_cli.upgrade cgpu_cli.setup cgpu_cli.events
        cgpu_cli.simulate_cluster cgpu_cli.simulate cgpu_cli.nodes
    """,
    "programs": "cgpud.__main__ cgpu_cli.main cgpu_cli.smi",
}
#: No clock, file, process, socket, thread or chance in these.
PURE = ("values", "decisions")
IMPURE = {
    *("asyncio", "ctypes", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "shutil"),
    *("signal", "socket", "subprocess", "tempfile", "threading", "time"),
    *("cffi", "click", "msgspec", "pynvml", "pyroute2", "structlog"),
}
#: A library that is reached through one module only, or two.
SINGLE_USER = {
    "cffi": "cgpu_cli.sim.native",
    "ctypes": "cgpu_common.dumpable cgpu_common.inotify cgpu_common.mps_nvml",
    "prometheus_client": "cgpud.metrics",
    "pynvml": "cgpu_common.gpus",
    "pyroute2": "cgpu_common.netlink",
    "rich": "cgpu_cli.top",
    "structlog": "cgpu_common.log",
}
#: The same for the C files of cgpu-runtime, each with its header.
RUNTIME_LAYERS = (
    "text",
    "report json_scan read_file runtime_conf",
    "nodes closed cmdline next_runtime daemon_client records",
    "exec_check update_check hooks nvidia_cli",
    "admission",
    "main",
)

Graph = dict[str, set[str]]


def _modules() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


def _imported(name: str, path: Path) -> Iterator[str]:
    """Imports in functions and for type checkers count too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


MODULES = _modules()
IMPORTS = {name: set(_imported(name, path)) for name, path in MODULES.items()}
PYTHON: Graph = {name: {other for other in found if other in MODULES} - {name} for name, found in IMPORTS.items()}
C_FILES = sorted([*RUNTIME.glob("*.c"), *RUNTIME.glob("*.h")])
RUNTIME_GRAPH: Graph = {}
for _path in C_FILES:
    _found = {name.removesuffix(".h") for name in re.findall(r'#include "(\S+)"', _path.read_text())}
    RUNTIME_GRAPH.setdefault(_path.stem, set()).update(_found - {_path.stem})

RANKS = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names.split()}
RUNTIME_RANKS = {name: rank for rank, names in enumerate(RUNTIME_LAYERS) for name in names.split()}


def upward(graph: Graph, ranks: dict[str, int]) -> list[str]:
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if ranks[other] > ranks[name]
    ]


@pytest.mark.parametrize(
    ("graph", "ranks"), [(PYTHON, RANKS), (RUNTIME_GRAPH, RUNTIME_RANKS)], ids=["python", "runtime"]
)
def test_imports_go_down(graph: Graph, ranks: dict[str, int]) -> None:
    assert set(graph) == set(ranks), "each module has a layer, and each name in a layer is a module"
    assert upward(graph, ranks) == []
    TopologicalSorter(graph).prepare()  # CycleError names the cycle


def test_an_import_upwards_is_found() -> None:
    assert upward({"cgpud.admit": {"cgpud.loop"}}, RANKS) == ["cgpud.admit imports cgpud.loop"]


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_itself_and_the_common_one(package: str) -> None:
    """Daemon and command line do not import each other; what both need is in cgpu_common, which imports neither."""
    found = {other for name, others in IMPORTS.items() if name.split(".")[0] == package for other in others}
    ours = {other.split(".")[0] for other in found} & {"cgpu_common", "cgpud", "cgpu_cli", "cgpu_kube"}
    assert ours <= {package, "cgpu_common"}


@pytest.mark.parametrize("name", [name for layer in PURE for name in LAYERS[layer].split()])
def test_pure_modules_import_nothing_from_outside(name: str) -> None:
    assert {module.split(".")[0] for module in IMPORTS[name]} & IMPURE == set()


@pytest.mark.parametrize(("library", "module"), SINGLE_USER.items())
def test_a_library_has_one_user(library: str, module: str) -> None:
    assert {name for name, found in IMPORTS.items() if library in {one.split(".")[0] for one in found}} == set(
        module.split()
    )


#: Modules that write a file by themselves, and why what is there already is none of their concern.
WRITERS = {
    "cgpu_common/files.py": "the helper",
    "cgpud/mps_unit.py": "empty files in a folder of root, below /run",
    "cgpu_kube/installer/before.py": "a folder below /var/lib/cgpu that it has just made",
    "cgpu_kube/installer/command.py": "the file that the kubelet mounts for a container's last words",
    "cli/bundle.py": "an archive in memory",
    "cli/drain.py": "an empty file, whose creation replaces nothing",
    "cgpu_kube/node/turn.py": "an empty file, whose creation replaces nothing",
    "cgpu_kube/node/keeper.py": "a value of procfs, of the process itself",
    "cgpud/bundle.py": "replaces the config.json that it has just read as a plain file",
    "cli/sim/native.py": "in a folder of tempfile's, below one that only this user can write",
}
WRITING = re.compile(
    r"\.write_(text|bytes)\(|\.(rename|replace|touch)\((?!.*, )|mkstemp|os\.(rename|replace)\(|\bopen\(.*[\"'][wax]"
    r"|O_CREAT|click\.File\("
)


def test_files_are_written_by_one_helper() -> None:
    """It refuses what is no plain file. A rename by hand would replace a device node."""
    sources = [path for folder in (*FOLDERS.values(), REPO / "cgpu_kube") for path in folder.rglob("*.py")]
    found = {str(path.relative_to(REPO)) for path in sources if WRITING.search(path.read_text())}
    assert found == WRITERS.keys()


def test_files_are_small() -> None:
    sources = [path for folder in FOLDERS.values() for kind in ("py", "c", "h") for path in folder.rglob(f"*.{kind}")]
    long = {str(path.relative_to(REPO)) for path in sources if len(path.read_text().splitlines()) > LINES_MAX}
    assert long == TOO_LONG


def test_no_daemon_imports_what_draws() -> None:
    """structlog would import rich, and rich pygments: a quarter of the time that a daemon takes to start."""
    programs = "cgpud.__main__, cgpu_kube.node.command, cgpu_kube.installer.command, cgpu_cli.main"
    code = f"import sys, {programs}; print(*(name for name in ('rich', 'pygments') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
