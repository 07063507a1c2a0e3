# SPDX-License-Identifier: MIT
"""scripts/setup of a checkout that was moved or copied: its Python environment is that of the old place."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
FILES = ("scripts/setup", "scripts/debian-archive", "scripts/kernel-debs", "scripts/requirements.txt", "pyproject.toml")
PACKAGES = ("apt-get", "dpkg-query")  # nothing is installed by a test

#: What the stamps have: the kind of links, and the lists of packages.
INPUTS = "echo links | cat - scripts/requirements.txt pyproject.toml | sha256sum"

#: Its environments have no pip, which takes seconds to install and would find nothing.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec /usr/bin/python3 "$@"
/usr/bin/python3 -m venv --without-pip "$3" && sed -i 's/--without-pip //' "$3/pyvenv.cfg"
"""


@pytest.fixture
def programs(tmp_path):
    directory = tmp_path / "programs"
    directory.mkdir()
    for folder in ("/usr/bin", "/usr/sbin", "/bin"):
        for path in Path(folder).iterdir():
            link = directory / path.name
            if path.name not in PACKAGES and not link.is_symlink():
                link.symlink_to(path)
    return directory


@pytest.fixture
def checkout(tmp_path):
    """With an environment that setup has made: an empty one, with the stamps."""
    place = tmp_path / "checkout"
    for name in FILES:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, place / name)
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", "build/venv"], cwd=place, check=True)
    # setup itself does not pass options, and the file has the whole command.
    config = place / "build/venv/pyvenv.cfg"
    config.write_text(config.read_text().replace("--without-pip ", ""))
    inputs = subprocess.run(["bash", "-c", INPUTS], cwd=place, check=True, capture_output=True).stdout
    for stamp in (".inputs", ".inputs.install"):
        (place / "build/venv" / stamp).write_bytes(inputs)
    return place


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    path = tmp_path / "python3.99"
    path.write_text(PYTHON)
    path.chmod(0o755)
    monkeypatch.setenv("SYSTEM_PYTHON", str(path))
    return path


def setup(place, programs):
    """Offline: pip finds nothing, so an environment that is made again does not become complete."""
    environ = {**os.environ, "PATH": str(programs), "PIP_NO_INDEX": "1"}
    return subprocess.run(["scripts/setup", "install"], cwd=place, env=environ, capture_output=True, text=True)


def test_a_checkout_that_stays_is_done(checkout, programs):
    done = setup(checkout, programs)
    assert (done.returncode, done.stderr) == (0, "")
    link = checkout.parent / "link"
    link.symlink_to(checkout)
    done = setup(link, programs)
    assert (done.returncode, done.stderr) == (0, ""), "by another name it is the same one"


def test_another_python_makes_it_again(checkout, programs, other_python):
    done = setup(checkout, programs)
    assert done.returncode != 0, "it would have had to install"
    assert "setup: venv: build/venv is of another Python, making it again" in done.stderr
    assert (checkout / "build/venv/.python").read_text() == f"{other_python}\n"


@pytest.mark.parametrize("python", ["python3.11", "/usr/bin/python 3"])
def test_a_python_that_is_no_path_is_named(checkout, programs, monkeypatch, python):
    monkeypatch.setenv("SYSTEM_PYTHON", python)
    done = setup(checkout, programs)
    assert done.returncode == 1 and f"SYSTEM_PYTHON={python} is no absolute path" in done.stderr
    assert (checkout / "build/venv/.inputs").exists(), "nothing has changed"


@pytest.mark.parametrize("how", ["moved", "copied"])
@pytest.mark.usefixtures("other_python")
def test_a_checkout_that_was_moved_or_copied_is_not_done(checkout, programs, how):
    other = checkout.parent / "other"
    if how == "moved":
        checkout.rename(other)
    else:
        shutil.copytree(checkout, other, symlinks=True)
    done = setup(other, programs)
    assert done.returncode != 0, "it would have had to install"
    assert "setup: venv: build/venv is that of another folder, making it again" in done.stderr
    assert f"-m venv {other}/build/venv\n" in (other / "build/venv/pyvenv.cfg").read_text()
    assert not list((other / "build/venv").glob(".inputs*"))
    if how == "copied":
        assert (checkout / "build/venv/.inputs").exists(), "the first one is left alone"
