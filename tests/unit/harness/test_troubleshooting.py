# SPDX-License-Identifier: MIT
"""docs/user/troubleshooting.md: its sentences are the code's, and those that refuse a start are all explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/user/troubleshooting.md").read_text()
#: The modules that a start passes through.
MODULES = ("admit", "bundle", "env", "granted", "hooks", "inventory", "kube", "loop", "oci", "whole")
#: Sentences for programs that speak to cgpud, not for the administrator of a node.
OF_PROGRAMS = {"the container id must be 1 to … printable bytes", "bind without a pidfd"}


def literal(node: ast.expr) -> str:
    """The text of an expression, with … for what is put in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return "…"


def refusals(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.func).endswith("Refused"):
            text = literal(call.args[0])
            if len(text.replace("…", "").strip()) > 3:
                yield text


def explained(page: str) -> list[str]:
    """The sentences that the page has in bold letters at the head of a paragraph."""
    heads = re.findall(r"^(\*\*(?:.|\n)+?)(?: —|\n—)", page, re.M)
    return [" ".join(one.split()) for head in heads for one in re.findall(r"\*\*((?:.|\n)+?)\*\*", head)]


def fixed(sentence: str) -> list[str]:
    """Its parts between what is put in."""
    return [part.strip(" ,:;()") for part in sentence.split("…") if len(part.strip(" ,:;()")) > 3]


def covers(parts: list[str], sentence: str) -> bool:
    """Whether the parts are in the sentence, in this order."""
    at = 0
    for part in parts:
        at = sentence.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


SENTENCES = sorted(
    {text for name in MODULES for text in refusals((ROOT / f"cgpud/{name}.py").read_text())} - OF_PROGRAMS
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_page_explains(sentence: str) -> None:
    assert any(covers(fixed(one), sentence) for one in explained(PAGE))


def test_a_sentence_that_is_missing_is_found() -> None:
    assert len(SENTENCES) > 40
    source = "def f(n):\n    raise Refused(f'GPU {n} is purple: ' f'{n}')\n    raise Refused(str(n))\n"
    assert list(refusals(source)) == ["GPU … is purple: …"]
    assert explained("**GPU … is red**, **GPU … is\ngreen** — why\n\n**all** is bold\n") == [
        "GPU … is red",
        "GPU … is green",
    ]
    assert covers(["GPU", "is red"], "GPU … is red: …") and not covers(["is red", "GPU"], "GPU … is red")


# ---- and the reverse ----

CODE = ("cgpu_common", "cgpud", "cli", "cgpu_km")


def of_python(text: str) -> list[str]:
    """Whole strings, with \0 for what is put in: quotes within them are no ends."""
    parts = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts.append("".join(one.value if isinstance(one, ast.Constant) else "\0" for one in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts.append(node.value)
    return parts


def of_c(text: str) -> list[str]:
    """With adjacent literals joined, so that a sentence cut over lines is found."""
    joined = re.sub(r'"\s*(?:PRI\w+\s*)?"', "", text)
    return [re.sub(r"%[\d.*]*[a-z]+", "\0", one) for one in re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)]


def spoken() -> str:
    """Every string of the code."""
    parts = []
    for path in (path for name in CODE for path in (ROOT / name).rglob("*.[pch]*")):
        if path.suffix in (".py", ".c", ".h"):
            parts += (of_python if path.suffix == ".py" else of_c)(path.read_text())
    return "\n".join(parts)


def unspoken(page: str, strings: str) -> list[str]:
    """Sentences of the page of which a part between two `…` is in no string of the code."""
    return [one for one in explained(page) if any(part not in strings for part in fixed(one))]


def test_the_sentences_of_the_page_are_the_codes() -> None:
    assert len(explained(PAGE)) > 60
    assert unspoken(PAGE, spoken()) == []


def test_a_sentence_that_is_in_no_string_is_found() -> None:
    page = "**GPU … is gone; try again** — why\n"
    assert unspoken(page, "GPU \0 is gone\n; try again") == ["GPU … is gone; try again"]
    assert unspoken(page, "GPU \0 is gone; try again") == []
