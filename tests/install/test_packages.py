# SPDX-License-Identifier: MIT
"""The Debian packages that go, and that are replaced by the next version: the engines' files, the configuration, DKMS.

No kernel has headers in these boxes: nothing is compiled; test_deb.py does that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from box import REPO, Box

VERSION = (REPO / "VERSION").read_text().strip()
NEXT = "0.1.1" if VERSION != "0.1.1" else "0.1.2"
DAEMON, DKMS = f"build/deb/cgpu_{VERSION}_amd64.deb", f"build/deb/cgpu-dkms_{VERSION}_all.deb"
JSON = "/etc/docker/daemon.json"
#: A form of JSON that no program would write.
BEFORE = '{ "debug": true,\n\t"proxies": {"http-proxy": "http://me:secret@proxy"} }'

#: A package of the next version: every version number replaced. dpkg-deb requires plain modes of control files.
REPACK = """
set -e
for deb in $debs; do
    rm -rf /tmp/deb
    dpkg-deb -R "$deb" /tmp/deb
    sed -i "s/$old/$new/g" /tmp/deb/DEBIAN/*
    if [ -d "/tmp/deb/usr/src/cgpu-$old" ]; then
        mv "/tmp/deb/usr/src/cgpu-$old" "/tmp/deb/usr/src/cgpu-$new"
        echo "$new" >"/tmp/deb/usr/src/cgpu-$new/VERSION"
    fi
    rm -f /tmp/deb/DEBIAN/md5sums
    dpkg-deb -Zgzip -z1 --root-owner-group -b /tmp/deb /tmp/next/ >/dev/null
done
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Box]:
    with Box() as box:
        box.must(f"dpkg -i {DAEMON}")
        box.must(f'mkdir -p /etc/docker && printf %s "$text" >{JSON}', text=BEFORE)
        box.must("cgpu setup docker --default")
        box.settle()
        yield box


@pytest.fixture
def box(installed: Box) -> Iterator[Box]:
    with Box(over=installed) as box:
        yield box


def test_removal_gives_the_engines_files_back(box: Box) -> None:
    """With a missing default-runtime no container starts at all, and cgpu is not there any more to undo it."""
    box.must("cgpu setup podman")
    said = box.must("dpkg --remove cgpu")
    assert box.must(f"cat {JSON}") == BEFORE
    box.must("test ! -e /etc/containers/containers.conf.d/cgpu.conf")
    assert f"cgpu: wrote {JSON}\ncgpu: next: " in said
    assert "secret" not in said, "apt logs this output"
    box.must("dpkg --purge cgpu && test ! -e /var/lib/cgpu")


def test_removal_keeps_what_was_edited_meanwhile(box: Box) -> None:
    edited = json.loads(box.must(f"cat {JSON}"))
    box.must(f'printf %s "$text" >{JSON}', text=json.dumps({**edited, "log-level": "warn"}))
    box.must("dpkg --remove cgpu")
    assert json.loads(box.must(f"cat {JSON}")) == {**json.loads(BEFORE), "log-level": "warn"}


def test_what_cannot_be_taken_out_is_named_and_its_record_stays(box: Box) -> None:
    box.must("cgpu setup podman")
    edited = json.loads(box.must(f"cat {JSON}"))
    edited["runtimes"]["nvidia"]["path"] = "/opt/mine"
    box.must(f'printf %s "$text" >{JSON}', text=json.dumps(edited))
    said = box.must("dpkg --remove cgpu")
    assert f"{JSON}: runtimes.nvidia was changed since cgpu setup" in said
    record = "/var/lib/cgpu/setup/docker.json"
    assert f"what it was before is in {record}" in said
    assert json.loads(box.must(f"cat {JSON}")) == edited
    box.must("test ! -e /etc/containers/containers.conf.d/cgpu.conf")
    said = box.must("dpkg --purge cgpu")
    assert "cgpu: /var/lib/cgpu/setup stays" in said
    assert json.loads(box.must(f"cat {record}"))["before"] == BEFORE


def test_units_enabled_by_hand_go_with_the_package(box: Box) -> None:
    box.check_units_by_hand(
        unit="/lib/systemd/system/cgpu-kube.service", update=f"dpkg -i {DAEMON}", remove="dpkg --remove cgpu"
    )


def test_a_configuration_that_the_daemon_refuses_is_said_at_the_update(box: Box) -> None:
    box.must("echo 'lease_s = \"soon\"' >/etc/cgpu/cgpu.toml")
    said = box.must(f"dpkg -i {DAEMON}")
    assert "lease_s" in said and "/etc/cgpu/cgpu.toml" in said
    assert "without it no container with a slice does" in said


def test_the_next_version_over_this_one(box: Box) -> None:
    """Engines and a changed configuration stay as they are; DKMS has the new sources and not the old ones."""
    box.must(f"dpkg -i {DKMS}")
    box.must("echo 'lease_s = 60' >/etc/cgpu/cgpu.toml && echo 'next = crun' >>/etc/cgpu/runtime.conf")
    kept = ("/etc/cgpu/cgpu.toml", "/etc/cgpu/runtime.conf", JSON, "/var/lib/cgpu/setup/docker.json")
    before = box.must(f"cat {' '.join(kept)}")
    assert box.must("dkms status cgpu").strip() == f"cgpu/{VERSION}: added"
    box.must("mkdir /tmp/next")
    box.must(REPACK, debs=f"{DKMS} {DAEMON}", old=VERSION, new=NEXT)
    box.must("dpkg -i /tmp/next/*.deb")
    told = box.must("dpkg-query -W -f '${Version} ${db:Status-Status}\\n' cgpu cgpu-dkms")
    assert told == f"{NEXT} installed\n" * 2
    assert box.must(f"cat {' '.join(kept)}") == before
    assert box.must("find /etc -name '*.dpkg-*' -path '*cgpu*'") == ""
    assert box.must("cd /usr/src && echo cgpu-*").strip() == f"cgpu-{NEXT}"
    assert box.must("dkms status cgpu").strip() == f"cgpu/{NEXT}: added"
    assert box.must("cd /var/lib/dkms/cgpu && echo *").strip() == NEXT
    box.must("test -L /etc/systemd/system/multi-user.target.wants/cgpud.service")
    assert box.must("cgpud --check") == ""
    box.must("dpkg --remove cgpu cgpu-dkms")
    assert box.must(f"cat {JSON}") == BEFORE
    assert box.must("dkms status cgpu") == ""
