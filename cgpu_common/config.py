# SPDX-License-Identifier: MIT
"""/etc/cgpu/cgpu.toml and /etc/cgpu/cgpu.toml.d/*.toml -> Config.

Everything is checked before anything is applied. Each file is checked by itself, so that an error names file, key,
value and the allowed values. The files may be absent; an unknown key is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cgpu_common import address, policies, settings
from cgpu_common.errors import ConfigError
from cgpu_common.kernel_abi import (
    MAX_INST_BURST_MAX,
    MAX_INST_MIN,
    OVERCOMMIT_MAX,
    OVERCOMMIT_MIN,
    PRIO_RATIO_MAX,
    PRIO_RATIO_MIN,
    SLICE_US_MAX,
    SLICE_US_MIN,
)
from cgpu_common.model import Gpu
from cgpu_common.settings import Caps, GpuSettings
from cgpu_common.toml import tomllib

DEFAULT_PATH = Path("/etc/cgpu/cgpu.toml")
RUNTIME_CONF = Path("/etc/cgpu/runtime.conf")
FILE_MAX = 1 << 20
RUNTIME_CONF_MAX = 64 << 10  # the bound of cgpu-runtime
MIB_MAX = 1 << 30  # a petabyte: only a bound
WAIT_MAX_S = 45  # cgpu-runtime waits 60 s for an answer


@dataclass(frozen=True, slots=True)
class _Key:
    """The allowed values of a key: for msgspec, and in words."""

    type: Any
    allowed: str
    check: Callable[[Any], object] | None = None  # raises ConfigError


_Count = Annotated[int, Meta(ge=1, le=86400)]
_Wait = Annotated[int, Meta(ge=1, le=WAIT_MAX_S)]
_Path = Annotated[str, Meta(pattern=r"^(/.*)?\Z")]

NODE_KEYS = {
    "allow_privileged": _Key(bool, "true or false"),
    "legacy_hook_config": _Key(_Path, 'an absolute path, or ""'),
    "runtime_path": _Key(_Path, 'an absolute path, or ""'),
    "lease_s": _Key(_Count, "a whole number of seconds from 1 to 86400"),
    "reconcile_s": _Key(_Count, "a whole number of seconds from 1 to 86400"),
    "nvml_wait_s": _Key(_Wait, f"a whole number of seconds from 1 to {WAIT_MAX_S}"),
    "kube_wait_s": _Key(_Wait, f"a whole number of seconds from 1 to {WAIT_MAX_S}"),
    "log_level": _Key(Literal["debug", "info", "warning", "error"], "debug, info, warning or error"),
    "metrics": _Key(str, 'unix:/path, an IP address and a port, or ""', address.parse),
    "metrics_tls": _Key(_Path, 'the absolute path of a folder, or ""'),
}
GPU_KEYS = {
    "policy": _Key(
        Annotated[int, Meta(ge=0, le=len(policies.NAMES) - 1)] | Literal[policies.NAMES],
        policies.ALLOWED,
    ),
    "max_inst": _Key(
        Annotated[int, Meta(ge=MAX_INST_MIN, le=MAX_INST_BURST_MAX)],
        f"a whole number from {MAX_INST_MIN} to {MAX_INST_BURST_MAX}",
    ),
    "prio_ratio": _Key(
        Annotated[int, Meta(ge=PRIO_RATIO_MIN, le=PRIO_RATIO_MAX)],
        f"a whole number of percent from {PRIO_RATIO_MIN} to {PRIO_RATIO_MAX}",
    ),
    "slice_us": _Key(
        Annotated[int, Meta(ge=SLICE_US_MIN, le=SLICE_US_MAX)] | Literal["auto"],
        f"a whole number of microseconds from {SLICE_US_MIN} to {SLICE_US_MAX}, or auto",
    ),
    "uvm": _Key(Literal[settings.UVM_NAMES], "deny or account"),
    "overcommit": _Key(
        Annotated[int, Meta(ge=OVERCOMMIT_MIN, le=OVERCOMMIT_MAX)],
        f"a whole number of percent from {OVERCOMMIT_MIN} to {OVERCOMMIT_MAX}",
    ),
    "default_memsize_mib": _Key(Annotated[int, Meta(ge=0, le=MIB_MAX)], "a whole number of MiB, 0 for none"),
    "unsliced": _Key(Literal["allow", "refuse"], "allow or refuse"),
}
CONTAINER_KEYS = {
    "max_memory_mib": _Key(Annotated[int, Meta(ge=1, le=MIB_MAX)], "a whole number of MiB, at least 1"),
    "max_memory_fraction": _Key(Annotated[float, Meta(gt=0, le=1)], "a part of the GPU's memory, above 0 and up to 1"),
    "max_weight": _Key(
        Annotated[int, Meta(ge=1, le=MAX_INST_BURST_MAX)], f"a whole number from 1 to {MAX_INST_BURST_MAX}"
    ),
    "ceiling": _Key(
        Annotated[int, Meta(ge=1, le=MAX_INST_BURST_MAX)], f"a whole number from 1 to {MAX_INST_BURST_MAX}"
    ),
    "highprio": _Key(Literal["allow", "refuse"], "allow or refuse"),
    "disable": _Key(Literal["allow", "deny"], "allow or deny"),
    "grants": _Key(Literal["optional", "required"], "optional or required"),
}

_ASK_KEY = re.compile(rb'[ \t]*ask(?=[ \t=\r]|\Z)[ \t="]*([^"\r]*)')
_NUMBER = re.compile(r"[0-9]{1,3}\Z", re.ASCII)
_PCI = re.compile(r"(?:[0-9a-f]{4}|0000[0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z", re.ASCII)
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Config:
    """Every key, with its default."""

    gpu: GpuSettings = field(default_factory=GpuSettings)
    gpus: Mapping[str, GpuSettings] = field(default_factory=dict)  # by number, PCI address or UUID, in lower case
    container: Caps = field(default_factory=Caps)
    allow_privileged: bool = False  # slices for containers that can evade them
    legacy_hook_config: str = ""  # config.toml for NVIDIA's legacy hook
    runtime_path: str = ""  # path in the hooks of config.json; empty = the cgpu-runtime that sent the request
    lease_s: int = 120  # a prepared container must be bound within this time
    reconcile_s: int = 60
    nvml_wait_s: int = 20  # the most that a start waits for NVML
    kube_wait_s: int = 30  # the most that a start waits for a cgpu-kube that does not listen
    log_level: str = "info"
    metrics: str = ""  # address of /metrics: unix:/path, or an IP address and a port; empty = off
    metrics_tls: str = ""  # folder with tls.crt, tls.key and the clients' ca.crt; empty = no TLS
    files: Mapping[str, str] = field(default_factory=dict, compare=False)  # key -> the file that sets it
    fingerprint: str = field(default="", compare=False)  # of what the files say

    def of(self, gpu: Gpu) -> GpuSettings:
        return settings.resolve(self.gpu, self.gpus, gpu)

    def anywhere(self, key: str, value: object) -> bool:
        """Does any [gpu] table set this value?"""
        return any(getattr(table, key) == value for table in (self.gpu, *self.gpus.values()))

    def default_memsize(self) -> bool:
        """Does any GPU have a default size for containers that request none?"""
        return any(table.default_memsize_mib for table in (self.gpu, *self.gpus.values()))


# ---- one value, one table, one file ----


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 64 else text[:60] + "…"


def _value(file: str, name: str, value: Any, key: _Key) -> Any:
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError
        out = msgspec.convert(value, key.type)
    except msgspec.ValidationError:
        raise ConfigError(f"{file}: {name} = {_shown(value)} is not allowed: it must be {key.allowed}") from None
    if key.check is not None:
        try:
            key.check(out)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    return out


def _table(file: str, prefix: str, table: Any, keys: Mapping[str, _Key]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {prefix.rstrip('.')} = {_shown(table)} is not allowed: it must be a table")
    out = {}
    for name, value in table.items():
        if name not in keys:
            raise ConfigError(f"{file}: {prefix}{name} is not a known key; known are {', '.join(keys)}")
        out[name] = _value(file, prefix + name, value, keys[name])
    return out


def _gpu_name(file: str, name: str) -> str:
    text = name.lower()
    pci = _PCI.match(text)
    if pci:
        return f"{text.split(':', 1)[0][-4:]}:{pci[1]}"
    if _NUMBER.match(text):
        return str(int(text))
    if _UUID.match(text):
        return text
    raise ConfigError(
        f"{file}: gpu.{name} is neither a key nor a GPU: keys are {', '.join(GPU_KEYS)}; "
        f"a GPU is a number, a PCI address as 0000:01:00.0 or a whole GPU-… UUID, in quotes"
    )


def _gpu_tables(file: str, table: Any) -> dict[str, dict[str, Any]]:
    """The table of each GPU by name; "" is the one for all GPUs."""
    own = {}
    out: dict[str, dict[str, Any]] = {}
    for name, value in table.items() if isinstance(table, dict) else ():
        if name in GPU_KEYS:
            own[name] = value
        elif isinstance(value, dict):
            out.setdefault(_gpu_name(file, name), {}).update(_table(file, f'gpu."{name}".', value, GPU_KEYS))
        else:
            _gpu_name(file, name)
            raise ConfigError(f'{file}: gpu."{name}" = {_shown(value)} is not allowed: it must be a table')
    return {"": _table(file, "gpu.", own if isinstance(table, dict) else table, GPU_KEYS), **out}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_MAX + 1)
        if len(data) > FILE_MAX:
            raise ConfigError(f"{path}: larger than {FILE_MAX >> 20} MiB")
        return tomllib.loads(data.decode())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


# ---- all of them together ----


@dataclass(slots=True)
class _Merge:
    """The tables of all files so far: a key of a later file overrides an earlier one."""

    node: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    gpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def add(self, file: str, values: Mapping[str, Any]) -> None:
        values = dict(values)
        gpus = _gpu_tables(file, values.pop("gpu", {}))
        container = _table(file, "container.", values.pop("container", {}), CONTAINER_KEYS)
        for name in values:
            if name in GPU_KEYS:
                raise ConfigError(f"{file}: {name} is a key of the table [gpu]")
        node = _table(file, "", values, NODE_KEYS)
        self.node |= node
        self.container |= container
        self.files |= dict.fromkeys(node, file) | {f"container.{key}": file for key in container}
        for name, table in gpus.items():
            self.gpus.setdefault(name, {}).update(table)
            where = f'gpu."{name}".' if name else "gpu."
            self.files |= {where + key: file for key in table}

    def _check_max_inst(self, name: str, table: GpuSettings, own: GpuSettings) -> None:
        """More than the policy takes; the kernel refuses it as well, when the GPU appears."""
        facts = policies.of(next((one.policy for one in (table, own) if one.policy is not None), policies.DEFAULT))
        if (table.max_inst or 0) <= facts.max_inst:
            return
        key = f'gpu."{name}".max_inst' if name else "gpu.max_inst"
        raise ConfigError(
            f"{self.files[key]}: {key} = {table.max_inst} is not allowed: it must be from {MAX_INST_MIN} to "
            f"{facts.max_inst} under policy {facts.name}"
        )

    def config(self) -> Config:
        gpus = {name: _settings(table) for name, table in self.gpus.items()}
        for name, table in gpus.items():
            self._check_max_inst(name, table, gpus.get("", GpuSettings()))
        prefix = "container."
        caps = Caps(
            **self.container,
            files={key.removeprefix(prefix): file for key, file in self.files.items() if key.startswith(prefix)},
        )
        own = gpus.pop("", GpuSettings())
        try:
            address.check_tls(address.parse(self.node.get("metrics", "")), self.node.get("metrics_tls", ""))
        except ConfigError as error:
            raise ConfigError(f"{self.files.get('metrics') or self.files['metrics_tls']}: {error}") from None
        return Config(gpu=own, gpus=gpus, container=caps, files=self.files, **self.node)


def _settings(table: Mapping[str, Any]) -> GpuSettings:
    values = dict(table)
    if isinstance(values.get("policy"), str):
        values["policy"] = policies.NAMES.index(values["policy"])
    if values.get("slice_us") == "auto":
        values["slice_us"] = settings.SLICE_AUTO
    if "uvm" in values:
        values["uvm"] = settings.UVM_NAMES.index(values["uvm"])
    return GpuSettings(**values)


def _admits_every_container(path: Path) -> bool:
    """Does cgpu-runtime also send containers without cGPU variables to the daemon?

    Parses its configuration as conf_get() of runtime_conf.c does: bytes, lines that end with \\n only."""
    try:
        with path.open("rb") as stream:
            data = stream.read(RUNTIME_CONF_MAX + 1)
    except OSError:
        return False
    if len(data) > RUNTIME_CONF_MAX:  # cgpu-runtime starts no container with such a file
        return False
    for line in data.split(b"\0")[0].split(b"\n"):
        if found := _ASK_KEY.match(line):
            return found[1].rstrip() == b"always"
    return False


def merge(files: Iterable[tuple[str, Mapping[str, Any]]]) -> Config:
    merged = _Merge()
    for file, values in files:
        merged.add(file, values)
    return merged.config()


def _fingerprint(values: list[dict[str, Any]]) -> str:
    """The same for the same keys and values in the same order of files; comments do not count."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def load(path: Path | None, runtime_conf: Path = RUNTIME_CONF, default: Path | None = None) -> Config:
    """The given file, which must exist, or the default file, which need not; then the files of its .d directory."""
    chosen = path or default or DEFAULT_PATH
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        found.append((str(chosen), _read(chosen)))
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"{chosen}: no such file") from None
    for extra in sorted(chosen.with_name(chosen.name + ".d").glob("*.toml")):
        try:
            found.append((str(extra), _read(extra)))
        except FileNotFoundError as error:
            raise ConfigError(f"{extra}: {error.strerror}") from error
    config = replace(merge(found), fingerprint=_fingerprint([values for _, values in found]))
    if config.anywhere("unsliced", "refuse") and not _admits_every_container(runtime_conf):
        key = next(key for key in config.files if key.startswith("gpu.") and key.endswith("unsliced"))
        raise ConfigError(
            f'{config.files[key]}: {key} = "refuse" needs `ask = always` in {runtime_conf}: '
            f"otherwise cgpud never sees a container without cGPU variables"
        )
    return config
