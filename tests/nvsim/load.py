#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Loads nvsim with a profile's parameters.

load.py [--profile t4] [--gpus 2] [--mem-mib 4096,8192] [--driver 550.163.01] [--param tail_pct=0]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: The releases of module/version.c: the module refuses another one without a word.
DRIVERS = ("535.261.03", "550.163.01", "555.58.02", "580.105.08", "595.45.04", "615.71.09")
PROFILES = sorted(path.stem for path in (HERE / "profiles").glob("*.toml"))


def find_module() -> Path:
    """The module built for the running kernel."""
    release = os.uname().release
    for path in (HERE.parents[1] / "build/modules" / release / "nvsim.ko", HERE / "nvsim.ko"):
        if path.exists():
            return path
    sys.exit(f"load.py: no nvsim.ko for {release}: build it, or name it with --module")


def parameters(options: argparse.Namespace) -> dict[str, object]:
    """The profile, then what the options change in it."""
    values = tomllib.loads((HERE / "profiles" / f"{options.profile}.toml").read_text())
    values.pop("simulate", None)  # of cgpu simulate, which has no module
    if options.gpus:
        values["gpus"] = options.gpus
    if options.mem_mib:
        values["fb_mib"] = options.mem_mib
    if options.driver:
        values["version"] = options.driver
    for item in options.param:
        name, equals, value = item.partition("=")
        if not equals:
            sys.exit(f"load.py: --param {item}: NAME=VALUE is wanted")
        values[name] = value
    return values


def sizes(text: str) -> str:
    """A number of MiB, or a list of them; GPUs beyond it are like the last."""
    if not all(item.isdecimal() for item in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of MiB")
    return text


def word(name: str, value: object) -> str:
    """NAME=VALUE as the kernel parses it: a value with blanks in quotes."""
    text = str(value)
    return f'{name}="{text}"' if " " in text else f"{name}={text}"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Of the command line, or these."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="t4")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--mem-mib", type=sizes, metavar="N[,N…]", help="framebuffer of each GPU, or GPU by GPU")
    parser.add_argument("--driver", choices=DRIVERS, help="release of the driver")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="any module parameter")
    parser.add_argument("--module", type=Path, help="nvsim.ko")
    parser.add_argument("--print", action="store_true", help="only print the command, for a shell")
    return parser.parse_args(words)


def command(options: argparse.Namespace) -> list[str]:
    """insmod, the module and its parameters."""
    module = options.module or find_module()
    return ["insmod", str(module), *(word(name, value) for name, value in parameters(options).items())]


def main() -> int:
    """Returns insmod's status."""
    wanted = options()
    if wanted.print:
        print(shlex.join(command(wanted)))
        return 0
    return subprocess.run(command(wanted)).returncode


if __name__ == "__main__":
    sys.exit(main())
