# SPDX-License-Identifier: MIT
"""Adds the runtime nvidia of the CRI plugin to containerd's configuration, and removes it. Works on text. Pure.

containerd 1.x has runc by default, but a file with any runtime replaces the whole map: with nvidia alone runc would be
lost, and the CRI plugin does not load without its default runtime. So runc is added where it would be lost, in a block
of its own, which may stay when ours is removed.
"""

from __future__ import annotations

import glob
import posixpath
import re
from dataclasses import dataclass
from typing import Any

from .edit import (
    BEGIN,
    BY_HAND,
    EditRefused,
    Record,
    SetupRequest,
    block,
    changed_only,
    changed_since,
    end_line,
    find_block,
    lookup,
    name_taken,
    quoted,
    section,
    toml,
    toml_of,
    unblock,
)

CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
VERSION = "version = 2\n"
RUNC = ("# cgpu: begin of runc, as it is where no runtimes are named\n", "# cgpu: end of runc\n")
DEFAULT = ("# cgpu: begin of the default runtime\n", "# cgpu: end of the default runtime\n")
CDI = ("# cgpu: begin of enable_cdi\n", "# cgpu: end of enable_cdi\n")
_WAS = "# before cgpu: "
TYPE = 'runtime_type = "io.containerd.runc.v2"'


def _version(data: dict[str, Any]) -> object:
    return data.get("version", 1 if data else 2)  # 1.x and 2.x both accept version 2


def _cri(data: dict[str, Any]) -> str:
    version = _version(data)
    plugin = CRI.get(version) if isinstance(version, int) else None
    if plugin is None:
        raise EditRefused(f"is of version {version}", "1, 2 and 3 are known")
    return plugin


def _runtimes(plugin: str) -> tuple[str, ...]:
    return ("plugins", plugin, "containerd", "runtimes")


def _cri_is_off(data: dict[str, Any]) -> bool:
    off = data.get("disabled_plugins", [])
    return isinstance(off, list) and any(one in off for one in CRI.values())


def _check_import(name: str, text: str, version: object) -> None:
    """Refuse an import that overrides the part of the main file that cgpu setup edits."""
    data = toml_of(name, text)
    # An import replaces the whole section of a plugin: our entry in the main file would have no effect, and as an
    # import of its own it would remove all others. So edit the main file, and only if no import has the section.
    if any(lookup(data, "plugins", one) is not None for one in CRI.values()):
        raise EditRefused(f"imports {name}, whose section of the CRI plugin replaces this one's", BY_HAND)
    if _cri_is_off(data):
        raise EditRefused(f"imports {name}, which has the CRI plugin among its disabled_plugins", "remove it there")
    # 1.x applies the last version it reads to all files, and version 1 has other names for plugins.
    theirs = data.get("version", version)
    if theirs != version and 1 in (theirs, version):
        raise EditRefused(f"is of version {version} and imports {name} of version {theirs}", "make them the same")


def _default(cri: object) -> tuple[str, Any]:
    """Name and table of the default runtime. In 1.x default_runtime takes precedence."""
    old = lookup(cri, "default_runtime")
    if lookup(old, "runtime_type"):
        return "default_runtime", old
    name = lookup(cri, "default_runtime_name")
    name = name if isinstance(name, str) else "runc"
    return name, lookup(cri, "runtimes", name)


def _runc(cri: object, plugin: str) -> str:
    """runc's table, if adding ours would remove runc, or an earlier entry has; else ""."""
    usual, table = _default(cri)
    if usual != "runc" and table is None:
        raise EditRefused(f"has {quoted(usual)} as default_runtime_name and no such runtime", "add that runtime first")
    if lookup(cri, "runtimes", "runc") is not None or (usual != "runc" and lookup(cri, "runtimes") is not None):
        return ""
    return block(f"[plugins.{quoted(plugin)}.containerd.runtimes.runc]", TYPE, marks=RUNC)


def _nvidia(cri: object, plugin: str, runtime: str) -> str:
    """Our table; "" if the file has it already."""
    there = lookup(cri, "runtimes", "nvidia")
    if there is not None:
        if lookup(there, "options", "BinaryName") == runtime:
            return ""
        raise name_taken(lookup(there, "options", "BinaryName") or there, runtime)
    systemd = lookup(_default(cri)[1], "options", "SystemdCgroup")
    table = f"plugins.{quoted(plugin)}.containerd.runtimes.nvidia"
    return block(
        f"[{table}]",
        TYPE,
        f"[{table}.options]",
        f"BinaryName = {quoted(runtime)}",
        *(["SystemdCgroup = true"] if systemd is True else []),  # kubelet needs the same in all runtimes
    )


@dataclass(frozen=True)
class _Key:
    """A key of the CRI plugin that is set. The line that it replaces stays as a comment, for the undoing."""

    name: str
    value: str | bool
    within: tuple[str, ...]  # the plugin's own table
    marks: tuple[str, str]
    what: str  # in a refusal

    def table(self, plugin: str) -> tuple[str, ...]:
        return ("plugins", plugin, *self.within)

    def put(self, text: str, plugin: str) -> str:
        table = self.table(plugin)
        if lookup(toml(text), *table, self.name) == self.value:
            return text
        head, body, rest = section(text, *table) or (text, "", "")
        value = quoted(self.value) if isinstance(self.value, str) else str(self.value).lower()
        line = f"{self.name} = {value}"
        if found := re.search(rf"^[ \t]*{self.name}[ \t]*=[^\n]*(?:\n|\Z)", body, re.M):
            mine = block(line, _WAS + found[0].rstrip("\n"), marks=self.marks)
            body = body[: found.start()] + mine + body[found.end() :]
        elif section(text, *table):
            head, body = end_line(head), block(line, marks=self.marks) + body
        else:
            name = ".".join(("plugins", quoted(plugin), *self.within))
            head = end_line(head) + block(f"[{name}]", line, marks=self.marks)
        new = changed_only(text, head + body + rest, (*table, self.name))
        if lookup(toml(new), *table, self.name) != self.value:
            raise EditRefused("has a form into which cgpu setup cannot write", BY_HAND)
        return new

    def take(self, text: str, record: Record, plugin: str) -> str:
        """The text with the value that was there before."""
        ours = find_block(record.after, *self.marks)
        table = self.table(plugin)
        if not ours or lookup(toml(text), *table, self.name) != self.value:
            return text
        if text.count(ours) != 1:
            raise changed_since(self.what)
        was = "".join(line.removeprefix(_WAS) for line in ours.splitlines(keepends=True) if line.startswith(_WAS))
        return changed_only(text, text.replace(ours, was), (*table, self.name))


#: nvidia as the runtime of pods that name none.
_DEFAULT = _Key("default_runtime_name", "nvidia", ("containerd",), DEFAULT, "the default runtime")
#: The devices of a claim: 1.7 skips them without it, and without an error.
_CDI = _Key("enable_cdi", True, (), CDI, "enable_cdi")


def _with_default(text: str, cri: object, plugin: str) -> str:
    usual = _default(cri)[0]
    if usual == "nvidia":
        return text
    if usual != "runc":
        why = f"has {quoted(usual)} as the default runtime, and cgpu-runtime executes runc"
        raise EditRefused(why, "pods on it name the runtime class cgpu")
    return _DEFAULT.put(text, plugin)


def put(text: str, request: SetupRequest) -> str:
    data = toml(text)
    plugin = _cri(data)
    if _cri_is_off(data):
        raise EditRefused("has the CRI plugin among its disabled_plugins", "remove it there")
    for name, other in request.others.items():
        _check_import(name, other, _version(data))
    runtimes = _runtimes(plugin)
    cri = lookup(data, *runtimes[:-1])
    new = _runc(cri, plugin) + _nvidia(cri, plugin, request.runtime)
    if not new:
        return _with_keys(text, plugin, request)
    # The version precedes the blocks: it also applies to what others add to a file created here.
    top, added = ("", []) if data else (VERSION, [("version",)])
    done = changed_only(text, end_line(text) + top + new, (*runtimes, "nvidia"), (*runtimes, "runc"), *added)
    return _with_keys(done, plugin, request)


def _with_keys(text: str, plugin: str, request: SetupRequest) -> str:
    if request.default:
        text = _with_default(text, lookup(toml(text), *_runtimes(plugin)[:-1]), plugin)
    return _CDI.put(text, plugin) if request.cdi else text


def _without_runc(text: str, record: Record, runtimes: tuple[str, ...]) -> str:
    """The text without our runc. If other entries depend on it or extend it, only the marks are removed."""
    ours = find_block(record.after, *RUNC)
    if not ours:
        return text
    if text.count(ours) == 1:
        try:
            rest = changed_only(text, text.replace(ours, ""), (*runtimes, "runc"))
        except EditRefused:  # a key was added below it
            rest = text
        if lookup(toml(rest), *runtimes) is None:
            return rest
    begin, end = RUNC
    return text.replace(begin, "").replace(end, "")


def take(text: str, record: Record) -> str:
    plugin = _cri(toml(record.after))
    runtimes = _runtimes(plugin)
    rest = text = _DEFAULT.take(_CDI.take(text, record, plugin), record, plugin)
    if BEGIN in record.after and (BEGIN in text or lookup(toml(text), *runtimes, "nvidia") is not None):
        rest = changed_only(text, unblock(text, record), (*runtimes, "nvidia"))
        if _default(lookup(toml(rest), *runtimes[:-1]))[0] == "nvidia":
            raise EditRefused(
                "names nvidia as default_runtime_name, which cgpu setup did not", "name another one first"
            )
    rest = _without_runc(rest, record, runtimes)
    alone = not toml(record.before or "") and toml(rest) == toml(VERSION)
    return rest.replace(VERSION, "", 1) if alone and rest != text else rest


def imports(file: str, text: str) -> list[str]:
    """The imports of a file, as patterns below the root. `file` is its own path there."""
    try:
        found = toml(text).get("imports", [])
    except EditRefused:
        return []  # put() parses it too and reports the error with its name
    names = [one for one in found if isinstance(one, str) and "\0" not in one] if isinstance(found, list) else []
    patterns = []
    for one in names:
        beside = posixpath.normpath(posixpath.join("/", posixpath.dirname(file), one)).lstrip("/")
        # Only a star makes a pattern. 1.x resolves a relative one in its working directory, / under systemd.
        patterns += [beside, posixpath.normpath(f"/{one}").lstrip("/")] if "*" in one else [glob.escape(beside)]
    return patterns
