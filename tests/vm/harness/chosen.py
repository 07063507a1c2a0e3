# SPDX-License-Identifier: MIT
"""`python3 chosen.py KIND BACKEND TEST…` prints the boot that these tests need: `KERNEL KIND`.

The Makefile asks before anything is installed or built, so this reads the tests' sources and imports none of them. A
test has markers for the kind of its boot and for what it needs of the machine; the default is User-Mode Linux.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).resolve().parents[1] / "guest"

#: Kinds of boot that User-Mode Linux cannot be: NVIDIA's own modules with a PCI card, kprobes on allocators.
QEMU_KINDS = ("driver", "driver_two", "driver_pair", "driver_icount", "long")

KINDS = (
    *("plain", "bare", "icount", "docker", "engines", "systemd", "kube", "cuda", "cuda_nvcc", "cuda_icount"),
    *QEMU_KINDS,
)

#: The default kernel of each backend, as machine.BACKENDS has it (held together by a test).
DEFAULTS = {"uml": "uml", "qemu": "6.1"}


@dataclass(frozen=True)
class Test:
    """A test function as its source describes it."""

    path: str  #: below tests/vm/guest
    name: str
    markers: frozenset[str]  #: by name, those of its file too
    needs: frozenset[str]  #: the arguments of the marker `needs`

    @property
    def kind(self) -> str:
        """The kind of boot it runs in."""
        return next((kind for kind in KINDS if kind in self.markers), "plain")


def tests(folder: Path = GUEST) -> Iterator[Test]:
    """Every test below the folder."""
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        own = [node.value for node in tree.body if isinstance(node, ast.Assign) and names(node) == ["pytestmark"]]
        file_markers = [marker for value in own for marker in markers_in(value)]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found = file_markers + [marker for each in node.decorator_list for marker in markers_in(each)]
                needs = frozenset(argument for name, arguments in found if name == "needs" for argument in arguments)
                yield Test(str(path.relative_to(folder)), node.name, frozenset(name for name, _ in found), needs)


def names(node: ast.Assign) -> list[str]:
    """The variables that an assignment sets."""
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def markers_in(value: ast.expr) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each `pytest.mark.NAME` in an expression, with its arguments that are plain strings."""
    called = {id(node.func): node for node in ast.walk(value) if isinstance(node, ast.Call)}
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
            call = called.get(id(node))
            arguments = [each.value for each in call.args if isinstance(each, ast.Constant)] if call else []
            yield node.attr, tuple(argument for argument in arguments if isinstance(argument, str))


def boot(kind: str, backend: str, words: list[str], known: list[Test]) -> tuple[str, str]:
    """The kernel and the kind of boot for tests that are chosen by name, a part of it, or file.

    Where they have several kinds it is the first of KINDS, so that a name that is everywhere means the plain boot.
    """
    chosen = [test for test in known if any(matches(test, word) for word in words)]
    kinds = [each for each in KINDS if each in {test.kind for test in chosen}]
    kind = kind or next(iter(kinds), "plain")
    mine = [test for test in chosen if test.kind == kind]
    qemu = kind in QEMU_KINDS or (bool(mine) and all(test.needs - {"uml"} for test in mine))
    return DEFAULTS["qemu" if qemu else backend or "uml"], kind


def matches(test: Test, word: str) -> bool:
    """Whether pytest would choose the test for this word of TEST."""
    path, _, name = word.partition("::")
    if path.endswith(".py") or "/" in path:
        whole = f"tests/vm/guest/{test.path}"
        here = whole.startswith(path.rstrip("/")) if "/" in path else Path(whole).name == path
        return here and name.split("[")[0] in ("", test.name)
    return word in test.name or word in test.path


def main(arguments: list[str]) -> int:
    """Print the boot; KIND and BACKEND may be empty."""
    kind, backend, *words = arguments
    known = list(tests()) if words else []
    print(*boot(kind, backend if backend in DEFAULTS else "", words, known))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
