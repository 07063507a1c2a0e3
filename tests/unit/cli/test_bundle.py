# SPDX-License-Identifier: MIT
"""cgpu doctor --bundle: what a bug report has, and that secrets are not in it."""

from __future__ import annotations

import json
import stat
import string
import tarfile
from pathlib import Path

import pytest
from commands import refused
from fake_daemon import daemon_at, packed
from fake_tree import ID1, ID2, Cli, Tree, inst_line, sample, write
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_cli.redact import GONE, redact

SECRET = "hunter2-4f9c1d"
OWN = "swordfish-77ab"  # of our own environment: removed wherever it appears
COOKIE = 0xC69D0123456789AB


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sample(monkeypatch)


@pytest.fixture
def planted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A secret wherever a node has one: environments, configuration, cookies, an engine's files, names of nodes."""
    root = tree.root
    monkeypatch.setenv("REGISTRY_PASSWORD", OWN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", OWN + "x")
    write(tree.proc / "0/own", f"as in the environment: {OWN}x {OWN}")
    write(root / "proc/19772/environ", f"TOKEN={SECRET}\0")
    write(root / "proc/19772/cmdline", f"train\0--api-key={SECRET}")
    write(root / "proc/cmdline", f"root=/dev/sda token={SECRET}")
    write(root / "etc/cgpu/cgpu.toml", f'# {SECRET}\nmetrics = "{SECRET}"\n[gpu]\npolicy = "fixed"\nuvm = "{SECRET}"\n')
    write(root / "etc/cgpu/cgpu.toml.d/x.toml", f'password = "{SECRET}"\n["gpu {SECRET}"]\nslice_us = 5000\n')
    write(root / "etc/docker/daemon.json", f'{{"http-proxy": "http://me:{SECRET}@proxy", "bad": {SECRET}')
    write(root / "usr/bin/dockerd", "")
    write(root / "etc/nvidia-container-runtime/config.toml", f'token = "{SECRET}')
    write(root / "usr/bin/nvidia-container-runtime", "")
    file = {"Name": "/gpu_test1", "Config": {"Env": [f"PASSWORD={SECRET}"]}}
    write(root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps(file))
    tree.listed(inst_line(ID1, COOKIE), inst_line(ID2, 7))
    write(tree.proc / "0/strange", f"db_password: {SECRET}\ncookie {COOKIE}\nurl=https://u:{SECRET}@host/")
    write(root / "sys/module/cgpu_km/parameters/max_objects", "262144")
    return tree


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]


def test_no_secret_is_in_it(planted: Tree, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    status = {"ok": True, "drift": [], "containers": [{"id": ID1, "bundle": "/b", "names": {}}], "x": SECRET}
    with daemon_at(planted.root, {"status": packed(status)}):
        result = Cli(planted).cgpu("doctor", "--bundle", str(path))
    assert result.exit_code == 7, result.output
    found = unpacked(path)
    everything = "\n".join([*found, *found.values()])
    assert SECRET not in everything
    assert OWN not in everything
    assert f"{COOKIE:x}" not in everything
    assert str(COOKIE) not in everything
    assert f"cookie={GONE}" in found["cgpu-report/files/proc/cgpu_km/inst_ctl"]


def test_what_helps_is_in_it(planted: Tree, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    assert Cli(planted).cgpu("doctor", "--bundle", str(path)).exit_code == 7
    found = unpacked(path)
    top = "cgpu-report/"
    assert json.loads(found[f"{top}versions.json"])["module"] == "0.1.0"
    assert {one["check"] for one in json.loads(found[f"{top}doctor.json"])} >= {"kernel", "driver", "cgpud"}
    assert json.loads(found[f"{top}cgpu-smi.json"])["gpus"][0]["containers"][0]["id"] == ID1
    assert json.loads(found[f"{top}cgpu.toml.json"])["cgpu.toml"]["gpu"]["policy"] == "fixed"
    assert "used_bytes" in found[f"{top}files/proc/cgpu_km/0/stat"]
    assert found[f"{top}files/parameters/max_objects"] == "262144\n"
    assert "580.105.08" in found[f"{top}files/proc/driver/nvidia/version"]


def test_only_its_owner_can_read_it(planted: Tree, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    Cli(planted).cgpu("doctor", "--bundle", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "nowhere/report.tar.gz", "/proc/report.tar.gz"])
def test_a_file_that_cannot_be_written(planted: Tree, tmp_path: Path, name: str) -> None:
    result = Cli(planted).cgpu("doctor", "--bundle", str(tmp_path / name) if name[:1] != "/" else name)
    refused(result, code=1 if name[:1] == "/" else 2)  # known before anything is tried: a wrong command line
    assert not list(tmp_path.glob("**/.cgpu-report-*"))


def test_without_the_module(tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    assert Cli(Tree(root)).cgpu("doctor", "--bundle", str(tmp_path / "x.tar.gz")).exit_code == 7
    assert "cgpu-report/doctor.json" in unpacked(tmp_path / "x.tar.gz")


NAMES = ("password", "DB_PASSWORD", "api_key", "api-key", "X-Auth-Token", "secret", "client_secret", "authorization")
VALUE = st.text(string.ascii_letters + string.digits + "._~+/-", min_size=6, max_size=40).map("Zq9".__add__)


@pytest.mark.parametrize(
    "form", ["{n}={v}", '{n}: "{v}"', "'{n}': '{v}'", '"{n}":"{v}",', "--{n}={v} more", "{n} = {v}"]
)
@settings(deadline=None)
@given(name=st.sampled_from(NAMES), value=VALUE)
def test_an_assigned_secret_is_removed(form: str, name: str, value: str) -> None:
    assert value not in redact(f"before {form.format(n=name, v=value)} after")


@settings(deadline=None)
@given(st.text(string.ascii_letters + " \n0123456789.,", max_size=200), VALUE)
def test_a_known_secret_is_removed(text: str, value: str) -> None:
    assert value not in redact(f"{text}{value}{text}", [value])


@pytest.mark.parametrize(
    "text",
    ["policy 2\nmax_inst 20", "tokens_per_second 12", "GPU-00000000-1111", "keys left out", "passed: 3 of 3"],
)
def test_plain_text_stays(text: str) -> None:
    assert redact(text) == text


def test_a_private_key_is_removed() -> None:
    text = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----\nb"
    assert redact(text) == f"a\n{GONE}\nb"
