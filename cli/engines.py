# SPDX-License-Identifier: MIT
"""The configuration of container engines as text: cgpu-runtime put in, and taken out again. Pure.

A file with comments keeps them: TOML is edited as text and only then read, so that nothing but our key is another.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BEGIN = "# cgpu: begin (cgpu setup --undo takes it out)\n"
END = "# cgpu: end\n"
BY_HAND = "do it by hand: docs/daemon.md section 1"
CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_VERSION = "version = 2\n"
TABLE = "nvidia-container-runtime"
_HEADER = re.compile(rf'^[ \t]*\[[ \t]*"?{TABLE}"?[ \t]*\][^\n]*(?:\n|\Z)', re.M)
_NEXT_HEADER = re.compile(r"^[ \t]*\[", re.M)


class Refuse(Exception):
    """Why a file is left as it is, and what to do about it."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True)
class Record:
    """What a file was (None: not there) before cgpu setup, and what it became; folders made for it, deepest first."""

    runtime: str
    before: str | None
    after: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What is asked for; others: files that count beside the one that is edited, by name."""

    runtime: str
    default: bool = False
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """A file, how our runtime comes in and out, whose other files matter (patterns), what is to be done then."""

    file: str
    put: Callable[[str, Wish], str]
    take: Callable[[str, Record], str]
    others: Callable[[str], list[str]]
    then: str


def _at(data: Any, *keys: str) -> Any:
    """The value below these keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _taken(there: object, runtime: str) -> Refuse:
    """The name nvidia belongs to somebody else."""
    words = there if isinstance(there, str) else json.dumps(there, default=str)
    if words.strip('"').rsplit("/", 1)[-1] == runtime.rsplit("/", 1)[-1]:
        hint = "--undo first, if it was cgpu setup"
    elif TABLE in words:
        hint = f"cgpu setup {TABLE} puts cgpu-runtime below NVIDIA's"
    else:
        hint = "take it out first"
    return Refuse(f"has another runtime called nvidia: {words[:80]}", hint)


def _changed(what: str) -> Refuse:
    return Refuse(f"{what} was changed since cgpu setup", "take it out by hand")


# docker: JSON, so nothing can be marked; the keys are compared with the record.


def _json(text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=once) if text.strip() else {}
    except (ValueError, RecursionError) as err:
        raise Refuse(f"is not JSON: {err}") from None
    if not isinstance(data, dict):
        raise Refuse("is not a JSON object")
    return data


def _json_text(data: dict[str, Any], like: str) -> str:
    """Indented as the text it takes the place of."""
    found = re.match(r'\s*\{[ \t\r]*\n([ \t]+)"', like)
    one_line = _json(like) != {} and "\n" not in like.strip()
    indent = None if one_line else found[1] if found else 4
    try:
        text = json.dumps(data, indent=indent, ensure_ascii=like.isascii(), allow_nan=False)
        text.encode()
    except ValueError as err:
        raise Refuse(f"is not JSON: {err}") from None
    return text + ("\n" if like.endswith("\n") or not like.strip() else "")


def _docker_put(text: str, wish: Wish) -> str:
    data = _json(text)
    runtimes = data.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise Refuse("has runtimes that are no object")
    there = runtimes.setdefault("nvidia", {"path": wish.runtime})
    if _at(there, "path") != wish.runtime:
        raise _taken(_at(there, "path") or there, wish.runtime)
    if wish.default:
        data["default-runtime"] = "nvidia"
    return text if data == _json(text) else _json_text(data, text)


def _docker_take(text: str, record: Record) -> str:
    now, was, ours = _json(text), _json(record.before or ""), _json(record.after)
    there, before = _at(now, "runtimes", "nvidia"), _at(was, "runtimes", "nvidia")
    if there is not None and before is None:
        if there != _at(ours, "runtimes", "nvidia"):
            raise _changed("runtimes.nvidia")
        del now["runtimes"]["nvidia"]
        if not now["runtimes"] and "runtimes" not in was:
            del now["runtimes"]
    key = "default-runtime"
    if now.get(key) == "nvidia" != was.get(key):
        if ours.get(key) != "nvidia" and _at(now, "runtimes", "nvidia") is None:
            raise Refuse("names nvidia as default-runtime, which cgpu setup did not", "name another one first")
        if ours.get(key) == "nvidia" and key in was:
            now[key] = was[key]
        elif ours.get(key) == "nvidia":
            del now[key]
    if now == _json(text):
        return text
    return (record.before or "") if now == was else _json_text(now, text)


# The others: TOML. What is new stands between two marks where it can.


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise Refuse(f"is not TOML: {err}") from None


def _without(data: Any, keys: tuple[str, ...]) -> Any:
    """The data less one key and less tables with nothing in them, which a header alone makes."""
    if not isinstance(data, dict):
        return data
    rest = {
        name: _without(value, keys[1:] if keys[:1] == (name,) else ())
        for name, value in data.items()
        if keys != (name,)
    }
    return {name: value for name, value in rest.items() if value != {}}


def _only(before: str, after: str, *paths: tuple[str, ...]) -> str:
    """The text after, if nothing but these keys differs from before."""
    old = _toml(before)
    try:
        new: Any = _toml(after)
    except Refuse:
        raise Refuse("has a form into which cgpu setup cannot write", BY_HAND) from None
    for path in paths:
        old, new = _without(old, path), _without(new, path)
    if old != new:
        raise Refuse("has a form into which cgpu setup cannot write", BY_HAND)
    return after


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _block(*lines: str) -> str:
    return BEGIN + "".join(f"{line}\n" for line in lines) + END


def _unblock(text: str, record: Record) -> str:
    """The text without our block; refused if the block is not as it was written."""
    block = record.after[record.after.index(BEGIN) : record.after.index(END) + len(END)]
    if text.count(block) != 1:
        raise _changed("what stands between the marks")
    return text.replace(block, "")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_PODMAN = ("engine", "runtimes", "nvidia")


def _podman_put(text: str, wish: Wish) -> str:
    mine = [wish.runtime]
    for name, other in {**wish.others, "": text}.items():
        there = _at(_toml_of(name, other), *_PODMAN)
        if there == mine:
            return text
        if there is not None:
            raise _named(name, _taken(there[0] if isinstance(there, list) and there else there, wish.runtime))
    if text.strip():
        raise Refuse("has something else in it", "it is to be a file of cgpu's own")
    return text + _block("[engine.runtimes]", f"nvidia = [{_quoted(wish.runtime)}]")


def _podman_take(text: str, record: Record) -> str:
    if _at(_toml(text), *_PODMAN) is None:
        return text
    return _only(text, _unblock(text, record), _PODMAN)


def _named(name: str, err: Refuse) -> Refuse:
    return Refuse(f"{name} {err.why}", err.hint) if name else err


def _toml_of(name: str, text: str) -> dict[str, Any]:
    try:
        return _toml(text)
    except Refuse as err:
        raise _named(name, err) from None


def _cri(data: dict[str, Any]) -> str:
    version = data.get("version", 1 if data else 2)  # 1.x and 2.x both read a file of version 2
    plugin = CRI.get(version) if isinstance(version, int) else None
    if plugin is None:
        raise Refuse(f"is of version {version}", "1, 2 and 3 are known")
    return plugin


def _containerd_put(text: str, wish: Wish) -> str:
    data = _toml(text)
    plugin = _cri(data)
    off = data.get("disabled_plugins", [])
    if isinstance(off, list) and any(one in off for one in CRI.values()):
        raise Refuse("has the CRI plugin among its disabled_plugins", "take it out there")
    there = _at(data, *_nvidia_of(plugin))
    if there is not None:
        if _at(there, "options", "BinaryName") == wish.runtime:
            return text
        raise _taken(_at(there, "options", "BinaryName") or there, wish.runtime)
    for name, other in wish.others.items():
        # An import takes the place of a whole plugin's section: beside it ours would not count, and in a file of our
        # own ours would be all that counts. So it is the main file, and only if no import has the section.
        if any(_at(_toml_of(name, other), "plugins", one) is not None for one in CRI.values()):
            raise Refuse(f"imports {name}, whose section of the CRI plugin takes the place of this one's", BY_HAND)
    table = f"plugins.{_quoted(plugin)}.containerd.runtimes.nvidia"
    usual = _at(data, "plugins", plugin, "containerd", "default_runtime_name")
    usual = usual if isinstance(usual, str) else "runc"
    systemd = _at(data, "plugins", plugin, "containerd", "runtimes", usual, "options", "SystemdCgroup")
    block = _block(
        f"[{table}]",
        'runtime_type = "io.containerd.runc.v2"',
        f"[{table}.options]",
        f"BinaryName = {_quoted(wish.runtime)}",
        *(["SystemdCgroup = true"] if systemd is True else []),  # a kubelet asks all runtimes for the same
    )
    # The version stands before the block: what others add to a file that we began is written in it.
    top, added = ("", []) if data else (_VERSION, [("version",)])
    return _only(text, _ended(text) + top + block, _nvidia_of(plugin), *added)


def _nvidia_of(plugin: str) -> tuple[str, ...]:
    return ("plugins", plugin, "containerd", "runtimes", "nvidia")


def _containerd_take(text: str, record: Record) -> str:
    ours = _nvidia_of(_cri(_toml(record.after)))
    if BEGIN not in text and _at(_toml(text), *ours) is None:
        return text
    rest = _only(text, _unblock(text, record), ours)
    alone = not _toml(record.before or "") and _toml(rest) == tomllib.loads(_VERSION)
    return rest.replace(_VERSION, "", 1) if alone else rest


def _split(text: str) -> tuple[str, str, str]:
    """The text up to the header of NVIDIA's table and with it, the table, the rest."""
    found = _HEADER.search(text)
    if not found:
        return text, "", ""
    end = _NEXT_HEADER.search(text, found.end())
    stop = end.start() if end else len(text)
    return text[: found.end()], text[found.end() : stop], text[stop:]


def _same_next(runtimes: list[str], conf: str) -> None:
    """Refuse an order of runtimes that cgpu-runtime, once it is first, would not keep (conf: its runtime.conf)."""
    found = re.search(r'^[ \t]*next[ \t]*=[ \t"]*([^"\r\n]*)', conf, re.M)
    hand = found[1].strip() if found else ""
    first = runtimes[0] if runtimes else "runc"
    if not {first, first.rsplit("/", 1)[-1]} & ({hand} if hand else {"runc", "docker-runc"}):
        why = f"has {first} first, but cgpu-runtime hands over to {hand or 'runc'}"
        raise Refuse(why, f"next = {first} in /etc/cgpu/runtime.conf")


def _nvidia_put(text: str, wish: Wish) -> str:
    old, mine = _at(_toml(text), TABLE, "runtimes"), _quoted(wish.runtime)
    head, table, rest = _split(text)
    if old is None:
        line = f'runtimes = [{mine}, "runc", "crun"]'
        found = _HEADER.search(text)
        new = _ended(head) + (_block(line) + table + rest if found else _block(f"[{TABLE}]", line))
        return _only(text, new, (TABLE, "runtimes"))
    if not isinstance(old, list) or not all(isinstance(one, str) for one in old):
        raise Refuse("has runtimes that are no list of names", BY_HAND)
    if old[:1] == [wish.runtime]:
        return text
    for one in old:
        if one.rsplit("/", 1)[-1] == wish.runtime.rsplit("/", 1)[-1]:
            raise Refuse(
                f"has {one} in runtimes already, in an order of its own", "put it first by hand, or take it out"
            )
    _same_next(old, next(iter(wish.others.values()), ""))
    new = re.sub(
        r'^([ \t]*"?runtimes"?[ \t]*=[ \t]*\[)(\s*)',
        lambda m: f"{m[1]}{m[2]}{mine},{m[2] or ' '}",
        table,
        count=1,
        flags=re.M,
    )
    new = _only(text, head + new + rest, (TABLE, "runtimes"))
    if _at(_toml(new), TABLE, "runtimes") != [wish.runtime, *old]:
        raise Refuse("has a form into which cgpu setup cannot write", BY_HAND)
    return new


def _nvidia_take(text: str, record: Record) -> str:
    now = _at(_toml(text), TABLE, "runtimes")
    if not isinstance(now, list) or record.runtime not in now:
        return text
    if BEGIN in text and BEGIN in record.after:
        return _only(text, _unblock(text, record), (TABLE, "runtimes"))
    head, table, rest = _split(text)
    mine = re.escape(_quoted(record.runtime))
    bare = re.sub(rf'^([ \t]*"?runtimes"?[ \t]*=[ \t]*\[\s*){mine}\s*,?\s*', r"\1", table, count=1, flags=re.M)
    new = head + bare + rest
    _only(text, new, (TABLE, "runtimes"))
    if _at(_toml(new), TABLE, "runtimes") != now[1:]:
        raise _changed("runtimes")
    return new


def _imports(text: str) -> list[str]:
    """What a containerd file imports, as patterns below the root."""
    found = _toml(text).get("imports", [])
    names = [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
    return [(one if one.startswith("/") else f"/etc/containerd/{one}").lstrip("/") for one in names]


def _podman_files(_text: str) -> list[str]:
    return [
        f"{top}/containers/{name}"
        for top in ("usr/share", "etc")
        for name in ("containers.conf", "containers.conf.d/*.conf")
    ]


ENGINES = {
    "docker": Engine("etc/docker/daemon.json", _docker_put, _docker_take, lambda _text: [], "systemctl reload docker"),
    "podman": Engine("etc/containers/containers.conf.d/cgpu.conf", _podman_put, _podman_take, _podman_files, ""),
    "containerd": Engine(
        "etc/containerd/config.toml", _containerd_put, _containerd_take, _imports, "systemctl restart containerd"
    ),
    TABLE: Engine(f"etc/{TABLE}/config.toml", _nvidia_put, _nvidia_take, lambda _text: ["etc/cgpu/runtime.conf"], ""),
}
