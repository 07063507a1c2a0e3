# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Text in and out of caller's buffers once more, under ASan, in a process that has it preloaded."""

import os
import subprocess
import sys
from pathlib import Path

import _build
import pytest

HERE = Path(__file__).parent


def test_buffers_under_asan():
    lib = subprocess.run([_build.CC, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(lib.stdout.strip())
    if not path.is_absolute():
        pytest.skip("no libasan.so beside the compiler")
    env = {
        **os.environ,
        "CGPU_ASAN": "1",
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
