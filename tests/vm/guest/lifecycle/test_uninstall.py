# SPDX-License-Identifier: MIT
"""The packages are purged from the machine that has run on them, and nothing of them is left on its file system.

After test_systemd.py, in the same boot: its containers are gone, its engines stopped and as they were before setup.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import marked
from docker_box import REPO, call, must
from unit_box import CONF, UNIT, main_pid
from written_box import OTHERS, written

pytestmark = pytest.mark.systemd

VERSION = (REPO / "VERSION").read_text().strip()


def test_purge_leaves_nothing() -> None:
    wanted = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
    brought = {"/usr/lib/cgpu", f"/usr/src/cgpu-{VERSION}/dkms.conf", "/usr/bin/cgpud", str(CONF), wanted}
    assert brought <= written()
    must("systemctl", "start", UNIT)
    daemon = Path("/proc", str(main_pid()))
    must("dpkg", "--no-triggers", "--purge", "cgpu", "cgpu-dkms")
    assert not daemon.exists(), "a package that goes stops its daemon"
    assert call("systemctl", "cat", UNIT).returncode != 0
    for command in marked((REPO / "docs/user/install.md").read_text())["unloaded"]:
        must("bash", "-c", command)
    left = written()
    assert not [path for path in left if "cgpu" in path], left
    others = [path for path in sorted(left) if not f"{path}/".startswith(OTHERS)]
    assert not others, " ".join(others)
    assert not list(Path("/dev").glob("*cgpu*"))
    assert not [path for path in ("/run/cgpu", "/proc/cgpu_km") if Path(path).exists()]
