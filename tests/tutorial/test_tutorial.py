# SPDX-License-Identifier: MIT
"""The parts of make tutorial that need no machine, and that the pictures in the pages are of the pages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path

import pages
import picture
import pytest
import tutorials

REPO = Path(__file__).resolve().parents[2]
TEXT = "{http://www.w3.org/2000/svg}text"


def page(*lines: str) -> str:
    return "\n".join(["<!-- tested: x -->", "```", *lines, "```"])


def test_a_command_of_several_lines_is_one() -> None:
    text = page("a \\", "  b", "c <<END", "d \\", "e", "END", "f", "g <<'EOF'", "h", "EOF")
    assert pages.commands(text, "x") == ["a \\\n  b", "c <<END\nd \\\ne\nEND", "f", "g <<'EOF'\nh\nEOF"]
    assert pages.commands(text, "y") == []


def test_a_page_is_ok_if_all_of_it_was() -> None:
    good, bad = pages.Played("a", 0, "", 0.1), pages.Played("b", 3, "", 0.1)
    assert pages.record("p", [good], 1)["ok"] is True
    assert [pages.record("p", played, 2)["ok"] for played in ([good], [good, bad])] == [False, False]
    assert pages.record("p", [], 0)["ok"] is False, "a page without commands shows nothing"


def test_a_record_keeps_the_pages_of_the_other_machine() -> None:
    first, second = "docs/user/tutorial.md", "docs/user/tutorial-kubernetes.md"
    old = [{"page": second, "ok": False}, {"page": first, "ok": False}, {"page": "gone.md", "ok": True}]
    assert tutorials.merged(old, [{"page": first, "ok": True}]) == [
        {"page": first, "ok": True},
        {"page": second, "ok": False},
    ]


@pytest.mark.parametrize("page_name", [name for of_kind in pages.PAGES.values() for name in of_kind])
def test_each_page_has_commands(page_name: str) -> None:
    mark = {**pages.PAGES["docker"], **pages.PAGES["kube"]}[page_name]
    assert len(pages.commands((REPO / page_name).read_text(), mark)) > 5


def shown(path: Path) -> list[str]:
    """The lines of a picture, top to bottom."""
    rows: dict[float, str] = {}
    for one in ET.parse(path).getroot().iterfind(f".//*[@class='cgpu-matrix']/{TEXT}"):
        rows[float(one.get("y", 0))] = rows.get(float(one.get("y", 0)), "") + unescape(one.text or "")
    return [rows[y].replace("\xa0", " ").rstrip() for y in sorted(rows)]


def test_the_picture_is_the_session() -> None:
    name = "docs/user/tutorial.md"
    played = [{"command": "cgpu-smi <x>", "output": f"GPU & {'a' * 64}\n"}, {"command": "ls", "output": "no\n"}]
    text = picture.svg(name, played)
    assert "font-face" not in text and "url(http" not in text and "src:" not in text
    root = ET.fromstring(text)
    words = "".join(one.text or "" for one in root.iter(TEXT)).replace("\xa0", " ")
    assert "# cgpu-smi <x>" in words and "GPU & aaaaaaaaaaaa…" in words and "ls" not in words.split()


@pytest.mark.parametrize("name", picture.SHOWN)
def test_the_picture_of_a_page_has_its_commands(name: str) -> None:
    """As `make tutorial PICTURES=1` wrote it: a command of the page that changed needs another picture."""
    path = (REPO / name).with_suffix(".svg")
    mark = {**pages.PAGES["docker"], **pages.PAGES["kube"]}[name]
    wanted = {line.strip() for one in pages.commands((REPO / name).read_text(), mark) for line in one.split("\n")}
    typed = [re.sub(r"^[#>] ", "", line).strip() for line in shown(path) if line.startswith(("# ", "> "))]
    assert len(typed) > 3
    assert [line for line in typed if line not in wanted] == []
