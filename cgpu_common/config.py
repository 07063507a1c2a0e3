# SPDX-License-Identifier: MIT
"""/etc/cgpu/cgpu.toml and /etc/cgpu/cgpu.toml.d/*.toml -> Config.

Everything is checked before anything is applied. Each file is checked by itself, so that an error names file, key,
value and the allowed values. The files may be absent; an unknown key is an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cgpu_common import address, keys, policies, settings
from cgpu_common.cards import Gpu
from cgpu_common.errors import ConfigError
from cgpu_common.kernel_abi import MAX_INST_MIN
from cgpu_common.keys import Key
from cgpu_common.settings import Caps, GpuSettings
from cgpu_common.toml import tomllib

DEFAULT_PATH = Path("/etc/cgpu/cgpu.toml")
RUNTIME_CONF = Path("/etc/cgpu/runtime.conf")
FILE_MAX = 1 << 20
RUNTIME_CONF_MAX = 64 << 10  # the bound of cgpu-runtime


_ASK_KEY = re.compile(rb'[ \t]*ask(?=[ \t=\r]|\Z)[ \t="]*([^"\r]*)')
_NUMBER = re.compile(r"[0-9]{1,3}\Z", re.ASCII)
_PCI = re.compile(r"(?:[0-9a-f]{4}|0000[0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z", re.ASCII)
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Config:
    """Every key of cgpu_common/keys.py, with its default."""

    gpu: GpuSettings = field(default_factory=GpuSettings)
    gpus: Mapping[str, GpuSettings] = field(default_factory=dict)  # by number, PCI address or UUID, in lower case
    container: Caps = field(default_factory=Caps)
    allow_privileged: bool = keys.NODE["allow_privileged"].default
    legacy_hook_config: str = keys.NODE["legacy_hook_config"].default
    runtime_path: str = keys.NODE["runtime_path"].default
    lease_s: int = keys.NODE["lease_s"].default
    reconcile_s: int = keys.NODE["reconcile_s"].default
    nvml_wait_s: int = keys.NODE["nvml_wait_s"].default
    kube_wait_s: int = keys.NODE["kube_wait_s"].default
    log_level: str = keys.NODE["log_level"].default
    metrics: str = keys.NODE["metrics"].default
    metrics_tls: str = keys.NODE["metrics_tls"].default
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


def _value(file: str, name: str, value: Any, key: Key) -> Any:
    if not key.kind.takes(value):
        raise ConfigError(f"{file}: {name} = {_shown(value)} is not allowed: it must be {key.kind.words}")
    if key.check is not None:
        try:
            key.check(value)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    return value


def _table(file: str, prefix: str, table: Any, known: Mapping[str, Key]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {prefix.rstrip('.')} = {_shown(table)} is not allowed: it must be a table")
    out = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{file}: {prefix}{name} is not a known key; known are {', '.join(known)}")
        out[name] = _value(file, prefix + name, value, known[name])
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
        f"{file}: gpu.{name} is neither a key nor a GPU: keys are {', '.join(keys.GPU)}; "
        f"a GPU is a number, a PCI address as 0000:01:00.0 or a whole GPU-… UUID, in quotes"
    )


def _gpu_tables(file: str, table: Any) -> dict[str, dict[str, Any]]:
    """The table of each GPU by name; "" is the one for all GPUs."""
    own = {}
    out: dict[str, dict[str, Any]] = {}
    for name, value in table.items() if isinstance(table, dict) else ():
        if name in keys.GPU:
            own[name] = value
        elif isinstance(value, dict):
            out.setdefault(_gpu_name(file, name), {}).update(_table(file, f'gpu."{name}".', value, keys.GPU))
        else:
            _gpu_name(file, name)
            raise ConfigError(f'{file}: gpu."{name}" = {_shown(value)} is not allowed: it must be a table')
    return {"": _table(file, "gpu.", own if isinstance(table, dict) else table, keys.GPU), **out}


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
        quotes = '; text stands in quotes: policy = "weighted"' if str(error).startswith("Invalid value") else ""
        raise ConfigError(f"{path}: not TOML: {error}{quotes}") from error


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
        container = _table(file, "container.", values.pop("container", {}), keys.CONTAINER)
        for name in values:
            if name in keys.GPU:
                raise ConfigError(f"{file}: {name} is a key of the table [gpu]")
            if name not in keys.NODE and isinstance(values[name], dict):
                raise ConfigError(f"{file}: [{name}] is not a known table; known are [gpu], [gpu.NAME] and [container]")
        node = _table(file, "", values, keys.NODE)
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
    return GpuSettings(**{name: settings.encoded(name, value) for name, value in table.items()})


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
