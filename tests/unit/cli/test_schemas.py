# SPDX-License-Identifier: MIT
"""Every --json against its schema below docs/reference. A command without one fails the last test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schema
from commands import leaves
from engine_host import Host
from fake_daemon import daemon_at, packed
from fake_tree import ID1, ID2, Cli, Tree, inst_line, sample, write

from cgpu_cli import kernel, upgrade
from cgpu_cli.engines import ENGINES
from cgpu_cli.main import cgpu
from cgpu_common import figures

SCHEMA = schema.load("cgpu")
#: Commands with a schema of their own, and the tests that hold them to it.
OWN = {
    "status": "cgpu-smi.schema.json",  # test_smi, test_smi_views
    "events": "cgpu-events.schema.json",  # test_events
    "nodes": "cgpu-nodes.schema.json",  # test_nodes
}
SIMULATED = ("simulate", "--container", "name=a,weight=2,depth=8", "--container", "name=b,kernel_us=500,rate=50")
SIMULATED_S = (*SIMULATED, "--seconds", "0.5")
NEW = ("--gpu", "0", "--memsize", "1GiB")
CLUSTER = """
[[pool]]
name = "p"
nodes = 1
gpus = [15]
[[pod]]
name = "small"
count = 2
memory = 6
[[pod]]
name = "large"
memory = 60
"""
RUNS: dict[str, list[tuple[str, ...]]] = {
    "version": [("version",)],
    "ps": [("ps",), ("ps", "--gpu", "0")],
    "inspect": [("inspect", ID1, ID2)],
    "gpu list": [("gpu", "list")],
    "gpu show": [("gpu", "show", "0")],
    "set --dry-run": [
        ("set", "gpu", "0", "policy", "fair", "--dry-run"),
        ("set", "container", ID1, "weight", "5", "--dry-run"),
    ],
    "policy list": [("policy", "list")],
    "policy show": [("policy", "show"), ("policy", "show", "0")],
    "policy set": [("policy", "set", "fixed"), ("policy", "set", "native", "--dry-run")],
    "set gpu": [
        ("set", "gpu", "0", "max_inst", "10"),
        ("set", "gpu", "0", "uvm", "account"),
    ],
    "set container": [
        ("set", "container", ID1, "weight", "5"),
        ("set", "container", ID1, "ceiling", "5"),
        ("set", "container", ID1, "memsize", "200MiB"),
    ],
    "create": [("create", "new", *NEW), ("create", "other", *NEW, "--weight", "2", "--highprio", "--cookie", "7")],
    "destroy": [("destroy", ID1)],
    "cordon": [("cordon",)],
    "uncordon": [("uncordon",)],
    "drain": [("drain",)],
    "upgrade": [("upgrade",)],
    "upgrade --to": [("upgrade", "--to", "0.1.0")],
    "doctor": [("doctor",)],
    "stats": [("stats", "--no-stream")],
    "trace": [("trace", "--seconds", "0.1")],
    "simulate": [SIMULATED_S, (*SIMULATED_S, "--policy", "native"), (*SIMULATED_S, "--alone", "--gpus", "2")],
}


def check(name: str, text: str) -> Any:
    """The document, which must fit the definition of that command."""
    data = json.loads(text)
    schema.validate(data, SCHEMA["$defs"][name], SCHEMA)
    return data


@pytest.fixture
def full(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """With every node of a container and of the GPU that a command may read."""
    sample(monkeypatch)
    for node, value in (("overcommit", 100), ("default_memsize", 8 << 30)):
        write(tree.proc / "0" / node, str(value))
    for one in (ID1, ID2):
        write(tree.proc / "0" / one[:12] / "host_memsize", "0")
        write(tree.proc / "0" / one[:12] / "ipc", "")
    return tree


STATUS = {
    "ok": True,
    "version": "0.1.0",
    "drift": [{"gpu": 0, "index": 0, "key": "policy", "configured": "fixed", "live": "weighted"}],
    "containers": [{"id": ID1, "names": {"name": "main", "pod": "train-0", "namespace": "ml"}, "phase": "bound"}],
}


@pytest.mark.parametrize("with_daemon", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_a_document_fits_its_schema(full: Tree, name: str, with_daemon: bool) -> None:
    option = ["--format", "json"] if name == "stats" else ["--json"]
    for words in RUNS[name]:
        if with_daemon:
            with daemon_at(full.root, {"status": packed(STATUS)}):
                result = Cli(full).cgpu(*words, *option)
        else:
            result = Cli(full).cgpu(*words, *option)
        assert result.exit_code in (0, 7), result.stderr
        for document in result.stdout.splitlines() if name == "stats" else [result.stdout]:
            check(name, document)


@pytest.mark.parametrize("engine", ENGINES)
def test_setup(engine: str, tmp_path: Path) -> None:
    host = Host(tmp_path, engine, None)
    for words in ((), ("--dry-run",), ("--undo",)):
        check("setup", host.ok(*words, "--json"))


def test_a_container_that_is_listed(full: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied tree does not list what is created."""

    def create(_self: object, container_id: str, *_more: object) -> None:
        full.slot(0, container_id)
        full.listed(inst_line(container_id, 3))

    monkeypatch.setattr(kernel.Files, "create", create)
    data = check("create", Cli(full).cgpu("create", "a" * 64, *NEW, "--highprio", "--json").stdout)
    assert data["created"]["gpus"] == [[0, 4]] and len(data["created"]["slots"]) == 1


def test_a_cold_upgrade(full: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    done = upgrade.Cold(None, "0.2.0", ["cgpu_km"], ["cgpu_km", "cgpu_core_0_2_0"], None, "0.2.0")
    monkeypatch.setattr(upgrade, "cold", lambda *_: done)
    check("upgrade --cold", Cli(full).cgpu("upgrade", "--cold", "--json").stdout)


def test_a_core_that_was_refused(full: Tree) -> None:
    write(full.proc / "upgrade", "0.1.1\n0.1.0\nlast: 0.1.2 -95 it cannot take over")
    assert check("upgrade", Cli(full).cgpu("upgrade", "--json").stdout)["last"]["result"]


def test_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    result = Cli(Tree(tmp_path)).cgpu("simulate", "--cluster", str(path), "--json")
    assert result.exit_code == 7, result.stderr
    check("simulate --cluster", result.stdout)


@pytest.mark.parametrize("words", [("ps", "--x"), ("inspect", "none"), ("set", "gpu", "0", "uvm", "x")])
def test_an_error(full: Tree, words: tuple[str, ...]) -> None:
    result = Cli(full).cgpu(*words, "--json")
    assert result.exit_code and result.stdout == ""
    check("error", result.stderr)


def test_every_command_with_json_has_a_schema() -> None:
    there = {
        " ".join(path) for path, command in leaves(cgpu) if any("--json" in param.opts for param in command.params)
    }
    assert there - set(OWN) == {name for name in RUNS if " --" not in name} | {"setup"}
    assert all((schema.FOLDER / name).exists() for name in OWN.values())


#: Of several documents, which add to them.
SHARED = {"container", "gpu_fields"}


def test_a_document_with_more_or_less_is_none() -> None:
    """Each definition lists its fields, and allows no other."""
    for name, one in SCHEMA["$defs"].items():
        if "properties" in one:
            key = "unevaluatedProperties" if "$ref" in one else "additionalProperties"
            assert one.get(key) is False or name in SHARED, name
            assert set(one["required"]) <= set(one["properties"]), name


def test_the_fields_are_those_of_the_figures() -> None:
    """In the same order, with the same sentences; a schema may say more."""

    def said(one: dict[str, Any], folder: str = "") -> dict[str, str]:
        out: dict[str, str] = {}
        for name, inner in one["properties"].items():
            out |= said(inner, f"{folder}{name}/") if "properties" in inner else {folder + name: inner["description"]}
        return out

    names = SCHEMA["$defs"]
    gpu = names["status"]["properties"]["gpus"]["items"]["properties"]
    box = said({"properties": dict(list(gpu["containers"]["items"]["properties"].items())[1:])})
    for rows, texts in (
        (figures.SLOT, said(names["container"])),
        (figures.GPU, said(names["gpu_fields"])),
        (figures.CARD, said(gpu["nvml"])),
        ((*figures.POD, *figures.RATES), box),
    ):
        assert list(texts) == [one.key for one in rows]
        assert [texts[one.key] for one in rows if not texts[one.key].startswith(one.about)] == []


#: Names of another thing in another document: `gpu` is its number, and in `gpu show` the GPU itself.
OF_OTHERS = {"after", "before", "cgpud", "containers", "control", "gpu", "lost", "nodes", "status", "weight", "why"}


def kinds(one: dict[str, Any], document: dict[str, Any]) -> frozenset[str]:
    """The types of a value, without null."""
    while "$ref" in one:
        one, document = schema.referred(one["$ref"], document)
    values = one.get("enum", [one["const"]] if "const" in one else [])
    if values:
        names = {"str": "string", "int": "number", "bool": "boolean"}
        return frozenset(names.get(type(value).__name__, "null") for value in values) - {"null"}
    types = one["type"] if isinstance(one["type"], list) else [one["type"]]
    return frozenset("number" if name == "integer" else name for name in types) - {"null"}


def test_a_name_has_one_type() -> None:
    """Over all documents: a reader of one takes the value of another for the same."""
    found: dict[str, set[frozenset[str]]] = {}

    def walk(node: Any, document: dict[str, Any]) -> None:
        if isinstance(node, dict):
            properties = node.get("properties")
            for name, one in properties.items() if isinstance(properties, dict) else ():
                if isinstance(one, dict) and one.keys() & {"$ref", "type", "enum", "const"}:
                    found.setdefault(name, set()).add(kinds(one, document))
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner, document)

    for path in sorted(schema.FOLDER.glob("*.schema.json")):
        document = json.loads(path.read_text())
        walk(document, document)
    assert len(found) > 100
    assert {name for name, types in found.items() if len(types) > 1} == OF_OTHERS
