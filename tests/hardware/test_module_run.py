# SPDX-License-Identifier: MIT
"""module-run with steps that die: what they had written stays, the others run, nothing is left. No GPU, no module.

User-Mode Linux is a script here that ends in the way of the case; what runs in it is rehearsed by
`make module-run-rehearsal`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import tables

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]

PROGRAM = HERE / "module-run"

LINUX = r"""#!/bin/sh
for word; do [ "$word" = end ] && break; out=$word; done
step=${out##*/}
way=$EACH
[ ! -f "$DEATHS/$step" ] || way=$(cat "$DEATHS/$step")
sleep 1000 &
echo $! $$ >>"$DEATHS/left"
echo booted
say() { printf "$1" >>"$out/results.jsonl"; }
[ "$way" != "at the start" ] || kill -9 $$
say '{"name": "'"$step"'", "ok": true}\n'
case $way in
"in the middle") say '{"name": "half a li'; kill -9 $$ ;;
hangs) sleep 1000 ;;
"without seccomp") echo "SECCOMP userspace requested but not functional!"; exit 1 ;;
panics) echo "Kernel panic - not syncing"; exit 1 ;;
"bad result") say '{"name": "second", "ok": false}\n' ;;
missing) say '{"name": "second", "ok": null, "missing": "PyTorch"}\n' ;;
esac
: >"$out/not_forwarded"
[ "$way" != "without an end" ] || exit 0
status=0
[ "$way" != fails ] || status=1
echo '{"status": '$status'}' >"$out/end.json"
[ "$way" != "half an end" ] || echo '{"stat' >"$out/end.json"
"""

FORWARDER = """#!/bin/sh
[ "$EACH" != forwarder ] || exit 1
echo "verbose: ${NVFORWARDD_VERBOSE-no}"
: >"$1"
exec sleep 1000
"""

GPULOAD = """#!/bin/sh
echo '{"event":"info","iterations":4711}'
"""


@pytest.fixture
def module():
    loader = SourceFileLoader("module_run", str(PROGRAM))
    spec = importlib.util.spec_from_loader("module_run", loader)
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    for name, text in (("linux", LINUX), ("nvforwardd", FORWARDER), ("gpuload", GPULOAD)):
        (made / name).write_text(text)
        (made / name).chmod(0o755)
    return made


def prepared(folder: Path, each: str, deaths: dict[str, str]) -> dict[str, str]:
    """The environment that says how steps end."""
    folder.mkdir()
    for name, way in deaths.items():
        (folder / name).write_text(way)
    return os.environ | {"EACH": each, "DEATHS": str(folder)}


def left(folder: Path) -> list[int]:
    """Processes that the steps started and that are still there."""
    file = folder / "left"
    return [pid for pid in map(int, file.read_text().split()) if alive(pid)] if file.exists() else []


class Run:
    """One of module-run."""

    def __init__(self, tree: Path, folder: Path, *options: str, each: str = "", **deaths: str):
        environment = prepared(folder, each, deaths)
        argv = [sys.executable, str(PROGRAM), "--tree", str(tree), "--out", str(folder), "--memory", "1M", *options]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
        self.status, self.out = done.returncode, done.stdout
        self.report = json.loads((folder / "results.json").read_text())
        self.steps = {step["step"]: step for step in self.report["steps"]}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WAYS = {
    "at the start": ("User-Mode Linux ended with status -9", 0),
    "in the middle": ("User-Mode Linux ended with status -9", 1),
    "panics": ("User-Mode Linux ended with status 1", 1),
    "hangs": ("ended after", 1),
    "fails": ("status 1", 1),
    "without an end": ("status None", 1),
    "half an end": ("status None", 1),
    "forwarder": ("nvforwardd does not start: ", 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_step_may_die(module, tree, tmp_path, way):
    """All of them in one way, the first few in the others: each is begun, and says how it ended and what it had."""
    names = [step[0] for step, _ in module.STEPS][: None if way == "in the middle" else 6]
    slow = ["--slow", "0.01"] if way == "hangs" else []
    run = Run(tree, tmp_path / "out", "--go-on", *slow, *names, each=way)
    assert run.status == 1
    assert list(run.steps) == names
    why, results = WAYS[way]
    for name, step in run.steps.items():
        assert step["ok"] is False
        assert why in step["why"], name
        assert [one["name"] for one in step["results"]] == [name] * results
        assert {"console.log", "inside.log", "nvforwardd.log"} <= set(step)
    assert left(tmp_path / "out") == [], "what a step started ends with it"


def test_one_that_dies_does_not_disturb_the_others(module, tree, tmp_path):
    names = [step[0] for step, _ in module.STEPS]
    for number, name in enumerate((names[0], names[-1])):
        run = Run(tree, tmp_path / f"out{number}", **{name: "in the middle"})
        assert [one for one, step in run.steps.items() if not step["ok"]] == [name]


def test_a_good_run(module, tree, tmp_path):
    run = Run(tree, tmp_path / "out")
    assert run.status == 0
    assert all(step["ok"] for step in run.steps.values())
    assert run.report["machine"]["python"]
    assert len(run.out.splitlines()) == len(module.STEPS)


def test_a_result_decides(tree, tmp_path):
    """One that is wrong fails its step; one whose program is not there does not, and says so."""
    run = Run(tree, tmp_path / "out", smi="bad result", torch="missing")
    assert run.status == 1
    assert (run.steps["smi"]["ok"], run.steps["torch"]["ok"]) == (False, True)
    assert run.steps["torch"]["results"][-1]["missing"] == "PyTorch"


def test_a_step_is_told_of_the_card(tree, tmp_path):
    text = (tree / "linux").read_text()
    (tree / "linux").write_text(text.replace("echo booted", f'cp "$out/run.json" {tmp_path}/told.json'))
    Run(tree, tmp_path / "out", "smi")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["environment"]["GPULOAD_ITERATIONS"] == "4711"
    assert told["environment"]["CARD_IS_SIMULATED"] == "0"
    assert told["environment"]["SHARES_ARE_JUDGED"] == "1"
    assert told["environment"]["SLOWNESS"] == "1"


def test_the_whole_ends_within_its_budget(module, tree, tmp_path):
    """Steps that hang take what is left; those for which nothing is left are not begun, and say so."""
    began = time.monotonic()
    run = Run(tree, tmp_path / "out", "--go-on", "--budget-s", "2.5", "--slow", "0.05", each="hangs")
    assert time.monotonic() - began < 8
    assert len(run.steps) == len(module.STEPS)
    late = [step for step in run.steps.values() if step["why"].startswith("not begun: ")]
    assert 0 < len(late) < len(module.STEPS)


def test_results_are_there_after_each_step(module, tree, tmp_path):
    """A run that is killed has what it had."""
    out = tmp_path / "out"
    environment = prepared(out, "", {"walk": "hangs"})
    argv = [sys.executable, str(PROGRAM), "--tree", str(tree), "--out", str(out), "--memory", "1M"]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    begun = [json.loads(process.stdout.readline())["step"] for _ in range(2)]
    until = time.monotonic() + 30
    while len(lines := (out / "left").read_text().splitlines()) < 3 and time.monotonic() < until:
        time.sleep(0.02)  # the walk, which hangs
    process.kill()
    process.wait()
    steps = json.loads((out / "results.json").read_text())["steps"]
    assert [step["step"] for step in steps] == begun == [step[0] for step, _ in module.STEPS][:2]
    until = time.monotonic() + 5
    # User-Mode Linux and nvforwardd end with module-run; a child of theirs here may not.
    machines = [int(line.split()[1]) for line in lines]
    assert len(machines) == 3
    while any(map(alive, machines)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [pid for pid in machines if alive(pid)]
    for pid in left(out):
        os.kill(pid, 9)


def test_the_steps_are_those_of_the_machine(module):
    """Each has a function inside, and nothing takes longer than the whole may."""
    import inside

    assert {step[0] for step, _ in module.STEPS} | {module.TRACED} == set(inside.STEPS)
    assert set(module.TORCH_STEPS) | set(module.FIRST) <= set(inside.STEPS)
    assert all(limit_s <= 200 for _, limit_s in module.STEPS)


def test_the_first_steps_say_whether_anything_works(module):
    """And those of the first call, by the end of which there is a figure, are the first five."""
    assert {step[0] for step, _ in module.STEPS[:2]} == set(module.FIRST)
    assert [step[0] for step, _ in module.STEPS[:5]] == ["vectoradd", "smi", "walk", "limit", "ratio"]


# ---- a machine on which nothing works ----


@pytest.mark.parametrize(("way", "steps"), [("panics", 2), ("without seccomp", 1)])
def test_nothing_is_begun_after_what_cannot_work(module, tree, tmp_path, way, steps):
    run = Run(tree, tmp_path / "out", each=way)
    assert run.status == module.STOPPED
    assert list(run.steps) == [step[0] for step, _ in module.STEPS][:steps]
    wanted = module.h.REFUSED_SECCOMP if way == "without seccomp" else "vectoradd and smi failed: nothing works here"
    assert run.report["stopped"] == wanted


def test_one_of_the_first_that_works_is_enough(module, tree, tmp_path):
    run = Run(tree, tmp_path / "out", vectoradd="panics")
    assert run.status == 1
    assert len(run.steps) == len(module.STEPS)


@pytest.mark.parametrize(("first", "wanted"), [("bad result", False), ("panics", False), ("at the start", True)])
def test_of_other_steps_two_without_a_good_result_are_the_end(module, first, wanted):
    good, bad = {"ok": True}, {"ok": False}
    results = {"bad result": [good, bad], "panics": [good], "at the start": []}[first]
    steps = [{"step": name, "ok": False, "why": "", "results": results} for name in ("charges", "kinds")]
    assert bool(module.is_vain(steps)) is wanted
    assert not module.is_vain([*steps, steps[0]]), "only the first two are asked"


def test_a_program_that_is_needed_is_named(module, tree, tmp_path, monkeypatch):
    with_all = module.shutil.which
    monkeypatch.setattr(module.shutil, "which", lambda name: None if name == "setpriv" else with_all(name))
    monkeypatch.setattr(
        sys, "argv", ["module-run", "--tree", str(tree), "--out", str(tmp_path / "out"), "--memory", "1M"]
    )
    assert module.main() == module.STOPPED
    report = json.loads((tmp_path / "out/results.json").read_text())
    assert report["stopped"] == "not installed: setpriv"
    assert report["steps"] == []


def test_a_step_that_is_not_there_is_named(tree, tmp_path):
    argv = [sys.executable, str(PROGRAM), "--tree", str(tree), "--out", str(tmp_path / "out"), "smi", "vectorad"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no step vectorad" in done.stderr


# ---- what explains a failure ----


def logs(folder: Path) -> dict[str, str]:
    with tarfile.open(folder / "logs.tgz") as archive:
        return {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}


def test_every_log_is_kept(tree, tmp_path):
    """Of the first steps with each call that nvforwardd makes."""
    text = (tree / "linux").read_text()
    (tree / "linux").write_text(text.replace("echo booted", "echo booted; seq 2000"))
    Run(tree, tmp_path / "out", "vectoradd", "smi", "limit", limit="panics")
    kept = logs(tmp_path / "out")
    verbose = {name.split("/")[0]: said for name, said in kept.items() if name.endswith("nvforwardd.log")}
    assert verbose == {"vectoradd": "verbose: 1\n", "smi": "verbose: 1\n", "limit": "verbose: no\n"}
    console = kept["limit/console.log"].splitlines()
    assert len(console) > 2000
    assert console[-1] == "Kernel panic - not syncing"
    assert not list((tmp_path / "out").glob("*.new"))


def test_of_a_long_log_the_end_is_kept(module, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOG_BYTES", 4)
    (tmp_path / "scratch/smi").mkdir(parents=True)
    (tmp_path / "scratch/smi/console.log").write_text("0123456789")
    module.pack_logs(tmp_path / "scratch", tmp_path)
    assert logs(tmp_path) == {"smi/console.log": "6789"}


def test_a_vectoradd_that_failed_is_recorded(module, tree, tmp_path):
    (tree / "librmtap.so").touch()
    text = (tree / "linux").read_text()
    (tree / "linux").write_text(text.replace("echo booted", 'cp "$out/run.json" $TOLD/$step.json'))
    os.environ["TOLD"] = str(tmp_path)
    run = Run(tree, tmp_path / "out", "vectoradd", "smi", vectoradd="panics")
    assert list(run.steps) == ["vectoradd", "traced", "smi"]
    assert json.loads((tmp_path / "traced.json").read_text())["step"] == ["traced", str(tree / "librmtap.so")]
    assert list(Run(tree, tmp_path / "good", "vectoradd", "smi").steps) == ["vectoradd", "smi"]


def test_what_cannot_be_written_takes_nothing_with_it(module, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module.tables, "page", lambda report: report["no such key"])
    (tmp_path / "logs.tgz.new").mkdir()
    module.save(tmp_path, tmp_path / "scratch", {"steps": [{"step": "smi", "odd": Path("x")}]})
    assert json.loads((tmp_path / "results.json").read_text())["steps"] == [{"step": "smi", "odd": "x"}]
    said = capsys.readouterr().err
    assert "logs.tgz.new" in said
    assert "no such key" in said


def test_results_are_never_half_written(module, tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text("old")
    monkeypatch.setattr(module.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        module.write(tmp_path / "results.json", "new")
    assert (tmp_path / "results.json").read_text() == "old"


# ---- the machine ----


def test_the_first_programs_run_on_the_driver_alone_too(tree, tmp_path):
    """What fails there fails without User-Mode Linux."""
    (tree / "walk").write_text("""#!/bin/sh
echo "{\\"results\\": {\\"$1/a\\": 0, \\"$2/b\\": 7}, \\"stalled\\": null}"
""")
    (tree / "walk").chmod(0o644)  # a copy may lose it
    (tree / "libcuda.so.1").write_text("no library")
    run = Run(tree, tmp_path / "out", "smi")
    walk = run.report["native"]["walk"]
    assert (walk["calls"], walk["not_0"], walk["status"]) == (2, {"memory/b": 7}, 0)
    assert run.report["native"]["vectoradd"]["status"] != 0


def test_what_the_machine_is_stands_in_the_results(tree, tmp_path):
    (tree / "commit").write_text("0123abcd-dirty\n")
    said = Run(tree, tmp_path / "out", "smi").report["machine"]
    assert said["commit"] == "0123abcd-dirty"
    assert said["memory of User-Mode Linux"].startswith("1 MiB in /")
    assert "CapEff:" in said["process"]
    assert set(said["programs"]) >= {"unshare", "setpriv", "mount", "dmesg", "ldconfig"}
    assert said["max_map_count"]
    page = (tmp_path / "out/machine.txt").read_text()
    assert {"==== nvidia-smi -q", "==== meminfo", "==== df -h"} <= set(page.splitlines())


def test_mappings_are_raised_and_put_back(module, tmp_path, monkeypatch):
    setting = tmp_path / "max_map_count"
    setting.write_text("65530\n")
    monkeypatch.setattr(module, "MAPS", setting)
    with module.prepared_host():
        assert setting.read_text() == "65530\n", "without a driver nothing of the machine is changed"
    monkeypatch.setattr(module, "branch", lambda: 580)
    with module.prepared_host() as said:
        assert int(setting.read_text()) == module.MAPS_WANTED
        assert said["max_map_count"] == f"{module.MAPS_WANTED}, 65530 before"
    assert setting.read_text() == "65530"
    monkeypatch.setattr(module, "MAPS", tmp_path / "no/max_map_count")
    with module.prepared_host() as said:
        assert "No such file" in said["max_map_count"]


def test_a_machine_without_ldconfig(module, monkeypatch):
    monkeypatch.setattr(module.h, "call", lambda *words, **more: (_ for _ in ()).throw(FileNotFoundError("ldconfig")))
    monkeypatch.setattr(module.Path, "exists", lambda path: str(path) == "/usr/lib64/libcuda.so.1")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert module.library_path() == "/usr/lib64"


@pytest.mark.parametrize(
    ("version", "parameters"), [("550.163.01", ""), ("595.10", ""), ("610.43.02", "any_driver=1"), ("", "")]
)
def test_a_newer_driver_is_accepted_and_said_so(module, tmp_path, monkeypatch, version, parameters):
    line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Nov 17" if version else ""
    monkeypatch.setattr(module, "text", lambda path: line)
    assert module.home_of(tmp_path, "1M").parameters == parameters


def test_the_newest_compared_branch_is_the_modules(module):
    source = (REPO / "cgpu_km/core/nv_branch.c").read_text()
    assert f"CGPU_BRANCH_COMPARED\t{module.COMPARED}\n" in source


# ---- the tree that travels ----


@pytest.fixture
def repository(module, tmp_path, monkeypatch) -> Path:
    """With each part, of one MiB together."""
    made = tmp_path / "repository"
    for part in module.PARTS:
        path = made / "build" / part.replace("*", "0_1_0")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes((1 << 20) // len(module.PARTS)))
    (made / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "init", "-q", made], check=True)
    subprocess.run(["git", "-C", made, "add", "-A"], check=True)
    monkeypatch.setattr(module, "REPO", made)
    return made


def test_the_tree_has_its_parts_and_no_more(module, repository, capsys):
    assert module.pack(repository / "build/tree") == 0
    names = {Path(part).name.replace("*", "0_1_0") for part in module.PARTS}
    assert {path.name for path in (repository / "build/tree").iterdir()} == names | {"commit"}
    assert "with the sources 1 MiB" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["build/kernels/uml/linux", "sources"])
def test_a_tree_of_more_than_64_mib_is_refused(module, repository, capsys, where):
    """Sources count too: they travel with it."""
    with (repository / where).open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["git", "-C", repository, "add", "-A"], check=True)
    assert module.pack(repository / "build/tree") == 1
    said = capsys.readouterr().err
    assert "more than the 64 MiB" in said
    assert "has 64 MiB" in said


def test_a_part_that_is_not_built_is_named(module, repository, capsys):
    (repository / "build/client/nvforwardd").unlink()
    assert module.pack(repository / "build/tree") == 1
    assert "build/client/nvforwardd is not there: make module-run" in capsys.readouterr().err


def test_the_sources_leave_room_for_the_parts(module):
    """Of this repository: User-Mode Linux and the other parts are 20 MiB."""
    command = ["git", "ls-files", "-z"]
    files = subprocess.run(command, cwd=module.REPO, stdout=subprocess.PIPE, text=True, check=True).stdout
    sizes = [path.stat().st_size for path in module.carried(HERE / "results", files) if path.is_file()]
    assert 0 < sum(sizes) < (module.TREE_MAX_MIB - 25) << 20


# ---- tables ----


def test_limits_stand_beside_the_published_ones():
    said = {"kind": "plain", "step_mib": 256, "total_mib": 30000, "allocated_mib": 29440}
    line = {"name": "limit 30000 plain 256", "ok": True, "limit_mib": 30000, "smi_mib": "30000", "said": said}
    died = {"name": "limit 3000 plain 256", "ok": False, "limit_mib": 3000, "smi_mib": "3000", "said": "Traceback"}
    lines = tables.limits([line, died, {"name": "killed at the limit", "ok": True}])
    assert lines[4:] == [
        "| plain, 256 MiB | 30000 | 30000 | 30000 | 29440 | 560 |",
        "| NVIDIA's limit (driver 615), 256 MiB | 30000 | 30000 | – | 29184 | 816 |",
        "| NVIDIA's limit (driver 615), 256 MiB | 3000 | – | – | 2560 | 440 |",
    ]


def test_loops_stand_beside_the_published_ones():
    lines = [
        {"name": "decode 32, native", "percent_of_alone": 75.0},
        {"name": "decode 32, policy 2", "percent_of_alone": 80.0},
        {"name": "decode 2, native", "percent_of_alone": 45.5},
        {"name": "decode loops", "ok": None, "missing": "PyTorch"},
    ]
    assert tables.loops(lines)[4:] == ["| 2 | 45.5 | – | 44.5 | 63.5 |", "| 32 | 75.0 | 80.0 | 72.8 | 87.9 |"]
    assert tables.loops([]) == []
    assert tables.loops([{**lines[0], "missing": "a stand-in"}]) == [], "a figure that says nothing is not shown"


def test_each_refused_call_is_one_row() -> None:
    log = [
        "[ 1.0] cgpu_km: container ab: escape 0xd7 refused, pid 3",
        "[ 2.0] cgpu_km: container cd: escape 0xd7 refused, pid 4",
    ]
    log += ["[ 3.0] cgpu_km: container ab: GPU 0: 33554432 bytes refused, 6312427520 of 6336544768 in use"]
    assert tables.refusals(log)[4:] == ["| escape 0xd7 | 2 |", "| memory at the limit | 1 |"]
    assert tables.refusals([])[4:] == ["| none | – |"]


def test_the_page_says_what_ended_how(tree, tmp_path):
    Run(tree, tmp_path / "out", "smi", "torch", "walk", smi="bad result", torch="missing", walk="panics")
    page = (tmp_path / "out/results.md").read_text()
    assert "| torch | ok |" in page
    assert "missing: PyTorch" in page
    assert "| smi | failed |" in page
    assert "User-Mode Linux ended with status 1" in page


def test_a_standin_is_named(tree, tmp_path):
    text = (tree / "linux").read_text()
    (tree / "linux").write_text(text.replace("echo booted", f'cp "$out/run.json" {tmp_path}/told.json'))
    run = Run(tree, tmp_path / "out", "--standin", "torch")
    environment = json.loads((tmp_path / "told.json").read_text())["environment"]
    assert environment["TORCH_IS_STANDIN"] == "1"
    assert Path(environment["PYTHONPATH"], "torch/__init__.py").exists()
    assert run.report["machine"]["stand-in for PyTorch"] is True


def test_a_load_whose_waits_would_spin_is_refused(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    more = {"WAITS_BLOCK": "1", "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(HERE.parent / "forward/standin")}
    command = [sys.executable, HERE / "load/torchload.py", "--seconds", "0.2"]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=30)
    assert done.returncode == 5
    assert "torchload: waits do not block, CUDA says -1" in done.stderr


@pytest.mark.parametrize(
    "words",
    ["torchload.py --seconds 0.2", "serveload.py --seconds 0.2 --rate 50", "serveload.py --seconds 0.2 --batches 1,2"],
)
def test_the_loads_run_on_the_standin(tmp_path, words):
    """Without a GPU: what it says of memory is libcuda's, here of a library that has none."""
    (tmp_path / "libcuda.py").write_text("class Cuda:\n    def __getattr__(self, name): return lambda *args: None\n")
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent / 'forward/standin'}:{tmp_path}"}
    program, *options = words.split()
    command = [sys.executable, HERE / "load" / program, *options]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert '"ready"' in done.stdout
