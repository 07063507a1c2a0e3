# SPDX-License-Identifier: MIT
"""PURE: the hooks of a config.json, ours and those of others.

Ours: `bind` (createRuntime) and `release` (poststop) report the pid and the end to the daemon, `params`
(createContainer) keeps the driver's libraries from making nodes.

Hooks of an engine run after the file was edited, and may open the driver to the container: by any program and at any
stage. Some are recognised by their names, for an early sentence. What decides is their effect: at the end of
createContainer (`params`, or `check` in a container without a slice), and of poststart where other hooks run that late
(`confirm`), cgpu-runtime has the kernel ask the container's device cgroup for each number that must be closed to it.
One that is open ends the start, or the container.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cgpu_common.errors import Refused
from cgpud import config_json
from cgpud.config_json import Spec, json_list, json_object
from cgpud.env import shorten

# bind: cgpu-runtime waits wait_s (at most 60) for a daemon, then 60 s for its answer.
TIMEOUT_S = {"bind": 120, "check": 30, "confirm": 30, "params": 30, "release": 30}
NVIDIA_CLI = "nvidia-container-cli"
LEGACY_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
CONFIG_FLAGS = ("-config", "--config")  # of NVIDIA's legacy hook
LATE = ("startContainer", "poststart")  # after createContainer, the last stage whose hooks every runtime heeds
_WORD = re.compile(r"[^\s;&|()<>'\"`$={}]+")


def _is_ours(hook: Mapping[str, Any]) -> bool:
    args = hook.get("args")
    return isinstance(args, list) and args[:2] == ["cgpu-runtime", "hook"]


def of_others(spec: Spec) -> dict[str, list[dict[str, Any]]]:
    """The hooks by stage, without ours of an earlier life."""
    return {stage: [hook for hook in found if not _is_ours(hook)] for stage, found in config_json.stages(spec).items()}


def is_legacy_hook(hook: Mapping[str, Any]) -> bool:
    return posixpath.basename(str(hook.get("path", ""))) in LEGACY_HOOKS


def words_of(hook: Mapping[str, Any]) -> list[str]:
    """The words of its command line, those within an argument of a shell too."""
    args = hook.get("args")
    texts = [str(hook.get("path", "")), *map(str, args if isinstance(args, list) else ())]
    return [word for text in texts for word in _WORD.findall(text)]


def programs_of(hook: Mapping[str, Any]) -> set[str]:
    return {posixpath.basename(word) for word in words_of(hook)}


def calls_nvidia(hook: Mapping[str, Any]) -> bool:
    """Does the hook name a program of NVIDIA's that gives a container whole GPUs? For an early sentence only: a link or
    a script may have another name."""
    return not programs_of(hook).isdisjoint((NVIDIA_CLI, *LEGACY_HOOKS))


def _without_config(args: Iterable[Any]) -> Iterator[Any]:
    """Without the flag for the configuration: Go's flag package uses the last one."""
    rest = iter(args)
    for arg in rest:
        flag, equals, _ = str(arg).partition("=")
        if flag not in CONFIG_FLAGS:
            yield arg
        elif not equals:
            next(rest, None)  # its value


def _tame_legacy_hook(hook: dict[str, Any], config: str | None) -> dict[str, Any]:
    """NVIDIA's prestart hook would mount the real nodes over ours; with `config` it mounts libraries only."""
    if config is None:
        raise Refused(
            "NVIDIA's legacy prestart hook would mount the whole GPU: start the container without --gpus, "
            "set the toolkit's mode to cdi, or set legacy_hook_config in cgpu.toml"
        )
    args = json_list(hook.get("args"), "hook args") or [posixpath.basename(str(hook["path"])), "prestart"]
    return {**hook, "args": [args[0], f"-config={config}", *_without_config(args[1:])]}


def _ours(path: str, which: str, *words: str) -> dict[str, Any]:
    # Without `env` a hook of createContainer inherits the image's variables, LD_PRELOAD among them (CVE-2025-23266).
    words_of_hook = ["cgpu-runtime", "hook", which, *words]
    return {"path": path, "args": words_of_hook, "env": [], "timeout": TIMEOUT_S[which]}


def _kept(hook: dict[str, Any], legacy_config: str | None) -> dict[str, Any]:
    """Another one's hook, in a container with a part of a GPU."""
    if is_legacy_hook(hook):
        return _tame_legacy_hook(hook, legacy_config)
    if calls_nvidia(hook):
        raise Refused(
            f"a hook of the container ({shorten(str(hook.get('path')))}) calls NVIDIA's command line tool, which would "
            f"give it more than its part of a GPU; start it without that hook (--gpus of ctr and nerdctl)"
        )
    return hook


def _runs_late(stages: Mapping[str, list[dict[str, Any]]]) -> bool:
    return any(stages.get(stage) for stage in LATE)


def edited(
    spec: Spec, cookie: int, path: str, legacy_config: str | None, closed: str, *, restored: bool
) -> dict[str, Any]:
    """The hooks of a container with a slice. `path`: of cgpu-runtime. `closed`: the numbers to check, "" for none."""
    stages: dict[str, Any] = kept(spec, legacy_config)
    life = f"--cookie={cookie}"
    root = json_object(spec.get("root"), "root").get("path", "rootfs")
    check = (f"--closed={closed}",) if closed else ()
    ours = [
        ("createRuntime", "bind", life, *(check if restored else ())),  # runc restores without createContainer
        ("createContainer", "params", f"--root={root}", *check),  # after NVIDIA's own hook, which may mask them too
        ("poststop", "release", life),
    ]
    if check and _runs_late(stages):
        ours.append(("poststart", "confirm", *check))
    for stage, which, *words in ours:
        stages[stage] = [*stages.get(stage, []), _ours(path, which, *words)]
    return stages


def kept(spec: Spec, legacy_config: str | None) -> dict[str, list[dict[str, Any]]]:
    """The hooks of others in a container that has its part of a GPU from us. Raises Refused for one that would give it
    more."""
    return {stage: [_kept(hook, legacy_config) for hook in found] for stage, found in of_others(spec).items()}


def with_life(spec: Spec, cookie: int, path: str, closed: str) -> Spec:
    """The spec of a container without a slice whose first process and end are reported to the daemon, and which does
    not start if a number of `closed` is open to it."""
    stages, life = of_others(spec), f"--cookie={cookie}"
    check = (f"--closed={closed}",) if closed else ()  # here, too: runc restores without createContainer
    for stage, which, *words in (("createRuntime", "bind", life, *check), ("poststop", "release", life)):
        stages[stage] = [*stages.get(stage, []), _ours(path, which, *words)]
    return _checked(spec, stages, path, closed)


def with_check(spec: Spec, path: str, closed: str, *, restored: bool = False) -> Spec:
    """The spec of a container without a slice, which does not start if a number of `closed` is open to it."""
    return _checked(spec, of_others(spec), path, closed, restored=restored)


def _checked(
    spec: Spec, stages: dict[str, list[dict[str, Any]]], path: str, closed: str, *, restored: bool = False
) -> Spec:
    if not closed:
        return {**spec, "hooks": stages}
    # Hooks of createContainer are in the container's user namespace, where ours may not look at the host's nodes.
    mapped = config_json.has_user_namespace(spec)
    early = (("createRuntime", "confirm"),) if restored or mapped else ()  # runc restores without createContainer
    check = () if mapped else (("createContainer", "check"),)
    is_late = _runs_late(stages) or (mapped and stages.get("createContainer"))
    late = (("poststart", "confirm"),) if is_late else ()
    for stage, which in (*early, *check, *late):
        stages[stage] = [*stages.get(stage, []), _ours(path, which, f"--closed={closed}")]
    return {**spec, "hooks": stages}
