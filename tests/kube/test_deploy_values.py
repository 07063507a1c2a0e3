# SPDX-License-Identifier: MIT
"""The chart with parts of it switched off, and what stays for the parts that another installation has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deployed import DEPLOY, REPO, Policy, kustomized, named, rendered
from test_deploy import OLD, SINCE

from cgpu_cli import ways


def alerts(helm: Path, **values: object) -> set[str]:
    rules = named(rendered(helm, {"monitoring": {"enabled": True}, **values}))["PrometheusRule", "cgpu"]
    return {one["alert"] for group in rules["spec"]["groups"] for one in group["rules"]}


def test_the_identity_of_the_packages_units_stays_without_the_daemonset(helm: Path) -> None:
    """deploy/kubernetes/node-kubeconfig asks for tokens of this account."""
    every, found = named(rendered(helm, {})), named(rendered(helm, {"node": {"enabled": False}}))
    assert every.keys() - found.keys() == {("DaemonSet", "cgpu-node")}
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        assert found[kind, "cgpu-node"] == every[kind, "cgpu-node"]


def test_no_alert_waits_for_what_is_not_installed(helm: Path) -> None:
    every = alerts(helm)
    assert every - alerts(helm, extender={"enabled": False}) == {"CgpuExtenderNotServing"}
    assert every - alerts(helm, node={"enabled": False}) == {"CgpuAgentAbsent"}


def test_the_scheduler_needs_the_extender(helm: Path) -> None:
    values = {"extender": {"enabled": False}, "scheduler": {"enabled": True, "image": {"repository": "a.org/s"}}}
    with pytest.raises(AssertionError, match=r"needs extender\.enabled"):
        rendered(helm, values)


def test_claims_of_older_versions_are_converted_for_the_policies(helm: Path) -> None:
    """A rule of every version is given a v1beta1 claim as it is, whose requests have no field `exactly`."""
    found = named(rendered(helm, {}))
    for name in ("cgpu-claims", "cgpu-templates"):
        constraints = found["ValidatingAdmissionPolicy", name]["spec"]["matchConstraints"]
        assert [one["apiVersions"] for one in constraints["resourceRules"]] == [["v1"]]
        assert constraints.get("matchPolicy", "Equivalent") == "Equivalent"


def test_removal_has_the_installers_options(helm: Path) -> None:
    found = named(rendered(helm, {"installer": {"enabled": True, "args": ["--no-engine"]}}))
    for name, words in (("cgpu-install", ["install"]), ("cgpu-remove", ["install", "--remove"])):
        (one,) = found["DaemonSet", name]["spec"]["template"]["spec"]["containers"]
        assert one["args"] == [*words, "--probe-port=39997", "--no-engine"]


def test_the_pages_take_a_node_out_by_the_mode_default() -> None:
    """Without the label a node keeps its mode, and its agent."""
    for name in ("kubernetes", "kubernetes-node"):
        text = (REPO / f"docs/user/{name}.md").read_text()
        (row,) = [line for line in text.splitlines() if line.startswith(("| off one node |", "| off a node |"))]
        assert row.index("ack.node.gpu.schedule=default") < row.index("cgpu.io/agent") < row.index("install=remove")


def test_schedulers_make_claims_for_extended_resources(helm: Path, kubectl: Path) -> None:
    """With the annotation a claim needs no memory, so it is for schedulers only."""
    own = "system:serviceaccount:cgpu-system:cgpu-extender"
    scheduler = {"enabled": True, "image": {"repository": "a.org/s"}}
    key = ("ValidatingAdmissionPolicy", "cgpu-claims")
    marked = {
        "metadata": {"annotations": {"resource.kubernetes.io/extended-resource-name": "example.com/gpu"}},
        "spec": {"devices": {}},
    }
    for objects, users in (
        (rendered(helm, {}), set()),
        (rendered(helm, {"scheduler": scheduler}), {own}),
        (rendered(helm, {"dra": {"schedulers": ["volcano"]}}), {"volcano"}),
        (kustomized(kubectl), set()),
        (kustomized(kubectl, REPO / "deploy/own-scheduler"), {own}),
    ):
        policy = Policy(named(objects)[key])
        for user in ("system:kube-scheduler", own, "volcano", "alice"):
            passed = policy.sentences(marked, userInfo={"username": user}) == []
            assert passed == (user in users | {"system:kube-scheduler"}), user


def test_a_drain_leaves_one_extender(helm: Path, kubectl: Path) -> None:
    """Of several; where there is one, alone or with its scheduler, a drain ends it."""
    key = ("PodDisruptionBudget", "cgpu-extender")
    scheduler = {"enabled": True, "image": {"repository": "a.org/s"}}
    for objects in (kustomized(kubectl), kustomized(kubectl, DEPLOY / "surge"), rendered(helm, {})):
        found = named(objects)
        extender, budget = found["Deployment", "cgpu-extender"]["spec"], found[key]["spec"]
        assert extender["replicas"] == 2 and budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= extender["template"]["metadata"]["labels"].items()
        assert (
            not budget["selector"]["matchLabels"].items()
            <= found["DaemonSet", "cgpu-node"]["metadata"]["labels"].items()
        )
    for values in ({"extender": {"replicas": 1}}, {"extender": {"enabled": False}}, {"scheduler": scheduler}):
        assert key not in named(rendered(helm, values)), values
    assert key not in named(kustomized(kubectl, REPO / "deploy/own-scheduler"))


@pytest.mark.parametrize("first", ways.CLUSTERS)
def test_the_page_chooses_by_the_version(kubectl: Path, first: int) -> None:
    """docs/user/start.md: what the version serves, with an agent that surges wherever a DaemonSet can."""
    folders = re.findall(r"apply -k (deploy/kubernetes\S*?)`", " ".join(ways.applied(first)))
    objects = [one for folder in folders for one in kustomized(kubectl, REPO / folder)]
    for one in objects:
        assert one["apiVersion"] in OLD or SINCE[one["apiVersion"], one["kind"]] <= first, one["kind"]
    strategy = named(objects)["DaemonSet", "cgpu-node"]["spec"].get("updateStrategy", {}).get("rollingUpdate", {})
    assert ("maxSurge" in strategy) == (first >= 22)
    policies = [one for one in objects if one["kind"] == "ValidatingAdmissionPolicy"]
    assert bool(policies) == (first >= 30)
