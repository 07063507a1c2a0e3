# SPDX-License-Identifier: MIT
"""cgpu setup: each engine's file, empty or full, set up, undone, and left alone where it must be."""

from __future__ import annotations

import errno
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_host import DEBIAN, NV, OURS, SYSTEMD, Host, set_value
from hypothesis import example, given
from hypothesis import strategies as st

from cgpu_cli.edit import EditRefused, Record, SetupRequest
from cgpu_cli.engines import ELSEWHERE, ENGINES, Elsewhere, Engine

# What each file may hold before, with comments where there can be some.
CONTENT = {
    ("docker", "empty"): "",
    ("docker", "plain"): '{\n  "log-driver": "journald",\n  "runtimes": {\n    "kata": {"path": "/opt/kata"}\n  }\n}\n',
    ("docker", "one line"): '{"debug": true}',
    ("docker", "default"): '{\n\t"default-runtime": "crun",\n\t"runtimes": {}\n}',
    ("podman", "empty"): "",
    ("containerd", "empty"): "# nothing but a comment\n",
    ("containerd", "version 1"): "root = '/var/lib/containerd'\n",
    ("containerd", "as Debian ships it"): DEBIAN,
    (
        "containerd",
        "version 2",
    ): f'version = 2 # of the format\n[plugins]\n  [plugins."a.b"]\n    path = "/x"\n{SYSTEMD}',
    ("containerd", "version 3"): "# three\nversion = 3\n[debug]\nlevel = 'info'",
    (NV, "empty"): "",
    (
        NV,
        "usual",
    ): f'a = true\n[{NV}]\n#debug = "/x"\nmode = "auto" # auto\nruntimes = ["runc", "crun"] # order\n[{NV}.modes]\n',
    (NV, "lines"): f'[{NV}]\nruntimes = [\n    "docker-runc", # old\n    "runc",\n]\nlog-level = "info"\n',
    (NV, "no key"): f'[{NV}.modes.cdi]\nx = 1\n[{NV}] # here\nmode = "cdi"\n[z]\ny = 2',
    (NV, "no table"): '[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig"',
}
CASES = [*CONTENT, *((name, "absent") for name in ENGINES)]

# An edit elsewhere in the file, made without regard to ours.
EDIT: dict[str, Callable[[str], str]] = {
    "docker": lambda text: json.dumps({"mtu": 1400, **json.loads(text or "{}")}),
    "podman": lambda text: "# a word before\n" + text,
    "containerd": lambda text: "# a word before\noom_score = 7\n" + text,
    NV: lambda text: "swarm = 'x'\n" + text + "\n[another]\nkey = 1\n",
}

BROKEN = {"docker": '{"runtimes": ', "podman": "[engine", "containerd": "version = ", NV: f"[{NV}\n"}
CONFLICT = {
    "docker": f'{{"runtimes": {{"nvidia": {{"path": "/usr/bin/{NV}"}}}}}}',
    "podman": f'[engine.runtimes]\nnvidia = ["/usr/bin/{NV}"]\n',
    "containerd": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n"
    f"BinaryName = '/usr/bin/{NV}'\n",
    NV: f'[{NV}]\nruntimes = ["runc", "{OURS}"]\n',
}
BY_HAND = {
    "docker": f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}}}',
    "podman": f'[engine.runtimes]\nnvidia = ["{OURS}"]\n',
    "containerd": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
    f"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\nBinaryName = '{OURS}'\n",
    NV: f'[{NV}]\nruntimes = ["{OURS}", "runc"]\n',
}


def within(old: Any, new: Any) -> bool:
    """Whether all of old is in new, or is a list that ours went in front of."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and within(old[key], new[key]) for key in old)
    return new == old or new == [OURS, *old]


@pytest.fixture(params=CASES, ids=" ".join)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param[0], CONTENT.get(request.param))


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def folders(root: Path) -> set[Path]:
    return {one for one in (root / "etc").rglob("*") if one.is_dir()}


def test_set_then_undo_gives_every_byte_back(host: Host) -> None:
    before, there = host.text, folders(host.root)
    said = host.ok()
    assert set_value(host) == OURS
    assert f"wrote {host.file}\nnext: " in said
    assert any(line.startswith("+") and OURS in line for line in said.splitlines())
    assert oct(host.record.stat().st_mode)[-3:] == "600"
    host.ok("--undo")
    assert host.text == before
    assert not host.record.exists()
    assert folders(host.root) == there


def test_a_folder_in_which_somebody_else_has_something_stays(tmp_path: Path) -> None:
    """Setup made the folder, and its second run keeps that in the record."""
    host = Host(tmp_path, "docker", None)
    host.ok()
    host.ok("--default")
    other = host.file.parent / "key.json"
    other.touch()
    host.ok("--undo")
    assert not host.file.exists() and other.exists()


def test_comments_and_what_else_is_there_stay(host: Host) -> None:
    before, old = host.text or "", host.data()
    host.ok()
    if host.name != "docker":
        missing = [line for line in before.splitlines() if line not in (host.text or "").splitlines()]
        assert [line for line in missing if not line.startswith("runtimes = [")] == []
    assert within(old, host.data())


def test_dry_run_shows_the_same_and_writes_nothing(host: Host) -> None:
    before = host.tree()
    shown = host.ok("--dry-run")
    assert host.tree() == before
    assert "dry run: nothing was written" in shown
    assert host.ok().split("\nwrote ")[0] == shown.split("\ndry run")[0]
    after = host.tree()
    host.ok("--dry-run", "--undo")
    assert host.tree() == after


def test_twice_changes_nothing_and_says_so(host: Host) -> None:
    host.ok()
    before = host.tree()
    assert host.ok() == f"{host.file} is set up already: nothing changed\n"
    assert host.tree() == before
    host.ok("--undo")
    before = host.tree()
    assert "nothing changed" in host.ok("--undo")
    assert host.tree() == before


def test_undo_after_an_edit_elsewhere(host: Host) -> None:
    """The result is that of the same edit of the original file."""
    before = host.data()
    host.ok()
    host.write(EDIT[host.name](host.text or ""))
    host.ok("--undo")
    assert OURS not in (host.text or "")
    edited = EDIT[host.name]("")
    wanted = before | (json.loads(edited) if host.name == "docker" else tomllib.loads(edited))
    if host.name == "containerd" and not before:
        wanted["version"] = 2  # kept, as the added text was written for version 2
    assert host.data() == wanted
    assert not host.record.exists()


def test_undo_of_what_somebody_else_took_out(host: Host) -> None:
    before = host.text
    host.ok()
    if before is None:
        host.file.unlink()
    else:
        host.write(before)
    assert "nothing changed" in host.ok("--undo")
    assert host.text == before
    assert not host.record.exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_what_does_not_parse_is_left_alone(name: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    host = Host(tmp_path, name, BROKEN[name])
    assert "is not JSON" in host.refused(*options) or "is not TOML" in host.refused(*options)
    host.file.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in host.refused(*options)


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_another_runtime_of_that_name(name: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    said = Host(tmp_path, name, CONFLICT[name]).refused(*options)
    assert ("order of its own" if name == NV else f"cgpu setup {NV}") in said


def test_set_up_by_hand_before(name: str, tmp_path: Path) -> None:
    """Nothing to do, and nothing to undo either: cgpu setup did not write it."""
    host = Host(tmp_path, name, BY_HAND[name])
    before = host.tree()
    assert "is set up already" in host.ok()
    assert "has no changes of cgpu setup" in host.ok("--undo")
    assert host.tree() == before


@pytest.mark.parametrize(("undo", "number", "code"), [(False, errno.EROFS, 1), (True, errno.EACCES, 4)])
def test_what_cannot_be_written(
    host: Host, monkeypatch: pytest.MonkeyPatch, undo: bool, number: int, code: int
) -> None:
    """The file, its record and the directory are as before; a half-written file is not left."""
    host.ok(*(["--undo", "--dry-run"] if undo else ["--dry-run"]))
    if undo:
        host.ok()
    replace, unlink = Path.replace, Path.unlink

    def fails(path: Path, target: Path) -> Path:
        if Path(target) == host.file:
            raise OSError(number, "no", str(path))
        return replace(path, target)

    def stays(path: Path, missing_ok: bool = False) -> None:
        if path == host.file:
            raise OSError(number, "no", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "replace", fails)
    monkeypatch.setattr(Path, "unlink", stays)
    said = host.refused(*(["--undo"] if undo else []), code=code)
    assert str(host.file) in said


def test_mode_stays(tmp_path: Path) -> None:
    host = Host(tmp_path, "docker", "{}")
    host.file.chmod(0o440)
    host.ok()
    assert host.file.stat().st_mode & 0o777 == 0o440
    host.ok("--undo")
    assert host.file.stat().st_mode & 0o777 == 0o440


def test_links(tmp_path: Path) -> None:
    """Within /etc the file behind a link is written, out of it nothing."""
    host = Host(tmp_path, "docker", None)
    host.write("{}", "etc/shared.json")
    host.write("{}", "opt/daemon.json")
    host.file.parent.mkdir(parents=True)
    host.file.symlink_to("../shared.json")
    host.ok()
    assert host.file.is_symlink() and set_value(host) == OURS
    host.file.unlink()
    host.file.symlink_to(tmp_path / "opt/daemon.json")
    assert "leads out of /etc" in host.refused()


def test_a_directory_is_no_file(name: str, tmp_path: Path) -> None:
    host = Host(tmp_path, name, None)
    host.file.mkdir(parents=True)
    assert "not a regular file" in host.refused()


def test_runtime_must_be_there(name: str, tmp_path: Path) -> None:
    host = Host(tmp_path, name, None)
    assert "no such program" in host.refused("--runtime", "/opt/x", code=5)
    host.refused("--runtime", "bin/x", code=2)
    host.write("", "opt/x")
    assert "not executable" in host.refused("--runtime", "/opt/x")
    (tmp_path / "opt/x").chmod(0o755)
    host.ok("--runtime", "/opt/x")
    assert set_value(host) == "/opt/x"
    if name != NV:
        assert "another runtime" in host.refused()
    (tmp_path / "opt/x").unlink()
    host.ok("--undo")  # also when the program has gone
    assert host.text is None


def test_json(name: str, tmp_path: Path) -> None:
    host = Host(tmp_path, name, None)
    data = json.loads(host.ok("--json"))
    assert list(data) == [
        "schema_version",
        "engine",
        "file",
        "undo",
        "dry_run",
        "changed",
        "removed",
        "diff",
        "next",
        "notes",
    ]
    assert (data["engine"], data["changed"], data["removed"]) == (name, True, False)
    assert json.loads(host.ok("--json"))["changed"] is False
    assert json.loads(host.ok("--json", "--undo"))["removed"] is True
    host.write(BROKEN[name])
    assert json.loads(host.run("--json").stderr)["error"]["code"] == "refused"


NO_RECORDS = {
    "cut off": b'{"runtime": "/usr/bin/cgpu',
    "of nothing": b"{}",
    "not text": b"\xff\xfe",
    "without ours": json.dumps({"runtime": OURS, "before": None, "after": ""}).encode(),
    "broken": json.dumps({"runtime": OURS, "before": None, "after": "[{="}).encode(),
    "of a broken file": json.dumps({"runtime": OURS, "before": "[{=", "after": "[{="}).encode(),
}


@pytest.mark.parametrize("options", [(), ("--undo",)])
@pytest.mark.parametrize("record", [*NO_RECORDS.values(), None], ids=[*NO_RECORDS, "a folder"])
def test_a_record_that_is_none(name: str, tmp_path: Path, options: tuple[str, ...], record: bytes | None) -> None:
    """The error names the remedy, and the remedy is enough."""
    host = Host(tmp_path, name, None)
    host.ok()
    host.record.unlink()
    if record is None:
        host.record.mkdir()
    else:
        host.record.write_bytes(record)
    said = host.refused(*options)
    assert said.startswith(f"cgpu: error: {host.record}: is not a record of cgpu setup: ")
    assert f"(remove it, and remove the text of cgpu setup from {host.file} by hand)" in said
    host.record.rmdir() if record is None else host.record.unlink()
    host.file.unlink()
    host.ok()
    host.ok("--undo")


def test_the_runtime_of_make_install_is_found(tmp_path: Path) -> None:
    """doctor's remedy has no --runtime, and make install puts it into /usr/local/bin."""
    host = Host(tmp_path, "docker", "{}")
    local = tmp_path / "usr/local/bin/cgpu-runtime"
    local.parent.mkdir(parents=True)
    (tmp_path / OURS[1:]).rename(local)
    host.ok()
    assert '"/usr/local/bin/cgpu-runtime"' in (host.text or "")


@pytest.mark.parametrize("name", ["podman", "containerd"])
def test_a_record_whose_marks_are_gone(name: str, tmp_path: Path) -> None:
    host = Host(tmp_path, name, None)
    host.ok()
    host.record.write_text(host.record.read_text().replace("# cgpu: begin", "# cgpu begins"))
    host.write(EDIT[name](host.text or ""))
    assert "is not a record of cgpu setup" in host.refused("--undo")


def test_toolkit_that_is_not_there(tmp_path: Path) -> None:
    """Without NVIDIA's program nothing reads the file. A file that exists is taken to have a reader."""
    host = Host(tmp_path, NV, None)
    program = tmp_path / "usr/bin" / NV
    program.unlink()
    for options in ((), ("--dry-run",)):
        assert f"no {NV} in /usr/bin, /usr/sbin, /usr/local/bin, /usr/local/sbin (install NVIDIA's" in host.refused(
            *options, code=5
        )
    assert not folders(tmp_path)
    assert "nothing changed" in host.ok("--undo")
    local = tmp_path / "usr/local/bin" / NV
    local.parent.mkdir(parents=True)
    local.touch()
    host.ok()
    host.ok("--undo")
    local.unlink()
    host.write("")
    host.ok()


def test_finding_7_the_gpu_operators_toolkit(tmp_path: Path) -> None:
    """Its file is no use to edit: the operator writes it anew. The refusal has the setting that lasts."""
    host = Host(tmp_path, NV, None)
    (tmp_path / "usr/bin" / NV).unlink()
    theirs = tmp_path / "usr/local/nvidia/toolkit/.config" / NV / "config.toml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(f'[{NV}]\nruntimes = ["runc"]\n')
    said = host.refused()
    assert said.startswith(f"cgpu: error: {theirs}: is written anew at each start of the GPU Operator's toolkit")
    assert "NVIDIA_CONTAINER_RUNTIME_RUNTIMES=/usr/bin/cgpu-runtime,runc,crun" in said
    assert theirs.read_text() == f'[{NV}]\nruntimes = ["runc"]\n'


# docker


def test_docker_default_is_set_and_undone(tmp_path: Path) -> None:
    host = Host(tmp_path, "docker", CONTENT["docker", "default"])
    host.ok()
    assert host.data()["default-runtime"] == "crun"
    host.write((host.text or "").replace("{\n", '{\n\t"mtu": 9000,\n', 1))
    host.ok("--default")
    assert host.data()["default-runtime"] == "nvidia"
    host.ok("--undo")
    assert host.data() == {"mtu": 9000, "default-runtime": "crun", "runtimes": {}}
    assert "\n\t" in (host.text or "")


def test_docker_default_that_we_did_not_set(tmp_path: Path) -> None:
    """Without its default runtime dockerd would not start."""
    host = Host(tmp_path, "docker", "{}")
    host.ok()
    host.write(json.dumps(host.data() | {"default-runtime": "nvidia"}))
    assert "default-runtime" in host.refused("--undo")


def test_docker_key_changed_since(tmp_path: Path) -> None:
    host = Host(tmp_path, "docker", "{}")
    host.ok()
    host.write(json.dumps({"runtimes": {"nvidia": {"path": OURS, "runtimeArgs": ["--debug"]}}}))
    assert "changed since" in host.refused("--undo")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[]", '{"runtimes": []}', "[" * 100000, '{"a": 1e999}'])
def test_docker_odd_files(tmp_path: Path, text: str) -> None:
    Host(tmp_path, "docker", text).refused()


def test_default_is_dockers(tmp_path: Path) -> None:
    Host(tmp_path, "podman", None).refused("--default", code=2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RUNTIMES = st.dictionaries(st.text().filter(lambda key: key != "nvidia"), JSON, max_size=3)


@given(
    st.dictionaries(st.text(), JSON, max_size=4),
    st.none() | RUNTIMES,
    st.sampled_from([None, "nvidia", "runc"]),
    st.sampled_from([None, 1, 2, 4, "\t"]),
    st.booleans(),
)
@example({}, {}, None, 2, True)
def test_docker_round_trip(
    rest: dict[str, Any], runtimes: Any, default: str | None, indent: int | str | None, as_default: bool
) -> None:
    """Set and undo give the same data in the same order, edited elsewhere or not."""
    data = {key: value for key, value in rest.items() if key not in ("runtimes", "default-runtime", "edit")}
    data |= {} if runtimes is None else {"runtimes": runtimes}
    data |= {} if default is None else {"default-runtime": default}
    text = json.dumps(data, indent=indent)
    docker = ENGINES["docker"]
    after = docker.put(text, SetupRequest(OURS, as_default))
    assert json.loads(after)["runtimes"]["nvidia"] == {"path": OURS}
    assert docker.put(after, SetupRequest(OURS, as_default)) == after
    record = Record(OURS, text, after)
    back = json.loads(docker.take(after, record))
    assert back == data
    assert list(back) == list(data)
    edited = json.dumps({"edit": 1, **json.loads(after)})
    assert json.loads(docker.take(edited, record)) == {"edit": 1, **data}


# the TOML ones


@given(
    st.lists(st.sampled_from(["runc", "crun", "/usr/bin/runc", "youki"]), max_size=4),
    st.sampled_from(["", " ", "\n  "]),
)
def test_nvidia_round_trip(names: list[str], gap: str) -> None:
    nvidia = ENGINES[NV]
    items = f",{gap or ' '}".join(json.dumps(one) for one in names)
    text = f"# top\n[{NV}]\nruntimes = [{gap}{items}{gap}] # end\n[x]\nruntimes = ['a']\n"
    first = names[0] if names else "runc"
    request = SetupRequest(OURS, others={"runtime.conf": f"next = {first}\n"})
    after = nvidia.put(text, request)
    assert tomllib.loads(after)[NV]["runtimes"] == [OURS, *names]
    assert tomllib.loads(after)["x"] == {"runtimes": ["a"]}
    longer = after.replace("# end", "# end of it")
    back = nvidia.take(longer, Record(OURS, text, after))
    assert tomllib.loads(back) == tomllib.loads(text)
    assert "# end of it" in back


@pytest.mark.parametrize(
    ("conf", "runtimes", "fine"),
    [
        (None, ["crun", "runc"], False),
        (None, ["/usr/sbin/runc"], True),
        ("# next = crun\n", ["crun"], False),
        (' next = "crun"\n', ["crun", "runc"], True),
        ("next = crun\n", ["runc", "crun"], False),
        ("ask = always\nnext = /opt/youki\n", ["/opt/youki"], True),
        ("next =\n", ["runc"], True),
    ],
)
def test_nvidia_order_that_cgpu_runtime_would_not_keep(
    tmp_path: Path, conf: str | None, runtimes: list[str], fine: bool
) -> None:
    """cgpu-runtime executes the runtime that was the first of the list before."""
    host = Host(tmp_path, NV, f"[{NV}]\nruntimes = {json.dumps(runtimes)}\n")
    if conf is not None:
        host.write(conf, "etc/cgpu/runtime.conf")
    if fine:
        host.ok()
    else:
        assert "cgpu-runtime executes" in host.refused()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (NV, f"{NV} = {{ runtimes = ['runc'] }}\n"),
        (NV, f"{NV}.runtimes = ['runc']\n"),
        (NV, f"[{NV}]\nruntimes = 'runc'\n"),
        (NV, f"[{NV}]\nx = '''\nruntimes = [\n'''\n\"runti\\u006des\" = ['runc']\n"),
        ("containerd", "version = 2\nplugins = {}\n"),
        ("containerd", "version = 2\n[plugins]\n'io.containerd.grpc.v1.cri'.containerd.runtimes = {}\n"),
        ("containerd", "version = 9\n"),
        ("containerd", "version = []\n"),
        ("containerd", 'disabled_plugins = ["cri"]\n'),
        ("podman", "[engine]\ncgroup_manager = 'systemd'\n"),
    ],
)
def test_forms_that_are_not_ours_to_write(tmp_path: Path, name: str, text: str) -> None:
    Host(tmp_path, name, text).refused()


def test_podman_other_files_count(tmp_path: Path) -> None:
    host = Host(tmp_path, "podman", None)
    for text, said in ((CONFLICT["podman"], f"cgpu setup {NV}"), (BROKEN["podman"], "is not TOML")):
        host.write(text, "etc/containers/containers.conf")
        assert said in host.refused() and "containers.conf " in host.refused()
    host.write(BY_HAND["podman"], "etc/containers/containers.conf")
    assert "is set up already" in host.ok()
    assert host.text is None


@given(st.text(max_size=60), st.sampled_from(list(ENGINES)))
@example('"runtimes" = [', NV)
def test_any_text_is_refused_or_comes_back(text: str, name: str) -> None:
    engine: Engine = ENGINES[name]
    try:
        after = engine.put(text, SetupRequest(OURS))
    except EditRefused:
        return
    assert OURS in after
    if after != text:
        read: Callable[[str], Any] = tomllib.loads if name != "docker" else lambda one: json.loads(one or "{}")
        assert read(engine.take(after, Record(OURS, text, after)).strip()) == read(text.strip())


# ---- who reads the file ----


def without_programs(host: Host) -> Host:
    for name in ENGINES[host.name].programs:
        (host.root / "usr/bin" / name).unlink()
    return host


@pytest.mark.parametrize("name", [name for name in ENGINES if name != NV])
def test_a_file_that_no_program_reads(name: str, tmp_path: Path) -> None:
    """`wrote`, exit 0, on a node without the engine."""
    said = without_programs(Host(tmp_path, name, None)).refused(code=5)
    assert f"no program reads it: there is no {ENGINES[name].programs[0]} in /usr/bin" in said
    assert f"(install {ENGINES[name].package})" in said


def test_an_existing_file_may_have_a_reader_elsewhere(tmp_path: Path) -> None:
    host = without_programs(Host(tmp_path, "docker", "{}"))
    assert "note: there is no dockerd in /usr/bin" in host.ok()


@pytest.mark.parametrize("one", ELSEWHERE, ids=[one.name for one in ELSEWHERE])
def test_a_distributions_own_engine_reads_another_file(tmp_path: Path, one: Elsewhere) -> None:
    host = Host(tmp_path, one.engine, None)
    (host.root / one.seen).mkdir(parents=True)
    assert f"note: {one.name} does not read this file, but its own in /{one.seen}: " in host.ok("--dry-run")
    said = without_programs(host).refused()
    assert f"{one.name} reads /{one.seen}" in said and one.remedy in said


@pytest.mark.parametrize("name", [name for name, one in ENGINES.items() if one.sockets])
def test_no_next_step_for_an_engine_that_does_not_run(name: str, tmp_path: Path) -> None:
    """`next: systemctl reload docker` where docker is off, which fails."""
    host = Host(tmp_path, name, None)
    assert f"next: {ENGINES[name].then}\n" in host.ok()
    host.ok("--undo")
    (host.root / ENGINES[name].sockets[0]).unlink()
    assert "is not running and reads the file at its start" in host.ok()


def test_make_install_names_the_engines_of_the_command() -> None:
    """Its next step named crio, which the command refuses."""
    text = (Path(__file__).parents[3] / "scripts/install").read_text()
    first = re.search(r"bin/cgpu setup (\S+) ", text)
    others = re.search(r"without it (.*) in its place", text)
    assert first and others
    assert {first[1], *re.split(", | or ", others[1])} == set(ENGINES)
