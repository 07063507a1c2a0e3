# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

from cgpud import config
from cgpud.errors import ConfigError


def test_an_absent_default_file_is_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "none.toml")
    assert config.load(None) == config.Config()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "none.toml")


def test_every_key_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        """
default_memsize_mib = 8192
unsliced = "refuse"
allow_privileged = true
legacy_hook_config = "/etc/cgpu/hook.toml"
runtime_path = "/opt/cgpu-runtime"
lease_s = 5
reconcile_s = 7
log_level = "debug"
"""
    )
    assert config.load(path) == config.Config(
        8192, "refuse", True, "/etc/cgpu/hook.toml", "/opt/cgpu-runtime", 5, 7, "debug"
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("nonsense = 1", "nonsense"),
        ("__class__ = 1", "__class__"),
        ('unsliced = "maybe"', "unsliced"),
        ("allow_privileged = 1", "allow_privileged"),
        ("lease_s = true", "lease_s"),
        ("lease_s = 0", "lease_s"),
        ('lease_s = "5"', "lease_s"),
        ("default_memsize_mib = -1", "default_memsize_mib"),
        ('runtime_path = "cgpu-runtime"', "runtime_path"),
        ("runtime_path = 7", "runtime_path"),
        ("= 7", "not TOML"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=key) as caught:
        config.load(path)
    assert str(path) in str(caught.value)
