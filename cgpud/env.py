# SPDX-License-Identifier: MIT
"""PURE: the environment of a container -> its request.

The variables, their order and their values are those of the published interface; CEILING is ours. Where the
interface's description is incomplete, an unclear value refuses the start with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from cgpu_common.errors import BadVariable, Refused
from cgpu_common.kernel_abi import MAX_INST_BURST_MAX
from cgpud.values import Devices, NamedLimit, NotSliced, Request

DISABLE = "CGPU_DISABLE"
DEV = "ALIYUN_COM_GPU_MEM_DEV"
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
VISIBLE = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
HIGHPRIO = "ALIYUN_COM_GPU_HIGH_PRIO"
CEILING = "ALIYUN_COM_GPU_SCHD_CEILING"

#: NVIDIA's own limit of a container from driver 615 on, and what it is guaranteed of it: MiB of each of its GPUs.
NVIDIA_LIMIT, NVIDIA_REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"

#: Set by an orchestrator whose grant comes when the container starts: no other variable counts, see granted.py.
PROMISE = "ALIYUN_COM_GPU_GRANT"

#: The source of a device list that no variable gives.
EVERY_GPU = "every GPU"
#: The source of one that NVIDIA's runtime gives by nodes, as its CDI mode does; unsliced.py finds them.
SPEC_NODES = "config.json"

PREFIX = "ALIYUN_COM_GPU_"
KNOWN = (DEV, CONTAINER, VISIBLE, INDEX, WEIGHT, HIGHPRIO, CEILING)
#: Alibaba's GPU share scheduler and its device plugin set these for themselves.
OF_SCHEDULERS = frozenset(PREFIX + name for name in ("MEM_POD", "MEM_UNIT", "MEM_ASSIGNED", "MEM_ASSUME_TIME", "GRANT"))
UNKNOWN_MAX = 4  # named in one warning
GIB_MAX = 1 << 20  # a petabyte: only a bound for the arithmetic
MIB_MAX = 1 << 29  # the same, within the digits of _NUMBER
VALUE_MAX = 4096

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off", ""})
_NUMBER = re.compile(r"[0-9]{1,9}\Z", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{4,36}\Z", re.ASCII)
_DEVICES_ALLOWED = "a comma list of GPU numbers or GPU-… UUIDs (or their beginnings), or all"


def as_dict(env: Iterable[object]) -> dict[str, str]:
    """The variables that a bundle's process.env gives the program. Engines leave an image's value and a pod's in it;
    runc and crun set one after the other, so the last counts. To crun a name without "=" takes the variable away, and a
    NUL ends the entry; runc starts no container with either."""
    out: dict[str, str] = {}
    for entry in env:
        if not isinstance(entry, str):
            continue
        name, equals, value = entry.partition("\0")[0].partition("=")
        if equals:
            out[name] = value
        else:
            out.pop(name, None)
    return out


def unknown(env: dict[str, str]) -> str | None:
    """A sentence on variables with our prefix that have no meaning, each with the name it resembles most."""
    names = sorted(name for name in env if name.startswith(PREFIX) and name not in OF_SCHEDULERS.union(KNOWN))
    if not names:
        return None
    words = []
    for name in names[:UNKNOWN_MAX]:
        # A bound: the comparison takes time by the length, and a name may be as long as an image likes.
        alike = get_close_matches(name[: 2 * len(CONTAINER)], KNOWN, n=1, cutoff=0.8)
        words.append(shorten(name) + (f" (did you mean {alike[0]}?)" if alike else ""))
    more = f" and {len(names) - UNKNOWN_MAX} more" if len(names) > UNKNOWN_MAX else ""
    return f"not a variable of cGPU, ignored: {', '.join(words)}{more}"


def _bare(text: str) -> str:
    """Without the blanks that a shell or a YAML file may leave around a value."""
    return text.strip(" \t\r\n")


def shorten(value: str) -> str:
    """A value for a sentence, cut so that it does not displace the rest."""
    return value if len(value) <= 64 else value[:60] + "…"


def _bad(name: str, value: str, allowed: str) -> BadVariable:
    return BadVariable(shorten(name), shorten(value), allowed)


def _number(name: str, text: str, low: int, high: int, what: str) -> int:
    if not _NUMBER.match(text) or not low <= int(text) <= high:
        raise _bad(name, text, f"{what} from {low} to {high}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise _bad(name, text, "true, 1, false or 0")


def _sizes(text: str) -> tuple[int, ...]:
    what = "a whole number of GiB, or a comma list of them, each"
    parts = [_bare(part) for part in text.split(",")]
    for part in parts:
        if not _NUMBER.match(part) or int(part) > GIB_MAX:
            raise _bad(CONTAINER, text, f"{what} from 0 to {GIB_MAX}")
    return tuple(int(part) for part in parts)


def parse_devices(name: str, text: str) -> Devices:
    """A list of GPUs by the numbers or UUIDs of `nvidia-smi -L`, or `all`."""
    if _bare(text).lower() == "all":
        return Devices(name, all=True)
    items: list[int | str] = []
    for part in map(_bare, text.split(",")):
        if _NUMBER.match(part):
            items.append(int(part))
        elif _UUID.match(part):
            items.append(part)
        else:
            raise _bad(name, text, _DEVICES_ALLOWED)
    return Devices(name, items=tuple(items))


def _explicit_nvidia(env: dict[str, str], requested: str) -> Devices | None:
    """The devices of NVIDIA_VISIBLE_DEVICES, unless it is `all` (the default of images), `void` or empty (no GPU).

    `requested` names the variable that requests a slice, for the sentence.
    """
    text = _bare(env.get(NVIDIA, ""))
    if text.lower() in ("", "void", "all"):
        return None
    if len(text) > VALUE_MAX:
        raise _bad(NVIDIA, text, f"at most {VALUE_MAX} bytes long")
    if text.lower() == "none":
        raise Refused(f"{NVIDIA}=none names no GPU, but {requested} of one; remove one of the two")
    return parse_devices(NVIDIA, text)


def _emptied(name: str) -> NotSliced:
    """The author names the variable and gives no value: what Compose and shells make of a variable that is not set. It
    would have been a limit."""
    why = f"{name} is set to nothing"
    return NotSliced(
        why, f"{why}, so the container has no slice and no limit: set a value, or remove it", switched_off=True
    )


def _without_size(ours: dict[str, str]) -> NotSliced:
    """No size, and nothing that was emptied. What says how a slice is to be and gives none is named."""
    named = [name for name in KNOWN if name not in (CONTAINER, VISIBLE) and _bare(ours.get(name, ""))]
    warning = f"{', '.join(named)} without {CONTAINER}: the container has no slice and no limit" if named else ""
    return NotSliced(f"{CONTAINER} is not set", warning)


def _nvidia_limit(env: dict[str, str], *, is_size: bool) -> NamedLimit | None:
    """Of NVIDIA's variables, which their own toolkit refuses in the same cases. Without a limit the request is a size,
    as in NVIDIA's GPU fractions, and no bound of another size."""
    given = {
        name: _number(name, _bare(env[name]), 1, MIB_MAX, "a whole number of MiB")
        for name in (NVIDIA_LIMIT, NVIDIA_REQUEST)
        if _bare(env.get(name, ""))
    }
    limit, least = given.get(NVIDIA_LIMIT), given.get(NVIDIA_REQUEST)
    if limit is not None:
        if least is not None and least > limit:
            raise Refused(f"{NVIDIA_REQUEST}={least} is more than {NVIDIA_LIMIT}={limit}; the limit is the larger one")
        return NamedLimit(NVIDIA_LIMIT, limit)
    return NamedLimit(NVIDIA_REQUEST, least) if is_size and least is not None else None


def _by_spec(env: dict[str, str]) -> Devices:
    """The GPUs of a container that NVIDIA's runtime has edited, if NVIDIA_VISIBLE_DEVICES is no list of them: its CDI
    mode leaves `void` there and nodes in config.json."""
    return Devices(SPEC_NODES, all=_bare(env.get(NVIDIA, "")).lower() == "all")


def parse(env: dict[str, str], *, default_memsize: bool = False, nvidia_slices: bool = False) -> Request | NotSliced:
    """The request of a container with these variables. Raises BadVariable or Refused with the sentence to show.

    `nvidia_slices`: NVIDIA_LIMIT or NVIDIA_REQUEST alone is a size."""
    ours = {name: value for name, value in env.items() if name == DISABLE or name.startswith(PREFIX)}
    theirs = [name for name in (NVIDIA_LIMIT, NVIDIA_REQUEST) if name in env] if nvidia_slices else []
    if not ours and not theirs:
        return NotSliced("no cGPU variable")
    for name, value in ours.items():
        if len(value) > VALUE_MAX:
            raise _bad(name, value, f"at most {VALUE_MAX} bytes long")
    if _flag(DISABLE, _bare(ours.get(DISABLE, ""))):
        return NotSliced(f"{DISABLE} is set", switched_off=True)

    sizes: tuple[int, ...] = ()
    total = 0
    text = _bare(ours.get(CONTAINER, ""))
    by_nvidia = not text and any(_bare(env[name]) for name in theirs)
    if text:
        sizes = _sizes(text)
        if 0 in sizes:
            return NotSliced(f"{CONTAINER}={shorten(text)}: a 0 switches cGPU off", switched_off=True)
    elif by_nvidia:
        pass
    elif CONTAINER in ours and not (default_memsize and _bare(ours.get(VISIBLE, ""))):
        return _emptied(CONTAINER)
    elif not _bare(ours.get(VISIBLE, "")):
        empty = [VISIBLE] * (VISIBLE in ours) + theirs
        return _emptied(empty[0]) if empty else _without_size(ours)
    elif not default_memsize:
        warning = (
            f"{VISIBLE} without {CONTAINER} gives no slice: default_memsize of /proc/cgpu_km counts only with "
            f"default_memsize_mib in [gpu] of cgpu.toml"
        )
        return NotSliced(f"{CONTAINER} is not set", warning)

    if sizes:
        if not _bare(ours.get(DEV, "")):
            raise Refused(f"{CONTAINER}={shorten(text)} needs {DEV}, the GPU's memory in GiB, which is not set")
        total = _number(DEV, _bare(ours[DEV]), 1, GIB_MAX, "a whole number of GiB")

    weight = None
    if _bare(ours.get(WEIGHT, "")):
        weight = _number(WEIGHT, _bare(ours[WEIGHT]), 1, MAX_INST_BURST_MAX, "a whole number of slices")
    highprio = False
    if _bare(ours.get(HIGHPRIO, "")):
        highprio = _number(HIGHPRIO, _bare(ours[HIGHPRIO]), 0, 1, "a number") == 1
    ceiling = None
    if _bare(ours.get(CEILING, "")):
        what = "a whole number of slices, not below the weight,"
        ceiling = _number(CEILING, _bare(ours[CEILING]), weight or 1, MAX_INST_BURST_MAX, what)

    nvidia = _nvidia_limit(env, is_size=by_nvidia)
    requested = f"{CONTAINER} asks for memory" if sizes else f"{VISIBLE} asks for a slice"
    for name in (VISIBLE, INDEX):
        value = _bare(ours.get(name, ""))
        if not value:
            continue
        if value.lower() in ("none", "void"):
            raise Refused(f"{name}={value} names no GPU; remove it or set {DISABLE}=true")
        devices = parse_devices(name, value)
        native = _explicit_nvidia(env, requested)
        return Request(devices, sizes, total, weight, highprio, ceiling, native, (), nvidia, by_nvidia)
    is_none = by_nvidia and _bare(env.get(NVIDIA, "")).lower() == "none"  # of no GPU, which its limit is beside
    found = None if is_none else _explicit_nvidia(env, requested)
    if found is None:
        found = _by_spec(env) if by_nvidia else Devices(EVERY_GPU, all=True)
    return Request(found, sizes, total, weight, highprio, ceiling, None, (), nvidia, by_nvidia)
