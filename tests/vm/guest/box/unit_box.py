# SPDX-License-Identifier: MIT
"""cgpud as a unit, and containers in a systemd scope each, made by the systemd cgroup driver.

A process in each container answers through a pipe, so that its view can be read without the engine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker_box as d
import engine_box as e
from blocks import marked
from docker_box import call, must, until

UNIT = "cgpud.service"
CGPU = "/usr/bin/cgpu"
RUNTIME = "/usr/bin/cgpu-runtime"
CONF = Path("/etc/cgpu/cgpu.toml")
DRIVER = (195, 255)  # the real /dev/nvidiactl
# Few calls and few looks: without --poll-us three of them take half of a processor while a test waits.
LOAD = "--kernel-us 2000 --depth 1 --busy-ms 50 --idle-ms 1000 --poll-us 25000"

# A load of its own, and for each line in the pipe one report on the GPU and on the driver behind it.
TENANT = rf"""
busybox mkfifo /tmp/ask-$NAME
simload --seconds 0 --interval 1000 --alloc-mib 64 {LOAD} --json >/tmp/load-$NAME 2>&1 &
while :; do
    read line </tmp/ask-$NAME
    simload --info --json >/tmp/new-$NAME 2>&1
    busybox rm -f /tmp/alias-$NAME
    busybox mknod /tmp/alias-$NAME c {DRIVER[0]} {DRIVER[1]}
    said=$( ( : </tmp/alias-$NAME ) 2>&1 && echo opened )
    echo "{{\"driver\": \"$said\"}}" >>/tmp/new-$NAME
    busybox mv /tmp/new-$NAME /tmp/answer-$NAME
done
"""


def tenant(name: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", f"export PATH=/bin NAME={name}; {TENANT}")


# ---- the unit ----


def show(name: str, unit: str = UNIT) -> str:
    return must("systemctl", "show", "--property", name, "--value", unit).strip()


def main_pid() -> int:
    return int(show("MainPID"))


def is_active(unit: str = UNIT) -> bool:
    return call("systemctl", "is-active", "--quiet", unit).returncode == 0


def cursor() -> str:
    """The journal's end, as of now."""
    must("journalctl", "--sync")
    return must("journalctl", "--lines=0", "--show-cursor").rpartition("cursor: ")[2].strip()


def story(since: str) -> list[str]:
    """Log lines of the daemon, and systemd's about it, since a cursor. (--after-cursor omits the unit's first line.)"""
    must("journalctl", "--sync")
    return must("journalctl", "--unit", UNIT, "--output=cat", f"--cursor={since}").splitlines()


def configure(text: str) -> None:
    CONF.write_text(text)


def purge() -> None:
    """Purge the packages and unload the modules."""
    if call("dpkg-query", "--show", "cgpu").returncode == 0:
        must("dpkg", "--no-triggers", "--purge", "cgpu", "cgpu-dkms")
    if Path("/proc/cgpu_km").exists():
        unload()


def unload() -> None:
    """As install.md has it."""
    for command in marked((d.REPO / "docs/user/install.md").read_text())["unloaded"]:
        must("bash", "-c", command)


# ---- cgpu setup ----

#: The file that each engine reads, and the arguments of `cgpu setup`.
ENGINES = {
    "docker": (Path("/etc/docker/daemon.json"), ("--default",)),
    "containerd": (Path("/etc/containerd/config.toml"), ()),
    "podman": (Path("/etc/containers/containers.conf.d/cgpu.conf"), ()),
}


def engine_files() -> dict[str, bytes | None]:
    return {name: path.read_bytes() if path.exists() else None for name, (path, _) in ENGINES.items()}


def set_up(engine: str) -> None:
    """Sets the engine up and runs the command that `cgpu setup` prints as next."""
    done = json.loads(must(CGPU, "setup", engine, *ENGINES[engine][1], "--json"))
    assert done["changed"], done
    if done["next"]:
        must(*done["next"].split())


def undo(engine: str) -> None:
    done = json.loads(must(CGPU, "setup", engine, "--undo", "--json"))
    assert done["changed"], done


def wait_for_the_daemon(seconds: int) -> None:
    """Sets how long cgpu-runtime waits while the daemon does not listen."""
    e.CONF.parent.mkdir(parents=True, exist_ok=True)
    e.CONF.write_text(f"wait_s = {seconds}\n")


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Sets the longest wait for the daemon: the processors are emulated."""
    wait_for_the_daemon(60)
    try:
        yield
    finally:
        wait_for_the_daemon(0)


# ---- engines under the systemd cgroup driver ----


def runc() -> e.ByHand:
    return e.ByHand("runc", RUNTIME, ("--systemd-cgroup",))


def podman() -> e.Podman:
    found = e.Podman()
    changed = {str(d.RUNTIME): "nvidia", "--cgroup-manager=cgroupfs": "--cgroup-manager=systemd"}
    found.words = [changed.get(word, word) for word in found.words]
    return found


class Docker(e.Docker):
    """The distribution's own units; the driver is systemd's wherever systemd is process 1 and cgroups are v2."""

    @staticmethod
    def configure() -> None:
        """In one line with irregular spaces, a form that a JSON writer would not reproduce."""
        path = ENGINES["docker"][0]
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"bridge":"none", "iptables":false,"ip6tables": false,  "storage-driver" :"overlay2"}')


class Containerd:
    """The distribution's unit, and its file, which names no runtime."""

    ADDRESS = "/run/containerd/containerd.sock"
    CRI = 'plugins."io.containerd.grpc.v1.cri"'
    FILE = ENGINES["containerd"][0]

    @classmethod
    def configure(cls) -> None:
        """A pause container that is there; nothing else is another than the package brought it."""
        text, table = cls.FILE.read_text(), f"[{cls.CRI}]\n"
        assert text.count(table) == 1, text
        assert "runtimes" not in text, text
        cls.FILE.write_text(text.replace(table, f'{table}sandbox_image = "{e.IMAGE}"\n'))

    @classmethod
    def under_systemd(cls) -> None:
        """Configures runc as for a node with a kubelet under systemd's cgroup driver."""
        runc = f"{cls.CRI}.containerd.runtimes.runc"
        table = f'[{runc}]\nruntime_type = "io.containerd.runc.v2"\n[{runc}.options]\nSystemdCgroup = true\n'
        cls.FILE.write_text(cls.FILE.read_text() + table)

    @classmethod
    def parent(cls) -> str:
        """The cgroup of best-effort pods, in the form of the cgroup driver that the file names."""
        systemd = "SystemdCgroup = true" in cls.FILE.read_text()
        return "kubepods-besteffort.slice" if systemd else "/kubepods/besteffort"


# ---- a container that answers ----


def record(container: str) -> dict[str, Any]:
    """The daemon's record of the container."""
    return next(known for known in d.ask(op="status")["containers"] if known["id"] == container)


@dataclass
class Tenant:
    """A started container, with the settings it had from the start."""

    name: str
    one: e.Running
    pid: int = 0
    scope: str = ""
    memsize: int = 0
    weight: int = 0
    _works: int = field(default=0, repr=False)

    def settle(self) -> None:
        known = record(self.one.id)
        self.pid = known["pid"]
        self.scope = next(part for part in known["cgroup"].split("/") if part.endswith(".scope"))
        self.memsize, self.weight = self.one.memsize(), d.number(self.one.dir / "weight")
        until(self.one.holds_memory, f"{self.name} holds memory")
        until(self.inside("ask").exists, f"{self.name} listens")

    def inside(self, what: str) -> Path:
        return Path(f"/proc/{self.pid}/root/tmp/{what}-{self.name}")

    def question(self) -> None:
        self.inside("answer").unlink(missing_ok=True)
        self.inside("ask").write_text("?\n")

    def answer(self) -> dict[str, Any]:
        until(self.inside("answer").exists, f"{self.name} answers")
        text = self.inside("answer").read_text()
        found: dict[str, Any] = {}
        for line in text.splitlines():
            assert line.startswith("{"), f"{self.name} says: {text}"
            found |= json.loads(line)
        return found

    def pids(self) -> set[int]:
        group = Path("/sys/fs/cgroup") / record_path(self.pid)
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}

    def works(self) -> int:
        """Completed works, as the simulated GPU counts them."""
        mine, done = self.pids(), 0
        for line in Path("/proc/driver/nvsim/0/tsgs").read_text().splitlines():
            words = dict(word.split("=", 1) for word in line.split())
            done += int(words["works"]) if int(words["pid"]) in mine else 0
        return done

    def advances(self) -> bool:
        before, self._works = self._works, self.works()
        return self._works > before


def record_path(pid: int) -> str:
    """The cgroup of a process."""
    return Path(f"/proc/{pid}/cgroup").read_text().strip().partition("0::/")[2]


def assert_intact(tenants: list[Tenant]) -> None:
    """Limit, weight and memory as they were; the GPU opens and computes; the driver behind it does not open."""
    for each in tenants:
        each._works = each.works()
        each.question()
    for each in tenants:
        seen = each.answer()
        assert seen["total_bytes"] == each.memsize == each.one.memsize(), each.name
        assert "Operation not permitted" in seen["driver"], f"{each.name} and the driver's own node"
        assert d.number(each.one.dir / "weight") == each.weight, each.name
        assert each.one.holds_memory(), each.name
    for each in tenants:
        until(each.advances, f"{each.name} computes")


def start_tenant(engine: e.Engine, gib: int, weight: int) -> Tenant:
    found, name = Tenant(engine.name, None), engine.name  # type: ignore[arg-type]
    options = ("--cap-add=MKNOD",) if name == "docker" else ()
    done, found.one = engine.start(e.variables(gib, ALIYUN_COM_GPU_SCHD_WEIGHT=weight), tenant(name), *options)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    found.settle()
    return found
