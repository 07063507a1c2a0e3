# SPDX-License-Identifier: MIT
"""deploy/own-scheduler: a kube-scheduler beside the extender, and which pods come to it."""

from __future__ import annotations

import copy
import json
import ssl
import subprocess
from pathlib import Path

import aiohttp
import extender_process
import pytest
import yaml
from cluster import NODES, PODS, gpu, our_node, simple
from deployed import DEPLOY, REPO, Mutation, Object, Policy, folded, kustomized, named, notes_of, rendered
from extender_process import BIND, PROGRAM, ready
from fake_api import FakeApi, kubeconfig
from fakes import free_port

from cgpu_kube import annotations as notes
from cgpu_kube.extender.command import extender

OWN = REPO / "deploy/own-scheduler"
SCHEDULER = "cgpu-scheduler"
VALUES = {"scheduler": {"enabled": True, "image": {"repository": "kube-scheduler", "tag": "v1.36.2"}}}


@pytest.fixture(scope="module")
def own(kubectl: Path) -> dict[tuple[str, str], Object]:
    return named(kustomized(kubectl, OWN))


def test_it_is_the_whole_with_a_scheduler(own: dict, objects: dict) -> None:
    """The Deployment keeps its name, so that `apply` leaves no second extender."""
    assert own.keys() - objects.keys() == {
        ("ConfigMap", SCHEDULER),
        ("ClusterRoleBinding", "cgpu-extender-schedules"),
        ("ClusterRoleBinding", "cgpu-extender-schedules-volumes"),
        ("RoleBinding", "cgpu-extender-schedules"),
        ("MutatingAdmissionPolicy", SCHEDULER),
        ("MutatingAdmissionPolicyBinding", SCHEDULER),
        ("MutatingAdmissionPolicy", "cgpu-scheduler-names"),
        ("MutatingAdmissionPolicyBinding", "cgpu-scheduler-names"),
        ("ValidatingAdmissionPolicy", "cgpu-scheduler-name"),
        ("ValidatingAdmissionPolicyBinding", "cgpu-scheduler-name"),
    }
    assert objects.keys() - own.keys() == {
        ("ClusterRoleBinding", "cgpu-extender-scheduler"),
        ("PodDisruptionBudget", "cgpu-extender"),
    }
    assert {key for key in objects.keys() & own.keys() if objects[key] != own[key]} == {
        ("Deployment", "cgpu-extender"),
        ("ValidatingAdmissionPolicy", "cgpu-claims"),  # the scheduler's account may make extended resources' claims
    }


def test_the_chart_is_the_same_objects(helm: Path, own: dict) -> None:
    found = named(rendered(helm, VALUES))
    wanted = {key: one for key, one in own.items() if key[0] != "Namespace"}
    assert found.keys() == wanted.keys()
    for key, one in found.items():
        assert folded(one) == folded(wanted[key]), key


def test_the_charts_values(helm: Path) -> None:
    values = {"scheduler": {"enabled": True, "image": {"repository": "mirror/kube-scheduler"}, "others": ["volcano"]}}
    found = named(rendered(helm, values, "other"))
    spec = found["Deployment", "cgpu-extender"]["spec"]["template"]["spec"]["containers"]
    assert [one["image"] for one in spec][1] == "mirror/kube-scheduler:v1.36.0", "the version of the API server"
    assert "--lease=other/cgpu-extender" in spec[0]["args"]
    volcano = simple("p", 6)
    volcano["spec"]["schedulerName"] = "volcano"
    assert Policy(found["ValidatingAdmissionPolicy", "cgpu-scheduler-name"]).sentences(volcano) == []
    text = notes_of(helm, values)
    assert "are scheduled by cgpu-scheduler" in text and "deploy/kubernetes/certificates" not in text
    with pytest.raises(AssertionError, match=r"scheduler\.image\.repository is the kube-scheduler"):
        rendered(helm, {"scheduler": {"enabled": True}})
    with pytest.raises(AssertionError, match=r"scheduler\.enabled needs extender\.enabled"):
        rendered(helm, {"extender": {"enabled": False}, **VALUES})


def test_what_the_clusters_version_lacks_is_left_out() -> None:
    folder = REPO / "deploy/helm/cgpu/templates"
    assert 'semverCompare ">=1.25.0-0"' in (folder / "extender.yaml").read_text(), "the configuration's version"
    send = (folder / "policies.yaml").read_text()
    assert 'semverCompare ">=1.36.0-0"' in send and 'Has "admissionregistration.k8s.io/v1beta1/Mutating' in send
    assert "(1.36): they need schedulerName: cgpu-scheduler" in (folder / "NOTES.txt").read_text()


def test_scheduler_and_extender_are_one_pod(own: dict) -> None:
    """The scheduler asks 127.0.0.1, by the same verbs as the cluster's own would, and no other pod can."""
    spec = own["Deployment", "cgpu-extender"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    one = spec["template"]["spec"]
    assert not {"hostNetwork", "hostPID"} & one.keys() and one["serviceAccountName"] == "cgpu-extender"
    context = extender.make_context("extender", one["containers"][0]["args"][1:])
    assert context.params["scheduler_port"] == 39998 and context.params["tls_self_signed"]
    assert not context.params["insecure"] and not context.params["client_ca"]
    assert [port["containerPort"] for each in one["containers"] for port in each["ports"]] == [39999, 10259]
    for each in one["containers"]:
        assert each["securityContext"]["readOnlyRootFilesystem"] and each["securityContext"]["runAsNonRoot"]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    config = yaml.safe_load(own["ConfigMap", SCHEDULER]["data"]["config.yaml"])
    assert config["leaderElection"] == {"leaderElect": False}
    assert config["profiles"] == [{"schedulerName": SCHEDULER}]
    (ours,) = config["extenders"]
    (cluster,) = yaml.safe_load((DEPLOY / "scheduler.yaml").read_text())["extenders"]
    assert ours["urlPrefix"] == f"http://127.0.0.1:{context.params['scheduler_port']}/gpushare-scheduler"
    # Pods of other nodes have it, too: only this scheduler sees none of them.
    assert {"name": notes.NV_GPU, "ignoredByScheduler": False} in ours["managedResources"]
    ours["managedResources"].remove({"name": notes.NV_GPU, "ignoredByScheduler": False})
    differs = {"urlPrefix", "enableHTTPS", "tlsConfig"}
    assert {k: v for k, v in ours.items() if k not in differs} == {k: v for k, v in cluster.items() if k not in differs}
    bound = {one["roleRef"]["name"] for (kind, _), one in own.items() if kind == "ClusterRoleBinding"}
    assert {"system:kube-scheduler", "system:volume-scheduler"} <= bound


def of(found: Object, name: str | None) -> Object:
    found = copy.deepcopy(found)
    found["spec"].pop("schedulerName", None)
    if name is not None:
        found["spec"]["schedulerName"] = name
    return found


def init_only() -> Object:
    found = simple("p", 6)
    found["spec"]["initContainers"] = [{**found["spec"]["containers"][0], "name": "i"}]
    found["spec"]["containers"] = [{"name": "c", "image": "box"}]
    return found


SENT = [
    (of(simple("p", 6), "default-scheduler"), SCHEDULER, ""),
    (of(simple("p", 6), None), SCHEDULER, ""),
    (of(init_only(), "default-scheduler"), SCHEDULER, ""),
    (of(simple("p", 6), SCHEDULER), SCHEDULER, ""),
    (of(simple("p", 6), "volcano"), "volcano", "needs schedulerName: cgpu-scheduler"),
    (of({"spec": {"containers": [{"name": "c"}]}}, "default-scheduler"), "default-scheduler", ""),
    (
        of({"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}, "volcano"),
        "volcano",
        "",
    ),
]


@pytest.mark.parametrize(("found", "name", "sentence"), SENT)
def test_pods_with_gpu_memory_are_sent_there(own: dict, found: Object, name: str, sentence: str) -> None:
    before = copy.deepcopy(found)
    after = Mutation(own["MutatingAdmissionPolicy", SCHEDULER]).apply(found)
    assert after["spec"].pop("schedulerName") == name
    before["spec"].pop("schedulerName", None)
    assert after == before, "nothing else changes"
    after["spec"]["schedulerName"] = name
    said = "; ".join(Policy(own["ValidatingAdmissionPolicy", "cgpu-scheduler-name"]).sentences(after))
    assert sentence in said if sentence else said == ""


def by_names(limits: dict[str, str], scheduler: str = "default-scheduler", **meta: Object) -> Object:
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return {"metadata": meta, "spec": {"containers": containers, "schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (by_names({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6000"}), SCHEDULER),
        (by_names({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}), SCHEDULER),
        (by_names({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6000"}, "hami-scheduler"), "hami-scheduler"),
        (by_names({"nvidia.com/gpu": "1"}), "default-scheduler"),
        (
            by_names({"nvidia.com/gpu": "1"}, annotations={"nvidia.com/container.c.gpu-memory.limit": "4Gi"}),
            SCHEDULER,
        ),
        (
            by_names({"nvidia.com/gpu": "1"}, annotations={"nvidia.com/container.c.gpu-memory.request": "4Gi"}),
            SCHEDULER,
        ),
    ],
)
def test_others_names_are_sent_from_namespaces_that_say_so(own: dict, found: Object, name: str) -> None:
    policy = own["MutatingAdmissionPolicy", "cgpu-scheduler-names"]
    assert policy["spec"]["matchConstraints"]["namespaceSelector"] == {"matchLabels": {notes.NAMES_LABEL: notes.NAMES}}
    assert Mutation(policy).apply(found)["spec"]["schedulerName"] == name
    assert Mutation(own["MutatingAdmissionPolicy", SCHEDULER]).apply(found) == found
    bound = own["MutatingAdmissionPolicyBinding", "cgpu-scheduler-names"]["spec"]
    assert bound == {"policyName": "cgpu-scheduler-names"}


def test_a_static_pods_copy_passes(own: dict) -> None:
    kubelet = {"username": "system:node:n1", "groups": ["system:nodes"]}
    found = of(simple("p", 6), "other")
    assert Policy(own["ValidatingAdmissionPolicy", "cgpu-scheduler-name"]).sentences(found, userInfo=kubelet) == []


def test_both_policies_are_bound(own: dict) -> None:
    assert own["MutatingAdmissionPolicyBinding", SCHEDULER]["spec"] == {"policyName": SCHEDULER}
    bound = own["ValidatingAdmissionPolicyBinding", "cgpu-scheduler-name"]["spec"]
    assert bound == {"policyName": "cgpu-scheduler-name", "validationActions": ["Deny"]}


async def test_the_process_binds_for_its_own_host_only(server: FakeApi, tmp_path: Path) -> None:
    """As the Deployment starts it: the scheduler beside it needs nothing, and the network's port cannot bind, whatever
    right a client has."""
    server.put(NODES, our_node("n1", gpu(0, 15)))
    found = server.put(PODS, simple("a", 6))
    server.rules = {("viewer", "get", "/metrics"), ("viewer", "post", BIND)}
    server.users["t"] = {"username": "viewer", "groups": []}
    local = free_port()
    words = ("--tls-self-signed", "--scheduler-port", str(local))
    async with (
        extender_process.extender(tmp_path, server.url, *words, host="0.0.0.0") as (_, port),
        aiohttp.ClientSession() as http,
    ):
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        url, beside = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{local}/gpushare-scheduler"
        await ready(http, url, unverified)

        async def status(method: str, path: str, **headers: str) -> int:
            async with http.request(method, url + path, ssl=unverified, headers=headers) as answer:
                return answer.status

        assert await status("GET", "/metrics") == 401
        assert await status("GET", "/metrics", Authorization="Bearer t") == 200
        assert await status("POST", BIND) == 401
        assert await status("POST", BIND, Authorization="Bearer t") == 404, "allowed, and not served"
        async with http.post(f"{beside}/filter", json={"Pod": found, "NodeNames": ["n1"]}) as answer:
            assert (await answer.json())["NodeNames"] == ["n1"]
        body = {"PodName": "a", "PodNamespace": "default", "PodUID": found["metadata"]["uid"], "Node": "n1"}
        async with http.post(f"{beside}/bind", json=body) as answer:
            assert await answer.json() == {"Error": ""}
        assert server.get(PODS, "default", "a")["spec"]["nodeName"] == "n1"
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{local:04X}" in listening and f"00000000:{local:04X}" not in listening


def test_a_certificate_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "openssl").write_text("#!/bin/sh\necho no entropy >&2; exit 1\n")
    (tmp_path / "openssl").chmod(0o755)
    words = ["extender", "--tls-self-signed", "--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:1"))]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, env={"PATH": str(tmp_path)}, timeout=60)
    assert done.returncode == 1 and "--tls-self-signed: cannot be used: openssl made no certificate: no entropy" in (
        done.stderr
    )
    assert json.loads((tmp_path / "config").read_text())
