# SPDX-License-Identifier: MIT
"""update of a container with a slice: the device rules in its resources, from before cgpud's edit, are taken out.

containerd's CRI hands over the whole of linux.resources for each update (a resize in place, the static CPU manager);
crun then replaces the container's device program.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_exec import ID, record
from test_shim import Place, place

__all__ = ["place"]  # a fixture

RULES = [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}]
RESOURCES: dict[str, Any] = {"memory": {"limit": 1 << 29}, "devices": RULES, "cpu": {"cpus": "0-1", "shares": 2}}


@pytest.fixture
def after(place: Place) -> Place:
    """The next runtime keeps its words, and the file of resources as runc and crun find it: the last word but one, or
    behind its =; - is standard input."""
    read = f"w=; for n; do case $n in *=*) w=${{n#*=}};; -r?*) w=${{n#-r}};; {ID}) ;; *) w=$n;; esac; done"
    read += f'\n[ "$w" = - ] && w=/dev/stdin\ncat "$w" >{place.directory}/read'
    place.next.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {place.record}\n{read}\nexit 7\n')
    (place.directory / "read").unlink(missing_ok=True)
    return place


def read(place: Place) -> str:
    return (place.directory / "read").read_text()


def file(place: Place, text: str) -> str:
    path = place.bundle / "resources.json"
    path.write_text(text)
    return str(path)


FORMS = [
    ["--root", "/r", "--log-format", "json", "update", "--resources", "FILE", ID],
    ["update", "--resources=FILE", ID],
    ["update", "-r", "FILE", ID],
    ["update", "-rFILE", ID],
    ["update", "-r=FILE", ID],
    ["update", "--reso=FILE", ID],  # crun
    ["update", "--memory", "7", "--cpu-quota=8", ID, "-r", "FILE"],
]


@pytest.mark.parametrize("argv", FORMS, ids=" ".join)
@pytest.mark.parametrize("by", ["file", "stdin"])
def test_the_device_rules_are_taken_out(after: Place, argv: list[str], by: str) -> None:
    record(after)
    text = json.dumps(RESOURCES)
    name = file(after, text) if by == "file" else "-"
    done = after.run(*(word.replace("FILE", name) for word in argv), stdin=text)
    assert (done.returncode, done.stderr) == (7, "")
    assert json.loads(read(after)) == {"memory": {"limit": 1 << 29}, "cpu": {"cpus": "0-1", "shares": 2}}
    instead = "/dev/stdin" if by == "file" else "-"
    assert after.handed_over() == [word.replace("FILE", instead) for word in argv], "all else is unchanged"


@pytest.mark.parametrize("by", ["file", "stdin"])
def test_a_container_without_a_record_keeps_its_own(after: Place, by: str) -> None:
    record(after, "5" * 63)
    text = json.dumps(RESOURCES)
    argv = ["update", "--resources", file(after, text) if by == "file" else "-", ID]
    assert after.run(*argv, stdin=text).returncode == 7
    assert (after.handed_over(), read(after)) == (argv, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"devices": [{"a": "]},{"}], "x": {"devices": [1]}}',
        '{"x": 1, "devices": [[], {}]}',
        '{"x": 1, "devices": null , "y": [ "devices", {"a": "b"} ] }',
        '{"devices": []}',
        '  {\n\t"devices"\n:\n[ ]\n}\n',
        '{"devices": [1], "Devices": "a,b", "x": "devices", "dev\\u0069ces": {"a": [1, 2]}}',
        '{"x": "devices", "y": ["devices", ":", 1], "z": "\\"devices\\": [1]"}',
        '{"a": 1, "devices": 1, "b": 2, "DEVICES": 2}',
        "{}",
        "[]",
        "null",
        json.dumps({"pids": {"limit": 5}, "devices": RULES * 2000}),
    ],
)
def test_every_form_of_the_file(after: Place, text: str) -> None:
    record(after)
    assert after.run("update", "-r", file(after, text), ID).returncode == 7
    whole = json.loads(text)
    left = (
        {key: value for key, value in whole.items() if key.lower() != "devices"} if isinstance(whole, dict) else whole
    )
    assert json.loads(read(after)) == left


@pytest.mark.parametrize("text", ['{"devices"', '{"devices":', '{"a":1,"devices":[', "{", "", '{,"devices":[1]', '"'])
def test_what_is_no_json_is_for_the_runtime_to_say(after: Place, text: str) -> None:
    record(after)
    assert after.run("update", "-r", file(after, text), ID).returncode == 7
    assert "[" not in read(after)


def test_what_cannot_be_known_is_refused(after: Place) -> None:
    record(after)
    name = file(after, json.dumps(RESOURCES))
    for argv, why in (
        (["update", "--new", name, ID], "update has the option --new, which is not known here"),
        (["update", "-r", name, "-r", name, ID], "--resources 2 times"),
        (["update", "-r", str(after.directory), ID], "cannot be read"),
    ):
        done = after.run(*argv)
        assert (done.returncode, after.handed_over()) == (1, None)
        assert why in done.stderr
    argv = ["update", "--new", name, "another"]
    assert (after.run(*argv).returncode, after.handed_over()) == (7, argv)


@pytest.mark.parametrize("argv", [["update", "--memory", "7", ID], ["update", ID], ["update", "-r", "/no/such", ID]])
def test_an_update_without_a_file_is_handed_over(place: Place, argv: list[str]) -> None:
    record(place)
    assert (place.run(*argv).returncode, place.handed_over()) == (7, argv)


def test_without_standard_input(after: Place) -> None:
    """Number 0 is free: it becomes that of the text, and is not closed."""
    record(after)
    argv = ["update", "-r", file(after, json.dumps(RESOURCES)), ID]
    env = {"PATH": f"{after.directory}:/usr/bin:/bin", "ASAN_OPTIONS": "detect_leaks=0"}
    line = ["sh", "-c", 'exec "$@" <&-', "sh", str(after.shim), *argv]
    done = subprocess.run(line, capture_output=True, text=True, timeout=20, env=env, cwd=after.bundle)
    assert (done.returncode, done.stderr) == (7, "")
    assert "devices" not in json.loads(read(after))


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_every_option_of_the_runtimes_is_known(runtime: str) -> None:
    found = [Path(directory) / runtime for directory in os.environ["PATH"].split(":")]
    path = next((one for one in found if one.exists()), None)
    if path is None:
        pytest.skip(f"no {runtime}")
    said = subprocess.run([path, "update", "--help"], capture_output=True, text=True, timeout=20).stdout
    options = {word.strip(",").split("=")[0].removeprefix("--") for word in said.split() if word.startswith("--")}
    assert options
    text = Path("cgpud/runtime/cmdline.c").read_text().partition("update_options[]")[2].partition("update_grammar")[0]
    assert not {one for one in options if f'"{one}"' not in text}
