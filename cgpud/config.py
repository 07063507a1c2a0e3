# SPDX-License-Identifier: MIT
"""/etc/cgpu/cgpu.toml -> Config. The file may be absent; a key that is not known is an error, not a silence."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgpud.errors import ConfigError

DEFAULT_PATH = Path("/etc/cgpu/cgpu.toml")
UNSLICED = ("pass", "refuse")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Config:
    """Every key, with its default."""

    default_memsize_mib: int = 0  # for containers that name GPUs but no size; 0 = cGPU stays off for them
    unsliced: str = "pass"  # whole GPUs: pass | refuse (needs `ask = always` in runtime.conf)
    allow_privileged: bool = False  # slices for containers that could undo them
    legacy_hook_config: str = ""  # config.toml given to NVIDIA's legacy hook
    runtime_path: str = ""  # what the hooks in config.json name; empty = the cgpu-runtime that asked
    lease_s: int = 120  # a prepared container must be bound within this time
    reconcile_s: int = 60
    log_level: str = "info"


def _check(key: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        good, what = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        good, what = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number"
    else:
        good, what = isinstance(value, str), "a text"
    if not good:
        raise ConfigError(f"{key} must be {what}, not {value!r}")


def parse(text: str) -> Config:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    defaults = Config()
    for key, value in values.items():
        if not hasattr(defaults, key) or key.startswith("_"):
            raise ConfigError(f"{key} is not a known key")
        _check(key, value, getattr(defaults, key))
    config = Config(**values)
    for key, allowed in (("unsliced", UNSLICED), ("log_level", LEVELS)):
        if getattr(config, key) not in allowed:
            raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {getattr(config, key)!r}")
    for key in ("lease_s", "reconcile_s"):
        if getattr(config, key) < 1:
            raise ConfigError(f"{key} must be at least 1")
    for key in ("runtime_path", "legacy_hook_config"):
        if getattr(config, key) and not getattr(config, key).startswith("/"):
            raise ConfigError(f"{key} must be an absolute path")
    return config


def load(path: Path | None) -> Config:
    """The given file, which must exist, or the default one, which need not."""
    chosen = path or DEFAULT_PATH
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError(f"{chosen}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: {error}") from error
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{chosen}: {error}") from error
