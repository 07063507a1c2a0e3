# SPDX-License-Identifier: MIT
"""The example configuration names every key and changes nothing as it is; systemd understands the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cgpu_common import config
from cgpu_common.settings import Caps, GpuSettings

SYSTEMD = Path(__file__).resolve().parents[3] / "systemd"
EXAMPLE = (SYSTEMD / "cgpu.toml.example").read_text()
PAGE = (SYSTEMD.parent / "docs/reference/configuration.md").read_text()


def parsed(text: str) -> config.Config:
    return config.merge([("example", tomllib.loads(text))])


def test_as_it_is_the_example_is_the_defaults() -> None:
    assert parsed(EXAMPLE) == config.Config()


def test_every_key_is_there_and_good() -> None:
    text = re.sub(r"^# (?=\[|\w+ = )", "", EXAMPLE, flags=re.M)
    values = tomllib.loads(text)
    gpu, container = values.pop("gpu"), values.pop("container")
    tables = [name for name, value in gpu.items() if isinstance(value, dict)]
    assert set(values) == set(config.NODE_KEYS)
    assert set(gpu) - set(tables) == set(config.GPU_KEYS)
    assert set(container) == set(config.CONTAINER_KEYS)
    whole = parsed(text)
    assert set(whole.gpus) == {"0", "0000:01:00.0", "gpu-b084ae33-e244-0959-cd97-830000000000"}
    assert whole.gpu == GpuSettings(5, 20, 80, 0, 0, 100, 0, "allow")
    assert whole.container == Caps(8192, 1.0, 25, "allow", "allow", "optional", 25)


def test_every_key_is_explained() -> None:
    """Each key, or a group of them, has a comment above."""
    lines = EXAMPLE.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"(# )?(\w+ = |\[)", line) and not re.match(r"(# )?(\w+ = |\[)", lines[number - 1]):
            assert lines[number - 1].startswith("# ") or lines[number - 1] == "", line


def test_the_page_names_every_key() -> None:
    for key in (*config.NODE_KEYS, *config.GPU_KEYS, *config.CONTAINER_KEYS):
        assert f"`{key}`" in PAGE, key


def test_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "cgpud.service"
    unit.write_text((SYSTEMD / "cgpud.service").read_text().replace("/usr/bin/cgpud", "/bin/true"))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True)
    assert "cgpud.service" not in done.stderr, done.stderr
