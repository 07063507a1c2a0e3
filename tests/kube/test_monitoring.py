# SPDX-License-Identifier: MIT
"""Figures of the agent, and the objects of the Prometheus Operator: their targets exist, their queries have figures."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from deployed import DEPLOY, REPO, Object, folded, kustomized, named, rendered
from fakes import eventually
from node_world import World, bound
from node_world import container as node_container
from prometheus_client.parser import text_string_to_metric_families as parse

from cgpu_common.config import Config
from cgpu_kube import api
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.extender import metrics
from cgpu_kube.node import figures

FILES = REPO / "deploy/helm/cgpu/files"
RULES = FILES / "cgpu-cluster.rules.yml"
PROMTOOL = REPO / "build/prometheus/promtool"


@pytest.fixture(scope="module")
def monitors(kubectl: Path) -> dict[tuple[str, str], Object]:
    return named(kustomized(kubectl, DEPLOY / "monitoring"))


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    found = {}
    for family in parse(text.decode()):
        for one in family.samples:
            labels = dict(one.labels)
            assert labels.pop("node") == "n1"
            found[(one.name, *labels.values())] = one.value
    return found


async def test_the_agent_says_what_it_does(world: World) -> None:
    await eventually(lambda: not world.agent.unready, "ready")
    await world.start(world.pod("a", node_container(mem=6), annotations=bound(0, 6)))
    bad = world.pod("b", node_container(mem=6), annotations=bound(7, 6))
    assert "GPU 7" in await world.refused(bad)
    found = samples(figures.text(world.agent.figures))
    refused = found.pop(("cgpu_node_agent_decisions_total", "refused"))
    assert refused >= 1 and found == {
        ("cgpu_node_agent_ready",): 1,
        ("cgpu_node_agent_standby",): 0,
        ("cgpu_node_agent_decisions_total", "granted"): 1,
        ("cgpu_node_agent_devices", GPU_MEM): 94,
        ("cgpu_node_agent_unasked",): 0,
        ("cgpu_node_agent_watch_failing", "nodes"): 0,
        ("cgpu_node_agent_watch_failing", "pods"): 0,
    }
    await world.kubelet.stop()
    await eventually(lambda: bool(world.agent.unready), "away")
    assert samples(figures.text(world.agent.figures))[("cgpu_node_agent_ready",)] == 0


def jwt(claims: object) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


async def test_the_agent_says_when_its_token_ends(tmp_path: Path) -> None:
    """Of a kubeconfig's. A pod's is made anew by the kubelet."""
    (tmp_path / "token").write_text(jwt({"exp": 2000000000}))
    for config, ends in (
        (api.Config("http://x", token=jwt({"exp": 2000000000})), 2000000000),
        (api.Config("http://x", token_file=tmp_path / "token"), 0),
        (api.Config("http://x", token=jwt({})), 0),
        (api.Config("http://x", token=jwt([])), 0),
        (api.Config("http://x", token=jwt({"exp": "soon"})), 0),
        (api.Config("http://x", token="a.b"), 0),
        (api.Config("http://x", token="a.*.c"), 0),
        (api.Config("http://x"), 0),
    ):
        async with api.Client(config) as client:
            assert client.token_ends == ends
    for ends, there in ((0, {}), (2000000000, {("cgpu_node_agent_token_expiry_timestamp_seconds",): 2000000000})):
        found = samples(figures.text(figures.Figures("n1", ready=True, standby=False, token_ends=ends)))
        assert {key: value for key, value in found.items() if "token" in key[0]} == there


def test_the_chart_is_the_same_objects(helm: Path, monitors: dict, objects: dict) -> None:
    found = named(rendered(helm, {"monitoring": {"enabled": True}}))
    ours = {key: one for key, one in found.items() if key not in objects}
    assert ours.keys() == monitors.keys()
    for key, one in ours.items():
        assert folded(one) == folded(monitors[key]), key
    values = {
        "monitoring": {
            "enabled": True,
            "labels": {"release": "p"},
            "prometheus": {"namespace": "m", "serviceAccount": "s"},
        },
        "scheduler": {"enabled": True, "image": {"repository": "k"}},
    }
    found = named(rendered(helm, values, "other"))
    kinds = [key for key in found if key[0] in ("ServiceMonitor", "PodMonitor", "ScrapeConfig", "PrometheusRule")]
    assert len(kinds) == 4
    for key in kinds:
        assert found[key]["metadata"]["labels"] == {"release": "p"} and found[key]["metadata"]["namespace"] == "other"
    (endpoint,) = found["ServiceMonitor", "cgpu-extender"]["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}, "made at its start"
    (subject,) = found["ClusterRoleBinding", "cgpu-extender-viewer"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "s", "namespace": "m"}


def test_each_target_exists(monitors: dict, objects: dict) -> None:
    extender = monitors["ServiceMonitor", "cgpu-extender"]["spec"]
    service = objects["Service", "cgpu-extender"]
    assert extender["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = extender["endpoints"]
    assert endpoint["port"] in [one["name"] for one in service["spec"]["ports"]] and endpoint["scheme"] == "https"
    secrets = [one["secret"]["secretName"] for one in volumes(objects) if "secret" in one]
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] in secrets
    agents = monitors["PodMonitor", "cgpu-node"]["spec"]
    template = objects["DaemonSet", "cgpu-node"]["spec"]["template"]
    assert agents["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    assert agents["podMetricsEndpoints"] == [{"port": port["name"]}]
    assert f"--probe-port={port['containerPort']}" in template["spec"]["containers"][0]["args"]
    role = monitors["ClusterRoleBinding", "cgpu-extender-viewer"]["roleRef"]["name"]
    assert ["/metrics" in rule["nonResourceURLs"] for rule in objects["ClusterRole", role]["rules"]] == [True]


def volumes(objects: dict) -> list[Object]:
    found: list[Object] = objects["Deployment", "cgpu-extender"]["spec"]["template"]["spec"]["volumes"]
    return found


def test_cgpud_of_each_node_is_a_target_as_the_page_has_it(monitors: dict, tmp_path: Path) -> None:
    """The same rules as metrics.md's, in the operator's spelling; the files are those that the script makes."""
    page = (REPO / "docs/user/metrics.md").read_text()
    (text,) = re.findall(r"^scrape_configs:\n.*?(?=^```)", page, re.M | re.S)
    (job,) = yaml.safe_load(text)["scrape_configs"]
    spec = monitors["ScrapeConfig", "cgpu-cgpud"]["spec"]
    spelt = [
        {re.sub(r"_(\w)", lambda m: m[1].upper(), key): value for key, value in one.items()}
        for one in job["relabel_configs"]
    ]
    assert spec["relabelings"] == spelt and spec["honorLabels"] is job["honor_labels"] is True
    assert (spec["jobName"], spec["scheme"].lower()) == (job["job_name"], job["scheme"])
    assert spec["kubernetesSDConfigs"] == [{"role": "Node"}]
    tls = spec["tlsConfig"]
    assert tls["serverName"] == job["tls_config"]["server_name"]
    command = [DEPLOY / "certificates", "--metrics", tmp_path / "pki"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (secret,) = re.findall(r"create secret generic (\S+)", done.stdout)
    made = set(re.findall(r"--from-file=\S+/(\S+)", done.stdout))
    used = [tls["ca"]["secret"], tls["cert"]["secret"], tls["keySecret"]]
    assert {one["name"] for one in used} == {secret} and {one["key"] for one in used} == made
    assert {path.name for path in (tmp_path / "pki").iterdir()} >= made
    assert Config().metrics == "", "an administrator opens the port"


def test_the_operators_rules_are_those_of_the_files(monitors: dict) -> None:
    files = (FILES / "cgpu.rules.yml", RULES)
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    assert monitors["PrometheusRule", "cgpu"]["spec"]["groups"] == groups


def test_the_rules_ask_for_what_exists() -> None:
    there = set(figures.HELP) | set(metrics.NODE)
    text = metrics.text(metrics.Scrape(watches={"pods": (False, 1.0)})).decode()
    there |= set(re.findall(r"^(cgpu_\w+)", text, re.M))
    used = set(re.findall(r"\bcgpu_\w+", RULES.read_text()))
    assert used and used <= there


def test_the_rules_fire_as_meant() -> None:
    if not PROMTOOL.exists():
        pytest.fail("scripts/setup-prometheus has not run: make setup-test runs it")
    series = Path(__file__).with_name("cgpu-cluster.rules.test.yml")
    done = subprocess.run([PROMTOOL, "test", "rules", series], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert rules == set(re.findall(r"alertname: (\w+)\n +exp_alerts", series.read_text())), "each fires once"


def test_the_page_names_every_figure_of_the_agent() -> None:
    page = (REPO / "docs/user/kubernetes.md").read_text()
    assert set(figures.HELP) <= set(re.findall(r"^\| `(cgpu_node_agent\w+)`", page, re.M))
