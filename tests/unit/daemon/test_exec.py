# SPDX-License-Identifier: MIT
"""exec into a container with a slice: refused with a capability that would undo the slice, by cgpu-runtime and cgpud.

Named in docs/security.md, finding 7.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fakes import Node
from test_oci import OTHER_NAMES
from test_shim import Answerer, Place, answerer, place

from cgpud import oci
from cgpud.store import Store
from cgpud.values import Phase, Record

ID = "5" * 64
#: As Docker 20.10 has them for a process of `docker exec`.
PLAIN = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETUID", "CAP_SYS_CHROOT")
REFUSAL = b'{"ok":false,"error":"no"}'

__all__ = ["answerer", "place"]  # fixtures


def record(place: Place, container_id: str = ID) -> None:
    """The file of the record, as cgpud writes it."""
    store = Store(place.directory / "state")
    store.open()
    store.save(Record(id=container_id, cookie=7, boot_id="b", bundle="/b", phase=Phase.PREPARED, deadline=0.0))


def process(place: Place, *names: str, sets: tuple[str, ...] = ("bounding", "effective", "permitted")) -> str:
    """A process file with these capabilities, as an engine writes it."""
    path = place.directory / "bundle/process.json"
    path.write_text(
        json.dumps(
            {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": ["echo", "CAP_SYS_ADMIN"],
                "env": ["PATH=/bin", "WANT=CAP_BPF"],
                "cwd": "/",
                "capabilities": {kind: list(names) for kind in sets},
                "apparmorProfile": "CAP_SYS_RAWIO",
            }
        )
    )
    return str(path)


# ---- cgpu-runtime ----


def test_the_two_lists_of_capabilities_are_one() -> None:
    text = Path("cgpud/runtime/exec_check.c").read_text()
    (body,) = re.findall(r"undoing_capabilities\[\] = \{(.*?)NULL", text, re.S)
    found = re.findall(r'"(\w+)", (\d+)', body)
    assert tuple(name for name, _ in found) == oci.UNDOING_CAPABILITIES
    assert all(oci.CAPABILITY_NUMBERS[int(number)] == name for name, number in found)


@pytest.mark.parametrize("name", [name for name in OTHER_NAMES if "\0" not in name])
def test_other_names_of_a_capability(place: Place, answerer: Answerer, name: str) -> None:
    """An argument is compared by the same function: test_every_form_of_the_command_line has one."""
    record(place)
    answerer.reply = REFUSAL
    done = place.run("exec", "--process", process(place, *PLAIN, name), ID)
    assert (done.returncode, place.handed_over()) == (1, None)
    assert [asked["capability"] for asked in answerer.asked] == ["CAP_SYS_ADMIN"]


KINDS = ("bounding", "effective", "permitted", "inheritable", "ambient")


@pytest.mark.parametrize(("capability", "kind"), list(zip(oci.UNDOING_CAPABILITIES, KINDS, strict=True)))
def test_a_capability_of_any_set_needs_permission(place: Place, answerer: Answerer, capability: str, kind: str) -> None:
    record(place)
    answerer.reply = REFUSAL
    done = place.run("exec", "--process", process(place, *PLAIN, capability, sets=(kind,)), ID)
    assert (done.returncode, place.handed_over()) == (1, None)
    assert done.stderr == "cgpu: no\n"
    assert answerer.asked == [{"op": "exec", "id": ID, "capability": capability}]


@pytest.mark.parametrize(
    "argv",
    [
        ["exec", "--process", "P", "ID"],
        ["exec", "--process=P", "ID"],
        ["exec", "-p", "P", "ID"],
        ["exec", "-p=P", "ID"],
        ["exec", "-pP", "ID"],
        ["exec", "-dp", "P", "ID"],
        ["exec", "-dtpP", "ID"],
        ["exec", "-process", "P", "ID"],
        ["--root", "/r", "--log", "/nowhere/l", "--log-format", "json", "--systemd-cgroup", "exec", "--process", "P",
         "--detach", "--pid-file", "/p", "--console-socket", "/c", "ID"],
        ["exec", "-u", "1000:1000", "-e", "A=1", "--cwd", "/", "-g", "1", "-t", "--process", "P", "--", "ID"],
        ["exec", "--cap", "CAP_SYS_ADMIN", "ID", "sh"],
        ["exec", "--cap=CAP_CHOWN", "--cap=CAP_SYS_ADMIN", "ID", "sh", "-c", "true"],
        ["exec", "-c", "CAP_SYS_ADMIN", "ID", "sh"],
        ["exec", "-tcCAP_SYS_ADMIN", "ID", "sh"],
        ["exec", "-c", "cap_sys_admin", "-p", "PLAIN", "ID", "sh"],
        ["exec", "--pidfd-socket", "S", "--cap", "CAP_SYS_ADMIN", "ID", "sh"],
        ["exec", "--no-new-privs", "--ignore-paused", "-tty", "--tty=true", "-d", "-c", "CAP_SYS_ADMIN", "ID", "sh"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_form_of_the_command_line(place: Place, answerer: Answerer, argv: list[str]) -> None:
    record(place)
    (place.bundle / "plain.json").write_text("{}")
    path = process(place, "CAP_SYS_ADMIN")
    words = {"P": path, "ID": ID, "PLAIN": str(place.bundle / "plain.json")}
    argv = [words.get(word, re.sub("P$", path, word) if word[-2:] in ("=P", "pP") else word) for word in argv]
    assert place.run(*argv).returncode == 7
    assert place.handed_over() == argv, "permitted: the words are unchanged"
    assert answerer.asked == [{"op": "exec", "id": ID, "capability": "CAP_SYS_ADMIN"}]
    answerer.reply = REFUSAL
    assert (place.run(*argv).returncode, place.handed_over()) == (1, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["exec", "--process", "P", ID],
        ["exec", ID, "sh", "-c", "--cap", "CAP_SYS_ADMIN"],
        ["exec", ID, "tool", "--process", "ALL"],
        ["exec", "-e", "CAP_SYS_ADMIN", "--process", "P", ID],
        ["exec", "--process", "/nowhere", ID],
        ["exec"],
        ["exec", "--cap", "CAP_SYS_ADMIN"],
        ["exec", "--cap"],
    ],
    ids=" ".join,
)
def test_without_such_a_capability_no_daemon_is_needed(place: Place, argv: list[str]) -> None:
    """The names stand elsewhere in the file, too."""
    record(place)
    path = process(place, *PLAIN)
    everything = place.bundle / "all.json"
    everything.write_text(json.dumps({"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}))
    argv = [{"P": path, "ALL": str(everything)}.get(word, word) for word in argv]
    assert place.run(*argv).returncode == 7
    assert place.handed_over() == argv


@pytest.mark.parametrize(
    "argv",
    [
        ["exec", "--new-socket", "S", "--cap", "CAP_SYS_ADMIN", ID, "sh"],
        ["exec", "--new-socket=S", "--cap", "CAP_SYS_ADMIN", ID, "sh"],
        ["exec", "--ca", "CAP_SYS_ADMIN", ID, "sh"],  # crun takes abbreviations
        ["exec", "--proc=/p.json", ID],
        ["exec", "-x", "S", "--process", "P", ID],
        ["exec", "-tx", "-cCAP_SYS_ADMIN", ID],
        ["exec", "-new", ID],
    ],
    ids=" ".join,
)
def test_an_unknown_option_of_exec_is_refused_beside_a_slice(place: Place, answerer: Answerer, argv: list[str]) -> None:
    """Whether the next word is its value, and what it gives, is not known."""
    (place.directory / "state").mkdir(exist_ok=True)
    assert place.run(*argv).returncode == 7, "no slice: nothing to lose"
    record(place)
    done = place.run(*argv)
    assert (done.returncode, place.handed_over()) == (1, None)
    assert f"exec has the option {argv[1]}, which is not known here" in done.stderr
    assert not answerer.asked


#: exec of runc 1.3 and crun 1.21, by their own --help: every option, in each form that has no value of its own.
EXEC_OPTIONS = [
    *("--console-socket S", "--pidfd-socket S", "--cwd /", "--env A=1", "-e A=1", "--tty", "-t", "--user 0", "-u 0"),
    *("--additional-gids 1", "-g 1", "--detach", "-d", "--pid-file F", "--process-label L", "--apparmor P"),
    *("--no-new-privs", "--cap CAP_CHOWN", "-c CAP_CHOWN", "--preserve-fds 1", "--cgroup c", "--ignore-paused", "-td"),
]


@pytest.mark.parametrize("option", EXEC_OPTIONS)
def test_every_option_of_the_runtimes_is_known(place: Place, option: str) -> None:
    record(place)
    argv = ["exec", *option.split(), ID, "sh"]
    assert (place.run(*argv).returncode, place.handed_over()) == (7, argv)


@pytest.mark.parametrize("others", [[], ["5" * 63, "5" * 65, "x", "../5", 'q"uote']], ids=["none", "others"])
def test_a_container_without_a_record_needs_no_daemon(place: Place, others: list[str]) -> None:
    """A node's own privileged containers are probed by exec: they depend on the engine only."""
    for one in others:
        record(place, one)
    (place.directory / "state").mkdir(exist_ok=True)
    (place.directory / "state/damaged.json").write_text('{"id": "')
    (place.directory / "state/grants").mkdir()
    assert place.run("exec", "--process", process(place, "CAP_SYS_ADMIN"), ID).returncode == 7
    for one in others:
        answer = place.run("exec", "--cap", "CAP_SYS_ADMIN", one, "sh")
        assert answer.returncode == 1, one
        assert "so a process with CAP_SYS_ADMIN in a container with a slice cannot start" in answer.stderr


def test_a_pipe_is_not_emptied(place: Place, tmp_path: Path) -> None:
    """What cannot be read twice is refused in a container with a slice, and untouched elsewhere."""
    pipe = tmp_path / "process"
    os.mkfifo(pipe)
    assert place.run("exec", "--process", str(pipe), ID).returncode == 7
    record(place)
    done = place.run("exec", "--process", str(pipe), ID)
    assert (done.returncode, place.handed_over()) == (1, None)
    assert "is no regular file, so it is not known whether the process could undo the slice" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        '{"capabilities": ["CAP_SYS_ADMIN"]}',
        '{"Capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}',
        '{"capabilities": {"bounding": ["CAP\\u005fSYS_ADMIN"]}}',
        '{"capabilities": {}, "args": [], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}',
        '{"capabilities": {"bounding": ["CAP_CHOWN"], "effective": null, "x": [[{"y": "cap_sys_admin"}]]}}',
    ],
)
def test_every_form_of_the_file(place: Place, answerer: Answerer, text: str) -> None:
    record(place)
    (place.bundle / "p.json").write_text(text)
    assert place.run("exec", "-p", "p.json", ID).returncode == 7
    assert len(answerer.asked) == 1


# ---- cgpud ----


def exec_in(node: Node, container_id: str) -> Any:
    return node.ask(op="exec", id=container_id, capability="CAP_SYS_ADMIN")


async def test_the_daemon_refuses_it_while_the_container_lives(node: Node) -> None:
    async with node.running():
        assert await exec_in(node, ID) == {"ok": True}
        await node.start(ID)
        refused = await exec_in(node, ID)
        assert not refused["ok"]
        assert "the container has a slice, which a process with CAP_SYS_ADMIN could undo" in refused["error"]
        assert "allow_privileged = true" in refused["error"]
        assert await exec_in(node, "another") == {"ok": True}
        assert set(node.link.containers) == {ID}
        await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert await exec_in(node, ID) == {"ok": True}


async def test_an_administrator_can_permit_it(node: Node) -> None:
    async with node.running() as daemon:
        await node.start(ID)
        daemon.config = type(daemon.config)(allow_privileged=True)
        assert await exec_in(node, ID) == {"ok": True}
