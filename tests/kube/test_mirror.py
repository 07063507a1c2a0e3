# SPDX-License-Identifier: MIT
"""The mirror of a collection, under events that are late, doubled and missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cgpu_kube.mirror import TOMBSTONES_MAX, Mirror, version_of


def pod(name: str, version: int, uid: str = "u1") -> dict:
    return {"metadata": {"namespace": "d", "name": name, "uid": uid, "resourceVersion": str(version)}}


def names(mirror: Mirror) -> dict[str, tuple[str, int]]:
    return {one["metadata"]["name"]: (one["metadata"]["uid"], version_of(one)) for one in mirror}


def test_an_older_version_changes_nothing() -> None:
    mirror = Mirror()
    assert mirror.apply("ADDED", pod("a", 5)) == [(None, pod("a", 5))]
    assert mirror.apply("MODIFIED", pod("a", 4)) == []
    assert mirror.apply("MODIFIED", pod("a", 5)) == []
    assert mirror.apply("MODIFIED", pod("a", 6)) == [(pod("a", 5), pod("a", 6))]


def test_a_deleted_object_does_not_come_back() -> None:
    mirror = Mirror()
    mirror.apply("ADDED", pod("a", 5))
    mirror.apply("DELETED", pod("a", 7))
    assert mirror.apply("MODIFIED", pod("a", 6)) == []
    assert mirror.apply("ADDED", pod("a", 9, "u2")) == [(None, pod("a", 9, "u2"))]
    assert mirror.apply("DELETED", pod("a", 7)) == []
    assert names(mirror) == {"a": ("u2", 9)}


def test_another_object_of_the_name_takes_its_place() -> None:
    mirror = Mirror()
    mirror.apply("ADDED", pod("a", 5))
    assert mirror.apply("ADDED", pod("a", 8, "u2")) == [(pod("a", 5), None), (None, pod("a", 8, "u2"))]


def test_a_list_removes_what_is_gone_but_not_what_is_newer() -> None:
    mirror = Mirror()
    mirror.apply("ADDED", pod("a", 5))
    mirror.apply("ADDED", pod("b", 12, "u2"))
    assert mirror.replace([], 10) == [(pod("a", 5), None)]
    assert names(mirror) == {"b": ("u2", 12)}


def test_tombstones_are_bounded() -> None:
    mirror = Mirror()
    for version in range(1, TOMBSTONES_MAX + 2):
        mirror.apply("DELETED", pod("a", version, f"u{version}"))
    assert mirror.apply("ADDED", pod("a", 1, "u2")) == [], "an event from before the second deletion"
    assert mirror.apply("ADDED", pod("a", 0, "u1")) == [(None, pod("a", 0, "u1"))], "the first is forgotten"


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, dict]], dict[str, tuple[str, int]], int]:
    """The events of a true history, and its end."""
    events, there, version = [], {}, 0
    for _ in range(draw(st.integers(1, 25))):
        name = draw(st.sampled_from("abc"))
        version += 1
        if name in there and draw(st.booleans()):
            uid = there.pop(name)[0]
            events.append(("DELETED", pod(name, version, uid)))
            continue
        uid = there[name][0] if name in there else f"{name}{version}"
        events.append(("MODIFIED" if name in there else "ADDED", pod(name, version, uid)))
        there[name] = (uid, version)
    return events, there, version


@given(histories(), st.data())
def test_events_in_any_order_and_a_list_end_in_the_truth(history, data) -> None:
    events, there, version = history
    sent = data.draw(st.lists(st.sampled_from(events), max_size=40))  # some missing, some doubled, in any order
    mirror = Mirror()
    followed: dict[str, tuple[str, int]] = {}
    for kind, found in sent:
        for old, new in mirror.apply(kind, found):
            follow(followed, old, new)
        assert names(mirror) == followed
        for name, (uid, at) in names(mirror).items():
            assert uid.startswith(name) and at <= version
    truth = [pod(name, at, uid) for name, (uid, at) in there.items()]
    for old, new in mirror.replace(truth, version):
        follow(followed, old, new)
    assert names(mirror) == followed == there


def follow(followed: dict, old: dict | None, new: dict | None) -> None:
    """What a reader of the changes believes."""
    if old is not None:
        meta = old["metadata"]
        assert followed.pop(meta["name"]) == (meta["uid"], version_of(old))
    if new is not None:
        meta = new["metadata"]
        assert meta["name"] not in followed
        followed[meta["name"]] = (meta["uid"], version_of(new))
