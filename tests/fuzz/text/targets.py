# SPDX-License-Identifier: MIT
"""Parsers under a fuzzer: `make fuzz-text` looks for new inputs, test_corpus.py plays those that are kept.

targets.py SECONDS: libFuzzer (clang) on each target, from its corpus and back into it; status 1 if an input fails.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]
sys.path.insert(0, str(REPO / "tests/soak"))

import record  # noqa: E402

RUNTIME = REPO / "cgpud/runtime"
PURE = REPO / "cgpu_km/pure"
BUILD = REPO / "build/fuzz"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-g", "-O1")
UNITS = "stat::number_of_executed_units:"  # of libFuzzer's output: the inputs tried
SANITIZE = ("-fno-sanitize-recover=all", "-fsanitize=address,undefined")


@dataclass(frozen=True)
class Target:
    """What is fuzzed, and the properties: `<name>.c`."""

    name: str
    sources: tuple[Path, ...]
    words: tuple[str, ...]  #: that the fuzzer may put into an input

    @property
    def corpus(self) -> Path:
        return HERE / "corpus" / self.name

    def build(self, compiler: str, out: Path, *more: str, sources: tuple[Path, ...] = ()) -> Path:
        """Compiles it; `sources` in place of its own."""
        sources = sources or self.sources
        folders = {f"-I{path.parent}" for path in self.sources} | {f"-I{REPO / 'cgpu_km'}", f"-I{HERE}"}
        files = [str(HERE / f"{self.name}.c"), *map(str, sources)]
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, *FLAGS, *SANITIZE, *more, *sorted(folders), *files, "-o", str(out)], check=True)
        return out


TARGETS = (
    Target(
        "json",
        (RUNTIME / "json_scan.c", RUNTIME / "text.c"),
        (
            *('"ALIYUN_COM_GPU_', '"CGPU_DISABLE=', '"ok":true', '"error":"', '"dir":', "\\\\u0041"),
            *('"capabilities":', '"CAP_SYS_ADMIN"', '"CAP_BPF"', "{", "}", "[", "]"),
        ),
    ),
    Target(
        "cmdline",
        (RUNTIME / "cmdline.c",),
        (
            *("create", "run", "restore", "--bundle=", "-b", "-f", "--config", "--log-format", "json", "\\x00", "-dbf"),
            *("exec", "-p", "--process=", "--cap", "-c", "-dt", "update", "-r", "--resources="),
        ),
    ),
    Target(
        "parse",
        (PURE / "text_parse.c", PURE / "text_sha256.c", PURE / "mem_ledger.c"),
        (
            *("create ", "destroy ", " gpu=", " memsize=", " weight=", " ceiling=", " highprio=1", " cookie=0x"),
            *("1048576", ",", "0"),
        ),
    ),
)


def fuzz(target: Target, seconds: int) -> bool:
    """Whether no input fails. One that does is left in build/fuzz; new ones that reach new code go to the corpus."""
    program = target.build("clang", BUILD / target.name, "-fsanitize=fuzzer")
    words = BUILD / f"{target.name}.dict"
    quoted = (word.replace('"', '\\"') for word in target.words)
    words.write_text("".join(f'"{word}"\n' for word in quoted))
    found = BUILD / f"{target.name}.found"
    found.mkdir(exist_ok=True)
    common = [str(program), f"-artifact_prefix={BUILD}/{target.name}-", "-max_len=4096", f"-dict={words}"]
    run = [*common, f"-max_total_time={seconds}", "-print_final_stats=1", str(found), str(target.corpus)]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, errors="replace") as fuzzer:
        inputs = 0
        for line in fuzzer.stderr:
            sys.stderr.write(line)
            if line.startswith(UNITS):
                inputs = int(line.split()[1])
    passed = fuzzer.returncode == 0
    record.add("fuzz-text", passed, "an input in build/fuzz", parser=target.name, seconds=seconds, inputs=inputs)
    subprocess.run([*common, "-merge=1", str(target.corpus), str(found)], check=True, capture_output=True)
    print(f"fuzz-text: {target.name}: {'ok' if passed else 'FAILED'}, {len(list(target.corpus.iterdir()))} inputs kept")
    return passed


if __name__ == "__main__":
    results = [fuzz(target, int(sys.argv[1])) for target in TARGETS]  # each, also after a failure
    sys.exit(not all(results))
