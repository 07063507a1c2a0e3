# SPDX-License-Identifier: MIT
"""kubectl inspect cgpu: which pod holds what of each GPU, and why a pod waits.

Reads the cluster through kubectl itself, which knows every way to log in; this program needs none of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import click

from cgpu_common.app import Single, version_option
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.output import note, out
from cgpu_kube import dra, pods, report
from cgpu_kube.ledger import UNHEALTHY, Ledger, read_node, unhealthy_gpus

Object = dict[str, Any]
TIMEOUT_S = 120


class Kubectl:
    """kubectl with the options of this call."""

    def __init__(self, program: str, options: Sequence[str]) -> None:
        self._command = [program, *options]

    def items(self, *words: str) -> list[Object]:
        """Raises CgpuError with kubectl's own last line."""
        command = [*self._command, "get", *words, "-o", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise CgpuError(Exit.NOT_FOUND, command[0], "there is no such program", "install kubectl") from None
        except subprocess.TimeoutExpired:
            raise CgpuError(Exit.REFUSED, " ".join(command[:3]), f"no answer for {TIMEOUT_S} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise CgpuError(Exit.REFUSED, f"kubectl get {words[0]}", last)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            raise CgpuError(Exit.REFUSED, f"kubectl get {words[0]}", "printed no JSON") from None
        items = found.get("items", []) if isinstance(found, dict) else []
        return [one for one in items if isinstance(one, dict)]

    def optional(self, *words: str) -> list[Object]:
        """Empty if the cluster has no such kind, or this user may not read it."""
        try:
            return self.items(*words)
        except CgpuError:
            return []


def gather(kubectl: Kubectl, nodes: Sequence[str], wanted: str) -> report.Report:
    """@nodes: only these. @wanted: only this waiting pod, namespace/name."""
    ledger = Ledger()
    marked = {
        str(one["metadata"]["name"]).removeprefix(UNHEALTHY): unhealthy_gpus(str((one.get("data") or {}).get("gpus")))
        for one in kubectl.optional("configmaps", "-n", "kube-system")
        if str(one["metadata"]["name"]).startswith(UNHEALTHY)
    }
    for one in kubectl.items("nodes"):
        name = str(one["metadata"]["name"])
        ledger.set_node(name, read_node(one, marked.get(name)))
    found = kubectl.items("pods", "-A", "--field-selector=status.phase!=Succeeded,status.phase!=Failed")
    for one in found:
        ledger.set_pod(one)
    for name in nodes:
        if name not in ledger.nodes:
            raise CgpuError(Exit.NOT_FOUND, f"node {name}", "offers no aliyun.com/gpu-mem", ", ".join(ledger.nodes))
    slices = kubectl.optional("resourceslices.resource.k8s.io")
    there = [one for one in dra.devices(slices) if not nodes or one.node in nodes]
    claims = kubectl.optional("resourceclaims.resource.k8s.io", "-A") if there else []
    taken = dra.parts(claims)
    by_name = {f"{one['metadata'].get('namespace')}/{one['metadata'].get('name')}": one for one in claims}
    waiting = []
    for one in found:
        if pods.node_of(one) or wanted not in ("", pods.name_of(one)):
            continue
        if pods.asks(one):
            waiting.append(report.why_waits(one, ledger))
        elif whys := dra.pending(one, by_name, there, taken):
            waiting.append(report.Waiting(pods.name_of(one), whys))
    if wanted and not waiting:
        raise CgpuError(Exit.NOT_FOUND, f"pod {wanted}", "does not wait for GPU memory", "kubectl get pod shows it")
    names = tuple(nodes) or tuple(sorted(ledger.nodes))
    return report.Report(ledger, names, tuple(waiting), tuple(there), tuple(taken))


@click.command(cls=Single, name="kubectl-inspect-cgpu", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("node", nargs=-1)
@click.option("-d", "detailed", is_flag=True, help="A table of pods for each node; every node of a waiting pod.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Errors stay text.")
@click.option("--pod", default="", metavar="NAME", help="Why this pod waits; with -n, its namespace.")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--context", default="", help="Passed on to kubectl.")
@click.option("--kubeconfig", default="", help="Passed on to kubectl.")
@click.option("--kubectl", "program", default="kubectl", envvar="CGPU_KUBECTL", help="The program [CGPU_KUBECTL].")
@version_option
def inspect(
    node: tuple[str, ...],
    detailed: bool,
    output: str,
    pod: str,
    namespace: str,
    context: str,
    kubeconfig: str,
    program: str,
) -> None:
    """Show which pods hold what of each GPU, and why a pod waits, GPU by GPU.

    Columns and sums are those of `kubectl inspect gpushare`. GPU memory is in the nodes' unit, GiB or MiB. PENDING is
    what pods hold whose GPU is not known yet.
    """
    options = [f"--{name}={value}" for name, value in (("context", context), ("kubeconfig", kubeconfig)) if value]
    wanted = f"{namespace}/{pod}" if pod else ""
    found = gather(Kubectl(program, options), node, wanted)
    if output == "json":
        out(json.dumps(report.as_json(found), indent=2))
        return
    out(report.text(found, detailed) if not wanted else "\n".join(report.waits(found, True)).strip("\n"))
    if not found.names and not found.devices:
        note("no node offers aliyun.com/gpu-mem, and there are no devices of cgpu.io: docs/user/kubernetes.md")


def main() -> None:
    inspect.main(prog_name="kubectl inspect cgpu")
