# SPDX-License-Identifier: MIT
"""The documented variables, one line a case."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.errors import BadVariable, CgpuError, Refused
from cgpu_common.settings import Caps
from cgpud import env
from cgpud.admit import check_disable
from cgpud.values import Devices, NotSliced, Request

C, D = env.CONTAINER, env.DEV
ALL = Devices("every GPU", all=True)


SLICED = [
    # (description, variables, expected request)
    ("the page's example", {D: "15", C: "6"}, Request(ALL, (6,), 15)),
    ("one size for all", {D: "23", C: "3"}, Request(ALL, (3,), 23)),
    ("a list", {D: "23", C: "3,4,5,6"}, Request(ALL, (3, 4, 5, 6), 23)),
    ("blanks", {D: " 23 ", C: " 3 , 1 "}, Request(ALL, (3, 1), 23)),
    (
        "the four-GPU example chooses by NVIDIA_VISIBLE_DEVICES",
        {D: "23", C: "3,4,5,6", env.NVIDIA: "0,1,2,3"},
        Request(Devices(env.NVIDIA, items=(0, 1, 2, 3)), (3, 4, 5, 6), 23),
    ),
    ("an image's all is not explicit", {D: "15", C: "6", env.NVIDIA: "all"}, Request(ALL, (6,), 15)),
    ("void is not explicit", {D: "15", C: "6", env.NVIDIA: "void"}, Request(ALL, (6,), 15)),
    ("empty is not explicit", {D: "15", C: "6", env.NVIDIA: ""}, Request(ALL, (6,), 15)),
    (
        "ours comes before NVIDIA's",
        {D: "15", C: "6", env.VISIBLE: "2", env.NVIDIA: "all"},
        Request(Devices(env.VISIBLE, items=(2,)), (6,), 15),
    ),
    (
        "an explicit NVIDIA list beside ours is kept for admission",
        {D: "15", C: "6", env.VISIBLE: "2", env.NVIDIA: "0,2"},
        Request(Devices(env.VISIBLE, items=(2,)), (6,), 15, native=Devices(env.NVIDIA, items=(0, 2))),
    ),
    (
        "the scheduler's index comes second",
        {D: "15", C: "6", env.INDEX: "1", env.NVIDIA: "1"},
        Request(Devices(env.INDEX, items=(1,)), (6,), 15, native=Devices(env.NVIDIA, items=(1,))),
    ),
    (
        "UUIDs and their beginnings",
        {D: "15", C: "6", env.VISIBLE: "GPU-b084ae33-e244-0959-cd97-830000000000,GPU-3eb465ad"},
        Request(Devices(env.VISIBLE, items=("GPU-b084ae33-e244-0959-cd97-830000000000", "GPU-3eb465ad")), (6,), 15),
    ),
    ("ours may say all", {D: "15", C: "6", env.VISIBLE: "all"}, Request(Devices(env.VISIBLE, all=True), (6,), 15)),
    ("weight", {D: "15", C: "6", env.WEIGHT: "4"}, Request(ALL, (6,), 15, weight=4)),
    ("the largest weight", {D: "15", C: "6", env.WEIGHT: "25"}, Request(ALL, (6,), 15, weight=25)),
    ("empty weight is no weight", {D: "15", C: "6", env.WEIGHT: ""}, Request(ALL, (6,), 15)),
    ("high priority", {D: "15", C: "6", env.HIGHPRIO: "1"}, Request(ALL, (6,), 15, highprio=True)),
    ("ceiling", {D: "15", C: "6", env.CEILING: "30"}, Request(ALL, (6,), 15, ceiling=30)),
    ("a ceiling of 1", {D: "15", C: "6", env.CEILING: "1"}, Request(ALL, (6,), 15, ceiling=1)),
    (
        "a ceiling of the weight",
        {D: "15", C: "6", env.WEIGHT: "4", env.CEILING: "4"},
        Request(ALL, (6,), 15, weight=4, ceiling=4),
    ),
    (
        "a ceiling beside a device list",
        {D: "15", C: "6", env.VISIBLE: "2", env.CEILING: "100"},
        Request(Devices(env.VISIBLE, items=(2,)), (6,), 15, ceiling=100),
    ),
    ("empty ceiling is no ceiling", {D: "15", C: "6", env.CEILING: " "}, Request(ALL, (6,), 15)),
    ("not high priority", {D: "15", C: "6", env.HIGHPRIO: "0"}, Request(ALL, (6,), 15)),
    ("not disabled", {D: "15", C: "6", env.DISABLE: "false"}, Request(ALL, (6,), 15)),
    ("disabled by 0 is not disabled", {D: "15", C: "6", env.DISABLE: "0"}, Request(ALL, (6,), 15)),
    (
        "other names of the family are ignored",
        {D: "15", C: "6", "ALIYUN_COM_GPU_MEM_UNIT": "GiB"},
        Request(ALL, (6,), 15),
    ),
]


@pytest.mark.parametrize(("values", "expected"), [row[1:] for row in SLICED], ids=[row[0] for row in SLICED])
def test_sliced(values: dict[str, str], expected: Request) -> None:
    assert env.parse(values) == expected


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"PATH": "/bin", env.NVIDIA: "all"},
        {D: "15"},
        {D: "15", C: ""},
        {D: "15", C: "0"},
        {D: "15", C: "1,0,0"},
        {D: "15", C: "0,3"},
        {D: "15", C: "00"},
        {D: "15", C: " "},
        {C: "0"},
        {D: "15", C: "6", env.DISABLE: "true"},
        {D: "15", C: "6", env.DISABLE: "1"},
        {D: "15", C: "6", env.DISABLE: "True"},
        {D: "junk", C: "junk", env.DISABLE: "1"},
        {env.VISIBLE: "0"},
    ],
    ids=str,
)
def test_not_sliced(values: dict[str, str]) -> None:
    assert isinstance(env.parse(values), NotSliced)


BAD = [
    # (variable that is named, variables)
    (C, {D: "15", C: "6GiB"}),
    (C, {D: "15", C: "-1"}),
    (C, {D: "15", C: "1.5"}),
    (C, {D: "15", C: "3,,1"}),
    (C, {D: "15", C: ","}),
    (C, {D: "15", C: "9999999999"}),
    (C, {D: "15", C: "٣"}),  # a digit, but not of ours
    (C, {D: "15", C: "3,"}),
    (C, {D: "15", C: "3 1"}),
    (C, {D: "15", C: "all"}),
    (D, {D: "-15", C: "6"}),
    (D, {D: "15.0", C: "6"}),
    (env.WEIGHT, {D: "15", C: "6", env.WEIGHT: "-1"}),
    (env.HIGHPRIO, {D: "15", C: "6", env.HIGHPRIO: "true"}),
    (env.VISIBLE, {D: "15", C: "6", env.VISIBLE: "0,,1"}),
    (env.VISIBLE, {D: "15", C: "6", env.VISIBLE: "GPU-b08"}),
    (env.NVIDIA, {D: "15", C: "6", env.NVIDIA: "0:0"}),
    (D, {D: "0", C: "6"}),
    (D, {D: "15,15", C: "6"}),
    (D, {D: "fifteen", C: "6"}),
    (env.WEIGHT, {D: "15", C: "6", env.WEIGHT: "0"}),
    (env.WEIGHT, {D: "15", C: "6", env.WEIGHT: "101"}),
    (env.WEIGHT, {D: "15", C: "6", env.WEIGHT: "two"}),
    (env.HIGHPRIO, {D: "15", C: "6", env.HIGHPRIO: "2"}),
    (env.CEILING, {D: "15", C: "6", env.CEILING: "0"}),
    (env.CEILING, {D: "15", C: "6", env.CEILING: "101"}),
    (env.CEILING, {D: "15", C: "6", env.CEILING: "30 %"}),
    (env.CEILING, {D: "15", C: "6", env.WEIGHT: "5", env.CEILING: "4"}),
    (env.DISABLE, {D: "15", C: "6", env.DISABLE: "maybe"}),
    (env.VISIBLE, {D: "15", C: "6", env.VISIBLE: "0,x"}),
    (env.VISIBLE, {D: "15", C: "6", env.VISIBLE: "0,all"}),
    (env.VISIBLE, {D: "15", C: "6", env.VISIBLE: "MIG-1234"}),
    (env.INDEX, {D: "15", C: "6", env.INDEX: "-1"}),
    (env.NVIDIA, {D: "15", C: "6", env.NVIDIA: "no-gpu-has-3GiB-to-run"}),
    (env.NVIDIA, {D: "15", C: "6", env.VISIBLE: "0", env.NVIDIA: "junk"}),
]


@pytest.mark.parametrize(("name", "values"), BAD, ids=str)
def test_bad_values_are_one_sentence(name: str, values: dict[str, str]) -> None:
    with pytest.raises(BadVariable) as caught:
        env.parse(values)
    sentence = str(caught.value)
    assert sentence.startswith(f"{name}={values[name]} is not allowed: it must be ")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("values", "needle"),
    [
        ({C: "6"}, D),
        ({C: "6", D: " "}, D),
        ({C: "6", D: "15", env.NVIDIA: "none"}, env.NVIDIA),
        ({C: "6", D: "15", env.VISIBLE: "none"}, env.VISIBLE),
    ],
)
def test_refused(values: dict[str, str], needle: str) -> None:
    with pytest.raises(Refused, match=needle):
        env.parse(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {C: "6", D: "15", env.NVIDIA: "none"},
            f"{env.NVIDIA}=none names no GPU, but {C} asks for memory of one; remove one of the two",
        ),
        (
            {env.VISIBLE: "0", env.NVIDIA: "none"},
            f"{env.NVIDIA}=none names no GPU, but {env.VISIBLE} asks for a slice of one; remove one of the two",
        ),
        (
            {env.VISIBLE: "none", env.NVIDIA: "none"},
            f"{env.VISIBLE}=none names no GPU; remove it or set {env.DISABLE}=true",
        ),
        (
            {C: "1," * 2000 + "1"},
            f"{C}={'1,' * 30}… needs {D}, the GPU's memory in GiB, which is not set",
        ),
        (
            {env.PREFIX + "X" * 5000: "x" * 5000},
            f"{env.PREFIX + 'X' * 45}…={'x' * 60}… is not allowed: it must be at most 4096 bytes long",
        ),
    ],
    ids=["none beside a size", "none beside a list", "none twice", "a long list", "a long name"],
)
def test_whole_sentences(values: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        env.parse(values, default_memsize=True)
    assert str(caught.value) == sentence


def test_default_memsize_serves_containers_that_name_gpus_only() -> None:
    values = {env.VISIBLE: "0"}
    assert env.parse(values, default_memsize=True) == Request(Devices(env.VISIBLE, items=(0,)), (), 0)
    assert isinstance(env.parse({"PATH": "/"}, default_memsize=True), NotSliced)
    assert isinstance(env.parse({**values, C: "0"}, default_memsize=True), NotSliced)


def test_as_dict_takes_the_last_and_skips_junk() -> None:
    """As runc and crun do: an image's value and a pod's are both in config.json."""
    assert env.as_dict(["A=1", "A=2", "B", 7, None, "=x", "C=a=b"]) == {"A": "2", "": "x", "C": "a=b"}
    assert env.as_dict([f"{C}=2", f"{C}=6"]) == {C: "6"}
    assert env.as_dict(["CGPU_DISABLE=true", "CGPU_DISABLE=false"]) == {"CGPU_DISABLE": "false"}
    assert env.as_dict(["A=1", "A", "B=1\0=x", "C\0=1", "C=2", "C\0"]) == {"B": "1"}, "crun"


def test_a_weight_without_a_size_is_named() -> None:
    found = env.parse({D: "15", env.WEIGHT: "2", env.HIGHPRIO: ""})
    assert isinstance(found, NotSliced)
    assert found.warning == f"{D}, {env.WEIGHT} without {C}: the container has no slice and no limit"
    assert env.parse({}) == NotSliced("no cGPU variable")


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_set_to_nothing_is_not_unset(value: str) -> None:
    """Compose makes it of a variable that is not set."""
    for values in ({C: value}, {C: value, D: "15"}, {C: value, env.VISIBLE: "0"}, {env.VISIBLE: value}):
        found = env.parse(values)
        assert isinstance(found, NotSliced) and found.switched_off
        assert "is set to nothing, so the container has no slice" in (found.warning or "")
        with pytest.raises(Refused, match="is set to nothing, and a container may not switch cGPU off"):
            check_disable(found, Caps(disable="deny"))
    assert isinstance(env.parse({C: value, env.VISIBLE: "0"}, default_memsize=True), Request)
    for values in ({D: "15"}, {env.INDEX: "0"}, {}):
        found = env.parse(values)
        assert isinstance(found, NotSliced) and not found.switched_off


@pytest.mark.parametrize("name", [C, D, env.VISIBLE, env.INDEX, env.NVIDIA, env.WEIGHT, env.HIGHPRIO, env.DISABLE])
@pytest.mark.parametrize(
    "junk",
    ["9" * (1 << 20), "0," * (1 << 19), "\u0669", "-", "1\u00a0", "0x1", "1e1", "\0", "1;"],
    ids=lambda junk: ascii(junk[:9]),
)
def test_megabytes_and_look_alikes_are_one_short_sentence(name: str, junk: str) -> None:
    with pytest.raises(BadVariable) as caught:
        env.parse({D: "15", C: "6", name: junk})
    assert len(str(caught.value)) < 300
    assert caught.value.name == name


@given(
    st.dictionaries(st.sampled_from([C, D, env.VISIBLE, env.NVIDIA, env.WEIGHT, env.HIGHPRIO, env.DISABLE]), st.text())
)
def test_junk_gives_an_answer_or_a_sentence(values: dict[str, str]) -> None:
    try:
        outcome = env.parse(values, default_memsize=True)
    except CgpuError as error:
        assert str(error)
    else:
        assert isinstance(outcome, Request | NotSliced)
        if isinstance(outcome, Request) and outcome.sizes:
            assert 0 not in outcome.sizes
            assert outcome.total > 0


def test_the_page_names_every_variable() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/variables.md").read_text()
    ours = {value for value in vars(env).values() if isinstance(value, str) and value.startswith((env.PREFIX, "CGPU_"))}
    assert len(ours) > 6
    assert [name for name in ours - {env.PREFIX} if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", env.KNOWN)
def test_each_variable_counts(name: str) -> None:
    """In one of the cases above the request is another one, or none, without it."""

    def outcome(variables: dict[str, str]) -> object:
        try:
            return env.parse(variables)
        except CgpuError as error:
            return str(error)

    cases = [variables for _, variables, _ in SLICED if name in variables]
    assert any(outcome(case) != outcome({k: v for k, v in case.items() if k != name}) for case in cases)


def test_admission_reads_each_field_of_a_request() -> None:
    admit = (Path(env.__file__).with_name("admit.py")).read_text()
    assert [one.name for one in fields(Request) if not re.search(rf"\brequest\.{one.name}\b", admit)] == []
