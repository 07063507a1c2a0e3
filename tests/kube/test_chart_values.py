# SPDX-License-Identifier: MIT
"""values.schema.json of the chart: Helm refuses a key that is not there and a value of another type, by a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import CHART

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
#: Maps whose keys are the user's own.
FREE = {"node.nodeSelector", "extender.nodeSelector", "monitoring.labels"}
AMOUNTS = re.compile(r"\w+\.resources\.(requests|limits)")
OF_HELM = {"global"}  #: in the values of each chart that is part of another one
TYPES = {bool: "boolean", str: "string", int: "integer", list: "array", dict: "object"}


def leaves_out(path: str) -> bool:
    return path in FREE or AMOUNTS.fullmatch(path) is not None


def keys(value: Any, schema: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, value and schema of each value of the chart, those in the middle too."""
    for key, one in value.items():
        where = f"{path}.{key}" if path else key
        assert key in schema["properties"], f"{where} is not in values.schema.json"
        yield where, one, schema["properties"][key]
        if isinstance(one, dict) and not leaves_out(where):
            yield from keys(one, schema["properties"][key], where)


def test_the_schema_has_each_value_of_the_chart_and_no_other() -> None:
    found = list(keys(VALUES, SCHEMA))
    assert len(found) > 40
    for path, value, schema in found:
        assert schema["type"] == TYPES[type(value)], path
        assert schema["description"].endswith("."), path
        if isinstance(value, dict) and not leaves_out(path):
            assert schema["additionalProperties"] is False, path
            assert schema["properties"].keys() == value.keys(), path
    assert SCHEMA["additionalProperties"] is False
    assert SCHEMA["properties"].keys() - OF_HELM == VALUES.keys()


def test_each_value_that_a_template_reads_is_there() -> None:
    read = set()
    for path in (CHART / "templates").iterdir():
        read |= set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", path.read_text()))
    assert read <= {path for path, _, _ in keys(VALUES, SCHEMA)}


CASES: list[tuple[Any, str]] = [
    ({}, ""),
    ({"extender": {"replica": 3}}, "at '/extender': additional properties 'replica' not allowed"),
    ({"nodes": {"enabled": False}}, "at '': additional properties 'nodes' not allowed"),
    ({"node": {"resources": {"limit": {}}}}, "at '/node/resources': additional properties 'limit' not allowed"),
    ({"node": {"args": "--memory-unit=MiB"}}, "at '/node/args': got string, want array"),
    ({"node": {"args": ["memory-unit=MiB"]}}, "at '/node/args/0': 'memory-unit=MiB' does not match pattern"),
    ({"extender": {"replicas": "2"}}, "at '/extender/replicas': got string, want integer"),
    ({"extender": {"replicas": 0}}, "at '/extender/replicas': minimum: got 0, want 1"),
    ({"extender": {"clients": ["10.1.0.0"]}}, "at '/extender/clients/0': '10.1.0.0' does not match pattern"),
    ({"dra": {"enabled": "no"}}, "at '/dra/enabled': got string, want boolean"),
    ({"image": {"tag": 7}}, "at '/image/tag': got number, want string"),
    ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy': value must be one of 'Always', 'IfNotP"),
    ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
    ({"monitoring": {"labels": {"release": 1}}}, "at '/monitoring/labels/release': got number, want string"),
    ({"global": {"any": 1}, "monitoring": {"labels": {"release": "prometheus"}}}, ""),
    ({"extender": {"clients": ["10.1.0.0/24", "fd00::/8"], "nodeSelector": {"a": "b"}}}, ""),
    ({"node": {"resources": {"limits": {"memory": "128Mi", "cpu": 1}, "requests": {"cpu": 0.5}}}}, ""),
    ({"imagePullSecrets": [{"name": "registry"}]}, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers(helm: Path) -> list[str]:
    """Of Helm to the values of each case: "" or why it refuses. One process: loading Helm takes most of the time."""
    code = (
        "import json, sys; from helm_python.chart import Chart\n"
        "chart, found = Chart.load(sys.argv[1]), []\n"
        "for values in json.loads(sys.argv[2]):\n"
        "    try:\n"
        "        chart.render(values, name='cgpu', namespace='cgpu-system'); found.append('')\n"
        "    except Exception as error:\n"
        "        found.append(f'{type(error).__name__}: {error}')\n"
        "print(json.dumps(found))"
    )
    command = [sys.executable, "-c", code, str(CHART), json.dumps([values for values, _ in CASES])]
    done = subprocess.run(command, env={"PYTHONPATH": str(helm)}, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[json.dumps(values) for values, _ in CASES])
def test_helm_refuses_what_the_chart_does_not_know(answers: list[str], number: int) -> None:
    sentence = CASES[number][1]
    assert (
        (sentence in answers[number] and answers[number].startswith("HelmValuesError"))
        if sentence
        else (answers[number] == "")
    )
