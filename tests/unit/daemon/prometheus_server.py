# SPDX-License-Identifier: MIT
"""Debian's Prometheus with an hour of figures, and what it answers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import free_port

FOLDER = Path(__file__).resolve().parents[3] / "build/prometheus"
STEP_S, MINUTES = 15, 20
COUNTED = ("counter", "histogram")
Labels = Mapping[str, str]
#: Type and, for each set of labels, the value at the end.
Family = tuple[str, dict[tuple[tuple[str, str], ...], float]]


def program(name: str) -> Path:
    found = FOLDER / name
    if not found.exists():
        pytest.fail("scripts/setup-prometheus has not run: make setup-test runs it")
    return found


def _history(families: Mapping[str, Family], end: int) -> Iterator[str]:
    """OpenMetrics with times: gauges keep their value, counters grow from 0 to it."""
    times = range(end - MINUTES * 60, end + 1, STEP_S)
    for kind in ("gauge", "counter"):
        for name, (its_kind, values) in families.items():
            if (its_kind in COUNTED) != (kind == "counter"):
                continue
            yield f"# TYPE {name.removesuffix('_total')} {'counter' if name.endswith('_total') else 'unknown'}"
            for labels, value in values.items():
                text = ",".join(f"{key}={json.dumps(one)}" for key, one in labels)
                for at in times:
                    part = (at - times[0]) / (times[-1] - times[0]) if kind == "counter" else 1
                    yield f"{name}{{{text}}} {value * part!r} {at}"
    yield "# EOF"


class Server:
    def __init__(self, address: str, end: int) -> None:
        self._address, self.end = address, end

    def get(self, path: str, **words: object) -> Any:
        query = urllib.parse.urlencode(words)
        try:
            with urllib.request.urlopen(f"{self._address}/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as err:
            raise AssertionError(f"{words}: {err.read().decode()}") from err

    def series(self, query: str) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and values of the last five minutes of each series."""
        words = {"query": query, "start": self.end - 300, "end": self.end, "step": 60}
        rows = self.get("api/v1/query_range", **words)["result"]
        return [(row["metric"], [float(value) for _, value in row["values"]]) for row in rows]

    def label_values(self, label: str, match: str) -> list[str]:
        words = {"match[]": match, "start": self.end - 600, "end": self.end}
        found: Sequence[str] = self.get(f"api/v1/label/{label}/values", **words)
        return list(found)


@contextlib.contextmanager
def serving(folder: Path, families: Mapping[str, Family]) -> Iterator[Server]:
    end = int(time.time()) // 60 * 60 - 600
    (folder / "figures.txt").write_text("\n".join(_history(families, end)) + "\n")
    (folder / "prometheus.yml").write_text("{}")
    data = folder / "data"
    blocks = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", folder / "figures.txt", data]
    made = subprocess.run(blocks, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    port = free_port()
    command = [
        *(program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield _ready(Server(f"http://127.0.0.1:{port}", end), process, folder / "log")
        finally:
            process.terminate()


def _ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> Server:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, AssertionError):
            server.get("api/v1/status/buildinfo")
            return server
        time.sleep(0.1)
    pytest.fail(f"Prometheus did not start:\n{log.read_text()}")
