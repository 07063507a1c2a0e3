# SPDX-License-Identifier: MIT
"""The example configuration names every key and changes nothing as it is; systemd understands the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from cgpu_common import config, keys, settings
from cgpu_common.kernel_abi import MAX_INST_MAX
from cgpu_common.settings import Caps, GpuSettings

REPO = Path(__file__).resolve().parents[3]
SYSTEMD = REPO / "systemd"
EXAMPLE = (SYSTEMD / "cgpu.toml.example").read_text()
PROC = (REPO / "docs/reference/proc.md").read_text()


def parsed(text: str) -> config.Config:
    return config.merge([("example", tomllib.loads(text))])


def test_as_it_is_the_example_is_the_defaults() -> None:
    assert parsed(EXAMPLE) == config.Config()


def test_every_key_is_there_and_good() -> None:
    text = re.sub(r"^# (?=\[|\w+ = )", "", EXAMPLE, flags=re.M)
    values = tomllib.loads(text)
    gpu, container = values.pop("gpu"), values.pop("container")
    tables = [name for name, value in gpu.items() if isinstance(value, dict)]
    assert set(values) == set(keys.NODE)
    assert set(gpu) - set(tables) == set(keys.GPU)
    assert set(container) == set(keys.CONTAINER)
    whole = parsed(text)
    assert set(whole.gpus) == {"0", "0000:01:00.0", "gpu-b084ae33-e244-0959-cd97-830000000000"}
    assert whole.gpu == GpuSettings(5, 20, 80, 0, 0, 100, 0, "allow")
    assert whole.container == Caps(8192, 1.0, 25, "allow", "allow", "optional", 25)


def test_each_key_is_a_field() -> None:
    """Of the table that it stands in; and each field is a key, but those that the files do not have."""
    for table, where, others in (
        (keys.NODE, config.Config, {"gpu", "gpus", "container", "files", "fingerprint"}),
        (keys.GPU, GpuSettings, set()),
        (keys.CONTAINER, Caps, {"files"}),
    ):
        assert {one.name for one in fields(where)} - others == set(table)


def test_every_key_is_explained() -> None:
    """Each key has a comment above."""
    lines = EXAMPLE.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"(# )?(\w+ = |\[)", line) and not re.match(r"(# )?(\w+ = |\[)", lines[number - 1]):
            assert lines[number - 1].startswith("# ") or lines[number - 1] == "", line


def test_example_and_page_are_made_from_the_keys() -> None:
    done = subprocess.run([sys.executable, REPO / "scripts/config-doc", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(("above", "files"), [("", "root"), ("N/", "gpu"), ("N/C/", "slot")])
def test_the_contract_has_the_modules_files(above: str, files: str) -> None:
    """Names and modes; a test in the virtual machine reads and writes them."""
    source = (REPO / "cgpu_km/admin/proc.c").read_text()
    (body,) = re.findall(rf"\b{files}_files\[\] = \{{\n(.*?)\n\}};", source, re.S)
    found = re.findall(r'^\t\{ "(\w+)", \w+(?:, (\w+))?', body, re.M)
    assert len(found) == len(body.splitlines())
    rows = re.findall(rf"^\| `{above}(\w+)` \| (0[0-7]{{3}}) \|", PROC, re.M)
    assert sorted(rows) == sorted((name, "0644" if store not in ("", "NULL") else "0444") for name, store in found)


def proc_row(node: str) -> str:
    """The range and the default of a GPU's node, as the contract has them."""
    found = re.search(rf"^\| `N/{node}` \| 0644 \| [^|]* \| ([^|]*) \|", PROC, re.M)
    assert found, node
    return found[1]


@pytest.mark.parametrize("name", [name for name, key in keys.GPU.items() if key.attr is not None])
def test_the_contract_has_the_keys_range_and_default(name: str) -> None:
    """docs/reference/proc.md, which a test in the virtual machine compares with the module."""
    key = keys.GPU[name]
    text, _, default = proc_row(key.node).partition("; ")
    least, most = key.kind.least, key.kind.most
    if name == "default_memsize_mib":  # bytes there; 0 is for the daemon only
        assert text.startswith("1048576…2^63-1")
    elif name == "max_inst":
        assert text == f"{least}…{MAX_INST_MAX}, under burst to {most} ({MAX_INST_MAX} containers)"
    elif name not in ("policy", "uvm"):
        assert text.split(",")[0] == f"{least}…{most}"
    if name not in ("default_memsize_mib", "slice_us"):  # chosen by the kernel
        assert default.strip("`") == str(key.default if name == "uvm" else settings.KERNEL_KEYS[name].default)


def test_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "cgpud.service"
    unit.write_text((SYSTEMD / "cgpud.service").read_text().replace("/usr/bin/cgpud", "/bin/true"))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True)
    assert "cgpud.service" not in done.stderr, done.stderr
