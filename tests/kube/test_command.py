# SPDX-License-Identifier: MIT
"""cgpu-kube as a program: what it says without its libraries, and without an API server."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_api import kubeconfig

from cgpu_kube.main import EXTRA, kube

REPO = Path(__file__).resolve().parents[2]


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_missing_library_is_a_sentence() -> None:
    code = "import cgpu_kube.main as m; m.EXTRA = ('nothere.part', *m.EXTRA); m.main()"
    done = run(code, "node")
    assert done.returncode == 1
    sentence = (
        r"cgpu-kube: error: the library nothere.part is not installed: "
        rf"pip install --require-hashes --target \S+-kube -r {REPO}/scripts/kube.lock brings it"
    )
    assert re.match(sentence, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def test_its_libraries_are_those_of_the_extra() -> None:
    extra = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]["kube"]
    packages = {"google.protobuf": "protobuf", "grpclib": "grpclib", "yaml": "pyyaml"}
    assert {re.split(r"[<>=\[]", one.lower())[0] for one in extra} == {packages.get(one, one) for one in EXTRA}


def test_an_agent_that_never_served_is_not_started_again(tmp_path: Path) -> None:
    """Its status is that of the program."""
    words = ("node", "--kubelet-dir", str(tmp_path), "--kubeconfig", str(tmp_path / "none"))
    done = run("from cgpu_kube.main import main; main()", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("cgpu-kube: error:") and "none: No such file or directory" in done.stderr
    assert done.stderr.count("rror: ") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["--memory-unit", "TiB"], 2, "'TiB' is not one of"),
        (["--memory-limit", "100000000"], 1, "--memory-limit is 95 MiB, and both processes need 112"),
    ],
)
def test_a_wrong_option_of_the_agent_is_a_sentence(words: list[str], status: int, sentence: str) -> None:
    done = CliRunner().invoke(kube, ["node", *words], prog_name="cgpu-kube")
    assert done.exit_code == status and sentence in done.stderr and done.stderr.count("rror: ") == 1


def test_a_second_agent_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    """Two would answer cgpud in turns. It says so, makes no socket of its own, and ends at SIGTERM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.bind(str(tmp_path / "kube.sock"))
        first.listen()
        options = {
            "kubeconfig": kubeconfig(tmp_path, "http://127.0.0.1:1"),
            "socket": tmp_path / "kube.sock",
            "kubelet-dir": tmp_path,
            "state-dir": tmp_path,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        code = "from cgpu_kube.main import main; main()"
        second = subprocess.Popen([sys.executable, "-c", code, "node", *words], stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        said = next(line for line in second.stderr if "another cgpu-kube serves this node" in line)
        assert "this one waits for its end" in said and not (tmp_path / "device-plugins").exists()
        second.terminate()
        assert second.wait(30) == 0
