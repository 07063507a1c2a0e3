# SPDX-License-Identifier: MIT
"""How wide the terminal is."""

from __future__ import annotations

import os
import sys


def width() -> int | None:
    """Of the terminal, or of $COLUMNS; None: there is none, so nothing is shortened."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    terminal = sys.__stdout__
    try:
        return (os.get_terminal_size(terminal.fileno()).columns or None) if terminal and sys.stdout.isatty() else None
    except (AttributeError, ValueError, OSError):  # closed, or no terminal
        return None
