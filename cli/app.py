# SPDX-License-Identifier: MIT
"""Conventions of every command: exit codes, one-line errors, --json errors, no traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from .errors import CgpuError, Exit, not_permitted
from .proc import Paths


def _as_cgpu_error(err: BaseException, prog: str) -> CgpuError:
    if isinstance(err, CgpuError):
        return err
    if isinstance(err, click.UsageError):
        return CgpuError(Exit.USAGE, "usage", err.format_message().rstrip("."), f"{prog} --help")
    if isinstance(err, click.ClickException):
        return CgpuError(Exit.REFUSED, "failed", err.format_message())
    if isinstance(err, OSError):
        what = str(err.filename or "system call")
        if err.errno in (errno.EPERM, errno.EACCES):
            return not_permitted(what)
        return CgpuError(Exit.REFUSED, what, err.strerror or str(err))
    return CgpuError(Exit.REFUSED, "internal", f"{type(err).__name__}: {err}", "CGPU_DEBUG=1 shows the traceback")


class _Convention(click.Command):
    """A top-level command: reports all failures in the same form."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        argv = list(sys.argv[1:] if args is None else args)
        prog = prog_name or self.name or "cgpu"
        extra.pop("standalone_mode", None)
        try:
            code = super().main(argv, prog, standalone_mode=False, **extra)
            sys.stdout.flush()
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(141)
        except Exception as err:
            if os.environ.get("CGPU_DEBUG"):
                raise
            bad = _as_cgpu_error(err, prog)
            click.echo(bad.as_json() if "--json" in argv else bad.line(prog), err=True)
            sys.exit(bad.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


class App(_Convention, click.Group):
    """A group of commands."""


class Single(_Convention):
    """One command."""


def path_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--root and --proc, for tests and for a copied tree."""
    command = click.option(
        "--proc", envvar="CGPU_PROC", metavar="DIR", help="The tree instead of /proc/cgpu_km [CGPU_PROC]."
    )(command)
    return click.option(
        "--root",
        envvar="CGPU_ROOT",
        metavar="DIR",
        default="/",
        help="Use DIR as the root directory [CGPU_ROOT].",
    )(command)


def version_option(command: Callable[..., Any]) -> Callable[..., Any]:
    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            from .versions import package_version

            click.echo(f"{ctx.info_name} {package_version()}")
            ctx.exit()

    return click.option(
        "--version", is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version and exit."
    )(command)


def make_paths(root: str, proc: str | None) -> Paths:
    return Paths.below(root, proc)
