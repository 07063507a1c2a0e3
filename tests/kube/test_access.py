# SPDX-License-Identifier: MIT
"""Who may use the extender: a client without a right binds nothing and sees nothing."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from cluster import Cluster, gpu, our_node, simple

from cgpu_kube.extender import access
from cgpu_kube.extender.access import User, token_of, user_of_certificate

BIND = "/gpushare-scheduler/bind"
INSPECT = "/gpushare-scheduler/inspect"
#: Every path of the extender that writes or shows something.
CLOSED = (
    ("POST", BIND),
    ("POST", "/gpushare-scheduler/filter"),
    ("POST", "/gpushare-scheduler/prioritize"),
    ("GET", INSPECT),
    ("GET", "/gpushare-scheduler/inspect/n1"),
    ("GET", "/metrics"),
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(our_node("n1", gpu(0, 15)), token="scheduler-token")


async def ask(cluster: Cluster, method: str, path: str, header: str | None, body: Any = None) -> tuple[int, Any]:
    headers = {} if header is None else {"Authorization": header}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, cluster.url + path, json=body) as answer,
    ):
        return answer.status, await answer.json() if "json" in answer.content_type else await answer.text()


def binding(found: dict[str, Any]) -> dict[str, str]:
    meta = found["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": "n1"}


HEADERS = (None, "", "Bearer", "Bearer ", "Basic eDp5", "Bearer other", "Bearer " + "x" * 8000)


@pytest.mark.parametrize("header", HEADERS)
async def test_an_unknown_client_binds_nothing_and_sees_nothing(cluster: Cluster, header: str | None) -> None:
    one = cluster.put(simple("a", 6))
    for method, path in CLOSED:
        status, answer = await ask(cluster, method, path, header, binding(one) if method == "POST" else None)
        assert (status, set(answer)) == (401, {"Error"}), path
    assert cluster.server.bindings == []
    assert cluster.stored("a")["metadata"].get("annotations") == one["metadata"].get("annotations")


async def test_a_known_client_without_a_right(cluster: Cluster) -> None:
    """A pod's service account, as every pod of the cluster has one."""
    cluster.server.users["pod-token"] = {
        "username": "system:serviceaccount:default:default",
        "uid": "u",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
    }
    one = cluster.put(simple("a", 6))
    for method, path in CLOSED:
        status, answer = await ask(cluster, method, path, "Bearer pod-token", binding(one))
        assert status == 403
        assert answer["Error"].startswith(f"system:serviceaccount:default:default may not {method.lower()} {path}")
    assert cluster.server.bindings == []
    review = cluster.server.reviews[1]["spec"]
    assert review["nonResourceAttributes"] == {"path": BIND, "verb": "post"}
    assert review["extra"] == {"authentication.kubernetes.io/pod-name": ["p"]} and review["uid"] == "u"
    assert sum(one["kind"] == "TokenReview" for one in cluster.server.reviews) == 1, "its answer counts for a while"


async def test_who_has_the_right(cluster: Cluster) -> None:
    await cluster.place(simple("a", 6))
    count = len(cluster.server.reviews)
    await cluster.place(simple("b", 1))
    assert len(cluster.server.reviews) == count, "a cycle costs no review"
    assert (await cluster.get("/metrics"))[0] == 403, "another right"
    cluster.server.users["prometheus"] = {"username": "prometheus", "groups": ["viewers"]}
    cluster.server.rules |= {("viewers", "get", "/metrics"), ("viewers", "get", INSPECT)}
    assert "cgpu_node_gpu_pods" in (await ask(cluster, "GET", "/metrics", "bearer prometheus"))[1]
    assert (await ask(cluster, "GET", INSPECT, "Bearer prometheus"))[0] == 200
    assert (await ask(cluster, "POST", BIND, "Bearer prometheus"))[0] == 403


async def test_a_decision_is_of_all_that_it_was_made_by(cluster: Cluster) -> None:
    """Of one user by two tokens with other scopes the yes of one is no yes of the other."""
    for scope in ("inspect", "none"):
        user = {"username": "a", "uid": "u", "groups": ["g"], "extra": {"scopes": [scope]}}
        cluster.server.users[f"{scope}-token"] = user
    cluster.server.rules.add(("a", "get", INSPECT))
    cluster.server.allows = lambda spec: spec["extra"] == {"scopes": ["inspect"]}
    for _ in range(2):
        assert (await ask(cluster, "GET", INSPECT, "Bearer inspect-token"))[0] == 200
        assert (await ask(cluster, "GET", INSPECT, "Bearer none-token"))[0] == 403


async def test_probes_are_for_all(cluster: Cluster) -> None:
    for path in access.FOR_ALL:
        assert (await ask(cluster, "GET", path, None))[0] == 200
    assert (await ask(cluster, "GET", "/nothing", None))[0] == 401


async def test_without_the_api_server_no_one_is_let_in(cluster: Cluster) -> None:
    one = cluster.put(simple("a", 6))
    await cluster.settled()
    await cluster.server.down()
    status, answer = await cluster.post("bind", binding(one))
    assert status == 503
    assert "the API server cannot say who may do this" in answer["Error"]


def test_an_answer_ends() -> None:
    now = [0.0]
    answers = access._Answers(lambda: now[0])
    answers.put("a", True, access.YES_S)
    assert answers.get("a") is True
    now[0] = access.YES_S
    assert answers.get("a") is None
    most = access.ANSWERS_MAX
    for number in range(2 * most):
        answers.put(number, False, access.NO_S)
    assert [answers.get(number) for number in (0, most - 1, most, 2 * most - 1)] == [None, None, False, False]


@pytest.mark.parametrize(
    ("subject", "user"),
    [
        ((("commonName", "system:kube-scheduler"),), User("system:kube-scheduler", ("system:authenticated",))),
        (
            (("organizationName", "a"), ("commonName", "x"), ("organizationName", "b")),
            User("x", ("a", "b", "system:authenticated")),
        ),
        ((("organizationName", "system:masters"),), None),
        ((("commonName", ""),), None),
        ((("commonName", "x"), ("commonName", "y")), None),
        ((), None),
    ],
)
def test_the_user_of_a_certificate(subject: tuple[tuple[str, str], ...], user: User | None) -> None:
    assert user_of_certificate({"subject": tuple((pair,) for pair in subject)}) == user
    assert user_of_certificate(None) is None


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer a", "a"), ("bearer  a ", "a"), ("Bearer", ""), ("Basic a", ""), ("", ""), ("a", "")]
)
def test_the_token_of_a_header(header: str, token: str) -> None:
    assert token_of(header) == token
