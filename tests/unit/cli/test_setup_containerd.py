# SPDX-License-Identifier: MIT
"""cgpu setup containerd: the file as containerd itself reads it, runc beside ours, and files that import files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_host import DEBIAN, OURS, SYSTEMD, Host

from cgpu_cli.containerd import CRI
from cgpu_cli.edit import BEGIN, SetupRequest
from cgpu_cli.engines import ENGINES
from cgpu_cli.setup import MAX_OTHERS, _others

VERSION_2 = f'version = 2 # of the format\n[plugins]\n  [plugins."a.b"]\n    path = "/x"\n{SYSTEMD}'
TABLE = 'plugins."io.containerd.grpc.v1.cri".containerd'
CRUN = f'version = 2\n[{TABLE}]\ndefault_runtime_name = "crun"\n'
KATA = f'[{TABLE}.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
OLD = f'version = 2\n[{TABLE}.default_runtime]\nruntime_type = "io.containerd.runc.v2"\n'
SECTION = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/x'\n"
RUNC = {"runtime_type": "io.containerd.runc.v2"}

needs_containerd = pytest.mark.skipif(not shutil.which("containerd"), reason="there is no containerd")


def dump(file: Path, here: Path) -> dict[str, Any]:
    """The configuration as containerd reads it, with its own values where the file has none."""
    places = ("--root", str(here / "root"), "--state", str(here / "state"), "--address", str(here / "sock"))
    words = ("containerd", "--config", str(file), *places, "config", "dump")
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


def section(data: dict[str, Any], version: int = 2) -> Any:
    return data["plugins"][CRI[version]]["containerd"]


def version_2(text: str) -> str:
    """A file of version 3 rewritten for containerd 1.x, which reads version 2; Debian 12 has no newer one."""
    return text.replace("version = 3", "version = 2").replace(CRI[3], CRI[2])


@needs_containerd
@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        DEBIAN,
        "root = '/var/lib/x'\n",
        "[plugins.cri.cni]\nbin_dir = '/x'\n",
        f"version = 2\n{SYSTEMD}",
        "version = 3\n",
        DEBIAN.replace("version = 2", "version = 3").replace(CRI[2], CRI[3]),
        DEBIAN + KATA,
        OLD,
        CRUN + KATA.replace("kata", "crun"),
        f"version = 2\n[{TABLE}.runtimes]\n",
    ],
)
def test_containerd_has_its_default_runtime_and_ours(tmp_path: Path, text: str | None) -> None:
    host = Host(tmp_path, "containerd", text)
    host.ok()
    done = host.text or ""
    host.write(version_2(done))
    found = section(dump(host.file, tmp_path))
    assert found["runtimes"]["nvidia"]["runtime_type"] == RUNC["runtime_type"]
    assert found["runtimes"]["nvidia"]["options"]["BinaryName"] == OURS
    assert found["default_runtime_name"] in found["runtimes"] or found["default_runtime"]["runtime_type"]
    if text is None or "crun" not in text:
        assert "runc" in found["runtimes"]
    host.write(done)
    host.ok("--undo")
    assert host.text == text


@needs_containerd
def test_runc_is_as_containerd_has_it(tmp_path: Path) -> None:
    """As it is where no file names a runtime, with no option set."""
    host = Host(tmp_path, "containerd", DEBIAN)
    usual = section(dump(host.file, tmp_path))["runtimes"]["runc"]
    host.ok()
    ours = section(dump(host.file, tmp_path))["runtimes"]["runc"]
    assert not any(usual.pop("options").values()) and not any(ours.pop("options", {}).values())
    assert ours == usual


@pytest.mark.parametrize("version", [1, 2, 3])
def test_runc_is_written_where_no_runtime_is_named(tmp_path: Path, version: int) -> None:
    host = Host(tmp_path, "containerd", f"version = {version}\n")
    host.ok()
    assert section(host.data(), version)["runtimes"]["runc"] == RUNC


@pytest.mark.parametrize("text", [VERSION_2, CRUN + KATA.replace("kata", "crun"), OLD + KATA])
def test_runc_is_not_written_where_another_goes_by(tmp_path: Path, text: str) -> None:
    host = Host(tmp_path, "containerd", text)
    before = section(host.data()).get("runtimes", {}).get("runc")
    host.ok()
    assert section(host.data())["runtimes"].get("runc") == before


def test_a_default_runtime_that_is_not_there(tmp_path: Path) -> None:
    """containerd does not load such a file. A table of runc would not change that."""
    for text in (CRUN, CRUN + KATA, CRUN.replace("crun", "nvidia"), CRUN.replace("crun", "")):
        said = Host(tmp_path / str(len(text)), "containerd", text).refused()
        assert "as default_runtime_name and no such runtime" in said


def test_the_older_default_runtime_says_the_cgroup_driver(tmp_path: Path) -> None:
    host = Host(tmp_path, "containerd", f"{OLD}[{TABLE}.default_runtime.options]\nSystemdCgroup = true\n")
    host.ok()
    assert section(host.data())["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True


# Edits of runc's table, or of the file, that others make between setup and --undo.


@pytest.mark.parametrize(
    ("added", "left"),
    [
        (KATA, {"runc": RUNC, "kata": {"runtime_type": "io.containerd.kata.v2"}}),
        (SYSTEMD, {"runc": {**RUNC, "options": {"SystemdCgroup": True}}}),
    ],
)
def test_runc_stays_for_those_that_came_to_go_by_it(tmp_path: Path, added: str, left: dict[str, Any]) -> None:
    """If --undo removed runc, only the other runtimes would be left, and the options of runc would have no type."""
    for where, before in enumerate((DEBIAN, None)):
        host = Host(tmp_path / str(where), "containerd", before)
        host.ok()
        host.write((host.text or "") + added)
        host.ok("--undo")
        assert section(host.data())["runtimes"] == left
        assert "cgpu" not in (host.text or "") and added in (host.text or "")
        assert not host.record.exists()
        host.ok()
        assert section(host.data())["runtimes"]["runc"] == left["runc"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('runc.v2"\n# cgpu: end of runc', 'runc.v1"\n# cgpu: end of runc'),
        ("# cgpu: end of runc\n", "privileged_without_host_devices = true\n# cgpu: end of runc\n"),
        ("# cgpu: end of runc\n", "# cgpu: end of runc\nprivileged_without_host_devices = true\n"),
        ("# cgpu: end of runc\n", f"[{TABLE}.runtimes.runc.options]\nSystemdCgroup = true\n"),
    ],
)
def test_what_is_written_into_runc_stays(tmp_path: Path, old: str, new: str) -> None:
    host = Host(tmp_path, "containerd", DEBIAN)
    host.ok()
    assert (host.text or "").count(old) == 1
    host.write((host.text or "").replace(old, new))
    wanted = section(host.data())["runtimes"]["runc"]
    host.ok("--undo")
    assert section(host.data())["runtimes"] == {"runc": wanted}
    assert "cgpu" not in (host.text or "")


def test_our_block_alone_taken_out_by_hand(tmp_path: Path) -> None:
    """runc is left for --undo."""
    host = Host(tmp_path, "containerd", DEBIAN)
    host.ok()
    text = host.text or ""
    host.write(text[: text.index(BEGIN)])
    host.ok("--undo")
    assert host.text == DEBIAN


def test_ours_by_hand_without_runc(tmp_path: Path) -> None:
    """runc is all that is missing, and all that goes."""
    by_hand = f"{DEBIAN}[{TABLE}.runtimes.nvidia.options]\nBinaryName = '{OURS}'\n"
    host = Host(tmp_path, "containerd", by_hand)
    host.ok()
    assert section(host.data())["runtimes"]["runc"] == RUNC
    assert (host.text or "").startswith(by_hand)
    host.ok("--undo")
    assert host.text == by_hand


def test_nvidia_as_the_default_is_not_ours_to_take(tmp_path: Path) -> None:
    """Without its default runtime the CRI plugin would not load."""
    host = Host(tmp_path, "containerd", DEBIAN)
    host.ok()
    host.write((host.text or "") + f'[{TABLE}]\ndefault_runtime_name = "nvidia"\n')
    assert "names nvidia as default_runtime_name" in host.refused("--undo")


def test_version_says_the_plugin_and_runc_the_cgroup_driver(tmp_path: Path) -> None:
    host = Host(tmp_path, "containerd", VERSION_2)
    host.ok()
    runtimes = host.data()["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"] == {"BinaryName": OURS, "SystemdCgroup": True}
    for version, plugin in ((1, "cri"), (3, "io.containerd.cri.v1.runtime")):
        text = ENGINES["containerd"].put(f"version = {version}\n", SetupRequest(OURS))
        assert (
            tomllib.loads(text)["plugins"][plugin]["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == OURS
        )


def test_file_that_we_began(tmp_path: Path) -> None:
    """--undo removes a file that has nothing left but our version, and keeps one with text of others."""
    host = Host(tmp_path, "containerd", None)
    host.ok()
    host.write((host.text or "") + "\n")
    host.ok("--undo")
    assert host.text is None
    host.ok()
    host.write((host.text or "") + "# mine\n")
    host.ok("--undo")
    assert host.text == "# mine\n"


def test_import_that_would_hide_ours(tmp_path: Path) -> None:
    host = Host(tmp_path, "containerd", 'version = 2\nimports = ["conf.d/*.toml"]\n')
    host.write(
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/x'\n", "etc/containerd/conf.d/a.toml"
    )
    assert "conf.d/a.toml" in host.refused()
    host.write("version = 2\noom_score = 1\n", "etc/containerd/conf.d/a.toml")
    host.ok()
    host.write(SECTION, "etc/containerd/conf.d/a.toml")
    assert "conf.d/a.toml" in host.refused(), "set up, but hidden since"
    host.ok("--undo")
    host.write(f'version = 2\nimports = ["*.toml"]\n{SYSTEMD}')  # itself too
    host.ok()


def test_line_that_our_table_took(tmp_path: Path) -> None:
    """A key written below our block belongs to our table: without the header it would be another one's."""
    host = Host(tmp_path, "containerd", VERSION_2)
    host.ok()
    host.write((host.text or "") + "NoPivotRoot = true\n")
    host.refused("--undo")
    host.write((host.text or "").replace("runc.v2", "runc.v1"))
    assert "changed since" in host.refused("--undo")


# Files that import files.


def conf(host: Host, name: str, text: str) -> None:
    host.write(text, f"etc/containerd/{name}")


CHAIN = {
    "config.toml": 'version = 2\nimports = ["a/one.toml"]\n',
    "a/one.toml": 'version = 2\nimports = ["../b/two.toml", "one.toml", "../config.toml"]\n',
    "b/two.toml": 'imports = ["three.toml", "../a/one.toml"]\n',
    "b/three.toml": "oom_score = 1\n",
}


def chain(tmp_path: Path, **changed: str) -> Host:
    host = Host(tmp_path, "containerd", None)
    for name, text in CHAIN.items():
        conf(host, name, changed.get(Path(name).stem, text))
    return host


def test_imports_of_imports(tmp_path: Path) -> None:
    """Each from its own folder; in a circle, once."""
    chain(tmp_path / "fine").ok()
    for name, text, said in (
        ("three", SECTION, "replaces this one's"),
        ("two", "imports = [", "two.toml is not TOML"),
        ("three", f"disabled_plugins = ['{CRI[2]}']\n", "among its disabled_plugins"),
        ("three", "version = 1\n", "of version 2 and imports"),
    ):
        refused = chain(tmp_path / (name + said[:5]), **{name: text}).refused()
        assert said in refused and f"/b/{name}.toml" in refused


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "/etc/containerd/conf.d/*", "etc/containerd/conf.d/*.toml"])
def test_imports_by_a_pattern(tmp_path: Path, pattern: str) -> None:
    """1.x looks for a relative one in /, 2.x beside the file; both find hidden files."""
    for name in ("a.toml", ".a.toml"):
        host = Host(tmp_path / name, "containerd", f'version = 2\nimports = ["{pattern}"]\n')
        conf(host, f"conf.d/{name}", SECTION)
        assert f"conf.d/{name}" in host.refused()


def test_imports_without_a_star_are_no_pattern(tmp_path: Path) -> None:
    host = Host(tmp_path, "containerd", 'version = 2\nimports = ["[ab].toml", "nul\\u0000.toml"]\n')
    conf(host, "a.toml", SECTION)
    host.ok()
    host.ok("--undo")
    conf(host, "[ab].toml", SECTION)
    assert "[ab].toml" in host.refused()


def test_imports_without_an_end(tmp_path: Path) -> None:
    """A link to its own folder makes another name of a file at each turn."""
    host = Host(tmp_path, "containerd", 'version = 2\nimports = ["d/one.toml"]\n')
    conf(host, "d/one.toml", 'imports = ["again/one.toml"]\n')
    (host.file.parent / "d/again").symlink_to(".")
    host.ok("--dry-run")  # the kernel's end of links comes first
    for number in range(MAX_OTHERS):
        conf(host, f"e/{number}.toml", "")
    conf(host, "d/one.toml", 'imports = ["/etc/containerd/e/*"]\n')
    assert f"more than {MAX_OTHERS} other files" in host.refused()


@needs_containerd
def test_imports_are_those_that_containerd_reads(tmp_path: Path) -> None:
    host = chain(tmp_path, three='imports = ["etc/containerd/c/*"]\n')
    for name in ("c/x.toml", "c/.y.toml", "d/not.toml"):
        conf(host, name, "oom_score = 1\n")
    engine = ENGINES["containerd"]
    found = _others(tmp_path, engine, host.file, host.text or "")
    read = {os.path.normpath(tmp_path / name) for name in dump(host.file, tmp_path)["imports"]}
    assert {*found, str(host.file)} == read


# ---- --default: the runtime of pods that name none ----


@needs_containerd
@pytest.mark.parametrize(
    "text",
    [
        None,
        DEBIAN,
        f"version = 2\n{SYSTEMD}",
        f'version = 2\n[{TABLE}]\n  default_runtime_name = "runc" # of dump\n  snapshotter = "native"\n{SYSTEMD}',
        f'version = 2\n[{TABLE}]\nsnapshotter = "native"\n',
        f"version = 2\n[{TABLE}]",
        f"version = 3\n[plugins.'{CRI[3]}'.containerd]\ndefault_runtime_name = 'runc'\n",
    ],
)
def test_pods_without_a_runtime_class_get_ours(tmp_path: Path, text: str | None) -> None:
    """The runtime class of the first pod is needed only where the handler is not the default."""
    host = Host(tmp_path, "containerd", text)
    host.ok("--default")
    after = host.text or ""
    assert "set up already: nothing changed" in host.ok("--default")
    host.write(version_2(after))
    found = section(dump(host.file, tmp_path))
    assert found["default_runtime_name"] == "nvidia"
    assert found["runtimes"]["nvidia"]["options"]["BinaryName"] == OURS
    assert "runc" in found["runtimes"]
    host.write(after)
    host.ok("--undo")
    assert host.text == text


def test_the_default_may_come_later_and_others_lines_stay(tmp_path: Path) -> None:
    host = Host(tmp_path, "containerd", f'version = 2\n[{TABLE}]\ndefault_runtime_name = "runc"\n')
    host.ok()
    assert "default_runtime_name" not in host.ok().replace(TABLE, "")
    host.ok("--default")
    host.write((host.text or "") + '[plugins."a.b"]\nx = 1\n')
    host.ok("--undo")
    assert host.text == f'version = 2\n[{TABLE}]\ndefault_runtime_name = "runc"\n[plugins."a.b"]\nx = 1\n'


# ---- --cdi: the devices of claims ----

PLUGIN = f'plugins."{CRI[2]}"'


@needs_containerd
@pytest.mark.parametrize(
    "text",
    [
        None,
        DEBIAN,
        f"version = 2\n{SYSTEMD}",
        f"version = 2\n[{PLUGIN}]\n  enable_cdi = false # of dump\n  sandbox_image = 'x'\n{SYSTEMD}",
        f"version = 2\n[{PLUGIN}]\nsandbox_image = 'x'\n",
        f"version = 2\n[{PLUGIN}]",
        "[plugins.cri]\nenable_cdi = false\n",
        f"version = 3\n[plugins.'{CRI[3]}']\nenable_cdi = false\n",
    ],
)
@pytest.mark.parametrize("more", [(), ("--default",)])
def test_claims_get_their_devices(tmp_path: Path, text: str | None, more: tuple[str, ...]) -> None:
    """containerd 1.7 skips them without an error unless its file has enable_cdi = true."""
    host = Host(tmp_path, "containerd", text)
    host.ok("--cdi", *more)
    after = host.text or ""
    assert "set up already: nothing changed" in host.ok("--cdi", *more)
    (plugin,) = (one for name, one in host.data()["plugins"].items() if name in CRI.values())
    assert plugin["enable_cdi"] is True
    if "plugins.cri" not in after:
        host.write(version_2(after))
        assert section(dump(host.file, tmp_path))["runtimes"]["nvidia"]["options"]["BinaryName"] == OURS
        host.write(after)
    host.ok("--undo")
    assert host.text == text


def test_cdi_that_was_on_stays_on(tmp_path: Path) -> None:
    text = f"version = 2\n[{PLUGIN}]\nenable_cdi = true\n"
    host = Host(tmp_path, "containerd", text)
    host.ok("--cdi")
    assert (host.text or "").count("enable_cdi") == 1
    host.ok("--undo")
    assert host.text == text


def test_another_default_runtime_stays(tmp_path: Path) -> None:
    """Its pods would run under runc."""
    host = Host(tmp_path, "containerd", f'version = 2\n{KATA}[{TABLE}]\ndefault_runtime_name = "kata"\n')
    assert 'has "kata" as the default runtime, and cgpu-runtime executes runc' in host.refused("--default")
