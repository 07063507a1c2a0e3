# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""How tests/abi compares prototypes, on headers of a few lines; make test-abi does it with NVIDIA's."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "abi"))

import ogkm
import prototypes
from corelib import lib

READ = Path(prototypes.__file__).with_name("read.json")
MODESET = """
typedef struct {
    int (*open_gpu)(NvU32 gpu_id, nvidia_modeset_stack_ptr sp%s);
    void (*close_gpu)(NvU32 gpu_id, nvidia_modeset_stack_ptr sp%s); /* (*not)(this); */
} nvidia_modeset_rm_ops_t;
"""


def tree(folder: Path, branch: int, more: str) -> ogkm.Tree:
    common = folder / ogkm.COMMON
    common.mkdir(parents=True)
    (common / "nv-modeset-interface.h").write_text(MODESET % (more, more))
    (common / "nv.h").write_text(
        "nv_state_t*  NV_API_CALL nv_get_adapter_state (NvU32, NvU8, NvU8);\nvoid other(int a);\n"
    )
    return ogkm.Tree(folder, f"{branch}.1")


@pytest.mark.parametrize(
    ("branch", "more", "fits"),
    [
        (590, "", True),
        (595, ", NvBool reset_aware", True),
        (595, "", False),
        (590, ", NvBool reset_aware", False),
        (595, ", NvU32 reset_aware", False),
    ],
)
def test_an_argument_more_or_less_is_found(tmp_path: Path, branch: int, more: str, fits: bool):
    names = {"open_gpu", "close_gpu", "nv_get_adapter_state"}
    here = {name: mine for name, mine in prototypes.ours(branch).items() if name in names}
    assert len(here) == 3
    wrong = prototypes.differences(here, prototypes.theirs(tree(tmp_path, branch, more), names))
    assert [line.partition(":")[0] for line in wrong] == ([] if fits else ["open_gpu", "close_gpu"])


def test_a_function_that_is_gone_is_found():
    assert len(prototypes.differences(prototypes.ours(580), {})) == len(prototypes.ours(580))


def test_every_redirection_is_compared():
    """A row without a function of ours only observes."""
    texts = [path.read_text() for path in sorted(prototypes.KM.rglob("*.c"))]
    tables = [body for text in texts for body in re.findall(r"redirections\[\w*\] = {\n(.*?)^};", text, re.M | re.S)]
    rows = [row for table in tables for row in re.findall(r'{ "(\w+)", (\w+)', table)]
    assert len(rows) >= 15
    assert {name for name, _ in prototypes.stand_ins()} >= {name for name, ours in rows if ours != "NULL"}


def test_every_function_that_is_called_by_its_address_is_compared():
    """A probe looks a function of the driver up, and a row without a function of ours can be for the address alone."""
    texts = [path.read_text() for path in sorted(prototypes.KM.rglob("*.c"))]
    probed = {name for text in texts for name in re.findall(r'\.symbol_name = "(\w+)"', text)}
    called = {
        re.search(rf'^\t(?:\[{row}\]\s*= )?{{ "(\w+)"', body, re.M)[1]
        for text in texts
        for body in re.findall(r"redirections\[\w*\] = {\n(.*?)^};", text, re.M | re.S)
        for row in re.findall(r"ckm_redirect_address\(&redirections\[(PROBE_\w+)\]\)", text)
    }
    assert {"nv_get_dev_minor", "rm_client_free_os_events"} <= probed and "os_unlock_user_pages" in called
    assert probed | called <= prototypes.ours(595).keys()


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ("NvU64, void *, NvU32", True),
        ("NvU64, void *", True),
        ("NvU64", False),
        ("NvU64, NvU32", False),
        ("NvU64, void *, NvU32, NvU32", False),
    ],
)
def test_an_old_release_has_the_last_argument_less(arguments: str, fits: bool):
    there = prototypes.written({"os_unlock_user_pages": f"NV_STATUS ({arguments})"})
    here = {name: mine for name, mine in prototypes.ours(580).items() if name in there}
    assert (prototypes.differences(here, there) == []) == fits
    other = {"nv_get_adapter_state": here["os_unlock_user_pages"]}
    less = prototypes.written({"nv_get_adapter_state": "NV_STATUS (NvU64, void *)"})
    assert prototypes.differences(other, less), "of another function it is a difference"


@pytest.mark.parametrize(("branch", "aware"), [(535, 0), (590, 0), (595, 1)])
def test_the_core_has_the_argument_where_the_module_has(branch: int, aware: int):
    assert lib.cgpu_call_abi(branch).reset_aware == aware
    assert len(prototypes.ours(branch)["open_gpu"].arguments) == 2 + aware


def test_a_type_that_is_not_known_is_an_error():
    with pytest.raises(ValueError, match="not known"):
        prototypes.width("some_new_t x")


def test_what_was_read_of_615_is_what_the_module_calls():
    """Of a release without a repository: an argument less, as before 595, is found."""
    (read,) = [one for one in ogkm.read_releases(READ) if one.branch == 615]
    there = prototypes.written(read.prototypes)
    assert len(there) == 25
    for branch, wrong in ((615, set()), (590, {"open_gpu", "close_gpu"})):
        here = {name: mine for name, mine in prototypes.ours(branch).items() if name in there}
        assert {line.partition(":")[0] for line in prototypes.differences(here, there)} == wrong


PAGE = (Path(__file__).resolve().parents[3] / "docs/user/support.md").read_text()
OUTCOME = json.loads(Path(prototypes.__file__).with_name("outcome.json").read_text())["tags"]


@pytest.mark.parametrize("branch", [610, 615])
def test_the_page_has_the_numbers_of_the_comparison(branch: int):
    (line,) = re.findall(rf"^\| {branch} \({branch}\..*", PAGE, re.M)
    (read,) = [one for one in ogkm.read_releases(READ) if one.branch == branch]
    (rows,) = [one["rows"] for one in OUTCOME if one["tag"] == read.tag]
    assert f"({read.tag})" in line
    assert f"{rows['compared']} of {rows['rows']} rows" in line
    if read.prototypes:
        assert f"{len(read.prototypes)} of the {len(prototypes.ours(branch))} functions" in line
