# SPDX-License-Identifier: MIT
"""A played page as a picture of a terminal, SVG. Pure but for the library rich, which draws it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pages
from rich.console import Console
from rich.text import Text

WIDTH = 120
LINES_MOST = 18  # of a command's output
#: Of a page, the commands in the picture: those that begin with one of these.
SHOWN = {
    "docs/user/tutorial.md": ("docker run", "cgpu-smi", "cgpu policy set weighted --gpu 0"),
    "docs/user/tutorial-kubernetes.md": ("kubectl apply", "kubectl get pod", "kubectl inspect", "cgpu ps"),
}
#: Of rich's picture: what cuts each line at the terminal's width, which none exceeds.
CLIP = re.compile(r'<clipPath id="cgpu-line-\d+">.*?</clipPath>| clip-path="url\(#cgpu-line-\d+\)"', re.S)
LINE_END = re.compile(r"<text[^>]*>\n</text>")  # it draws each line end as a text of its own


def lines(page: str, played: Sequence[Mapping[str, Any]]) -> list[str]:
    """The session that the picture has, without what only tries and what is after the end of the containers."""
    out: list[str] = []
    for one in played:
        command = str(one["command"])
        if command.startswith(("docker rm", "kubectl delete")):
            break
        if command.startswith(SHOWN[page]) and "--dry-run" not in command:
            shown = list(pages.session(one))
            most = command.count("\n") + 1 + LINES_MOST
            out += [*map(pages.shortened, shown[:most]), *(["…"] if len(shown) > most else []), ""]
    return out


def svg(page: str, played: Sequence[Mapping[str, Any]]) -> str:
    """In the colours of rich's own theme; no font is fetched: a page that shows the picture may forbid it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines(page, played):
        console.print(Text(line, style="bold" if line.startswith(("# ", "> ")) else ""), soft_wrap=False)
    text = console.export_svg(title=f"{page}, on a simulated GPU", unique_id="cgpu")
    begin, end = text.index("@font-face"), text.rindex("@font-face")
    text = LINE_END.sub("\n", CLIP.sub("", text[:begin] + text[text.index("}", end) + 1 :]))
    text = re.sub(r"\n\s*\n", "\n", text)
    return text.replace("<svg ", '<svg xml:space="preserve" ', 1)  # some programs drop the spaces before a line
