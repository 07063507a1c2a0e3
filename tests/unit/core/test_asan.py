# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Text in and out of caller's buffers once more, under ASan, in a process that has it preloaded."""

import os
import subprocess
import sys
from pathlib import Path

import _build
import pytest

HERE = Path(__file__).parent


@pytest.fixture
def text(tmp_path):
    """What reads and writes text, and the one file of the core that it calls."""
    so = tmp_path / "text.so"
    sources = [*_build.PURE.glob("*.c"), _build.CORE / "sched_wait.c"]
    flags = [*_build.WARN, *_build.DEFINES, *_build.SANITIZE, "-fsanitize=address", "-g", "-shared", "-fPIC"]
    subprocess.run([_build.CC, *flags, "-o", so, *sources], check=True)
    return so


def test_buffers_under_asan(text):
    lib = subprocess.run([_build.CC, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(lib.stdout.strip())
    if not path.is_absolute():
        pytest.skip("no libasan.so beside the compiler")
    env = {
        **os.environ,
        "CGPU_CORE_SO": str(text),
        "LD_PRELOAD": str(path.resolve()),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "HYPOTHESIS_MAX_EXAMPLES": "20",
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_parse.py", "test_format.py"],
        cwd=HERE,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
