# SPDX-License-Identifier: MIT
"""The engines of cgpu setup: adds cgpu-runtime to each one's configuration, and removes it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import containerd
from .edit import (
    BEGIN,
    BY_HAND,
    TOOLKIT,
    EditRefused,
    Record,
    SetupRequest,
    block,
    changed_only,
    changed_since,
    end_line,
    lookup,
    name_taken,
    quoted,
    section,
    toml,
    toml_of,
    unblock,
    with_file_name,
)


@dataclass(frozen=True)
class Engine:
    """A file, how to add and remove our runtime, patterns of further files the engine reads, the next step.

    programs: the reader of the file, by its names. sockets: it runs where one of them is. package: what installs it.
    """

    file: str
    put: Callable[[str, SetupRequest], str]
    take: Callable[[str, Record], str]
    others: Callable[[str, str], list[str]]
    then: str
    programs: tuple[str, ...]
    package: str
    sockets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Elsewhere:
    """A distribution's own engine, which reads another file than `engine` does: where it is seen, and what to do."""

    engine: str
    name: str
    seen: str
    remedy: str
    works: bool = True


OPERATOR_HINT = "set NVIDIA_CONTAINER_RUNTIME_RUNTIMES=/usr/bin/cgpu-runtime,runc,crun in the operator's toolkit.env"

#: None of them reads /etc/docker/daemon.json or /etc/containerd/config.toml.
ELSEWHERE = (
    Elsewhere("containerd", "k3s", "var/lib/rancher/k3s/agent/etc/containerd",
              "add the runtime to config.toml.tmpl (containerd 2: config-v3.toml.tmpl) there, and restart k3s"),
    Elsewhere("containerd", "RKE2", "var/lib/rancher/rke2/agent/etc/containerd",
              "add the runtime to config.toml.tmpl (containerd 2: config-v3.toml.tmpl) there, and restart rke2"),
    Elsewhere("containerd", "MicroK8s", "var/snap/microk8s/current/args",
              "add the runtime to containerd-template.toml there, then microk8s stop and start"),
    Elsewhere("containerd", "Bottlerocket", "usr/share/bottlerocket",
              "its settings API writes the file, and has no key for a runtime; it cannot be set up", works=False),
    Elsewhere("docker", "snap's docker", "var/snap/docker/current/config",
              "add the runtime to daemon.json there, then snap restart docker"),
)  # fmt: skip


# docker: JSON has no comments for marks, so the keys are compared with the record.


def _json(text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is repeated")
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=once) if text.strip() else {}
    except (ValueError, RecursionError) as err:
        raise EditRefused(f"is not JSON: {err}") from None
    if not isinstance(data, dict):
        raise EditRefused("is not a JSON object")
    return data


def _json_text(data: dict[str, Any], like: str) -> str:
    """Indented as the text it replaces."""
    found = re.match(r'\s*\{[ \t\r]*\n([ \t]+)"', like)
    one_line = _json(like) != {} and "\n" not in like.strip()
    indent = None if one_line else found[1] if found else 4
    try:
        text = json.dumps(data, indent=indent, ensure_ascii=like.isascii(), allow_nan=False)
        text.encode()
    except ValueError as err:
        raise EditRefused(f"is not JSON: {err}") from None
    return text + ("\n" if like.endswith("\n") or not like.strip() else "")


def _docker_put(text: str, request: SetupRequest) -> str:
    data = _json(text)
    runtimes = data.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise EditRefused("has runtimes that are no object")
    there = runtimes.setdefault("nvidia", {"path": request.runtime})
    if lookup(there, "path") != request.runtime:
        raise name_taken(lookup(there, "path") or there, request.runtime)
    if request.default:
        data["default-runtime"] = "nvidia"
    return text if data == _json(text) else _json_text(data, text)


def _docker_take(text: str, record: Record) -> str:
    now, was, ours = _json(text), _json(record.before or ""), _json(record.after)
    there, before = lookup(now, "runtimes", "nvidia"), lookup(was, "runtimes", "nvidia")
    if there is not None and before is None:
        if there != lookup(ours, "runtimes", "nvidia"):
            raise changed_since("runtimes.nvidia")
        del now["runtimes"]["nvidia"]
        if not now["runtimes"] and "runtimes" not in was:
            del now["runtimes"]
    key = "default-runtime"
    if now.get(key) == "nvidia" != was.get(key):
        if ours.get(key) != "nvidia" and lookup(now, "runtimes", "nvidia") is None:
            raise EditRefused("names nvidia as default-runtime, which cgpu setup did not", "name another one first")
        if ours.get(key) == "nvidia" and key in was:
            now[key] = was[key]
        elif ours.get(key) == "nvidia":
            del now[key]
    if now == _json(text):
        return text
    return (record.before or "") if now == was else _json_text(now, text)


# The others: TOML. Additions are enclosed in two marks where possible.

_PODMAN = ("engine", "runtimes", "nvidia")


def _podman_put(text: str, request: SetupRequest) -> str:
    mine = [request.runtime]
    for name, other in {**request.others, "": text}.items():
        there = lookup(toml_of(name, other), *_PODMAN)
        if there == mine:
            return text
        if there is not None:
            raise with_file_name(
                name, name_taken(there[0] if isinstance(there, list) and there else there, request.runtime)
            )
    if text.strip():
        raise EditRefused("has other contents", "it must be a file for cgpu alone")
    return text + block("[engine.runtimes]", f"nvidia = [{quoted(request.runtime)}]")


def _podman_take(text: str, record: Record) -> str:
    if lookup(toml(text), *_PODMAN) is None:
        return text
    return changed_only(text, unblock(text, record), _PODMAN)


def _same_next(runtimes: list[str], conf: str) -> None:
    """Refuse if cgpu-runtime would not execute the runtime that is first now (conf: runtime.conf)."""
    found = re.search(r'^[ \t]*next[ \t]*=[ \t"]*([^"\r\n]*)', conf, re.M)
    hand = found[1].strip() if found else ""
    first = runtimes[0] if runtimes else "runc"
    if not {first, first.rsplit("/", 1)[-1]} & ({hand} if hand else {"runc", "docker-runc"}):
        why = f"has {first} first, but cgpu-runtime executes {hand or 'runc'}"
        raise EditRefused(why, f"next = {first} in /etc/cgpu/runtime.conf")


def _nvidia_put(text: str, request: SetupRequest) -> str:
    old, mine = lookup(toml(text), TOOLKIT, "runtimes"), quoted(request.runtime)
    found = section(text, TOOLKIT)
    head, table, rest = found or (text, "", "")
    if old is None:
        line = f'runtimes = [{mine}, "runc", "crun"]'
        new = end_line(head) + (block(line) + table + rest if found else block(f"[{TOOLKIT}]", line))
        return changed_only(text, new, (TOOLKIT, "runtimes"))
    if not isinstance(old, list) or not all(isinstance(one, str) for one in old):
        raise EditRefused("has runtimes that are no list of names", BY_HAND)
    if old[:1] == [request.runtime]:
        return text
    for one in old:
        if one.rsplit("/", 1)[-1] == request.runtime.rsplit("/", 1)[-1]:
            raise EditRefused(
                f"has {one} in runtimes already, in an order of its own", "put it first by hand, or take it out"
            )
    _same_next(old, next(iter(request.others.values()), ""))
    new = re.sub(
        r'^([ \t]*"?runtimes"?[ \t]*=[ \t]*\[)(\s*)',
        lambda m: f"{m[1]}{m[2]}{mine},{m[2] or ' '}",
        table,
        count=1,
        flags=re.M,
    )
    new = changed_only(text, head + new + rest, (TOOLKIT, "runtimes"))
    if lookup(toml(new), TOOLKIT, "runtimes") != [request.runtime, *old]:
        raise EditRefused("has a form into which cgpu setup cannot write", BY_HAND)
    return new


def _nvidia_take(text: str, record: Record) -> str:
    now = lookup(toml(text), TOOLKIT, "runtimes")
    if not isinstance(now, list) or record.runtime not in now:
        return text
    if BEGIN in text and BEGIN in record.after:
        return changed_only(text, unblock(text, record), (TOOLKIT, "runtimes"))
    head, table, rest = section(text, TOOLKIT) or (text, "", "")
    mine = re.escape(quoted(record.runtime))
    bare = re.sub(rf'^([ \t]*"?runtimes"?[ \t]*=[ \t]*\[\s*){mine}\s*,?\s*', r"\1", table, count=1, flags=re.M)
    new = head + bare + rest
    changed_only(text, new, (TOOLKIT, "runtimes"))
    if lookup(toml(new), TOOLKIT, "runtimes") != now[1:]:
        raise changed_since("runtimes")
    return new


def _podman_files(_file: str, _text: str) -> list[str]:
    return [
        f"{top}/containers/{name}"
        for top in ("usr/share", "etc")
        for name in ("containers.conf", "containers.conf.d/*.conf")
    ]


def _no_files(_file: str, _text: str) -> list[str]:
    return []


def _runtime_conf(_file: str, _text: str) -> list[str]:
    return ["etc/cgpu/runtime.conf"]


ENGINES = {
    "docker": Engine(
        "etc/docker/daemon.json",
        _docker_put,
        _docker_take,
        _no_files,
        "systemctl reload docker",
        ("dockerd",),
        "docker.io or docker-ce",
        ("run/docker.sock",),
    ),
    "podman": Engine(
        "etc/containers/containers.conf.d/cgpu.conf",
        _podman_put,
        _podman_take,
        _podman_files,
        "",
        ("podman",),
        "podman",
    ),
    "containerd": Engine(
        "etc/containerd/config.toml",
        containerd.put,
        containerd.take,
        containerd.imports,
        "systemctl restart containerd",
        ("containerd",),
        "containerd",
        ("run/containerd/containerd.sock",),
    ),
    TOOLKIT: Engine(
        f"etc/{TOOLKIT}/config.toml",
        _nvidia_put,
        _nvidia_take,
        _runtime_conf,
        "",
        (TOOLKIT,),
        "NVIDIA's container toolkit, or use cgpu setup docker, podman or containerd",
    ),
}
