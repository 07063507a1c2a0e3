# SPDX-License-Identifier: MIT
"""The rpm packages, with Debian's rpm on a throw-away Debian: no distribution that has them is at hand.

Dependencies are read, not resolved: the box's packages are in dpkg's database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import REPO, Box

pytestmark = pytest.mark.more

VERSION = (REPO / "VERSION").read_text().strip()
RPMS = " ".join(f"build/rpm/{name}" for name in (f"cgpu-{VERSION}-1.x86_64.rpm", f"cgpu-dkms-{VERSION}-1.noarch.rpm"))
DB = "--dbpath /var/lib/rpm"
PLACES = (
    ("/lib/systemd/", "/usr/lib/systemd/"),
    ("/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/"),
)
#: What only Debian's packages have.
DEBIANS = re.compile(r"/share/lintian/|/copyright$|/changelog(\.Debian)?(\.gz)?$|^/var/lib/dkms|/share/bug/")


class Installed:
    def __init__(self, box: Box) -> None:
        self.box = box
        self.release = box.add_kernel("6.1")
        box.must("echo autoinstall_all_kernels=1 >/etc/dkms/framework.conf.d/all.conf; mkdir -p /var/lib/rpm")
        box.must(f"rpm {DB} --initdb")
        # The scriptlets build for the kernel that runs, which is this machine's.
        box.must("mv /usr/bin/uname /usr/bin/uname.real")
        box.must(
            f"printf '#!/bin/sh\\n[ $1 = -r ] && exec echo {self.release}\\nexec uname.real \"$@\"\\n' >/usr/bin/uname"
        )
        box.must("chmod 755 /usr/bin/uname")
        self.before = self.tree()
        self.said = box.must(f"rpm {DB} -i --nodeps {RPMS}")

    def tree(self) -> dict[str, str]:
        return {path: what for path, what in self.box.tree().items() if not path.startswith("var/lib/rpm")}


@pytest.fixture(scope="module")
def on() -> Iterator[Installed]:
    with Box() as box:
        yield Installed(box)


def listed(box: Box, path: str) -> set[str]:
    return set(box.must(path).splitlines())


def test_the_files_are_those_of_the_debian_packages(on: Installed) -> None:
    """But for Debian's own, and the compiled Python, which Debian's postinst makes."""
    debs = " ".join(str(path) for path in sorted(Path("build/deb").glob(f"cgpu*_{VERSION}_*.deb")))
    ours = {path for path in listed(on.box, f"rpm {DB} -qpl {RPMS}") if "__pycache__" not in path}
    names = listed(on.box, f"for deb in {debs}; do dpkg-deb --fsys-tarfile $deb | tar -t; done")
    theirs = {name[1:] for name in names if not name.endswith("/")}
    for debians, usual in PLACES:
        theirs = {re.sub(f"^{debians}", usual, path) for path in theirs}
    assert {path for path in theirs - ours if not DEBIANS.search(path)} == set()
    more = {path for path in ours - theirs if on.box.run(f"test -d {path}").returncode}
    assert more == {f"/usr/src/cgpu-{VERSION}/LICENSE"}


def test_what_they_need(on: Installed) -> None:
    needs = listed(on.box, f"rpm {DB} -qp --requires {RPMS}")
    python = on.box.must("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    assert {f"python(abi) = {python}", "dkms", "systemd"} <= needs
    assert listed(on.box, f"rpm {DB} -qpc {RPMS}") == {"/etc/cgpu/cgpu.toml", "/etc/cgpu/runtime.conf"}


def test_the_modules_are_built(on: Installed) -> None:
    assert f"cgpu/{VERSION}, {on.release}, x86_64: installed" in on.box.must("dkms status"), on.said
    assert on.box.must(f"modinfo -k {on.release} -F version cgpu_km").strip() == VERSION


def test_the_programs_run(on: Installed) -> None:
    assert on.box.must("cgpu --version").strip() == f"cgpu {VERSION}"
    assert on.box.must("cgpud --check") == ""
    assert "runc" in on.box.must("cgpu-runtime --version")


def test_a_changed_configuration_is_kept(on: Installed) -> None:
    on.box.must("echo '# mine' >>/etc/cgpu/cgpu.toml")
    on.box.must(f"rpm {DB} -U --force --nodeps {RPMS}")
    assert "# mine" in on.box.must("cat /etc/cgpu/cgpu.toml")


def test_nothing_is_left(on: Installed) -> None:
    on.box.must(f"rpm {DB} -e --nodeps cgpu cgpu-dkms")
    left = {path for path, what in on.tree().items() if on.before.get(path) != what}
    assert "etc/cgpu/cgpu.toml.rpmsave" in left, "it was changed"
    # Folders and indexes of DKMS and depmod.
    left = {path for path in left if not path.startswith(("etc/cgpu", "lib/modules/", "var/lib/dkms"))}
    assert left == set()
    assert on.box.run("find /lib/modules /var/lib/dkms -name '*.ko*' | grep .").stdout == ""
    assert "cgpu" not in on.box.must("dkms status")


def test_units_enabled_by_hand_go_with_the_package() -> None:
    """In a box of its own, without the modules. Before, the packages are refused beside `make install`."""
    daemon, dkms = RPMS.split()
    with Box() as box:
        box.must(f"mkdir -p /var/lib/rpm && rpm {DB} --initdb")
        for package, path in ((daemon, "/usr/local/lib/cgpu/MANIFEST"), (dkms, "/usr/src/cgpu-0.0.9/dkms.conf")):
            box.must(f"mkdir -p {path.rpartition('/')[0]} && touch {path}")
            done = box.run(f"rpm {DB} -i --nodeps {package}")
            assert done.returncode != 0 and f"{path} is there already, of make install" in done.stdout
            box.must(f"rm {path}")
        box.must(f"test ! -e /usr/bin/cgpud && test ! -e /usr/src/cgpu-{VERSION}")
        box.must(f"rpm {DB} -i --nodeps {daemon}")
        box.check_units_by_hand(
            unit="/usr/lib/systemd/system/cgpu-kube.service",
            update=f"rpm {DB} -U --force --nodeps {daemon}",
            remove=f"rpm {DB} -e --nodeps cgpu",
        )
