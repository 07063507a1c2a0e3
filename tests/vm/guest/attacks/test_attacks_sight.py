# SPDX-License-Identifier: MIT
"""What an unprivileged process of another container sees of a container outside of /proc/cgpu_km: sysfs and uevents."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slicebox import Box, fresh_id

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]


#: As uid 65534, in a network namespace of its own: prints each line that it is to look for, after a line of its parent
#: by which everything has happened.
LOOK = """
import os, socket, sys
events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)  # NETLINK_KOBJECT_UEVENT
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
events.bind((0, 1))
events.setblocking(False)
print("ready", flush=True)
for _ in sys.stdin:
    while True:
        try:
            print("event", events.recv(65536).replace(bytes(1), b" ").decode(errors="replace"))
        except BlockingIOError:
            break
    for top in ("/sys/class", "/sys/devices/virtual", "/sys/dev/char", "/sys/module/cgpu_km"):
        for root, folders, files in os.walk(top):
            for name in folders + files:
                path = os.path.join(root, name)
                print("path", path, os.readlink(path) if os.path.islink(path) else "")
    print("end", flush=True)
"""


class Neighbour:
    def __init__(self) -> None:
        argv = ["unshare", "--net", sys.executable, "-c", LOOK]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def sees(self) -> list[str]:
        """The events since the last call, and the names in sysfs now."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("look\n")
        self.process.stdin.flush()
        return list(itertools.takewhile(lambda line: line != "end", map(str.strip, self.process.stdout)))

    def close(self) -> None:
        self.process.communicate()


def test_no_id_and_no_event_of_another_container():
    neighbour = Neighbour()
    try:
        neighbour.sees()
        with Box(fresh_id(), 64) as box:
            words = (box.dir, box.name)
            during = neighbour.sees()
            stat = Path(box.dev, "nvidiactl").stat()
            number = Path(f"/sys/dev/char/{os.major(stat.st_rdev)}:{os.minor(stat.st_rdev)}")
            assert number.exists(), "which runc before 1.1.7 looks for"
            assert any(str(number) in line for line in during), "the neighbour reads the same sysfs"
        after = neighbour.sees()
        seen = during + after
        assert [line for line in seen if any(word in line for word in words)] == []
        assert [line for line in seen if line.startswith("event") and "cgpu" in line] == []
    finally:
        neighbour.close()


def test_the_neighbour_gets_uevents_at_all():
    """Or the other test could not fail: a device that the kernel makes is seen in that namespace."""
    neighbour = Neighbour()
    try:
        Path("/sys/class/mem/null/uevent").write_text("change\n")
        assert any("event" in line and "null" in line for line in neighbour.sees())
    finally:
        neighbour.close()
