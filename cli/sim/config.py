# SPDX-License-Identifier: MIT
"""Flags and TOML -> a scenario. Errors are one sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cgpu_common import policies
from cgpu_common.exits import CgpuError
from cgpu_common.toml import tomllib

from .model import RUN_STATES, Change, Container, Personality, Scenario, Setup, in_digits, profile
from .requests import ARRIVALS_MAX, read_lengths, read_trace, shown, wrong

CONTAINERS_MAX = 25


@dataclass(frozen=True)
class Range:
    """A number within bounds. With bounds 0 and 1 also a boolean."""

    low: float
    high: float
    whole: bool = True
    least: float = 0  # smallest value except 0: a smaller one would round to 0 ns

    def read(self, name: str, value: object) -> Any:
        number = self._number(value)
        if number is None:
            raise wrong(f"{name}={shown(value, str)} is no number")
        if not self.low <= number <= self.high or 0 < number < self.least:
            low = f"0, or {in_digits(self.least)}" if self.least else in_digits(self.low)
            raise wrong(f"{name}={shown(value, str)} is out of range", f"{low} to {in_digits(self.high)}")
        if self.whole and number != int(number):
            raise wrong(f"{name}={shown(value, str)} is no whole number")
        return int(number) if self.whole else float(number)

    def _number(self, value: object) -> float | None:
        if isinstance(value, bool):
            return int(value) if self.whole and (self.low, self.high) == (0, 1) else None
        if isinstance(value, str):
            value = _parsed(value)
        return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else None


def _parsed(text: str) -> int | float | None:
    """An int if possible: a float has 53 bits only."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


COUNT = Range(1, CONTAINERS_MAX)
FLAG = Range(0, 1)
CONTAINER = {
    "weight": Range(0, 100),
    "highprio": FLAG,
    "ceiling": Range(0, 100),
    "kernel_us": Range(1, 10_000_000, whole=False),
    "spread_us": Range(0, 10_000_000, whole=False),
    "depth": Range(1, 4096),
    "gap_us": Range(0, 10_000_000, whole=False),
    "gap_spread_us": Range(0, 10_000_000, whole=False),
    "rate": Range(0, 1_000_000, whole=False, least=1e-4),
    "on_ms": Range(0, 3_600_000, whole=False, least=0.001),
    "off_ms": Range(0, 3_600_000, whole=False, least=0.001),
    "processes": Range(1, 256),
    "start_ms": Range(0, 3_600_000, whole=False),
    "stop_ms": Range(0, 3_600_000, whole=False),
    "stubborn": FLAG,
    "churn_ms": Range(0, 3_600_000, whole=False, least=1),
    "requests_per_s": Range(0, 100_000, whole=False, least=1e-4),
    "think_ms": Range(0, 3_600_000, whole=False),
    "think_spread_ms": Range(0, 3_600_000, whole=False),
    "cpu_ms": Range(0, 3_600_000, whole=False),
    "gpu": Range(0, 15),
}
REQUESTS = {"request_us", "requests_file"}
NOT_WITH_REQUESTS = ("kernel_us", "rate", "churn_ms")
GPU = {
    "slice_us": Range(1_000, 100_000),
    "max_inst": Range(1, 100),
    "prio_ratio": Range(20, 99),
    "freeze_restart": FLAG,
    "one_cpu": FLAG,
}
PERSONALITY = {
    "control_ineffective": Range(0, 3),
    "commit_required": FLAG,
    "err40_pct": Range(0, 100, whole=False),
    "tail_us": Range(0, 10_000_000),
    "tail_pct": Range(0, 100, whole=False),
    "disable_needs_restart": FLAG,
    "no_preempt": FLAG,
    "stubborn_ms": Range(0, 60_000),
}
GPU_CHANGES = ("policy", "max_inst", "prio_ratio", "slice_us")
CONTAINER_CHANGES = ("weight", "highprio", "ceiling")
SECONDS = Range(0.1, 3600, whole=False)
SEED = Range(0, 2**63 - 1)


def read_policy(value: object) -> int:
    text = shown(value, str)
    known = policies.number(text) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if known is None:
        raise wrong(f"{shown(value)} is no policy", policies.ALLOWED)
    return known


def pairs(text: str, what: str) -> dict[str, str]:
    """'a=1,b=2'."""
    found: dict[str, str] = {}
    for word in text.split(","):
        name, equals, value = word.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise wrong(f"{what} {text!r}: {word!r} is not name=value")
        if "=" in value:
            raise wrong(f"{what} {text!r}: {value!r} is no value of {name}", "a comma separates the pairs")
        if name in found:
            raise wrong(f"{what} {text!r}: {name} is repeated")
        found[name] = value
    return found


def known(values: Mapping[str, object], fields: Iterable[str], what: str) -> None:
    for name in values:
        if name not in fields:
            import difflib  # slow to import

            near = difflib.get_close_matches(name, fields, 1)
            text = f"{what} has no key {shown(name)}" + (f"; did you mean {near[0]}?" if near else "")
            raise wrong(text, ", ".join(sorted(fields)))


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put the place before the reason of an error that does not begin with it. An empty one changes nothing."""
    try:
        yield
    except CgpuError as err:
        if not place or re.match(rf"{re.escape(place)}[: ]", err.why):
            raise
        raise CgpuError(err.code, err.what, f"{place}: {err.why}", err.hint, err.number) from None


def numbers(values: Mapping[str, object], ranges: Mapping[str, Range]) -> dict[str, Any]:
    return {name: ranges[name].read(name, value) for name, value in values.items() if name in ranges}


def read_containers(values: Mapping[str, object], number: int) -> list[Container]:
    """One, or `count` identical ones."""
    name = values.get("name", f"c{number}")
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 64:
        raise wrong(f"{shown(name)} is no name for a container")
    with within(f"container {name}"):
        return _read_containers(values, number, name)


def _read_containers(values: Mapping[str, object], number: int, name: str) -> list[Container]:
    known(values, {"name", "count", *CONTAINER, *REQUESTS}, f"container {name}")
    one = Container(name, **numbers(values, CONTAINER), **read_requests(values, f"container {name}"))
    if one.cpu_ms and "think_ms" not in values:
        raise wrong(f"container {name}: cpu_ms needs think_ms")
    if one.off_ms and not one.on_ms:
        raise wrong(f"container {name}: off_ms needs on_ms")
    if one.stop_ms is not None and one.stop_ms <= one.start_ms:
        raise wrong(f"container {name}: stop_ms is not after start_ms")
    count = COUNT.read("count", values.get("count", 1))
    if count == 1:
        return [one]
    first, stem = (0, name) if "name" in values else (number, "c")
    return [replace(one, name=f"{stem}{first + i}") for i in range(count)]


def read_requests(values: Mapping[str, object], what: str) -> dict[str, Any]:
    """request_us and the trace, checked against the rest."""
    how = [name for name in ("requests_per_s", "think_ms", "requests_file") if name in values]
    text, path = values.get("request_us", ""), values.get("requests_file")
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise wrong(f"{what}: request_us is written like 20000+200x40")
    if not REQUESTS & set(values):
        if how:
            raise wrong(f"{what}: {how[0]} needs request_us")
        return {}
    for name in NOT_WITH_REQUESTS:
        if name in values:
            raise wrong(f"{what}: {name} and requests exclude one another", "request_us has the lengths")
    if len(how) != 1:
        given = "none is" if not how else f"{' and '.join(how)} are"
        raise wrong(f"{what}: requests arrive in one way, and {given} given", "requests_per_s, think_ms, requests_file")
    text = text if isinstance(text, str) else shown(text, str)
    lengths = read_lengths(text, f"{what}: request_us") if "request_us" in values else ()
    if path is None:
        return {"request_us": lengths}
    if not isinstance(path, str):
        raise wrong(f"{what}: requests_file is a path")
    try:
        return {"request_us": lengths, "trace": read_trace(Path(path), lengths)}
    except OSError as err:
        raise wrong(f"{what}: {path}: {err.strerror}") from None


def read_setup(values: Mapping[str, object], base: Setup) -> Setup:
    known(values, {"profile", "policy", "personality", "run_state", *GPU}, "a GPU")
    changes: dict[str, Any] = numbers(values, GPU)
    if "profile" in values:
        changes["profile"] = profile(shown(values["profile"], str))
    if "policy" in values:
        changes["policy"] = read_policy(values["policy"])
    if "personality" in values:
        changes["personality"] = read_personality(values["personality"])
    if "run_state" in values:
        changes["run_state"] = read_run_state(values["run_state"])
    return replace(base, **changes)


def read_run_state(value: object) -> str:
    if value not in RUN_STATES:
        raise wrong(f"run_state={shown(value)} is no source", ", ".join(RUN_STATES))
    return str(value)


def read_personality(values: object) -> Personality:
    if not isinstance(values, Mapping):
        raise wrong("personality is a table of names and values")
    known(values, PERSONALITY, "a personality")
    return Personality(**numbers(values, PERSONALITY))


def read_changes(values: Mapping[str, object], containers: Iterable[Container]) -> list[Change]:
    """The changes in a table, which may set several nodes."""
    target = values.get("container")
    nodes = CONTAINER_CHANGES if target is not None else GPU_CHANGES
    known(values, {"at_ms", "container", "gpu", *nodes}, "a change")
    if isinstance(target, Mapping | list):
        raise wrong("a change names one container")
    if target is not None and target not in {one.name for one in containers}:
        raise wrong(f"a change names {shown(target)}, and there is no such container")
    at_ms = Range(0, 3_600_000, whole=False).read("at_ms", values.get("at_ms", ""))
    gpu = CONTAINER["gpu"].read("gpu", values.get("gpu", 0))
    ranges = GPU | CONTAINER
    if not any(node in values for node in nodes):
        raise wrong("a change changes nothing", ", ".join(nodes))
    return [
        Change(at_ms, node, read_policy(value) if node == "policy" else ranges[node].read(node, value), target, gpu)
        for node, value in values.items()
        if node in nodes
    ]


def tables(values: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise wrong(f"{name} is written [[{name}]]")
    return found


def read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # an editor may have put a byte order mark
    except (ValueError, RecursionError) as err:
        raise wrong(f"{path} is no TOML: {err}") from None


def read_scenario(
    values: Mapping[str, object],
    base: Setup,
    gpus: int | None,
    flags: Sequence[str],
    played: Sequence[Container] = (),
    file: str = "",
) -> Scenario:
    """The containers of a trace, the tables of a file and the containers of the command line, whose GPU is the base
    of each [[gpu]]. @file: its path, for errors."""
    with within(file):
        known(values, {"seconds", "seed", "gpu", "container", "change"}, "the file")
        setups = []
        for place, one in enumerate(tables(values, "gpu")):
            with within(f"[[gpu]] {place}"):
                setups.append(read_setup(one, base))
    if setups and gpus not in (None, len(setups)):
        raise wrong(f"--gpus {gpus}, and the file has {len(setups)} of [[gpu]]")
    setups = setups or [base] * (gpus or max((one.gpu + 1 for one in played), default=1))
    containers: list[Container] = [*played]
    with within(file):
        for one in tables(values, "container"):
            containers += read_containers(one, len(containers))
        if file and not containers and not flags:
            raise wrong("it has no [[container]]", "--container name=a,weight=2, or tables in the file")
    for text in flags:
        containers += read_containers(pairs(text, "--container"), len(containers))
    check(containers, setups)
    with within(file):
        changes = [change for one in tables(values, "change") for change in read_changes(one, containers)]
        for change in changes:
            if change.gpu < len(setups):
                continue
            raise wrong(f"a change is of GPU {change.gpu}, and there is {_only(setups)}", "--gpus")
    seconds = SECONDS.read("seconds", values.get("seconds", 10))
    for container in containers:
        if container.requests_per_s * seconds > ARRIVALS_MAX:
            why = f"container {container.name} has more than {ARRIVALS_MAX} requests"
            raise wrong(why, "a smaller rate, or --seconds")
    return Scenario(
        tuple(setups),
        tuple(containers),
        tuple(sorted(changes, key=lambda change: change.at_ms)),
        seconds,
        SEED.read("seed", values.get("seed", 1)),
    )


def _only(setups: Sequence[Setup]) -> str:
    return f"only GPU 0{f' to {len(setups) - 1}' * (len(setups) > 1)}"


def check(containers: list[Container], setups: list[Setup]) -> None:
    for setup in setups:
        if setup.source not in (setup.profile.run_state, "none"):
            theirs = f"{setup.profile.run_state}, none"
            raise wrong(f"run_state={setup.source}: a {setup.profile.key} has no such words of channels", theirs)
    if not containers:
        raise wrong("there is no container to simulate", "--container name=a,weight=2, or a file")
    for name, times in Counter(one.name for one in containers).items():
        if times > 1:
            raise wrong(f"{times} containers are called {name!r}")
    for gpu, count in Counter(one.gpu for one in containers).items():
        if count > CONTAINERS_MAX:
            raise wrong(f"{count} containers are on GPU {gpu}", f"{CONTAINERS_MAX} at most")
    for one in containers:
        if one.gpu >= len(setups):
            raise wrong(f"container {one.name} is on GPU {one.gpu}, and there is {_only(setups)}", "--gpus")
