# SPDX-License-Identifier: MIT
"""make forward, on a machine with a driver but no card that can be reached otherwise: build/forward.json."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import home as h

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/rmclient"))

import nvclient  # noqa: E402

#: Of the walk: all but "managed", where the GPU has to raise page faults, which the simulated card does not.
WALK = "context memory host module launch streams events graph graph-by-hand vmm export pools ipc over primary contexts"
STEPS = (
    (["smi"], 600.0),
    (["walk"], 1500.0),
    (["limit"], 900.0),
    (["ratio"], 1200.0),
)


@contextlib.contextmanager
def held_card() -> Iterator[nvclient.Gpu]:
    """The GPU by NVIDIA's nodes, open throughout; RM keeps some of what a first context takes."""
    with nvclient.Node("nvidia0"):
        with nvclient.Client() as first:
            space = first.gpu(0).space()
            channel = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS).channel(enable=False)
            space.bind(channel)
        with nvclient.Client() as client:
            yield client.gpu(0)


def free_bytes(card: nvclient.Gpu) -> int:
    return int(card.fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE)[0]) << 10


def host_driver() -> str:
    version = Path("/proc/driver/nvidia/version").read_text()
    return next(word for word in version.split() if re.fullmatch(r"\d+\.\d+\.\d+", word))


def write(path: Path, outcomes: list[h.Outcome], lost: int) -> bool:
    """build/forward.json; whether all is well."""
    results = {str(line["name"]): line for outcome in outcomes for line in outcome.results}
    ended = {outcome.step: outcome.why for outcome in outcomes if outcome.why}
    ratio = results.get("ratio", {})
    programs = {name: line["ok"] for name, line in results.items() if name != "ratio"}
    report = {
        "host_driver": host_driver(),
        "programs": programs,
        "ratio": {key: ratio.get(key) for key in ("asked", "got", "error_pct", "works_per_s", "controls")},
        "over_limit": results.get("over the limit", {}).get("error"),
        "heap_lost_bytes": lost,
        "calls_not_forwarded": sorted(
            {line.partition(":")[0] for outcome in outcomes for line in outcome.not_forwarded}
        ),
        "seconds": {outcome.step: round(outcome.seconds, 1) for outcome in outcomes},
        "failed_steps": ended,
        "simulated": True,
        "ok": bool(not ended and programs and all(programs.values()) and ratio.get("ok") and not lost),
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    return bool(report["ok"])


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", help="only these")
    parser.add_argument("--walk", default=WALK, help="steps of the walk")
    options = parser.parse_args()
    build = REPO / "build"
    names = ("PATH", "LD_LIBRARY_PATH", "LANG")
    home = h.Home(
        linux=build / "kernels/uml/linux",
        modules=build / "modules/uml",
        nvforwardd=build / "client/nvforwardd",
        environment={name: os.environ[name] for name in names if name in os.environ} | {"HOME": "/tmp"},
    )
    outcomes = []
    with held_card() as card:
        home.environment.update(h.card_environment(home, build / "gpu/gpuload"))
        before = free_bytes(card)
        for step, limit_s in STEPS:
            if options.steps and step[0] not in options.steps:
                continue
            words = options.walk.split() if step[0] == "walk" else []
            outcome = h.play(home, build / "forward", [*step, *words], limit_s)
            outcomes.append(outcome)
            print(f"{step[0]}: {outcome.why or 'done'} in {outcome.seconds:.0f} s", flush=True)
            for line in outcome.results:
                print(f"    {json.dumps(line)}", flush=True)
        lost = before - free_bytes(card)
    return 0 if write(build / "forward.json", outcomes, lost) else 1


if __name__ == "__main__":
    sys.exit(main())
