# SPDX-License-Identifier: MIT
"""How the agent counts: mode and unit of the node, by its file, its annotation and its label, never changed under a
pod."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from cgpu_kube import annotations as keys
from cgpu_kube import pods
from cgpu_kube.errors import KubeError
from cgpu_kube.node import host, podview
from cgpu_kube.node.cluster import Cluster
from cgpu_kube.node.dra import Claims
from cgpu_kube.node.host import HostGpu, Offer
from cgpu_kube.node.modefile import ModeFile

COMPARE_S = 3.0  # of a decision, for the first lists of the API server


class Counting:
    """A part of the agent, which sets the attributes without a value here."""

    settings: Any  # the agent's
    cluster: Cluster
    claims: Claims
    offer: Offer
    _mode_file: ModeFile
    _log: Any

    @property
    def gpus(self) -> tuple[HostGpu, ...]:
        """As the node offers them in its mode."""
        raise NotImplementedError

    def _say(self, subject: str, text: str) -> None:
        raise NotImplementedError

    def _read_mode(self) -> None:
        mode, unit = self._mode_file.read()
        self._unit_kept = bool(unit)  # by an earlier life: pods have been counted in it
        self._unit_guessed = mode in host.MEMORY_MODES and not unit  # a life whose file had none
        self._compared = False  # with the node's annotation, which tells how its pods were counted
        self._disagrees = ""  # not empty: it tells something else, and nothing is offered, for this reason
        if self._unit_guessed:  # such a life had units of 1 MiB, or of 1 GiB
            unit = self.settings.unit
        self.offer = Offer(mode, unit or host.unit_for(self.settings.unit, ()), self.settings.overcommit)

    def _compare(self) -> None:
        """Once in each life, and until it agrees: the pods here were counted as the node's annotation says. A file that
        says something else is of another directory or another version; with it a limit would be another amount."""
        if self._compared or not (self.cluster.nodes.synced.is_set() and self.cluster.pods.synced.is_set()):
            return
        there = self.cluster.published()
        users = sorted(podview.full_name(pod) for pod in self.cluster.pods_here() if self._uses(pod))
        if self._unit_guessed and users and there is None:
            self._mode_file.write(self.offer.mode, self.offer.unit)
            self._unit_kept = True
        if there is not None and there.mode in host.MEMORY_MODES and users:
            mode, unit = self._mode_file.read()
            if not unit and mode in (there.mode, host.NONE) and host.is_unit(there.unit):
                self._mode_file.write(there.mode, there.unit)
                self.offer, self._unit_kept = replace(self.offer, mode=there.mode, unit=there.unit), True
            elif (there.mode, there.unit) != (self.offer.mode, self.offer.unit):
                self._disagrees = (
                    f"{self._mode_file.path} says mode {mode or 'default'} and unit {unit or 'none'}, and the pods of "
                    f"this node were counted in mode {there.mode} and unit {there.unit[:32]}, as its annotation "
                    f"{keys.NODE_GPUS} says; nothing is offered until no pod uses a GPU of it: {users[0]}; drain it"
                )
                self._say("mode and unit", self._disagrees)
                return
        self._compared, self._disagrees = True, ""
        self._say("mode and unit", "")

    async def _wait_for_comparison(self) -> None:
        """Before a pod gets an amount. Without the API server, which cannot be waited for, the file counts if it has
        the unit. Raises KubeError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + COMPARE_S
        watches = (self.cluster.nodes, self.cluster.pods)
        while not self._compared and not self._disagrees and loop.time() < end:
            if any(watch.failing for watch in watches):
                break
            await asyncio.sleep(0.02)
        if self._disagrees:
            raise KubeError(self._disagrees)
        if self._unit_guessed and not self._compared:
            raise KubeError(
                f"the unit of this node's pods is not known: {self._mode_file.path} is of an earlier version, and the "
                f"API server does not answer; it is tried again"
            )

    def _set_mode(self) -> None:
        node = self.cluster.own_node()
        if node is None:
            return
        try:
            mode = host.switch(self.offer.mode, host.mode_of(node["labels"]), self._users())
        except KubeError as error:
            self._say("mode", str(error))
            return
        self._say("mode", "")
        if mode != self.offer.mode:
            self._log.info("mode", now=mode or "default", before=self.offer.mode or "default")
            self._mode_file.write(mode, self.offer.unit if self._unit_kept else "")
            self.offer = replace(self.offer, mode=mode)

    def _set_names(self) -> None:
        """Others' names are taken until no pod is here by them: the extender counts such pods by that."""
        wanted, why = "", ""
        try:
            wanted = host.names_of((self.cluster.own_node() or {}).get("labels"))
        except KubeError as error:
            why = str(error)
        there = self.cluster.published()
        before = self.offer.names or (there.names if there is not None else "")
        users = sorted(podview.full_name(pod) for pod in self.cluster.pods_here() if pods.asks_by_names(pod))
        if before and not wanted and (users or not self.cluster.pods.synced.is_set()):
            wanted = before
            why = why or f"the node takes nvidia.com/… until no pod asks by it: {', '.join(users[:3])}; drain it"
        self._say("names", why)
        if wanted != self.offer.names:
            self.offer = replace(self.offer, names=wanted)

    def _set_unit(self) -> None:
        """The unit follows the option and the largest GPU, and never changes under a pod: what its limits ask for would
        be another amount."""
        if self.offer.mode not in host.MEMORY_MODES or not self.gpus:
            return
        percent = self.settings.overcommit if self.offer.mode == host.SHARE else 100
        wanted = host.unit_for(self.settings.unit, self.gpus, percent)
        if wanted != self.offer.unit and self._unit_kept and (users := self._users()):
            self._say("unit", f"the node counts in {self.offer.unit} until no pod uses a GPU of it: {users[0]}; drain "
                      f"it, and {wanted} takes effect")  # fmt: skip
            return
        self._say("unit", "")
        if wanted != self.offer.unit or not self._unit_kept:
            self._mode_file.write(self.offer.mode, wanted)
            self.offer, self._unit_kept = replace(self.offer, unit=wanted), True

    def _users(self) -> list[str]:
        """Pods here that use what the mode offers. Before the pods are known, the mode is as it was left."""
        if not self.cluster.pods.synced.is_set():
            return ["pods that the API server has not listed yet"] if self.offer.mode != host.NONE else []
        if self.offer.mode == host.DRA:
            return sorted(f"{claim.namespace}/{claim.name} (claim {claim.uid})" for claim in self.claims)
        return sorted(podview.full_name(pod) for pod in self.cluster.pods_here() if self._uses(pod))

    def _uses(self, pod: dict[str, Any]) -> bool:
        """Does the pod hold what the node offers? By nvidia.com/gpu alone only where the node takes that name."""
        return pods.asks(pod) or (bool(self.offer.names) and pods.is_plain(pod))
