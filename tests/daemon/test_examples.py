# SPDX-License-Identifier: MIT
"""The example configuration says the defaults, all of them, and the unit is one that systemd understands."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cgpud import config

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"


def test_the_example_is_the_defaults() -> None:
    text = (SYSTEMD / "cgpu.toml.example").read_text()
    assert tomllib.loads(text) == dataclasses.asdict(config.Config())
    assert config.parse(text) == config.Config()


def test_the_page_names_every_key() -> None:
    page = (SYSTEMD.parent / "docs/daemon.md").read_text()
    for field in dataclasses.fields(config.Config):
        assert f"`{field.name}`" in page, field.name


def test_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "cgpud.service"
    unit.write_text((SYSTEMD / "cgpud.service").read_text().replace("/usr/bin/cgpud", "/bin/true"))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True)
    assert "cgpud.service" not in done.stderr, done.stderr
