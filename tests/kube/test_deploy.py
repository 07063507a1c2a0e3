# SPDX-License-Identifier: MIT
"""deploy/: what kustomize and Helm make of it, its rights against what the programs do, and its policies by CEL."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import MAPS, Cluster, container, gpu, our_node, pod, simple
from deployed import (
    CHART,
    DEPLOY,
    REPO,
    Object,
    Policy,
    chart_at,
    folded,
    kustomized,
    named,
    notes_of,
    rendered,
)
from fake_api import recorded
from fakes import eventually
from node_world import SLICES, World, bound, placed
from node_world import container as node_container
from test_mps_mode import MpsWorld

from cgpu_kube import annotations as notes
from cgpu_kube import api as kube_api
from cgpu_kube import pods
from cgpu_kube.errors import KubeError, Refused
from cgpu_kube.extender.access import FOR_ALL
from cgpu_kube.extender.command import check_insecure, extender, read_listen
from cgpu_kube.extender.lease import Times
from cgpu_kube.extender.service import SERVES_LABEL, LeaseArgs
from cgpu_kube.node import claims

SLICE_PATH = "/apis/resource.k8s.io/v1/resourceslices/n1-cgpu.io"


def test_each_part_is_of_the_version_it_says(kubectl: Path) -> None:
    """base has nothing that Kubernetes 1.20 lacks, surge an agent that surges besides, and the whole is the sum."""
    names = ("base", "disruption", "surge", "policies", "dra")
    base, disruption, surge, policies, dra = (named(kustomized(kubectl, DEPLOY / name)) for name in names)
    versions = {one["apiVersion"] for one in base.values()}
    assert versions == {"v1", "apps/v1", "rbac.authorization.k8s.io/v1", "node.k8s.io/v1"}
    assert {one["apiVersion"] for one in disruption.values()} == {"policy/v1"}
    of_policies = {"admissionregistration.k8s.io/v1", "rbac.authorization.k8s.io/v1"}
    assert {one["apiVersion"] for one in policies.values()} == of_policies
    assert {**surge, **policies, **dra} == named(kustomized(kubectl))
    strategy = surge["DaemonSet", "cgpu-node"]["spec"].pop("updateStrategy")  # Kubernetes 1.20 does not know the field
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert {**base, **disruption} == surge


def test_the_version_is_the_products(objects: dict) -> None:
    version = (REPO / "VERSION").read_text().strip()
    images = {
        one["image"]
        for found in objects.values()
        if "template" in found.get("spec", {})
        for one in found["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"cgpu-kube:{version}"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_no_container_has_more_than_it_needs(objects: dict) -> None:
    for kind, name in (("DaemonSet", "cgpu-node"), ("Deployment", "cgpu-extender")):
        spec = objects[kind, name]["spec"]["template"]["spec"]
        shared = {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert shared == ({"hostPID"} if kind == "DaemonSet" else set())
        context = spec["containers"][0]["securityContext"]
        assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False and not context.get("privileged")
    volumes = objects["Deployment", "cgpu-extender"]["spec"]["template"]["spec"]["volumes"]
    secret = {"secretName": "cgpu-extender-tls", "defaultMode": 0o440}
    assert volumes == [{"name": "tmp", "emptyDir": {}}, {"name": "tls", "secret": secret}]


def test_the_arguments_are_understood(objects: dict) -> None:
    spec = objects["Deployment", "cgpu-extender"]["spec"]["template"]["spec"]["containers"][0]
    command, *words = spec["args"]
    assert command == extender.name
    context = extender.make_context("extender", words)
    assert read_listen(context.params["listen"]) == ("0.0.0.0", spec["ports"][0]["containerPort"])
    assert objects["Service", "cgpu-extender"]["spec"]["ports"][0]["port"] == 39999
    check_insecure("0.0.0.0", insecure=context.params["insecure"], tls=context.params["tls_cert"] is not None)
    assert context.params["client_ca"], "the scheduler is known by its certificate"
    for probe in ("readinessProbe", "livenessProbe"):
        assert spec[probe]["httpGet"]["scheme"] == "HTTPS" and spec[probe]["httpGet"]["path"] in FOR_ALL
    found = yaml.safe_load((DEPLOY / "scheduler.yaml").read_text())["extenders"][0]
    assert found["urlPrefix"] == "https://CLUSTER_IP:39999/gpushare-scheduler" and found["enableHTTPS"] is True
    assert {"caFile", "certFile", "keyFile", "serverName"} == found["tlsConfig"].keys()


def test_the_scheduler_may_use_the_extender_and_no_other(objects: dict) -> None:
    bound = objects["ClusterRoleBinding", "cgpu-extender-scheduler"]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}
    assert (bound["roleRef"]["name"], bound["subjects"]) == ("cgpu-extender-scheduler", [subject])
    (rule,) = objects["ClusterRole", "cgpu-extender-scheduler"]["rules"]
    urls = [f"/gpushare-scheduler/{verb}" for verb in ("filter", "prioritize", "preempt", "bind")]
    assert rule == {"nonResourceURLs": urls, "verbs": ["post"]}
    roles = {one["roleRef"]["name"] for (kind, _), one in objects.items() if kind == "ClusterRoleBinding"}
    assert "cgpu-extender-viewer" not in roles, "an administrator gives it to Prometheus"


def test_the_network_policy_is_of_the_extender(objects: dict, helm: Path) -> None:
    policy = yaml.safe_load((DEPLOY / "network/networkpolicy.yaml").read_text())
    labels = objects["Deployment", "cgpu-extender"]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (ingress,) = policy["spec"]["ingress"]
    assert [one["port"] for one in ingress["ports"]] == [39999] and policy["spec"]["policyTypes"] == ["Ingress"]
    found = named(rendered(helm, {"extender": {"clients": ["10.1.0.0/24"]}}))
    ingress["from"][0] = {"ipBlock": {"cidr": "10.1.0.0/24"}}
    assert found["NetworkPolicy", "cgpu-extender"] == policy


def test_the_extenders_rights_are_what_it_uses(objects: dict) -> None:
    """Every request of a whole life is allowed, and every right was used."""
    roles = (("ClusterRole", "cgpu-extender"), ("Role", "cgpu-extender-unhealthy"), ("Role", "cgpu-extender-lease"))
    allowed = rights(objects, *roles)

    async def life() -> set[tuple[str, str]]:
        lease = LeaseArgs("cgpu-system", "cgpu-extender", "e", times=Times(15, 10, 0.1))
        async with Cluster(our_node("n1", gpu(0, 15)), token="t", lease=lease) as cluster:
            await eventually(lambda: cluster.extender.is_leader, "the lease")
            one = simple("a", 6, annotations={notes.GPU_UUID: "GPU-0"})
            allowed = {"metadata": {"name": "default", "labels": {notes.GPU_UUID: notes.ALLOWED}}}
            cluster.server.put("api/v1/namespaces", allowed)
            await cluster.place(one)
            cluster.server.put(MAPS, {"metadata": {"namespace": "kube-system", "name": "unhealthy-gpu-n1"}, "data": {}})
            await asyncio.sleep(0.3)
            cluster.end("a")
            await cluster.settled()
            await cluster.stop()
            await cluster.start()
            return {used(*request) for request in cluster.server.requests}

    done = asyncio.run(life())
    done |= {(resource, "watch") for resource, verb in done if verb == "list"}
    assert done == allowed


def test_the_nodes_rights_are_what_it_uses(objects: dict, tmp_path: Path) -> None:
    """The same for the agent: as device plugin, with a pod that is deleted by force, as DRA driver, and with a client
    of MPS that uses too much."""

    async def life(mode: str, directory: Path) -> set[tuple[str, str]]:
        directory.mkdir()
        world = World(directory, mode=mode)
        world.link.inventory = tuple(replace(one, policy=1) for one in world.link.inventory)  # native has no priority
        async with world.running():
            if mode == "dra":
                await eventually(lambda: world.api.objects.get(SLICES), "the slice")
                with contextlib.suppress(KubeError):
                    await world.agent.cluster.claim("team", "c")
                world.node.link.inventory = world.node.link.inventory[:1]
                await eventually(lambda: ("PUT", SLICE_PATH) in world.api.requests, "the slice is replaced")
                world.label("cgpu")
                await eventually(lambda: ("DELETE", SLICE_PATH) in world.api.requests, "the slice is removed")
            else:
                await eventually(lambda: world.offered() == 94, "the offer")
                world.api.label_namespace("team", {notes.PRIORITY: "high"})
                written = placed({"main": {1: 6}}) | {notes.PRIORITY: "high"}
                found = world.pod("p", node_container(mem=6), annotations=written)
                await world.start(found)
                await world.agent.cluster.pod("team", "p", "u", fresh=True)
                await eventually(lambda: ("PATCH", "/api/v1/namespaces/team/pods/p") in world.api.requests, "assigned")
            return {used(*request) for request in world.api.requests}

    async def over(directory: Path) -> set[tuple[str, str]]:
        directory.mkdir()
        world = MpsWorld(directory, mode="mps")
        async with world.running():
            await eventually(lambda: world.offered(), "the offer")
            pid = await world.run_pod(world.pod("g", node_container(mem=2), annotations=bound(0, 2)))
            world.spare()
            world.control.use(world.uuids[0], pid, 3000)
            await eventually(lambda: len(world.events()) == 2, "over, and deleted")
            return {used(*request) for request in world.api.requests}

    done = asyncio.run(life("cgpu", tmp_path / "a")) | asyncio.run(life("dra", tmp_path / "b"))
    done |= asyncio.run(over(tmp_path / "c"))
    done |= {(resource, "watch") for resource, verb in done if verb == "list"}
    assert done == rights(objects, ("ClusterRole", "cgpu-node"), ("ClusterRole", "cgpu-node-evict"))


@pytest.mark.parametrize(
    ("minor", "values", "may"),
    [
        (30, {}, True),
        (29, {}, False),
        (36, {"policies": {"enabled": False}}, False),
        (36, {"node": {"deletePods": "never"}}, False),
        (20, {"node": {"deletePods": "always"}}, True),
    ],
    ids=str,
)
def test_an_agent_deletes_pods_where_a_policy_narrows_it(
    helm: Path, tmp_path: Path, minor: int, values: Object, may: bool
) -> None:
    """RBAC gives the pods of every node. Before 1.30 there are no policies, and the notes say what that leaves."""
    chart = chart_at(f"v1.{minor}.3", tmp_path)
    found = named(rendered(helm, values, chart=chart))
    bound = [one["roleRef"]["name"] for (kind, _), one in found.items() if kind == "ClusterRoleBinding"]
    roles = [("ClusterRole", name) for name in bound if name.startswith("cgpu-node")]
    assert (("pods", "delete") in rights(found, *roles)) == may
    is_narrowed = ("ValidatingAdmissionPolicy", "cgpu-node-own") in found
    notes_text = notes_of(helm, values, chart)
    assert ("its token may patch every node and every pod" in notes_text) == (not is_narrowed)
    assert ("and delete every pod" in notes_text) == (may and not is_narrowed)


def test_the_objects_without_policies_give_no_agent_pods_to_delete(kubectl: Path) -> None:
    for folder in ("base", "surge"):
        found = named(kustomized(kubectl, DEPLOY / folder))
        assert ("pods", "delete") not in rights(found, ("ClusterRole", "cgpu-node"))
        assert ("ClusterRoleBinding", "cgpu-node-evict") not in found


def rights(objects: dict, *roles: tuple[str, str]) -> set[tuple[str, str]]:
    rules = [rule for key in roles for rule in objects[key]["rules"]]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def used(method: str, path: str) -> tuple[str, str]:
    """A request as RBAC sees it; a watch is a GET of a list too."""
    words = re.sub(r"^/(api|apis/[^/]+)/v1/", "", path).split("/")
    words = words[2:] if words[0] == "namespaces" and len(words) > 2 else words
    resource = "/".join([words[0], *words[2:]])
    verbs = {"GET": "get" if len(words) > 1 else "list", "PATCH": "patch", "POST": "create"}
    verbs |= {"DELETE": "delete", "PUT": "update"}
    return resource, verbs[method]


# ---- Helm ----


def test_the_chart_is_the_same_objects(helm: Path, objects: dict) -> None:
    found = named(rendered(helm, {}))
    wanted = {key: one for key, one in objects.items() if key[0] != "Namespace"}
    assert found.keys() == wanted.keys()
    for key, one in found.items():
        assert folded(one) == folded(wanted[key]), key


def test_the_charts_values(helm: Path) -> None:
    off = {name: {"enabled": False} for name in ("extender", "policies", "dra", "runtimeClass")}
    kinds = {(one["kind"], one["metadata"]["name"]) for one in rendered(helm, off)}
    assert kinds == {
        ("ServiceAccount", "cgpu-node"),
        ("ClusterRole", "cgpu-node"),
        ("ClusterRoleBinding", "cgpu-node"),
        ("DaemonSet", "cgpu-node"),
    }
    found = named(
        rendered(
            helm,
            {
                "image": {"repository": "mirror/cgpu-kube", "tag": "7"},
                "node": {"args": ["--memory-unit=MiB"]},
                "policies": {"writers": []},
                "runtimeClass": {"handler": "cgpu"},
            },
            "other",
        )
    )
    spec = found["DaemonSet", "cgpu-node"]["spec"]["template"]["spec"]["containers"][0]
    assert (spec["image"], spec["args"]) == ("mirror/cgpu-kube:7", ["node", "--probe-port=39998", "--memory-unit=MiB"])
    assert found["ClusterRoleBinding", "cgpu-node"]["subjects"][0]["namespace"] == "other"
    assert found["RuntimeClass", "cgpu"]["handler"] == "cgpu"
    who = found["ValidatingAdmissionPolicy", "cgpu-annotations"]["spec"]["matchConditions"][0]["expression"]
    assert "system:serviceaccount:other:cgpu-extender" in who and "gpushare-schd-extender" not in who


#: The first version of Kubernetes that serves a kind under its API version, by Kubernetes' own list of changes; kinds
#: that are not here are as old as the chart's floor.
SINCE = {
    ("policy/v1", "PodDisruptionBudget"): 21,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): 30,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): 30,
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"): 36,
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding"): 36,
    ("resource.k8s.io/v1", "DeviceClass"): 34,
}
OLD = {
    "v1",
    "apps/v1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "node.k8s.io/v1",
    "networking.k8s.io/v1",
}
#: All that a value of the chart switches on.
EVERYTHING = {"dra": {"enabled": True}, "policies": {"enabled": True}, "extender": {"enabled": True}}


@pytest.mark.parametrize("minor", [20, 21, 22, 24, 25, 29, 30, 33, 34, 35, 36])
def test_what_the_clusters_version_lacks_is_left_out(helm: Path, tmp_path: Path, minor: int) -> None:
    """All that a version serves is there, and nothing else: as rendered for that version."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == ">=1.20.0-0"
    scheduler = {"enabled": minor >= 25, "image": {"repository": "example.org/kube-scheduler"}}
    chart = chart_at(f"v1.{minor}.3", tmp_path)
    found = rendered(helm, {**EVERYTHING, "scheduler": scheduler}, chart=chart)
    kinds = {(one["apiVersion"], one["kind"]) for one in found}
    for api, kind in kinds:
        assert api in OLD or SINCE[api, kind] <= minor, (api, kind)
    for (api, kind), since in SINCE.items():
        if minor >= since and not (kind == "PodDisruptionBudget" and scheduler["enabled"]):
            assert (api, kind) in kinds, "left out though it is served"
    strategy = named(found)["DaemonSet", "cgpu-node"]["spec"].get("updateStrategy", {}).get("rollingUpdate", {})
    assert ("maxSurge" in strategy) == (minor >= 22), "beta and on by default since 1.22"
    images = [
        one["image"]
        for workload in found
        if workload["kind"] == "Deployment"
        for one in workload["spec"]["template"]["spec"]["containers"]
    ]
    wanted = [f"example.org/kube-scheduler:v1.{minor}.3"] if minor >= 25 else []
    assert [one for one in images if "kube-scheduler" in one] == wanted, "of the cluster's own version"


def test_a_scheduler_of_its_own_needs_a_newer_kubernetes(helm: Path, tmp_path: Path) -> None:
    values = {"scheduler": {"enabled": True, "image": {"repository": "example.org/kube-scheduler"}}}
    with pytest.raises(AssertionError, match=r"1\.25"):
        rendered(helm, values, chart=chart_at("v1.24.17", tmp_path))


def test_the_chart_chooses_nodes_and_pulls_with_secrets(helm: Path) -> None:
    values = {
        "imagePullSecrets": [{"name": "registry"}],
        "node": {"nodeSelector": {"a": "b"}},
        "extender": {"nodeSelector": {"c": "d"}, "replicas": 3},
    }
    found = named(rendered(helm, values))
    node, one = found["DaemonSet", "cgpu-node"]["spec"], found["Deployment", "cgpu-extender"]["spec"]
    assert node["template"]["spec"]["nodeSelector"] == {"a": "b"} and one["replicas"] == 3
    assert one["template"]["spec"]["nodeSelector"] == {"c": "d"}
    for spec in (node, one):
        assert spec["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    notes_text = notes_of(helm, {})
    assert "kubectl label namespace cgpu-system" in notes_text and "deploy/image import" in notes_text


def test_the_agent_stays_where_the_mode_label_is_removed(objects: dict) -> None:
    """Terms are alternatives: the agent's own label keeps it."""
    affinity = objects["DaemonSet", "cgpu-node"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = [[one["key"] for one in term["matchExpressions"]] for term in terms]
    assert found == [[notes.MODE_LABEL], [notes.AGENT_LABEL]]


def test_the_service_finds_the_extender_that_serves(objects: dict) -> None:
    assert objects["Service", "cgpu-extender"]["spec"]["selector"][SERVES_LABEL] == "true"
    spec = objects["Deployment", "cgpu-extender"]["spec"]
    assert (
        spec["replicas"] == 2
        and "--lease=cgpu-system/cgpu-extender" in spec["template"]["spec"]["containers"][0]["args"]
    )
    env = spec["template"]["spec"]["containers"][0]["env"]
    assert env == [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]


# ---- the image, and the identity of a node's unit ----


def is_in_the_context(path: str) -> bool:
    """By .containerignore: the last line that matches a path, or a folder of it, decides."""
    found = True
    for line in (REPO / ".containerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parts = [str(one) for one in (Path(path), *Path(path).parents)][:-1]
        names = [Path(one).name for one in parts]
        if (
            pattern == "*"
            or pattern in parts
            or (pattern.startswith("**/") and any(fnmatch.fnmatch(name, pattern[3:]) for name in names))
        ):
            found = line.startswith("!")
    return found


def test_the_image_is_built_from_a_small_context(tmp_path: Path) -> None:
    """All that the wheel needs is in it, and nothing of build/, tests and .git."""
    assert (REPO / ".dockerignore").readlink() == Path(".containerignore")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPO, capture_output=True, text=True)
    inside = [path for path in listed.stdout.splitlines() if is_in_the_context(path) and (REPO / path).is_file()]
    size = sum((REPO / path).stat().st_size for path in inside)
    assert 0 < size < 8 << 20, f"{size >> 20} MiB"
    assert not is_in_the_context("build/x") and not is_in_the_context(".git/config")
    for path in inside:
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / path, tmp_path / "src" / path)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, "./src"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (wheel,) = tmp_path.glob("cgpu-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"cgpu_kube/main.py", "cgpu_kube/node/agent.py", "cgpu_common/placement.py"} <= names


def stand_in(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def test_one_command_builds_and_one_imports_or_pushes(tmp_path: Path, objects: dict) -> None:
    log = tmp_path / "log"
    engine = stand_in(tmp_path, "engine", f'echo "engine $*" >>{log}; [ "$1" != save ] || echo archive >"$3"')
    ctr = stand_in(tmp_path, "ctr", f'echo "ctr $*" >>{log}; cat "$5" >>{log}')

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"ENGINE": str(engine), "CTR": str(ctr), "PATH": os.environ["PATH"]}
        return subprocess.run([REPO / "deploy/image", *words], env=env, capture_output=True, text=True, cwd=tmp_path)

    version = (REPO / "VERSION").read_text().strip()
    full = f"docker.io/library/cgpu-kube:{version}"
    spec = objects["DaemonSet", "cgpu-node"]["spec"]["template"]["spec"]["containers"][0]
    assert f"docker.io/library/{spec['image']}" == full, "as a kubelet reads the name"
    assert run("build").returncode == 0
    assert f"engine build --tag {full} --tag cgpu-kube:{version} --file deploy/Containerfile ." in log.read_text()
    log.write_text("")
    assert run("import").returncode == 0
    assert re.search(r"ctr --namespace k8s.io images import \S+\narchive", log.read_text())
    assert run("save", "image.tar").returncode == 0
    assert (tmp_path / "image.tar").read_text() == "archive\n", "in the caller's folder"
    pushed = run("push", "registry.example:5000/team/cgpu-kube")
    assert pushed.returncode == 0 and f"engine push registry.example:5000/team/cgpu-kube:{version}" in log.read_text()
    assert "newName: registry.example:5000/team/cgpu-kube" in pushed.stdout
    for words in ((), ("build", "x"), ("save",), ("push",), ("push", "r/x@sha256:0"), ("other",)):
        assert run(*words).returncode != 0, words


def test_a_node_with_containerd_alone_imports_what_was_saved(tmp_path: Path) -> None:
    """Nodes of a cluster have neither podman nor docker: without a FILE the sentence says the way."""
    log, tools = tmp_path / "log", tmp_path / "tools"
    ctr = stand_in(tmp_path, "ctr", f'echo "ctr $*" >>{log}; cat "$5" >>{log}')
    tools.mkdir()
    for name in ("cat", "dirname", "mktemp", "sed", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"CTR": str(ctr), "PATH": str(tools)}
        return subprocess.run([REPO / "deploy/image", *words], env=env, capture_output=True, text=True, cwd=tmp_path)

    done = run("import")
    assert done.returncode == 1 and "deploy/image import FILE here" in done.stderr
    done = run("import", "gone.tar")
    assert done.returncode == 1 and "gone.tar: no such file" in done.stderr and not log.exists()
    (tmp_path / "image.tar").write_text("archive\n")
    assert run("import", "image.tar").returncode == 0
    assert log.read_text() == f"ctr --namespace k8s.io images import {tmp_path}/image.tar\narchive\n"


TYPED = sorted(
    str(one.relative_to(REPO)) for one in (REPO / "deploy").rglob("*") if one.is_file() and os.access(one, os.X_OK)
)


@pytest.mark.parametrize("script", [*TYPED, "scripts/node-image"])
def test_a_script_that_is_typed_has_a_help(tmp_path: Path, script: str) -> None:
    """A help does nothing, and an option that does not exist is no directory, node or file."""
    assert len(TYPED) == 3
    for words, code in ((["--help"], 0), (["-h"], 0), (["--other"], 2), (["name", "--other"], 2), ([], 2)):
        env = {"PATH": os.environ["PATH"], "KUBECTL": "/nowhere", "ENGINE": "/nowhere", "CTR": "/nowhere"}
        done = subprocess.run([REPO / script, *words], env=env, capture_output=True, text=True, cwd=tmp_path)
        said, other = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
        assert (done.returncode, other) == (code, "") and said.startswith(script), (words, done)
    assert list(tmp_path.iterdir()) == []


def test_the_identity_of_a_nodes_unit(tmp_path: Path) -> None:
    """The request is bound to the Node object, and what is printed is what the agent reads."""
    log = tmp_path / "log"
    code = f"""case "$*" in
"get node n1"*) echo u-1 ;;
"create --raw "*) echo "$3" >>{log}; cat >>{log}; echo '{{"kind":"TokenRequest","status":{{"token":"abc.def"}}}}' ;;
*cluster.server*) echo https://10.0.0.1:6443 ;;
*certificate-authority-data*) echo Q0E= ;;
*) exit 1 ;;
esac"""
    kubectl = stand_in(tmp_path, "kubectl", code)
    script = DEPLOY / "node-kubeconfig"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"KUBECTL": str(kubectl), "PATH": os.environ["PATH"]}
        return subprocess.run([script, *words], env=env, capture_output=True, text=True)

    done = run("n1", "3600")
    assert done.returncode == 0, done.stderr
    path, request = log.read_text().split("\n", 1)
    assert path == "/api/v1/namespaces/cgpu-system/serviceaccounts/cgpu-node/token"
    spec = json.loads(request)["spec"]
    bound = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1"}
    assert spec == {"boundObjectRef": bound, "expirationSeconds": 3600}
    (tmp_path / "config").write_text(done.stdout)
    config = kube_api.from_kubeconfig(tmp_path / "config")
    assert (config.server, config.token, config.ca_data) == ("https://10.0.0.1:6443", "abc.def", "CA")
    assert run("other").returncode != 0 and run("n1", "much").returncode == 2 and run().returncode == 2


# ---- policies ----


@pytest.fixture(scope="session")
def policies(objects: dict) -> dict[str, Policy]:
    found = {name: Policy(one) for (kind, name), one in objects.items() if kind == "ValidatingAdmissionPolicy"}
    bound = {one["spec"]["policyName"] for (kind, _), one in objects.items() if kind.endswith("PolicyBinding")}
    assert bound == found.keys()
    for (kind, _), one in objects.items():
        assert not kind.endswith("PolicyBinding") or one["spec"]["validationActions"] == ["Deny"]
    return found


PODS = [
    (simple("p", 6), ""),
    (pod("p", container("c", None)), ""),
    (pod("p", container("c", 6, 25), init=(container("i", 2), container("s", 1, sidecar=True))), ""),
    (simple("p", 6, count=2), ""),
    (pod("p", container("c", 6, 150), count=2), ""),  # 75 % of each
    (simple("p", "6Gi"), "aliyun.com/gpu-mem is a number of units of the node, GiB in most clusters, and no amount"),
    (simple("p", 0), "aliyun.com/gpu-mem is 0; leave it out, or ask for 1 or more"),
    (pod("p", container("c", 6), init=(container("i", 0),)), "aliyun.com/gpu-mem is 0"),
    (simple("p", "six"), "six"),
    (pod("p", container("c", 6, 26)), "must be 5 to 100 in steps of 5"),
    (pod("p", container("c", 6, 4)), "must be 5 to 100 in steps of 5"),
    (pod("p", container("c", 6, 105)), "must be 5 to 100 in steps of 5"),
    (pod("p", container("c", None, 25)), "aliyun.com/gpu-core.percentage without aliyun.com/gpu-mem"),
    (simple("p", 7, count=2), "cannot be divided among the GPUs"),
    (simple("p", 6, count=0), "is not a number from 1 to 64"),
    (simple("p", 6, count=65), "is not a number from 1 to 64"),
    (simple("p", 6, count="two"), "is not a number from 1 to 64"),
]


@pytest.mark.parametrize(("found", "sentence"), PODS)
def test_pods(policies: dict[str, Policy], found: Object, sentence: str) -> None:
    """The policy refuses what the extender would, and nothing else."""
    said = policies["cgpu-pods"].sentences(found)
    assert (sentence in "; ".join(said)) if sentence else said == []
    try:
        pods.needs(found)
    except Refused:
        assert said
    else:
        assert not said


def test_a_pod_goes_past_no_scheduler(policies: dict[str, Policy]) -> None:
    """Its memory would count on each GPU of the node, at the price of one. A static pod's copy comes from the kubelet;
    DaemonSets name their nodes by affinity."""
    policy = policies["cgpu-pods"]
    kubelet = {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}
    limits = [{notes.GPU_MEM: "6"}, *({notes.NV_GPU: "1", name: "10"} for name in notes.NV_AMOUNTS)]
    for one in limits:
        found = pod("p", {"name": "c0", "resources": {"limits": one}})
        assert policy.sentences(found) == []
        found["spec"]["nodeName"] = "n1"
        (why,) = policy.sentences(found)
        assert why.startswith("a pod with GPU memory that names its node in spec.nodeName passes the scheduler by")
        assert policy.sentences(found, userInfo=kubelet) == []
        aside = pod("p", {"name": "c0"}, init=({"name": "i", "resources": {"limits": one}},))
        aside["spec"]["nodeName"] = "n1"
        assert policy.sentences(aside) == [why]
    for resources in ({}, {"limits": {"cpu": "1"}}, {"limits": {notes.NV_GPU: "1"}}):  # the last is NVIDIA's plugin's
        found = pod("p", {"name": "c0", "resources": resources})
        found["spec"]["nodeName"] = "n1"
        assert policy.sentences(found) == []


def test_the_namespace_allows_a_priority(policies: dict[str, Policy]) -> None:
    policy = policies["cgpu-pods"]
    high = simple("p", 6, annotations={notes.PRIORITY: "high"})
    assert "needs the same label on the namespace" in "; ".join(policy.sentences(high))
    assert policy.sentences(high, labels={notes.PRIORITY: "normal"}) != []
    assert policy.sentences(high, labels={notes.PRIORITY: "high"}) == []
    assert policy.sentences(simple("p", 6, annotations={notes.PRIORITY: "normal"})) == []
    odd = policy.sentences(simple("p", 6, annotations={notes.PRIORITY: "urgent"}), labels={notes.PRIORITY: "high"})
    assert odd == ["annotation cgpu.io/priority is neither normal nor high"]


def test_annotations(policies: dict[str, Policy]) -> None:
    policy = policies["cgpu-annotations"]
    plain, forged = simple("p", 6), simple("p", 6, annotations={notes.INDEX: "1", "mine": "x"})
    ours = {"username": "system:serviceaccount:cgpu-system:cgpu-extender", "groups": []}
    controller = {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": []}
    kubelet = {"username": "system:node:n1", "groups": ["system:nodes"]}
    why = policy.sentences(forged)
    assert len(why) == 1 and why[0].endswith("device plugin write them; leave them out")
    assert policy.sentences(plain) == []
    assert policy.sentences(forged, userInfo=controller) == why
    assert policy.sentences(forged, plain) == why
    assert policy.sentences(plain, forged) == why
    for user in (ours, kubelet):
        assert policy.sentences(forged, plain, userInfo=user) == []
    edited = copy.deepcopy(forged)
    edited["metadata"]["annotations"]["mine"] = "y"
    assert policy.sentences(edited, forged) == []
    edited["metadata"]["annotations"][notes.INDEX] = "0"
    assert policy.sentences(edited, forged) == why
    keys = next(one for one in policy.spec["variables"] if one["name"] == "keys")["expression"]
    static = {"kubernetes.io/config.mirror", "kubernetes.io/config.source"}
    assert set(re.findall(r"'([^']+)'", keys)) == set(notes.CHOICE) | static
    for key in sorted(static):
        assert policy.sentences(simple("p", 6, annotations={key: "file"})) == why, key


def test_the_count_of_a_bound_pod(policies: dict[str, Policy]) -> None:
    policy = policies["cgpu-annotations"]
    one, two, none = simple("p", 8, count=1), simple("p", 8, count=2), simple("p", 8)
    assert policy.sentences(two, none) == [], "not bound yet: the extender reads what it is then"
    for found in (one, two, none):
        found["spec"]["nodeName"] = "n1"
    for new, old in ((one, two), (two, none), (none, two)):
        (why,) = policy.sentences(new, old)
        assert why.startswith("label aliyun.com/gpu-count is the number of GPUs among which")
    moved = copy.deepcopy(two)
    moved["metadata"]["labels"]["mine"] = "x"
    assert policy.sentences(moved, two) == [] and policy.sentences(none, none) == []


def test_an_agent_writes_its_own_node(policies: dict[str, Policy]) -> None:
    policy = policies["cgpu-node-own"]
    user = {
        "username": "system:serviceaccount:cgpu-system:cgpu-node",
        "groups": [],
        "extra": {"authentication.kubernetes.io/node-name": ["n1"]},
    }
    node, other = our_node("n1", gpu(0, 15)), our_node("n2", gpu(0, 15))
    nodes = {"resource": {"group": "", "resource": "nodes"}}
    assert policy.sentences(node, node, userInfo=user, **nodes) == []
    assert policy.sentences(other, other, userInfo=user, **nodes)
    assert policy.sentences(node, node, userInfo=user | {"extra": {}}, **nodes)
    assert policy.sentences(other, other, **nodes) == []  # another user: RBAC's matter
    here, there = simple("a", 6), simple("b", 6)
    here["spec"]["nodeName"], there["spec"]["nodeName"] = "n1", "n2"
    of_pods = {"resource": {"group": "", "resource": "pods"}}
    assert policy.sentences(here, here, userInfo=user, **of_pods) == []
    assert policy.sentences(there, there, userInfo=user, **of_pods)
    assert policy.sentences(simple("c", 6), simple("c", 6), userInfo=user, **of_pods)
    assert policy.sentences(None, here, userInfo=user, **of_pods) == []
    assert policy.sentences(None, there, userInfo=user, **of_pods), "it deletes pods of its own node only"
    slices = {"resource": {"group": "resource.k8s.io", "resource": "resourceslices"}}
    mine = recorded("resourceslice")
    foreign = copy.deepcopy(mine)
    foreign["spec"]["nodeName"] = "n2"
    assert policy.sentences(mine, userInfo=user, **slices) == []
    assert policy.sentences(foreign, userInfo=user, **slices)
    assert policy.sentences(None, mine, userInfo=user, **slices) == []
    assert policy.sentences(None, foreign, userInfo=user, **slices)


def claim(requests: Any, first: bool = False, name: str = "cgpu.io") -> Object:
    found = copy.deepcopy(recorded("claim-fraction"))
    exactly = {"deviceClassName": name} | ({"capacity": {"requests": requests}} if requests is not None else {})
    one = (
        {"name": "gpu", "firstAvailable": [{"name": "a", **exactly}]} if first else {"name": "gpu", "exactly": exactly}
    )
    found["spec"]["devices"]["requests"] = [one]
    return found


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ({"memory": "6Gi", "weight": "5"}, ""),
        ({"memory": "256Mi"}, ""),
        ({"memory": "0"}, "capacity memory of class cgpu.io must be at least 256Mi"),
        ({"memory": "-1Gi"}, "capacity memory of class cgpu.io must be at least 256Mi"),
        ({"memory": "255Mi"}, "capacity memory of class cgpu.io must be at least 256Mi"),
        ({"weight": "5"}, "needs capacity.requests.memory, as 6Gi; without it the claim would take the whole card"),
        (None, "needs capacity.requests.memory, as 6Gi"),
        ({"memory": "6Gi", "cores": "5"}, "are memory, weight and slots; there are no others"),
        ({"memory": "6Gi", "weight": "0"}, "capacity weight of class cgpu.io must be a whole number of at least 1"),
        ({"memory": "6Gi", "weight": "500m"}, "capacity weight of class cgpu.io must be a whole number"),
    ],
)
def test_claims(policies: dict[str, Policy], requests: Any, sentence: str, template: bool, first: bool) -> None:
    policy = policies["cgpu-templates" if template else "cgpu-claims"]

    def given(name: str) -> Object:
        found = claim(requests, first, name)
        return {"spec": {"spec": found["spec"]}} if template else found

    said = "; ".join(policy.sentences(given("cgpu.io")))
    assert sentence in said if sentence else said == ""
    assert policy.sentences(given("other.io")) == []


def test_the_schedulers_annotation_is_the_schedulers(policies: dict[str, Policy]) -> None:
    """With it a claim needs no memory, and takes the whole card."""
    policy, plain = policies["cgpu-claims"], recorded("claim-allocated")
    marked = copy.deepcopy(plain)
    marked["metadata"]["annotations"] = {claims.EXTENDED: "example.com/gpu"}
    scheduler = {"userInfo": {"username": "system:kube-scheduler"}}
    for old in (None, plain):
        assert "is the scheduler's" in "; ".join(policy.sentences(marked, old))
        assert policy.sentences(marked, old, **scheduler) == []
    assert policy.sentences(marked, marked) == [], "another controller's change of it"


def test_admin_access_needs_no_memory(policies: dict[str, Policy]) -> None:
    found = recorded("claim-allocated")
    (request,) = found["spec"]["devices"]["requests"]
    del request["exactly"]["capacity"]
    assert policies["cgpu-claims"].sentences(found) != []
    request["exactly"]["adminAccess"] = True
    assert policies["cgpu-claims"].sentences(found) == []
    request["exactly"]["adminAccess"] = False
    assert policies["cgpu-claims"].sentences(found) != []


def test_the_recorded_claims_pass(policies: dict[str, Policy]) -> None:
    for name in ("claim-allocated", "claim-fraction"):
        assert policies["cgpu-claims"].sentences(recorded(name)) == []


def test_the_image_is_built_from_what_is_there() -> None:
    text = (REPO / "deploy/Containerfile").read_text()
    assert 'ENTRYPOINT ["cgpu-kube"]' in text
    for lock in re.findall(r"-r /src/(\S+)", text):
        assert (REPO / lock).exists()
    assert text.count("-r /src/scripts/") == 2 and "--require-hashes" in text and "--no-deps /src\n" in text
    for line in re.findall(r"^FROM (\S+)", text, re.M):
        assert "/" not in line and "." not in line, "a registry's name"
