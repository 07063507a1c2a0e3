# SPDX-License-Identifier: MIT
"""scripts/release: made of a commit, complete or nothing, and the same again. What it packs is made by stand-ins here;
level install makes the packages themselves."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

MAKEFILE = """
wheel:
\t@mkdir -p build/wheels && echo wheel >build/wheels/cgpu-1.2.3-py3-none-any.whl
deb:
\t@mkdir -p build/deb && cd build/deb && touch cgpu_1.2.3_amd64.deb cgpu-dkms_1.2.3_all.deb cgpu_1.2.2_amd64.deb
node-image:
\t@mkdir -p build/image && echo "for $(KERNELS)" >build/image/cgpu-node_1.2.3.tar
rpm:
\t@echo "rpm: there is no rpmbuild" >&2; exit 1
"""
IMAGE = """#!/bin/sh
[ "$1" != save ] || echo image >"$2"
"""


class Tree:
    """A checkout with what scripts/release looks at."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for folder in ("scripts", "deploy/helm/cgpu/files"):
            (top / folder).mkdir(parents=True)
        shutil.copy2(REPO / "scripts/release", top / "scripts/release")
        for name, text in {
            "VERSION": "1.2.3\n",
            "CHANGELOG.md": "## [1.2.3] - 2026-11-27\n",
            "Makefile": MAKEFILE,
            "deploy/image": IMAGE,
            "deploy/helm/cgpu/Chart.yaml": "name: cgpu\n",
            ".gitignore": "/build/\n",
        }.items():
            (top / name).write_text(text)
        (top / "deploy/helm/cgpu/files/pods.yaml").symlink_to("../../../../VERSION")
        (top / "deploy/image").chmod(0o755)
        self.git("init", "-q", "-b", "main")
        self.commit()

    def git(self, *words: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *author, *words], cwd=self.top, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def release(self, without: str = "rpm") -> subprocess.CompletedProcess[str]:
        names = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org", "KERNELS": "6.1 a/b"}
        return subprocess.run(
            [self.top / "scripts/release"],
            env={**os.environ, **names, "WITHOUT": without},
            capture_output=True,
            text=True,
        )

    @property
    def made(self) -> dict[str, str]:
        files = (self.top / "build/release").glob("*")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    @property
    def tags(self) -> str:
        return self.git("tag", "--list", "v1.2.3", "--format=%(*objectname)")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def test_all_that_a_release_has(tree: Tree) -> None:
    done = tree.release()
    assert done.returncode == 0, done.stderr
    assert "without rpm" in done.stdout and "git push origin v1.2.3" in done.stdout
    made = tree.made
    sums = made.pop("SHA256SUMS") and (tree.top / "build/release/SHA256SUMS").read_text()
    assert {line.split()[1]: line.split()[0] for line in sums.splitlines()} == made
    assert set(made) == {
        "cgpu-1.2.3.tar.gz",
        "cgpu-1.2.3-wheels.tar",
        "cgpu_1.2.3_amd64.deb",
        "cgpu-dkms_1.2.3_all.deb",
        "cgpu-chart-1.2.3.tgz",
        "cgpu-kube-1.2.3-image.tar",
        "cgpu-node-1.2.3-image.tar",
    }
    assert (tree.top / "build/release/cgpu-node-1.2.3-image.tar").read_text() == "for 6.1 a/b\n"
    with tarfile.open(tree.top / "build/release/cgpu-1.2.3.tar.gz") as source:
        names = [name for name in source.getnames() if not source.getmember(name).isdir()]
    assert sorted(names) == sorted(f"cgpu-1.2.3/{name}" for name in tree.git("ls-files").splitlines())
    with tarfile.open(tree.top / "build/release/cgpu-chart-1.2.3.tgz") as chart:
        assert "cgpu/Chart.yaml" in chart.getnames()
        assert chart.getmember("cgpu/files/pods.yaml").isfile(), "its links are followed"
    assert tree.tags == tree.git("rev-parse", "HEAD")
    assert tree.release().returncode == 0 and tree.made.keys() - {"SHA256SUMS"} == made.keys()
    assert {name: tree.made[name] for name in made} == made, "the same again"


def test_what_cannot_be_made_ends_it(tree: Tree) -> None:
    done = tree.release(without="")
    assert done.returncode != 0 and "there is no rpmbuild" in done.stderr
    assert tree.tags == "" and "SHA256SUMS" not in tree.made


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("new.c", "", "not committed"),
        ("VERSION", "1.2.4\n", "not committed"),
    ],
)
def test_a_tree_with_changes_is_refused(tree: Tree, name: str, text: str, why: str) -> None:
    (tree.top / name).write_text(text)
    done = tree.release()
    assert done.returncode == 1 and why in done.stderr and tree.tags == ""


def test_a_changelog_without_the_day_is_refused(tree: Tree) -> None:
    (tree.top / "CHANGELOG.md").write_text("## [1.2.3] - unreleased\n")
    tree.commit()
    done = tree.release()
    assert done.returncode == 1 and "has no line '## [1.2.3] - 2" in done.stderr


def test_a_version_is_one_commit(tree: Tree) -> None:
    assert tree.release().returncode == 0
    first = tree.tags
    (tree.top / "new.c").write_text("")
    tree.commit()
    done = tree.release()
    assert done.returncode == 1 and "raise the version in VERSION" in done.stderr
    assert tree.tags == first


def test_a_name_that_is_no_part(tree: Tree) -> None:
    done = tree.release(without="rpms")
    assert done.returncode == 1 and "there is no rpms; there are wheels deb rpm chart image node-image" in done.stderr
