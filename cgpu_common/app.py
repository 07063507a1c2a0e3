# SPDX-License-Identifier: MIT
"""Conventions of every command: exit codes, one-line errors, --json errors, no traceback."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from cgpu_common.exits import CgpuError, Exit, not_permitted
from cgpu_common.output import ReaderGone, discard, flush, note, out
from cgpu_common.pages import located
from cgpu_common.proc import Paths

_NEGATIVE = re.compile(r"-[0-9.]")


def _as_cgpu_error(err: BaseException, prog: str) -> CgpuError:
    if isinstance(err, CgpuError):
        return err
    if isinstance(err, click.UsageError):
        where = err.ctx.command_path if err.ctx else prog
        return CgpuError(Exit.USAGE, "usage", err.format_message().rstrip("."), f"{where} --help")
    if isinstance(err, click.ClickException):
        return CgpuError(Exit.REFUSED, "failed", err.format_message())
    if isinstance(err, OSError):
        what = str(err.filename or "system call")
        if err.errno in (errno.EPERM, errno.EACCES):
            return not_permitted(what)
        return CgpuError(Exit.REFUSED, what, err.strerror or str(err))
    return CgpuError(Exit.REFUSED, "internal", f"{type(err).__name__}: {err}", "CGPU_DEBUG=1 shows the traceback")


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        out(located(ctx.get_help()))
        ctx.exit()


def _once(option: Any, ctx: click.Context) -> Callable[[Any, Any], None]:
    """The option's process(), which refuses a second value: click keeps the last one and drops the others."""
    process: Callable[[Any, Any], None] = option.process
    seen: list[Any] = []

    def first(value: Any, state: Any) -> None:
        if seen:
            name = "/".join(option.obj.opts)
            raise click.UsageError(f"{name} is given twice, and takes one value", ctx)
        seen.append(value)
        process(value, state)

    return first


def _place(ctx: click.Context, option: str) -> str:
    """Where an option goes that is known elsewhere on the command line; empty: it is not known."""
    root = ctx.find_root()
    if ctx is root and option == "--json":
        return f"--json goes behind the command: {root.info_name} COMMAND --json"
    for param in root.command.params if ctx is not root else ():
        if isinstance(param, click.Option) and option in (*param.opts, *param.secondary_opts):
            words = [str(root.info_name), option]
            if not param.is_flag and not param.count:
                words.append((param.metavar or "VALUE").removesuffix(",..."))
            return f"{option} goes before the command: {' '.join(words)}"
    return ""


class _Help(click.Command):
    """Prints its help as every other output: click's own option reports a full disk as a failed command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parser does not say which command an option without its value is of."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as err:
            if where := _place(ctx, err.option_name):
                raise click.UsageError(where, ctx) from None
            raise
        except click.UsageError as err:
            err.ctx = err.ctx or ctx
            raise

    def make_parser(self, ctx: click.Context) -> Any:
        parser: Any = super().make_parser(ctx)
        for option in {id(one): one for one in (*parser._long_opt.values(), *parser._short_opt.values())}.values():
            if option.action == "store":
                option.process = _once(option, ctx)
        return parser

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


class _Convention(_Help):
    """A top-level command: reports all failures in the same form."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        argv = list(sys.argv[1:] if args is None else args)
        if argv[:1] == ["help"]:
            argv = [*argv[1:], "--help"]
        prog = prog_name or self.name or "cgpu"
        extra.pop("standalone_mode", None)
        try:
            if sys.stdout is None:  # before anything is changed
                raise CgpuError(Exit.REFUSED, "standard output", "is closed", "redirect it to /dev/null instead")
            code = super().main(argv, prog, standalone_mode=False, **extra)
            flush()
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except (BrokenPipeError, ReaderGone):
            discard(1)
            sys.exit(141)
        except Exception as err:
            if os.environ.get("CGPU_DEBUG"):
                raise
            bad = _as_cgpu_error(err, prog)
            note(bad.as_json() if "--json" in argv else bad.line(prog))
            if bad.code is Exit.OUTPUT:
                discard(1)
            sys.exit(bad.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


class Command(_Help):
    """A command whose values may be negative numbers: -1 is a value, which is then refused as one, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(_NEGATIVE.match(arg) for arg in args):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)


class Group(_Help, click.Group):
    """A group of commands. Without a command it prints its help. @lazy: name -> (module, attribute, short help)
    of a command, which is imported when it runs; the list of commands needs none of them."""

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str, str]] | None = None, **more: Any) -> None:
        super().__init__(*args, **({"invoke_without_command": True} | more))
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, attribute, _ = self.lazy[cmd_name]
            self.add_command(getattr(importlib.import_module(module), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def _listed(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command, or one with its short help only."""
        if name in self.lazy and name not in self.commands:
            return click.Command(name, help=self.lazy[name][2])
        return self.get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, without the import of every command."""
        found = [(name, self._listed(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, one) for name, one in found if one is not None and not one.hidden]
        if not shown:
            return
        limit = formatter.width - 6 - max(len(name) for name, _ in shown)
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit)) for name, one in shown])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """click's error, with the commands that look like the word."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib  # slow to import

            near = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if near:
                text = f"there is no command {args[0]!r}; did you mean {' or '.join(near)}?"
                raise click.UsageError(text, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        done = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            out(ctx.get_help())
        return done


Group.group_class = Group


class App(_Convention, Group):
    """The top-level group."""


class Single(_Convention):
    """One command."""


class FloatRange(click.FloatRange):
    """A range without nan, which click's own accepts in every range: no comparison with nan is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if found != found:
            self.fail(f"{value!r} is no number", param, ctx)
        return found


def check_out(path: Path) -> None:
    """Raise CgpuError (usage) where write_file() would write nothing; OSError: this process may not write there."""
    from cgpu_common.files import check_target  # slow to import

    try:
        check_target(path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise
        raise CgpuError(Exit.USAGE, "usage", f"{path}: {error.strerror}") from None


class OutFile(click.Path):
    """A file to be written, where write_file() writes one: a plain file or none, in a folder that is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty word names no file", param, ctx)  # it would be the folder in which the command runs
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        check_out(path)
        return path


#: How often something is repeated: every second for 30 years.
COUNT = click.IntRange(1, 1_000_000_000)


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
            from cgpu_common.versions import package_version

            out(f"{ctx.info_name} {package_version()}")
            ctx.exit()

    return click.option(
        "--version", is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version and exit."
    )(command)


def make_paths(root: str, proc: str | None) -> Paths:
    return Paths.below(root, proc)
