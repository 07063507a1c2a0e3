# SPDX-License-Identifier: MIT
"""What kustomize and Helm make of deploy/, and its admission policies as an API server evaluates them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cel
import yaml

from cgpu_kube import quantity

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "deploy/kubernetes"
CHART = REPO / "deploy/helm/cgpu"
Object = dict[str, Any]


def loaded(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def kustomized(kubectl: Path, folder: Path = DEPLOY) -> list[Object]:
    return loaded(_kustomized(kubectl, folder))


@cache
def _kustomized(kubectl: Path, folder: Path) -> str:
    return subprocess.run([kubectl, "kustomize", folder], stdout=subprocess.PIPE, text=True, check=True).stdout


def named(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def rendered(helm: Path, values: Object, namespace: str = "cgpu-system", chart: Path = CHART) -> list[Object]:
    texts = rendered_texts(helm, values, namespace, chart)
    return [one for name, text in texts.items() if not name.endswith(".txt") for one in loaded(text)]


def chart_at(version: str, folder: Path) -> Path:
    """A copy of the chart for a cluster of @version. Helm's engine takes it from the cluster, and without one has a
    version of its own; so the copy has it in the place of the built-in object."""
    made = folder / version
    shutil.copytree(CHART, made)
    for path in (made / "templates").iterdir():
        path.write_text(path.read_text().replace(".Capabilities.KubeVersion.Version", f'"{version}"'))
    return made


def rendered_texts(helm: Path, values: Object, namespace: str = "cgpu-system", chart: Path = CHART) -> dict[str, str]:
    """By Helm's own engine, in a process of its own."""
    return _rendered(helm, json.dumps(values), namespace, chart)


@cache
def _rendered(helm: Path, values: str, namespace: str, chart: Path) -> dict[str, str]:
    code = (
        "import json, sys; from helm_python.chart import Chart, lint;"
        "chart = Chart.load(sys.argv[1]); values = json.loads(sys.argv[2]);"
        "print(json.dumps([chart.render(values, name='cgpu', namespace=sys.argv[3]), lint(sys.argv[1], values)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, chart, values, namespace],
        env={"PYTHONPATH": str(helm)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    texts, report = json.loads(done.stdout.splitlines()[-1])
    assert not [one for one in report.get("messages", []) if one.get("severity") in ("ERROR", 3)], report
    return texts


def notes_of(helm: Path, values: Object, chart: Path = CHART) -> str:
    """What `helm install` prints in the end."""
    texts = rendered_texts(helm, values, chart=chart)
    return next(text for name, text in texts.items() if name.endswith("NOTES.txt"))


def folded(value: Any) -> Any:
    """With the blanks of CEL and of sentences as one; without Helm's pull policy."""
    if isinstance(value, dict):
        return {key: folded(one) for key, one in value.items() if key != "imagePullPolicy"}
    if isinstance(value, list):
        return [folded(one) for one in value]
    return re.sub(r"\s+", " ", value).replace("[ ", "[") if isinstance(value, str) else value


#: Kubernetes' quantity library, on quantities as whole thousandths: parsed by cgpu_kube.quantity, not by apimachinery.
FUNCTIONS = {
    "quantity": lambda text: int(quantity.parse(text) * 1000),
    "isGreaterThan": lambda one, other: one > other,
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isInteger": lambda one: one % 1000 == 0,
    "asInteger": lambda one: one // 1000,
}


def evaluated(expression: str, base: Object, variables: Object) -> Any:
    context = cel.Context()
    for name, value in base.items():
        context.add_variable(name, value)
    context.add_variable("variables", variables)
    for name, function in FUNCTIONS.items():
        context.add_function(name, function)
    return cel.evaluate(expression, context)


def inputs(new: Object | None, old: Object | None, labels: Object | None, **request: Any) -> Object:
    """The variables of an expression. @labels: of the namespace."""
    return {
        "object": new,
        "oldObject": old,
        "namespaceObject": {"metadata": {"name": "team", "labels": dict(labels or {})}},
        "request": {
            "operation": "UPDATE" if old and new else "CREATE" if new else "DELETE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"], "extra": {}},
            **request,
        },
    }


class Policy:
    """A ValidatingAdmissionPolicy as the API server evaluates it; an error denies (failurePolicy: Fail)."""

    def __init__(self, found: Object) -> None:
        self.spec = found["spec"]
        assert self.spec["failurePolicy"] == "Fail"

    def sentences(
        self, new: Object | None, old: Object | None = None, labels: Object | None = None, **request: Any
    ) -> list[str]:
        """Why it is denied; empty: it passes."""
        base = inputs(new, old, labels, **request)
        if not all(evaluated(one["expression"], base, {}) for one in self.spec.get("matchConditions", [])):
            return []
        variables: Object = {}
        try:
            for one in self.spec.get("variables", []):
                variables[one["name"]] = evaluated(one["expression"], base, variables)
        except RuntimeError as error:  # of a function
            return [str(error)]
        found = []
        for one in self.spec["validations"]:
            try:
                passed = evaluated(one["expression"], base, variables)
            except RuntimeError as error:
                found.append(str(error))
            else:
                if not passed:
                    found.append(" ".join(one["message"].split()))
        return found


class Mutation:
    """A MutatingAdmissionPolicy as the API server applies it."""

    def __init__(self, found: Object) -> None:
        self.spec = found["spec"]
        assert self.spec["failurePolicy"] == "Fail"

    def apply(self, new: Object, **request: Any) -> Object:
        """The object after it."""
        base = inputs(new, None, None, **request)
        if not all(evaluated(one["expression"], base, {}) for one in self.spec["matchConditions"]):
            return new
        for one in self.spec["mutations"]:
            assert one["patchType"] == "ApplyConfiguration"
            # A typed message, Object.spec{a: 1}, is a map to the evaluator of the tests.
            text = re.sub(r"\bObject(\.\w+)*\{", "{", one["applyConfiguration"]["expression"])
            new = _merged(new, evaluated(re.sub(r"(?<=[{,])\s*(\w+):", r"'\1':", text), base, {}))
        return new


def _merged(one: Object, other: Object) -> Object:
    found = copy.copy(one)
    for key, value in other.items():
        assert not isinstance(value, list), "lists merge by their keys, which this does not know"
        found[key] = _merged(found.get(key, {}), value) if isinstance(value, dict) else value
    return found
