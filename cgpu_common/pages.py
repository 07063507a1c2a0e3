# SPDX-License-Identifier: MIT
"""Where the pages are: messages name docs/user/install.md, as in the sources; packages put it below /usr/share/doc."""

from __future__ import annotations

import os
import re

#: scripts/install puts the folder of its prefix into the first.
FOLDERS = ("/usr/share/doc/cgpu", "/usr/local/share/doc/cgpu")
_PAGE = re.compile(r"(?<![\w./-])docs/(?=(?:[a-z]+/)?[a-z0-9.-]+\.(?:md|json))")


def located(text: str) -> str:
    """The text with each page at the place where this machine has it; unchanged where none is installed."""
    if "docs/" not in text:
        return text
    folder = next((one for one in FOLDERS if os.path.isdir(f"{one}/user")), None)  # noqa: PTH112 - pathlib is slow
    return text if folder is None else _PAGE.sub(f"{folder}/", text)
