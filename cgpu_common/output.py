# SPDX-License-Identifier: MIT
"""The output of the commands. Every result goes through out() or result(), every remark through note()."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from cgpu_common.exits import CgpuError, Exit
from cgpu_common.pages import located

SCHEMA_VERSION = 1  # of every --json without a version of its own: docs/user/cli.md §1


class ReaderGone(Exception):
    """The reader of a pipe went away. Not an OSError: click would end the program with exit 1."""


def write_failed(err: OSError) -> CgpuError:
    return CgpuError(
        Exit.OUTPUT, "standard output", err.strerror or str(err), "the command was carried out, its output is missing"
    )


def discard(fd: int) -> None:
    """Python flushes both outputs once more at its end, which would fail again and change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def out(text: str) -> None:
    """One text on standard output. A failed write is an error of its own, since the change before it is in force."""
    try:
        try:
            click.echo(text)
        except UnicodeEncodeError:
            encoding = getattr(sys.stdout, "encoding", None) or "ascii"
            click.echo(text.replace("…", "~").encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as err:
        raise write_failed(err) from err


def flush() -> None:
    """Of a command that goes on: its reader gets each part at once."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as err:
        raise write_failed(err) from err


def note(text: str) -> None:
    """One line on standard error, pages by where this machine has them. A full or closed standard error stops
    nothing."""
    try:
        click.echo(located(text), err=True)
    except OSError:
        discard(2)


def versioned(data: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **data}


def result(as_json: bool, data: dict[str, Any], text: str) -> None:
    """A command's result, as JSON with its schema_version or as text."""
    if as_json:
        import json  # slow to import

        text = json.dumps(versioned(data), indent=2)
    out(text)
