# SPDX-License-Identifier: MIT
"""containerd's configuration as text: the runtime nvidia of the CRI plugin put in, and taken out again. Pure.

containerd 1.x has runc by itself, but makes the map of runtimes anew from a file in which there is one: nvidia alone
would cost it runc, and without its default runtime the CRI plugin does not load. So runc is written out beside ours
where it would be lost, in a block of its own: it may stay when ours goes.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from .edit import (
    BEGIN,
    BY_HAND,
    Record,
    Refuse,
    Wish,
    at,
    block,
    cut,
    ended,
    only,
    quoted,
    taken,
    toml,
    toml_of,
    unblock,
)

CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
VERSION = "version = 2\n"
RUNC = ("# cgpu: begin of runc, as it is where no runtimes are named\n", "# cgpu: end of runc\n")
TYPE = 'runtime_type = "io.containerd.runc.v2"'


def _version(data: dict[str, Any]) -> object:
    return data.get("version", 1 if data else 2)  # 1.x and 2.x both read a file of version 2


def _cri(data: dict[str, Any]) -> str:
    version = _version(data)
    plugin = CRI.get(version) if isinstance(version, int) else None
    if plugin is None:
        raise Refuse(f"is of version {version}", "1, 2 and 3 are known")
    return plugin


def _runtimes(plugin: str) -> tuple[str, ...]:
    return ("plugins", plugin, "containerd", "runtimes")


def _cri_is_off(data: dict[str, Any]) -> bool:
    off = data.get("disabled_plugins", [])
    return isinstance(off, list) and any(one in off for one in CRI.values())


def _check_import(name: str, text: str, version: object) -> None:
    """Refuse what makes of the main file, as one with this, something else than is written there."""
    data = toml_of(name, text)
    # An import takes the place of a whole plugin's section: beside it ours would not count, and in a file of our
    # own ours would be all that counts. So it is the main file, and only if no import has the section.
    if any(at(data, "plugins", one) is not None for one in CRI.values()):
        raise Refuse(f"imports {name}, whose section of the CRI plugin takes the place of this one's", BY_HAND)
    if _cri_is_off(data):
        raise Refuse(f"imports {name}, which has the CRI plugin among its disabled_plugins", "take it out there")
    # To 1.x the last version that it reads is that of all files, and version 1 has other names for plugins.
    theirs = data.get("version", version)
    if theirs != version and 1 in (theirs, version):
        raise Refuse(f"is of version {version} and imports {name} of version {theirs}", "make them the same")


def _default(cri: object) -> tuple[str, Any]:
    """The default runtime's name and what the file says of it. default_runtime is what 1.x goes by where it is set."""
    old = at(cri, "default_runtime")
    if at(old, "runtime_type"):
        return "default_runtime", old
    name = at(cri, "default_runtime_name")
    name = name if isinstance(name, str) else "runc"
    return name, at(cri, "runtimes", name)


def _runc(cri: object, plugin: str) -> str:
    """runc's table, if the file would lose it to ours or has lost it already; else nothing."""
    usual, table = _default(cri)
    if usual != "runc" and table is None:
        raise Refuse(f"has {quoted(usual)} as default_runtime_name and no such runtime", "it is to be there first")
    if at(cri, "runtimes", "runc") is not None or (usual != "runc" and at(cri, "runtimes") is not None):
        return ""
    return block(f"[plugins.{quoted(plugin)}.containerd.runtimes.runc]", TYPE, marks=RUNC)


def _nvidia(cri: object, plugin: str, runtime: str) -> str:
    """Our table; nothing, if it is there."""
    there = at(cri, "runtimes", "nvidia")
    if there is not None:
        if at(there, "options", "BinaryName") == runtime:
            return ""
        raise taken(at(there, "options", "BinaryName") or there, runtime)
    systemd = at(_default(cri)[1], "options", "SystemdCgroup")
    table = f"plugins.{quoted(plugin)}.containerd.runtimes.nvidia"
    return block(
        f"[{table}]",
        TYPE,
        f"[{table}.options]",
        f"BinaryName = {quoted(runtime)}",
        *(["SystemdCgroup = true"] if systemd is True else []),  # a kubelet asks all runtimes for the same
    )


def put(text: str, wish: Wish) -> str:
    data = toml(text)
    plugin = _cri(data)
    if _cri_is_off(data):
        raise Refuse("has the CRI plugin among its disabled_plugins", "take it out there")
    for name, other in wish.others.items():
        _check_import(name, other, _version(data))
    runtimes = _runtimes(plugin)
    cri = at(data, *runtimes[:-1])
    new = _runc(cri, plugin) + _nvidia(cri, plugin, wish.runtime)
    if not new:
        return text
    # The version stands before the blocks: what others add to a file that we began is written in it.
    top, added = ("", []) if data else (VERSION, [("version",)])
    return only(text, ended(text) + top + new, (*runtimes, "nvidia"), (*runtimes, "runc"), *added)


def _without_runc(text: str, record: Record, runtimes: tuple[str, ...]) -> str:
    """The text without our runc. Where others go by it meanwhile, or have added to it, only the marks go."""
    ours = cut(record.after, *RUNC)
    if not ours:
        return text
    if text.count(ours) == 1:
        try:
            rest = only(text, text.replace(ours, ""), (*runtimes, "runc"))
        except Refuse:  # a key below it is runc's
            rest = text
        if at(toml(rest), *runtimes) is None:
            return rest
    begin, end = RUNC
    return text.replace(begin, "").replace(end, "")


def take(text: str, record: Record) -> str:
    runtimes = _runtimes(_cri(toml(record.after)))
    rest = text
    if BEGIN in record.after and (BEGIN in text or at(toml(text), *runtimes, "nvidia") is not None):
        rest = only(text, unblock(text, record), (*runtimes, "nvidia"))
        if _default(at(toml(rest), *runtimes[:-1]))[0] == "nvidia":
            raise Refuse("names nvidia as default_runtime_name, which cgpu setup did not", "name another one first")
    rest = _without_runc(rest, record, runtimes)
    alone = not toml(record.before or "") and toml(rest) == toml(VERSION)
    return rest.replace(VERSION, "", 1) if alone and rest != text else rest


def imports(file: str, text: str) -> list[str]:
    """What a file imports, as patterns below the root; file: its own place there."""
    try:
        found = toml(text).get("imports", [])
    except Refuse:
        return []  # put() reads it too, and says so by name
    names = [one for one in found if isinstance(one, str) and "\0" not in one] if isinstance(found, list) else []
    patterns = []
    for one in names:
        beside = os.path.normpath(Path("/", file).parent / one).lstrip("/")
        # Only a star makes a pattern. 1.x looks for a relative one where it was started, which systemd does in /.
        patterns += [beside, os.path.normpath(f"/{one}").lstrip("/")] if "*" in one else [glob.escape(beside)]
    return patterns
