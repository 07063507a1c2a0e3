# SPDX-License-Identifier: MIT
"""The fuzzer's guide (tests/fuzz/guide.c) in a maze whose rooms are behind one another, in user space."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
STEPS = 200_000
INNERMOST = 9
SEEDS = range(1, 6)
CHAINS_MAX = 2048
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("maze") / "maze"
    words = ["cc", *FLAGS, "-fno-sanitize-recover=all", "-o", program, FUZZ / "maze.c", FUZZ / "guide.c"]
    subprocess.run(words, check=True, timeout=120)
    return program


def run(maze: Path, seed: int, steps: int, *words: object) -> Run:
    return subprocess.run([str(w) for w in (maze, seed, steps, *words)], capture_output=True, text=True, timeout=120)


def walk(maze: Path, seed: int, steps: int, *words: object) -> list[int]:
    """The deepest room, the step that came there, the chains of the corpus."""
    done = run(maze, seed, steps, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_guided_steps_come_to_the_innermost_room(maze: Path, seed: int) -> None:
    assert walk(maze, seed, STEPS, "guided")[0] == INNERMOST


@pytest.mark.parametrize("seed", SEEDS)
def test_unguided_ones_do_not(maze: Path, seed: int) -> None:
    """It would take 32 to the power of 8 tries: what the guided ones reach is the guide's."""
    assert walk(maze, seed, STEPS, "unguided")[0] <= 5


def test_a_second_run_begins_with_what_the_first_has_reached(maze: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    first = walk(maze, 1, STEPS, "guided", file)
    assert file.exists()
    depth, at, chains = walk(maze, 2, 1000, "guided", file)
    assert depth == INNERMOST
    assert at < 4 * first[2], "each chain of the file is played at once, unchanged"
    assert chains == first[2], "and what it reaches is not kept twice"


def test_a_file_that_is_no_corpus_is_refused_and_stays(maze: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    walk(maze, 1, STEPS, "guided", file)
    good = file.read_bytes()
    one_more = (int.from_bytes(good[8:12], "little") + 1).to_bytes(4, "little")
    longer = (1 << 20).to_bytes(4, "little")
    bad = {
        "empty": b"",
        "another's": b"\x7fELF" + good[4:],
        "cut": good[:-1],
        "longer": good + b"\0",
        "more chains than can be": good[:8] + (CHAINS_MAX + 1).to_bytes(4, "little") + good[12:],
        "more chains than are there": good[:8] + one_more + good[12:],
        "more steps than can be": good[:12] + longer + good[16:],
        "a share above 100": good[:16] + longer + good[20:],
        "more words than can be": good[:20] + longer + good[24:],
    }
    for what, content in bad.items():
        file.write_bytes(content)
        done = run(maze, 1, 1, "guided", file)
        assert (done.returncode, done.stdout) == (1, "Invalid argument, 0 chains\n"), what
        assert file.read_bytes() == content, what


def test_the_streams_of_a_seed_are_the_same_as_ever(maze: Path) -> None:
    """splitmix64: without a guide the steps of a seed stay what they were when it found something."""
    mask = (1 << 64) - 1

    def following(state: int) -> tuple[int, int]:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return state, z ^ z >> 31

    state = 17
    for salt in (1, 2, 3):
        state = following(state)[1] ^ salt
    words = []
    for _ in range(4):
        state, word = following(state)
        words.append(word)
    assert [int(line) for line in run(maze, 17, 0, "unguided").stdout.split()] == words
