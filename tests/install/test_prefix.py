# SPDX-License-Identifier: MIT
"""make install and make uninstall: what is there in between, and that afterwards everything is as before."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from box import REPO, Box, tree

VERSION = (REPO / "VERSION").read_text().strip()


def install(verb: str, destdir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `make install` and `make uninstall` run."""
    return subprocess.run(
        [REPO / "scripts/install", verb],
        env={**os.environ, "DESTDIR": str(destdir), **variables},
        capture_output=True,
        text=True,
    )


def some_machine(top: Path) -> Path:
    """A root with folders of other programs in it."""
    for folder in ("etc/docker", "usr/local/bin", "usr/local/lib/systemd", "usr/bin", "usr/src"):
        (top / folder).mkdir(parents=True)
    (top / "etc/docker/daemon.json").write_text("{}\n")
    return top


@pytest.mark.parametrize("prefix", ["/usr/local", "/opt/cgpu"])
def test_nothing_is_left(tmp_path: Path, prefix: str) -> None:
    top = some_machine(tmp_path)
    before = tree(top)
    done = install("install", top, PREFIX=prefix)
    assert done.returncode == 0, done.stderr
    between = tree(top)
    there = {path for path in between if path not in before}
    for path in ("bin/cgpud", "lib/cgpu/cgpud/loop.py", "lib/systemd/system/cgpud.service", "share/man/man1/cgpu.1.gz"):
        assert f"{prefix[1:]}/{path}" in there
    assert {f"usr/src/cgpu-{VERSION}/dkms.conf", "etc/cgpu/cgpu.toml"} <= there
    unit = (top / prefix[1:] / "lib/systemd/system/cgpud.service").read_text()
    assert f"ExecStart={prefix}/bin/cgpud\n" in unit
    assert "/usr/bin/cgpu" not in unit
    assert {path: between[path] for path in before} == before
    # What Python leaves at the first start.
    (top / prefix[1:] / "lib/cgpu/cgpud/__pycache__").mkdir()
    done = install("uninstall", top, PREFIX=prefix)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(top) == before


def test_a_second_time_and_another_prefix_are_refused(tmp_path: Path) -> None:
    assert install("install", tmp_path).returncode == 0
    before = tree(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and str(REPO).encode() in path.read_bytes()]
    assert not [path for path in before if "__pycache__" in path]
    done = install("install", tmp_path)
    assert done.returncode == 1
    assert "uninstall first" in done.stderr
    done = install("uninstall", tmp_path, PREFIX="/usr")
    assert done.returncode == 1
    assert "another PREFIX" in done.stderr
    assert tree(tmp_path) == before


def test_a_configuration_that_was_changed_stays(tmp_path: Path) -> None:
    conf = tmp_path / "etc/cgpu/cgpu.toml"
    assert install("install", tmp_path).returncode == 0
    conf.write_text("lease_s = 60\n")
    done = install("uninstall", tmp_path)
    assert f"{conf} was changed and stays" in done.stderr
    assert [path for path, what in tree(tmp_path).items() if what != "directory"] == ["etc/cgpu/cgpu.toml"]
    done = install("install", tmp_path)
    assert "/etc/cgpu/cgpu.toml stays as it is" in done.stderr
    assert conf.read_text() == "lease_s = 60\n"


def test_it_runs_where_it_was_installed() -> None:
    with Box() as box:
        before = box.tree()
        box.must("scripts/install install", PYTHONPATH="/nowhere")
        assert box.must("/usr/local/bin/cgpu --version").strip() == f"cgpu {VERSION}"
        assert box.must("/usr/local/bin/cgpud --check") == ""
        # A stranger's module of the same name is not looked at.
        box.must("mkdir /tmp/evil && echo 'raise SystemExit(9)' >/tmp/evil/click.py")
        box.must("/usr/local/bin/cgpu --version", PYTHONPATH="/tmp/evil")
        box.must(f"dkms add cgpu/{VERSION}")
        box.must("scripts/install uninstall")
        assert "cgpu" not in box.must("dkms status")
        after = box.tree()
        assert {path: what for path, what in after.items() if before.get(path) != what} == {}
