# SPDX-License-Identifier: MIT
"""The node installer on a machine without cgpu: from its image to the first pod, an update below it, and off again.

After test_uninstall.py, in the same boot; alone it purges the packages first. The image's tree runs as the DaemonSet's
container does: privileged, in the host's namespaces of processes, with its root at /host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
import unit_box as u
import yaml
from cri import Cri
from docker_box import REPO, call, must, until
from written_box import BOOKS, written

pytestmark = pytest.mark.systemd

KERNEL = os.uname().release
IMAGE, MODULES = REPO / "build/image/node", REPO / f"build/image/modules/{KERNEL}/opt"
UPDATES = Path("/lib/modules", KERNEL, "updates")
BUNDLE = Path("/run/installer")
CAPABILITIES = """SYS_ADMIN SYS_CHROOT SYS_MODULE SYS_PTRACE MKNOD CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL
    NET_ADMIN SETGID SETUID SETFCAP SYS_RESOURCE AUDIT_WRITE SETPCAP"""
CONTAINERD = u.ENGINES["containerd"][0]
RUNTIME = "/usr/local/bin/cgpu-runtime"
STAGED_RUNTIME = f"/cgpu/stage{RUNTIME}"


def pod_of(name: str) -> dict[str, object]:
    found = yaml.safe_load((REPO / f"deploy/kubernetes/installer/{name}.yaml").read_text())
    spec: dict[str, object] = found["spec"]["template"]["spec"]
    return spec


def run(name: str, *more: str, another: Path | None = None) -> d.subprocess.CompletedProcess[str]:
    """The container of deploy/kubernetes/installer, without its API server. @another: build of the image, as far as its
    files differ."""
    pod = pod_of(name)
    (one,) = pod["containers"]  # type: ignore[misc]
    assert one["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True} and pod["hostPID"]
    (volume,) = one["volumeMounts"]
    assert volume["mountPropagation"] == "HostToContainer"
    BUNDLE.mkdir(exist_ok=True)
    spec = json.loads(e.spec_of_runc())
    everything = [f"CAP_{one}" for one in CAPABILITIES.split()]
    words = [word for word in one["args"] if not word.startswith("--probe-port")]
    spec["process"] |= {
        "terminal": False,
        "noNewPrivileges": False,
        "args": ["/usr/local/bin/cgpu-kube", *words, *more],
    }
    spec["process"]["env"] = ["PATH=/usr/local/bin", "PYTHONDONTWRITEBYTECODE=1"]
    for kind in spec["process"]["capabilities"]:
        spec["process"]["capabilities"][kind] = everything
    del spec["hostname"]  # the host's, without a namespace of its own
    spec["root"] = {"path": str(IMAGE), "readonly": True}
    bind = [("/proc", "/proc", "rslave"), ("/dev", "/dev", "rslave"), ("/sys", "/sys", "rslave")]
    bind += [("/", volume["mountPath"], "rslave"), (str(MODULES), "/opt", "rslave")]
    if another is not None:
        bind += [(str(another / Path(path).name), path, "rprivate") for path in ("/cgpu/SHA256SUMS", STAGED_RUNTIME)]
    spec["mounts"] = [
        {"source": source, "destination": target, "type": "bind", "options": ["rbind", how]}
        for source, target, how in bind
    ]
    spec["mounts"].append({"source": "tmpfs", "destination": "/tmp", "type": "tmpfs"})
    spec["linux"] = {"namespaces": [{"type": "mount"}], "rootfsPropagation": "rslave"}
    spec["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
    (BUNDLE / "config.json").write_text(json.dumps(spec))
    done = call("runc", "run", "--bundle", str(BUNDLE), e.fresh("installer"), timeout=900)
    done.stdout += done.stderr
    return done


@pytest.fixture(scope="module", autouse=True)
def before() -> Iterator[set[str]]:
    """A node without cgpu, with containerd and a driver; the files that are there."""
    u.purge()
    for path in UPDATES.glob("cgpu_*.ko"):
        path.unlink()
    if UPDATES.exists():
        UPDATES.rmdir()
    must("depmod", KERNEL)
    e.ROOT.mkdir(exist_ok=True)
    if "sandbox_image" not in CONTAINERD.read_text():
        u.Containerd.configure()
    must("systemctl", "restart", "containerd")
    archive = e.ROOT / "box.tar"
    archive.write_bytes(e.image_archive())
    until(lambda: call("ctr", "--namespace=k8s.io", "image", "import", str(archive)).returncode == 0, "it is imported")
    assert call("modinfo", "cgpu_km").returncode != 0 and not Path("/usr/local/lib/cgpu").exists()
    yield written()


@pytest.fixture(scope="module")
def configuration(before: set[str]) -> bytes:
    return CONTAINERD.read_bytes()


@pytest.fixture(scope="module")
def installed(configuration: bytes) -> str:
    done = run("install", "--once")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_bare_node_has_all_of_it(installed: str) -> None:
    assert "reason='Installed'" in installed and "step='copy modules'" in installed, installed
    assert Path("/sys/module/cgpu_km").is_dir() and list(Path("/sys/module").glob("cgpu_core_*"))
    assert must("modinfo", "-n", "cgpu_km").strip() == str(UPDATES / "cgpu/cgpu_km.ko")
    until(u.is_active, "cgpud is there")
    assert u.show("FragmentPath") == "/usr/local/lib/systemd/system/cgpud.service"
    assert call("systemctl", "is-enabled", "--quiet", u.UNIT).returncode == 0
    program = str(Path(f"/proc/{u.main_pid()}/exe").readlink())
    assert program.startswith("/usr/local/lib/cgpu/python/bin/python3"), "the host's Python is not used"
    assert f'BinaryName = "{RUNTIME}"' in must("containerd", "config", "dump")
    assert not Path("/var/lib/cgpu-install").exists()


def test_a_second_round_does_nothing(installed: str) -> None:
    pid = u.main_pid()
    done = run("install", "--once")
    assert done.returncode == 0 and "installing" not in done.stdout and u.main_pid() == pid, done.stdout


def test_the_first_pod_an_update_and_a_refused_removal(installed: str, tmp_path: Path) -> None:
    """Its slice stays as the files and the daemon below it are replaced."""
    cri = Cri(u.Containerd.ADDRESS, u.Containerd.parent())
    with cri.pod("first", "nvidia") as pod:
        one = e.Running(cri, cri.create(pod, "first", "main", e.IMAGE, e.HOLD, e.variables(2)))
        cri.start(one.id)
        until(one.holds_memory, "its process holds memory")
        one.check_slice(2)

        pid, runtime = u.main_pid(), (IMAGE / STAGED_RUNTIME[1:]).read_bytes() + b"another build\n"
        (tmp_path / "cgpu-runtime").write_bytes(runtime)
        (tmp_path / "cgpu-runtime").chmod(0o755)
        (tmp_path / "SHA256SUMS").write_text((IMAGE / "cgpu/SHA256SUMS").read_text() + "another build\n")
        done = run("install", "--once", another=tmp_path)
        assert done.returncode == 0 and "step='put'" in done.stdout, done.stdout
        until(lambda: u.is_active() and u.main_pid() != pid, "the daemon is the new one")
        assert Path(RUNTIME).read_bytes() == runtime and one.is_sliced() and one.holds_memory()

        done = run("remove", "--once")
        assert done.returncode == 1, done.stdout
        assert f"1 of the node's containers have a slice ({one.id[:12]}): drain the node" in done.stdout
        assert one.is_sliced() and u.is_active() and not Path("/run/cgpu/drain").exists()
        cri.stop(one.id)
        until(lambda: not one.is_sliced(), "its slice is gone")


def test_removal_leaves_nothing(installed: str, before: set[str], configuration: bytes) -> None:
    until(e.nothing_is_left, "no slice is left")
    done = run("remove", "--once")
    assert done.returncode == 0 and "reason='Removed'" in done.stdout, done.stdout
    assert CONTAINERD.read_bytes() == configuration
    assert not [
        path for path in ("/run/cgpu", "/proc/cgpu_km", "/dev/cgpu", "/sys/module/cgpu_km") if Path(path).exists()
    ]
    assert call("systemctl", "cat", u.UNIT).returncode != 0
    until(lambda: call("ctr", "version").returncode == 0, "containerd is back")
    left = written() - before
    assert not [path for path in left if "cgpu" in path], left
    of_runtime = ("/var/lib/containerd/", "/var/lib/cni/", "/etc/cni/", "/var/log/")
    assert not [path for path in sorted(left) if not f"{path}/".startswith((*BOOKS, *of_runtime))], left
    done = run("remove", "--once")
    assert done.returncode == 0 and "removing" not in done.stdout, "a second time there is nothing to do"
