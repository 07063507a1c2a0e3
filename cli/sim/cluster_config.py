# SPDX-License-Identifier: MIT
"""TOML or YAML -> pools and pods. Errors are one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cgpu_common.placement import CONTAINERS_MAX, CORE, CORE_STEP, INIT, MAIN, SIDECAR, Gpu, Need, PodNeed

from .cluster import Kind, Plan, Pool
from .config import Range, known, read_file, tables, within
from .requests import shown, wrong

NODES_MAX = 10_000
PODS_MAX = 100_000
GPUS_MAX = 64
UNITS = Range(1, 1 << 20)
NODES = Range(1, NODES_MAX)
COUNT = Range(1, PODS_MAX)
GPUS = Range(1, GPUS_MAX)
SLOTS = Range(1, 100)
CORES = Range(0, CORE)
SEED = Range(0, 2**63 - 1)
ORDERS = ("listed", "shuffled")
PHASES = (MAIN, INIT, SIDECAR)


def read(path: Path) -> dict[str, object]:
    """The file's values; by its name YAML, else TOML."""
    if path.suffix not in (".yaml", ".yml"):
        try:
            return read_file(path)
        except OSError as error:
            raise wrong(f"{path}: {error.strerror}") from None
    try:
        import yaml
    except ImportError:
        raise wrong(f"{path}: YAML needs the Python package PyYAML", "or write it as TOML") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise wrong(f"{path} is no YAML: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise wrong(f"{path} has no pools and pods")
    return found


def _name(values: Mapping[str, object], what: str, default: str) -> str:
    name = values.get("name", default)
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 64:
        raise wrong(f"{shown(name)} is no name for a {what}")
    return name


def read_plan(values: Mapping[str, object], file: str = "") -> Plan:
    """@file: its path, for errors."""
    with within(file):
        return _read_plan(values)


def _read_plan(values: Mapping[str, object]) -> Plan:
    known(values, {"pool", "pod", "order", "seed"}, "the file")
    pools = tuple(_pool(one, number) for number, one in enumerate(tables(values, "pool")))
    kinds = tuple(_kind(one, number) for number, one in enumerate(tables(values, "pod")))
    for what, found in (("pool", pools), ("pod", kinds)):
        if not found:
            raise wrong(f"there is no {what}", f"[[{what}]]")
        for name, times in Counter(one.name for one in found).items():
            if times > 1:
                raise wrong(f"{times} of [[{what}]] are called {name!r}")
    for total, most, noun in (
        (sum(pool.nodes for pool in pools), NODES_MAX, "nodes"),
        (sum(kind.count for kind in kinds), PODS_MAX, "pods"),
    ):
        if total > most:
            raise wrong(f"there are {total} {noun}", f"{most} at most")
    for kind in kinds:
        if kind.pool and kind.pool not in {pool.name for pool in pools}:
            raise wrong(f"pod {kind.name} is for pool {shown(kind.pool)}, and there is no such pool")
    order = values.get("order", "listed")
    if order not in ORDERS:
        raise wrong(f"order={shown(order)} is no order", ", ".join(ORDERS))
    return Plan(pools, kinds, order == "shuffled", SEED.read("seed", values.get("seed", 1)))


def _pool(values: Mapping[str, object], number: int) -> Pool:
    known(values, {"name", "nodes", "gpus", "unit", "core", "slots"}, "a pool")
    name = _name(values, "pool", f"pool{number}")
    sizes = values.get("gpus")
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= GPUS_MAX:
        raise wrong(f"pool {name}: gpus is the list of each GPU's units, as [15, 79]")
    unit = values.get("unit", "GiB")
    if unit not in ("GiB", "MiB"):
        raise wrong(f"pool {name}: unit={shown(unit)}", "GiB, MiB")
    core = CORES.read("core", values.get("core", CORE))
    slots = SLOTS.read("slots", values.get("slots", 20))
    gpus = tuple(Gpu(index, UNITS.read("gpus", size), core, slots) for index, size in enumerate(sizes))
    return Pool(name, NODES.read("nodes", values.get("nodes", 1)), gpus, str(unit))


def _kind(values: Mapping[str, object], number: int) -> Kind:
    known(values, {"name", "count", "memory", "core", "gpus", "pool", "container"}, "a pod")
    name = _name(values, "pod", f"pod{number}")
    listed = tables(values, "container")
    if bool(listed) == ("memory" in values):
        raise wrong(f"pod {name}: either memory, or [[pod.container]] with it")
    count = GPUS.read("gpus", values.get("gpus", 1))
    given = listed or [{key: values[key] for key in ("memory", "core") if key in values}]
    if len(given) > CONTAINERS_MAX:
        raise wrong(f"pod {name} has {len(given)} containers", f"{CONTAINERS_MAX} at most")
    needs = tuple(_container(one, f"pod {name}", place, count) for place, one in enumerate(given))
    for container, times in Counter(one.name for one in needs).items():
        if times > 1:
            raise wrong(f"pod {name}: {times} containers are called {container!r}")
    pool = values.get("pool", "")
    if not isinstance(pool, str):
        raise wrong(f"pod {name}: pool is a name")
    return Kind(name, PodNeed(needs, count), COUNT.read("count", values.get("count", 1)), pool)


def _container(values: Mapping[str, object], what: str, place: int, count: int) -> Need:
    known(values, {"name", "memory", "core", "phase"}, "a container")
    name = _name(values, "container", f"c{place}")
    phase = values.get("phase", MAIN)
    if phase not in PHASES:
        raise wrong(f"{what}: phase={shown(phase)}", ", ".join(PHASES))
    found: dict[str, Any] = {
        "memory": Range(1, (1 << 20) * count).read("memory", values.get("memory", "")),
        "core": Range(0, CORE * count).read("core", values.get("core", 0)),
    }
    if found["core"] % CORE_STEP:
        raise wrong(f"{what}: core={found['core']} is no multiple of {CORE_STEP}")
    for key, value in found.items():
        if value % count:
            raise wrong(f"{what}: {key}={value} cannot be divided among {count} GPUs")
    return Need(name, found["memory"] // count, found["core"] // count, str(phase), place if phase != MAIN else 0)
