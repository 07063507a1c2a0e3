# SPDX-License-Identifier: MIT
"""make install and make uninstall: the installed files, and the same state as before afterwards."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from box import REPO, STOPPED_BY_HAND, Box, tree

VERSION = (REPO / "VERSION").read_text().strip()


def install(verb: str, destdir: Path, tree: Path = REPO, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command of `make install` and `make uninstall`."""
    return subprocess.run(
        [tree / "scripts/install", verb],
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


@pytest.mark.parametrize(
    ("prefix", "systems"),
    [("/usr/local", "usr/local/lib"), pytest.param("/opt/cgpu", "etc", marks=pytest.mark.more)],
)
def test_nothing_is_left(tmp_path: Path, prefix: str, systems: str) -> None:
    """@systems: where systemd finds the units, and the lists of modules and of temporary files."""
    top = some_machine(tmp_path)
    before = tree(top)
    done = install("install", top, PREFIX=prefix)
    assert done.returncode == 0, done.stderr
    assert "Next:" not in done.stdout, "a packager's scripts do the rest"
    between = tree(top)
    there = {path for path in between if path not in before}
    for path in ("bin/cgpud", "lib/cgpu/cgpud/loop.py", "share/man/man1/cgpu.1.gz"):
        assert f"{prefix[1:]}/{path}" in there
    for path in ("systemd/system/cgpud.service", "modules-load.d/cgpu.conf", "tmpfiles.d/cgpu.conf"):
        assert f"{systems}/{path}" in there
    assert {f"usr/src/cgpu-{VERSION}/dkms.conf", "etc/cgpu/cgpu.toml"} <= there
    assert (top / prefix[1:] / "bin/cgpud").read_text().startswith("#!/usr/bin/python3 -I\n")
    unit = (top / systems / "systemd/system/cgpud.service").read_text()
    assert f"ExecStart={prefix}/bin/cgpud\n" in unit
    assert "/usr/bin/cgpu" not in unit
    assert {path: between[path] for path in before} == before
    # Files that Python writes at the first start.
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
    done = install("uninstall", tmp_path)
    assert f"{conf} was changed and stays" in done.stderr, "it was there before, and is still to be named"
    assert conf.read_text() == "lease_s = 60\n"


@pytest.mark.more
def test_a_configuration_that_is_as_it_came_again_goes(tmp_path: Path) -> None:
    top, conf = some_machine(tmp_path), tmp_path / "etc/cgpu/cgpu.toml"
    before = tree(top)
    assert install("install", top).returncode == 0
    came = conf.read_text()
    conf.write_text("lease_s = 60\n")
    assert install("uninstall", top).returncode == 0
    assert install("install", top).returncode == 0
    conf.write_text(came)
    assert install("uninstall", top).returncode == 0
    assert tree(top) == before


@pytest.mark.parametrize("variable", ["PREFIX", "UNITDIR", "ZSHDIR", "SYSTEM_PYTHON"])
@pytest.mark.parametrize("folder", ["usr/local", "/opt/my cgpu", '/opt/"'])
def test_a_folder_that_is_none_is_named(tmp_path: Path, variable: str, folder: str) -> None:
    for verb in ("install", "uninstall"):
        done = install(verb, tmp_path / "root", **{variable: folder})
        assert done.returncode == 1
        assert done.stderr == f"install: {variable}={folder} is no absolute path of simple characters\n"
    assert list(tmp_path.iterdir()) == []


def test_a_destdir_that_is_not_there_is_made(tmp_path: Path) -> None:
    top = tmp_path / "a/b"
    assert install("install", top).returncode == 0
    assert (top / "usr/local/bin/cgpu").is_file()
    assert install("uninstall", top).returncode == 0
    assert tree(tmp_path) == {"a": "directory", "a/b": "directory"}


def test_what_breaks_off_can_be_removed(tmp_path: Path) -> None:
    """In the middle of the copying, with a full disk for instance."""
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin/cp"
    broken.write_text('#!/bin/sh\ncase "$*" in *stage/etc/cgpu*) exit 1 ;; esac\nexec /usr/bin/cp "$@"\n')
    broken.chmod(0o755)
    top = some_machine(tmp_path / "root")
    before = tree(top)
    assert install("install", top, PATH=f"{broken.parent}:{os.environ['PATH']}").returncode != 0
    assert set(tree(top)) > set(before), "it was in the middle"
    assert not (top / "etc/cgpu/cgpu.toml").exists()
    done = install("install", top)
    assert "make uninstall first" in done.stderr
    done = install("uninstall", top)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(top) == before


@pytest.mark.parametrize("other", ["usr/src/cgpu-0.0.9/dkms.conf", "usr/local/bin/cgpu-smi", "usr/bin/cgpud"])
def test_what_is_another_ones_is_left_to_it(tmp_path: Path, other: str) -> None:
    top = some_machine(tmp_path)
    (top / other).mkdir(parents=True)
    before = tree(top)
    done = install("install", top)
    assert done.returncode == 1
    why = "is there already, of another installation, or another PREFIX: remove that first"
    assert done.stderr == f"install: {top / other.removesuffix('/dkms.conf')} {why}\n"
    assert tree(top) == before


@pytest.mark.more
def test_whatever_the_umask_everybody_can_read_it(tmp_path: Path) -> None:
    """A tree, with its wheels, that only its owner can read."""
    mine, top = tmp_path / "tree", tmp_path / "root"
    shutil.copytree(REPO, mine, ignore=lambda folder, _: ["build", ".git"] if Path(folder) == REPO else [])
    shutil.copytree(REPO / "build/site", mine / "build/site")
    (mine / "build/venv").symlink_to(REPO / "build/venv")
    subprocess.run(["chmod", "-R", "go=", mine], check=True)
    was = os.umask(0o077)
    try:
        assert install("install", top, mine).returncode == 0
    finally:
        os.umask(was)
    for path in (top, *top.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o555 if path.is_dir() or mode & 0o100 else 0o444
        assert mode & wanted == wanted, path
        assert path.is_symlink() or not mode & 0o022, path


def test_beside_the_packages_it_is_refused() -> None:
    debs = " ".join(str(path) for path in (REPO / "build/deb").glob(f"cgpu-dkms_{VERSION}_*.deb"))
    with Box() as box:
        box.must(f"dpkg -i {debs}")
        before = box.tree()
        for prefix in ("/usr", "/usr/local"):
            done = box.run("scripts/install install", PREFIX=prefix)
            assert done.returncode == 1
            package = "is there already, of the package cgpu-dkms: remove that first"
            assert done.stdout == f"install: /usr/src/cgpu-{VERSION} {package}\n"
        assert box.tree() == before


def test_the_packages_are_refused_beside_it() -> None:
    """Each alone, also beside another prefix; and they are there one after the other, and again."""
    daemon = str(REPO / f"build/deb/cgpu_{VERSION}_amd64.deb")
    dkms = str(REPO / f"build/deb/cgpu-dkms_{VERSION}_all.deb")
    with Box() as box:
        box.must("scripts/install install")
        before = box.tree()
        done = box.run(f"dpkg -i {dkms}")
        assert done.returncode != 0
        assert f"cgpu-dkms: /usr/src/cgpu-{VERSION} is there already, of make install" in done.stdout
        manifest = "/usr/local/lib/cgpu/MANIFEST"  # without it as with another prefix
        for command, path in (("true", manifest), (f"mv {manifest} /tmp", f"/usr/src/cgpu-{VERSION}/dkms.conf")):
            box.must(command)
            done = box.run(f"dpkg -i {daemon}")
            assert done.returncode != 0
            assert f"cgpu: {path} is there already, of make install or the node installer" in done.stdout
        box.must(f"mv /tmp/MANIFEST {manifest}")
        assert box.tree() == before
        box.must("scripts/install uninstall")
        box.must(f"dpkg -i {dkms}")
        box.must(f"dpkg -i {dkms}")
        box.must(f"dpkg --unpack {daemon}")


def test_a_newer_tree_removes_the_older_installation() -> None:
    """DKMS has it under the version that was installed. A folder of another would stay, and fail every autoinstall."""
    with Box() as box:
        before = box.tree()
        box.must("scripts/install install")
        box.must(f"dkms add cgpu/{VERSION}")
        box.must("mkdir /tmp/newer && cp -r scripts /tmp/newer/ && echo 9.9.9 >/tmp/newer/VERSION")
        box.must("/tmp/newer/scripts/install uninstall")
        assert "cgpu" not in box.must("dkms status")
        assert {path: what for path, what in box.tree().items() if before.get(path) != what} == {}


def test_the_machine_is_left_as_it_was() -> None:
    """The unit is enabled, an engine set up, the daemon has run. Changes that setup cannot undo are named and kept."""
    with Box() as box:
        box.must("mkdir -p /etc/docker && printf '{ \"debug\": true }' >/etc/docker/daemon.json")
        before = box.tree()
        box.must("scripts/install install")
        box.must("systemctl enable cgpud && test -L /etc/systemd/system/multi-user.target.wants/cgpud.service")
        box.enable_by_hand()
        for engine in ("docker --default", "podman"):
            box.must(f"/usr/local/bin/cgpu setup {engine} --runtime /usr/local/bin/cgpu-runtime")
        box.must("mkdir -p /run/cgpu/state /var/log/cgpu && touch /var/log/cgpu/mps.log")
        said = box.must("scripts/install uninstall")
        assert "cgpu: wrote /etc/docker/daemon.json\ncgpu: next: " in said
        assert "cgpu: removed /etc/containers/containers.conf.d/cgpu.conf\n" in said
        assert {path: what for path, what in box.tree().items() if before.get(path) != what} == {}
        box.must("test ! -e /run/cgpu && test ! -e /var/log/cgpu")

        box.must("scripts/install install && /usr/local/bin/cgpu setup docker --runtime /usr/local/bin/cgpu-runtime")
        box.must("sed -i s,/usr/local/bin/cgpu-runtime,/opt/mine, /etc/docker/daemon.json")
        said = box.must("scripts/install uninstall")
        assert "/etc/docker/daemon.json: runtimes.nvidia was changed since cgpu setup" in said
        assert "uninstall: /var/lib/cgpu/setup stays" in said
        kept = json.loads(box.must("cat /var/lib/cgpu/setup/docker.json"))
        assert kept["before"] == '{ "debug": true }'


def test_the_units_are_stopped_while_they_are_there() -> None:
    unit = "/usr/local/lib/systemd/system/cgpud.service"
    with Box() as box:
        box.must("scripts/install install && systemctl enable cgpud")
        box.witness_systemctl(unit)
        box.must("scripts/install uninstall")
        asked = box.must("cat /tmp/asked").splitlines()
    assert "--quiet disable cgpud.service there" in asked
    assert "stop cgpud.service there" in asked
    assert set(asked) >= STOPPED_BY_HAND
    assert asked[-1] == "daemon-reload gone"


def test_it_runs_where_it_was_installed() -> None:
    with Box() as box:
        before = box.tree()
        said = box.must("scripts/install install", PYTHONPATH="/nowhere")
        assert f"dkms install cgpu/{VERSION}" in said
        assert "/usr/local/bin/cgpu setup nvidia-container-runtime --runtime /usr/local/bin/cgpu-runtime" in said
        box.must("test -e /usr/local/share/doc/cgpu/user/install.md")
        assert box.must("/usr/local/bin/cgpu --version").strip() == f"cgpu {VERSION}"
        assert box.must("/usr/local/bin/cgpud --check") == ""
        assert "GPU by GPU" in box.must("/usr/local/bin/kubectl-inspect-cgpu --help")
        # A module of the same name from another source is ignored.
        box.must("mkdir /tmp/evil && echo 'raise SystemExit(9)' >/tmp/evil/click.py")
        box.must("/usr/local/bin/cgpu --version", PYTHONPATH="/tmp/evil")
        box.must(f"dkms add cgpu/{VERSION}")
        box.must("scripts/install uninstall")
        assert "cgpu" not in box.must("dkms status")
        after = box.tree()
        assert {path: what for path, what in after.items() if before.get(path) != what} == {}


def put(stage: Path, destdir: Path) -> subprocess.CompletedProcess[str]:
    words = [str(REPO / "scripts/install"), "put", str(stage)]
    return subprocess.run(words, env={**os.environ, "DESTDIR": str(destdir)}, capture_output=True, text=True)


def some_stage(top: Path, version: str, *more: str) -> Path:
    """A tree as `stage` makes it, of a version."""
    for name in (f"usr/src/cgpu-{version}/dkms.conf", "usr/local/bin/cgpu", "etc/cgpu/cgpu.toml", *more):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"{name} of {version}\n")
    return top


def test_a_tree_is_put_over_an_earlier_one(tmp_path: Path) -> None:
    """The node installer's way: by renames, without what the new version lacks, and removed as a whole."""
    top = some_machine(tmp_path / "root")
    before = tree(top)
    old, new = some_stage(tmp_path / "1", "0.1.0", "usr/local/lib/cgpu/old/a.py"), some_stage(tmp_path / "2", "0.2.0")
    assert put(old, top).returncode == 0
    program = top / "usr/local/bin/cgpu"
    with program.open() as running:
        done = put(new, top)
        assert (done.returncode, done.stderr) == (0, "")
        assert running.read() == "usr/local/bin/cgpu of 0.1.0\n", "a program that runs keeps its file"
    assert program.read_text() == "usr/local/bin/cgpu of 0.2.0\n"
    assert (top / "etc/cgpu/cgpu.toml").read_text() == "etc/cgpu/cgpu.toml of 0.2.0\n"
    assert not (top / "usr/src/cgpu-0.1.0").exists() and not (top / "usr/local/lib/cgpu/old").exists()
    assert not list(top.rglob(".cgpu-*"))
    (top / "etc/cgpu/cgpu.toml").write_text("mine\n")
    assert "stays as it is" in put(some_stage(tmp_path / "3", "0.3.0"), top).stderr
    assert (top / "etc/cgpu/cgpu.toml").read_text() == "mine\n"
    (top / "etc/cgpu/cgpu.toml").unlink()
    done = install("uninstall", top)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(top) == before


def test_an_update_replaces_what_differs(tmp_path: Path) -> None:
    """By contents, by mode, or by kind: what the machine has changed meanwhile too. A file that is the same stays."""
    top, stage, folder = some_machine(tmp_path / "root"), tmp_path / "1", "usr/local/lib/cgpu/of"
    names = ("same", "newer", "edited", "opened", "closed", "linked")
    some_stage(stage, "0.1.0", *(f"{folder}/{name}" for name in names))
    assert put(stage, top).returncode == 0
    there = {name: top / folder / name for name in names}
    before = {name: path.stat().st_ino for name, path in there.items()}
    (stage / folder / "newer").write_text("newer\n")
    there["edited"].write_text("edited\n")
    there["opened"].chmod(0o666)
    (stage / folder / "closed").chmod(0o600)
    there["linked"].rename(tmp_path / "elsewhere")
    there["linked"].symlink_to(tmp_path / "elsewhere")
    done = put(stage, top)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(top / folder) == tree(stage / folder)
    assert [name for name, path in there.items() if path.stat().st_ino == before[name]] == ["same"]


#: A stand-in for a program: instead of its call of number $dies all of the script is killed.
KILLER = """#!/bin/sh
n=$(cat {count}) && echo $((n + 1)) >{count}
[ "$n" != "$dies" ] || kill -9 0
exec /usr/bin/{name} "$@"
"""


def killed(top: Path, names: tuple[str, ...], dies: int, *words: str, destdir: Path) -> bool:
    """Runs scripts/install with these programs, and whether it was killed."""
    top.mkdir(exist_ok=True)
    (top / "count").write_text("0\n")
    for name in names:
        (top / name).write_text(KILLER.format(count=top / "count", name=name))
        (top / name).chmod(0o755)
    environment = {**os.environ, "DESTDIR": str(destdir), "PATH": f"{top}:{os.environ['PATH']}", "dies": str(dies)}
    words = (str(REPO / "scripts/install"), *words)
    return subprocess.run(words, env=environment, capture_output=True, start_new_session=True).returncode != 0


def test_a_removal_that_was_killed_is_ended_or_installed_over(tmp_path: Path) -> None:
    """At any program: a list that is gone leaves nothing that blocks an installation."""
    stage = some_stage(tmp_path / "1", "0.1.0", "usr/local/lib/cgpu/cgpud/a.py")
    for dies in range(50):
        top = some_machine(tmp_path / f"root{dies}")
        before = tree(top)
        assert put(stage, top).returncode == 0
        (top / "usr/local/lib/cgpu/cgpud/__pycache__").mkdir()
        was_killed = killed(tmp_path / "bin", ("rm", "rmdir", "find"), dies, "uninstall", destdir=top)
        if not (top / "usr/local/lib/cgpu/MANIFEST").exists():
            done = put(stage, top)
            assert (done.returncode, done.stderr) == (0, ""), dies
        if was_killed:
            done = install("uninstall", top)
            assert (done.returncode, done.stderr) == (0, ""), dies
            assert tree(top) == before, dies
        else:
            break
    assert dies > 4


def test_an_update_that_was_killed_leaves_a_configuration_as_it_came(tmp_path: Path) -> None:
    """At any program: the next one replaces it, and a removal takes it away."""
    one, two, three = (some_stage(tmp_path / version, version) for version in ("0.1.0", "0.2.0", "0.3.0"))
    for dies in range(80):
        top = some_machine(tmp_path / f"root{dies}")
        before, conf = tree(top), top / "etc/cgpu/cgpu.toml"
        assert put(one, top).returncode == 0
        was_killed = killed(tmp_path / "bin", ("cp", "mv", "mkdir"), dies, "put", str(two), destdir=top)
        if dies % 2:
            done = put(three, top)
            assert (done.returncode, done.stderr) == (0, ""), dies
            assert conf.read_text() == "etc/cgpu/cgpu.toml of 0.3.0\n", dies
        done = install("uninstall", top)
        assert (done.returncode, done.stderr) == (0, ""), dies
        assert tree(top) == before, dies
        if not was_killed:
            break
    assert dies > 4


def test_python_runs_the_files_that_were_put(tmp_path: Path) -> None:
    """Not what it has compiled of the earlier version: the files of an image have one time, and may have one size."""
    top, names = tmp_path / "root", [f"usr/local/lib/{name}.py" for name in ("cgpu/a", "cgpu-kube/b", "cgpu/old/c")]
    for number, version in enumerate(("0.1.0", "0.2.0")):
        stage = some_stage(tmp_path / version, version)
        for name in names[: 3 - number]:
            path = stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'print("{version}")\n')
            os.utime(path, (0, 0))
        done = put(stage, top)
        assert (done.returncode, done.stderr) == (0, "")
        for name in names[: 3 - number]:
            words = ["/usr/bin/python3", "-c", f"import {Path(name).stem}"]
            clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
            said = subprocess.run(words, cwd=(top / name).parent, env=clean, capture_output=True, text=True, check=True)
            assert said.stdout == f"{version}\n", name
            assert list((top / name).parent.glob("__pycache__/*.pyc"))
    assert not (top / names[2]).parent.exists()


def test_a_tree_is_not_put_over_another_ones(tmp_path: Path) -> None:
    top = some_machine(tmp_path / "root")
    (top / "usr/local/bin/cgpu").write_text("another\n")
    before = tree(top)
    done = put(some_stage(tmp_path / "1", "0.1.0"), top)
    assert done.returncode == 1 and "usr/local/bin/cgpu is there already" in done.stderr
    assert tree(top) == before


def some_key(key: Path, cert: Path) -> None:
    make = ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=cgpu of the tests"]
    subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)


def test_a_module_is_signed(tmp_path: Path) -> None:
    """openssl verifies what sign-module writes, and modinfo reads it as a kernel's signature."""
    key, cert, module = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "a.ko"
    some_key(key, cert)
    body = b"\x7fELF" + bytes(100)
    module.write_bytes(body)
    words = [str(REPO / "scripts/sign-module"), str(key), str(cert), str(module)]
    subprocess.run(words, check=True)
    data = module.read_bytes()
    mark = b"~Module signature appended~\n"
    assert data.startswith(body) and data.endswith(mark)
    tail = data[: -len(mark)][-12:]
    length = int.from_bytes(tail[8:], "big")
    assert tail[:8] == bytes([0, 0, 2, 0, 0, 0, 0, 0]) and len(data) == len(body) + length + 12 + len(mark)
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "signature").write_bytes(data[len(body) : len(body) + length])
    verify = ["openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", "signature", "-content", "body"]
    verify += ["-certfile", "cert.pem", "-CAfile", "cert.pem", "-purpose", "any", "-out", "out"]
    subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 1 and "is signed already" in again.stderr and module.read_bytes() == data


@pytest.mark.parametrize(
    ("program", "text", "key", "why"),
    [
        ("", "", "key.pem", ""),
        ("scripts/build-modules", "echo no compiler >&2; exit 1", "key.pem", "no compiler\n"),
        ("", "", "VERSION", "sign-module: "),
        ("", "", "nowhere", "KEY= and CERT= go together"),
        ("scripts/sign-module", "exit 0", "key.pem", "cgpu_core_0_1_0.ko has no signature\n"),
        ("bin/depmod", "echo no index >&2; exit 1", "key.pem", "no index\n"),
    ],
)
def test_no_image_has_modules_that_failed(tmp_path: Path, program: str, text: str, key: str, why: str) -> None:
    """Modules of an earlier build, or without a signature: a node would refuse them, long after the image was made."""
    for folder in ("scripts", "bin", "build/kernels/one", "build/modules/one"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("node-image", "sign-module", "oci-archive"):
        shutil.copy2(REPO / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "VERSION").write_text("0.1.0\n")
    (tmp_path / "build/kernels/one/release").write_text("6.1.0-1\n")
    for name in ("cgpu_km", "cgpu_core_0_1_0"):  # of an earlier build
        (tmp_path / f"build/modules/one/{name}.ko").write_bytes(b"\x7fELF" + bytes(100))
    for path, script in (("scripts/build-modules", "exit 0"), (program, text)):
        if path:
            (tmp_path / path).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / path).chmod(0o755)
    some_key(tmp_path / "key.pem", tmp_path / "cert.pem")
    done = subprocess.run(
        [tmp_path / "scripts/node-image", "modules", "one"],
        env={
            **os.environ,
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "KEY": str(tmp_path / key),
            "CERT": str(tmp_path / "cert.pem"),
        },
        capture_output=True,
        text=True,
    )
    made = tmp_path / "build/image/cgpu-modules_0.1.0-6.1.0-1.tar"
    assert (done.returncode != 0, made.exists()) == (bool(why), not why), done.stderr
    assert why in done.stderr
