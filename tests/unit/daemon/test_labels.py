# SPDX-License-Identifier: MIT
from __future__ import annotations

import json

import pytest
from fakes import DATA

from cgpud.labels import HOLDER_MAX, LENGTH_MAX, holder, of_docker, of_spec

CONTAINERD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.image-name": "registry/train:1",
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.sandbox-namespace": "ml",
    "io.kubernetes.cri.sandbox-id": "abc",
}
CRIO = {
    "io.kubernetes.container.name": "train",
    "io.kubernetes.cri-o.ImageName": "registry/train:1",
    "io.kubernetes.pod.name": "train-0",
    "io.kubernetes.pod.namespace": "ml",
}


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO])
def test_kubernetes(annotations: dict[str, str]) -> None:
    assert of_spec({"annotations": annotations}) == {
        "name": "train",
        "image": "registry/train:1",
        "pod": "train-0",
        "namespace": "ml",
    }


def test_a_pods_author_gives_it_no_other_name() -> None:
    """Of the image the engine's own counts; of the rest none where the two disagree."""
    image = {"io.kubernetes.cri.image-name": "registry/other:2"}
    assert of_spec({"annotations": {**image, **CRIO}}) == of_spec({"annotations": CRIO})
    assert of_spec({"annotations": {"io.kubernetes.cri.sandbox-name": "other-0", **CRIO}}) == {}


def test_docker_says_nothing() -> None:
    assert of_spec(json.loads((DATA / "docker.json").read_text())) == {}


@pytest.mark.parametrize(
    "spec", [{}, {"annotations": None}, {"annotations": []}, {"annotations": {"io.kubernetes.pod.name": 7}}]
)
def test_what_is_not_said_is_left_out(spec: dict[str, object]) -> None:
    assert of_spec(spec) == {}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({"Name": "/train", "Config": {"Image": "registry/train:1"}}, {"name": "train", "image": "registry/train:1"}),
        ({"Name": "/train"}, {"name": "train"}),
        ({"Name": "/train", "Config": {"Image": ""}}, {"name": "train"}),
        ({"Name": "/train", "Config": ["Image"]}, {"name": "train"}),
        ({"Name": 7, "Config": {"Image": "i"}}, {"image": "i"}),
        ({"Name": "/", "Config": {"Image": 7}}, {}),
        ({"Name": "x" * 10000}, {"name": "x" * LENGTH_MAX}),
        ([], {}),
        (None, {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_docker_has_a_file(file: object, expected: dict[str, str]) -> None:
    assert of_docker(file) == expected


def test_lengths_are_bounded() -> None:
    assert len(of_spec({"annotations": {"io.kubernetes.pod.name": "x" * 10000}})["pod"]) == LENGTH_MAX


@pytest.mark.parametrize(
    ("found", "namespace", "name"),
    [
        ({"name": "train"}, "", "train"),
        ({"name": "c", "pod": "p", "namespace": "mine"}, "mine", "mine/p"),
        ({"name": "c", "pod": "p", "namespace": "theirs"}, "mine", ""),
        ({"name": "c", "pod": "p", "namespace": "theirs"}, "", ""),
        ({"name": "a\x1b[2Jb\n"}, "", "a[2Jb"),
        ({"name": "n" * 500}, "", "n" * HOLDER_MAX),
        ({}, "mine", ""),
    ],
)
def test_a_holder_is_named_to_those_of_its_namespace(found: dict[str, str], namespace: str, name: str) -> None:
    assert holder(found, namespace) == name
