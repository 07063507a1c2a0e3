# SPDX-License-Identifier: MIT
"""tests/nvsim/load.py: the words that the module gets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

NVSIM = Path(__file__).resolve().parent


def load(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(NVSIM / "load.py"), "--print", "--module", "nvsim.ko", *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_each_release_of_the_module_can_be_loaded():
    header = (NVSIM / "module/nvsim.h").read_text()
    default = re.search(r'#define NVSIM_VERSION_DEFAULT\s+"([\d.]+)"', header)[1]
    table = re.search(r"releases\[\] = \{(.*?)\};", (NVSIM / "module/version.c").read_text(), re.S)[1]
    releases = [*re.findall(r'\{ "([\d.]+)"', table), default]
    assert len(releases) == table.count("}") >= 6
    for release in releases:
        assert f" version={release}" in load("--driver", release).stdout


def test_another_release_is_refused_by_name():
    found = load("--driver", "470.1")
    assert found.returncode == 2 and "'470.1'" in found.stderr and "535.261.03" in found.stderr
