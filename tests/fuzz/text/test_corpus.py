# SPDX-License-Identifier: MIT
"""The inputs that the fuzzers have found (`make fuzz-text`), once more, under ASan and UBSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from targets import HERE, PURE, RUNTIME, TARGETS, Target


def play(target: Target, tmp_path: Path, *sources: Path) -> subprocess.CompletedProcess[str]:
    program = target.build("cc", tmp_path / target.name, str(HERE / "replay.c"), sources=sources)
    inputs = sorted(map(str, target.corpus.iterdir()))
    assert len(inputs) >= 50, "the corpus is there"
    return subprocess.run([program, *inputs], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_input_holds(target: Target, tmp_path: Path) -> None:
    done = play(target, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{len(list(target.corpus.iterdir()))} inputs\n"


@pytest.mark.parametrize(
    ("name", "source", "check", "instead"),
    [
        ("parse", PURE / "text_parse.c", "if (*count >= CGPU_PARSE_GPUS)", "if (0)"),
        ("parse", PURE / "text_parse.c", "while (!at_end(c) && is_id_char(", "while (is_id_char("),
        ("json", RUNTIME / "json_scan.c", "if (end - p < 4)", "if (0)"),
        ("json", RUNTIME / "json_scan.c", "&& s.str.len < size)", ")"),
        ("cmdline", RUNTIME / "cmdline.c", "c->ids++;", ";"),
        ("cmdline", RUNTIME / "cmdline.c", "c->ids = 1;", ";"),
    ],
)
def test_a_missing_check_is_noticed(name: str, source: Path, check: str, instead: str, tmp_path: Path) -> None:
    """The corpus reaches the checks, of bounds first of all."""
    target = next(target for target in TARGETS if target.name == name)
    text = source.read_text()
    assert check in text
    without = tmp_path / source.name
    without.write_text(text.replace(check, instead))
    sources = tuple(without if path == source else path for path in target.sources)
    assert play(target, tmp_path, *sources).returncode != 0
