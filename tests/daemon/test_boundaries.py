# SPDX-License-Identifier: MIT
"""Who may import what: the outside is reached through one module each, and the pure ones reach nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "cgpud"
PURE = (
    *("errors", "model", "kernel_abi", "limits", "env", "admit", "oci", "state", "reconcile", "cgroup"),
    *("settings", "whole", "events"),
)
OUTSIDE = {
    *("asyncio", "ctypes", "os", "pathlib", "random", "secrets", "signal", "socket", "subprocess", "threading", "time"),
    *("pynvml", "pyroute2", "structlog", "click", "msgspec"),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "cgpud":
                found |= {f"cgpud.{alias.name}" for alias in node.names}
    return found


ALL = {path.stem: imports(path) for path in PACKAGE.glob("*.py")}


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_reach_nothing(name: str) -> None:
    roots = {module.split(".")[0] for module in ALL[name]}
    assert not roots & OUTSIDE
    ours = {module.removeprefix("cgpud.") for module in ALL[name] if module.startswith("cgpud.")}
    assert ours <= set(PURE)


@pytest.mark.parametrize(("library", "module"), [("pynvml", "gpus"), ("pyroute2", "netlink"), ("ctypes", "watch")])
def test_one_module_each(library: str, module: str) -> None:
    users = {name for name, modules in ALL.items() if any(m.split(".")[0] == library for m in modules)}
    assert users == {module}


def test_modules_are_small() -> None:
    for path in PACKAGE.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path.name
