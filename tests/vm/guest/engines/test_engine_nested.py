# SPDX-License-Identifier: MIT
"""A runtime in a sliced container: runc in runc, the essence of Docker in Docker. docs/user/engines.md.

It needs CAP_SYS_ADMIN, so an administrator must have allowed it. The outer container's device rules hold for the inner
one too, whatever its own rules are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, Running, variables

pytestmark = pytest.mark.engines

OUTER = e.ROOT / "outer"
RUNC = ("/usr/sbin/runc", "--root", "/run/inner")
CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_CHROOT", "SYS_RESOURCE"),
    )
]


def make_outer_rootfs() -> None:
    """The machine's /usr, for runc and its libraries, and in /inner the rootfs of every container here."""
    OUTER.mkdir(parents=True, exist_ok=True)
    for name in ("dev", "etc", "inner", "proc", "run", "sys", "tmp", "usr"):
        (OUTER / name).mkdir(exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (OUTER / name).symlink_to(f"usr/{name}")


def outer_bundle(engine: ByHand) -> Path:
    where = engine.bundle(variables(6), ("/usr/bin/sleep", "100000"))
    spec = json.loads((where / "config.json").read_text())
    spec["root"]["path"] = str(OUTER)
    spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), CAPABILITIES)
    for mount in spec["mounts"]:
        if mount["destination"] == "/sys/fs/cgroup":
            mount["options"].remove("ro")
    for source, inside in (("/usr", "/usr"), (str(e.ROOTFS), "/inner")):
        spec["mounts"].append({"destination": inside, "type": "bind", "source": source, "options": ["rbind", "rw"]})
    (where / "config.json").write_text(json.dumps(spec))
    return where


@pytest.fixture(scope="module")
def outer() -> Iterator[Running]:
    e.make_rootfs()
    make_outer_rootfs()
    engine = ByHand("runc")
    with e.hands_over_to("runc"), e.configured("allow_privileged = true\n"):
        done, one = engine.start_bundle(outer_bundle(engine))
        assert done.returncode == 0, done.stderr
        try:
            yield one
        finally:
            engine.remove(one.id)
            d.until(e.nothing_is_left, "nothing is left of either")
            shutil.rmtree(OUTER)


def node(path: str, major: int, minor: int) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}


def outer_nodes(outer: Running) -> list[dict[str, Any]]:
    """The mounts of a nested engine that got `-v` for each node."""
    paths = outer.run("/bin/sh", "-c", "ls /dev/nvidia*").stdout.split()
    assert len(paths) == 3
    return [{"destination": path, "type": "bind", "source": path, "options": ["bind"]} for path in paths]


def write_bundle(nodes: list[dict[str, Any]], command: tuple[str, ...]) -> None:
    """A container of the inner runtime, with the variables of another slice and rules that allow everything."""
    made = ByHand("inner").bundle(
        variables(12),
        command,
        'root={"path": "/inner", "readonly": false}',
        'linux.resources.devices=[{"allow": true, "access": "rwm"}]',
        f"linux.devices={json.dumps([one for one in nodes if 'path' in one])}",
    )
    spec = json.loads((made / "config.json").read_text())
    spec["mounts"] += [one for one in nodes if "destination" in one]
    shutil.rmtree(made)
    where = OUTER / "tmp/bundle"
    where.mkdir(parents=True, exist_ok=True)
    (where / "config.json").write_text(json.dumps(spec))


def inner(outer: Running, nodes: list[dict[str, Any]], *command: str) -> e.Done:
    write_bundle(nodes, command)
    return outer.run(*RUNC, "run", "--bundle", "/tmp/bundle", e.fresh("inner"))


def test_it_shares_the_outer_slice(outer: Running) -> None:
    """The outer slice's size, not the one in the inner container's variables, and no second slice."""
    done = inner(outer, outer_nodes(outer), "/bin/simload", "--info", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["total_bytes"] == outer.memsize() == d.total_mib() * 6 // 15 * d.MIB
    assert set(e.directories()) == {outer.id}


@pytest.mark.parametrize(("beyond", "status"), [(-1024, 0), (1, d.OVER_LIMIT)], ids=["below", "above"])
def test_it_is_held_to_the_outer_limit(outer: Running, beyond: int, status: int) -> None:
    mib = outer.memsize() // d.MIB + beyond
    load = ("/bin/simload", "--hold", "--alloc-mib", str(mib), "--seconds", "0.1")
    done = inner(outer, outer_nodes(outer), *load)
    assert done.returncode == status, done.stderr


def test_what_it_takes_is_the_outer_containers(outer: Running) -> None:
    """For as long as it lives; its end is not the outer one's."""
    write_bundle(outer_nodes(outer), e.HOLD)
    quietly = "run --detach --bundle /tmp/bundle held </dev/null >/tmp/said 2>&1"
    done = outer.sh(f"{' '.join(RUNC)} {quietly}")
    assert done.returncode == 0, (OUTER / "tmp/said").read_text()
    d.until(outer.holds_memory, "charged to the outer one")
    assert set(e.directories()) == {outer.id}
    assert outer.run(*RUNC, "delete", "--force", "held").returncode == 0
    d.until(lambda: not outer.holds_memory(), "given back")
    assert outer.is_sliced()


def test_without_nodes_it_has_none(outer: Running) -> None:
    done = inner(outer, [], "/bin/sh", "-c", "ls /dev")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout


def test_the_driver_is_out_of_reach(outer: Running) -> None:
    """Its own rules allow everything, and it makes the driver's node, as `--device` does with the numbers from stat().
    The outer container's rules hold below it.
    """
    done = inner(outer, [node("/dev/nvidiactl", 195, 255)], "/bin/sh", "-c", "ls /dev/nvidiactl && : </dev/nvidiactl")
    assert "/dev/nvidiactl" in done.stdout, done.stderr
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
