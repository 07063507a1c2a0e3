# SPDX-License-Identifier: MIT
"""PURE: the parts of an OCI config.json. A part of the wrong type is Refused, an absent one is empty."""

from __future__ import annotations

from typing import Any

from cgpu_common.errors import Refused

Spec = dict[str, Any]
DEVICE_PROPERTY = "org.systemd.property.Device"  # DeviceAllow, DevicePolicy
MAJOR_MAX, MINOR_MAX = 0xFFF, 0xFFFFF  # of dev_t


def json_object(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"config.json is damaged: {what} is no object")
    return value


def json_list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(f"config.json is damaged: {what} is no list")
    return value


def json_objects(value: Any, what: str) -> list[dict[str, Any]]:
    entries = json_list(value, what)
    if not all(isinstance(entry, dict) for entry in entries):
        raise Refused(f"config.json is damaged: an entry of {what} is no object")
    return entries


def number(value: Any) -> int | None:
    """A major or minor; None (absent or -1): all of them."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _numbered(entries: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """The entries. Refused: a number that no device has, since crun keeps the lower 32 bits alone (2^32 + 195 is 195 to
    it, and 2^32 - 1 all numbers), and mknod() the lower 12 of a major."""
    for entry in entries:
        for field, most in (("major", MAJOR_MAX), ("minor", MINOR_MAX)):
            value = entry.get(field)
            if value is not None and (type(value) is not int or not -1 <= value <= most):
                raise Refused(f"config.json has a {field} of {value!r:.40} in {what}, and no device has it")
    return entries


def process_env(spec: Spec) -> list[Any]:
    return json_list(json_object(spec.get("process"), "process").get("env"), "process.env")


def nodes(spec: Spec) -> list[dict[str, Any]]:
    found = json_objects(json_object(spec.get("linux"), "linux").get("devices"), "linux.devices")
    return _numbered(found, "linux.devices")


def rules(spec: Spec) -> list[dict[str, Any]]:
    resources = json_object(json_object(spec.get("linux"), "linux").get("resources"), "linux.resources")
    found = json_objects(resources.get("devices"), "linux.resources.devices")
    return _numbered(found, "linux.resources.devices")


def mounts(spec: Spec) -> list[dict[str, Any]]:
    return json_objects(spec.get("mounts"), "mounts")


def stages(spec: Spec) -> dict[str, list[dict[str, Any]]]:
    """The hooks by stage."""
    hooks = json_object(spec.get("hooks"), "hooks")
    return {stage: json_objects(entries, f"hooks.{stage}") for stage, entries in hooks.items()}


def has_user_namespace(spec: Spec) -> bool:
    linux = json_object(spec.get("linux"), "linux")
    kinds = {entry.get("type") for entry in json_objects(linux.get("namespaces"), "linux.namespaces")}
    return "user" in kinds or bool(linux.get("uidMappings") or linux.get("gidMappings"))


def has_root_of_host(spec: Spec) -> bool:
    """Is a user of the container root of the host, or may one be?"""
    maps = json_objects(json_object(spec.get("linux"), "linux").get("uidMappings"), "linux.uidMappings")
    return not maps or any(type(one.get("hostID")) is not int or one["hostID"] <= 0 for one in maps)


def check_properties(spec: Spec) -> None:
    """Refuse what sets the device rules of the container's systemd unit: with the systemd driver runc and crun hand the
    property on, and under cgroup v1 systemd puts its rules in place of the runtime's at its next reload."""
    for name in json_object(spec.get("annotations"), "annotations"):
        if name.startswith(DEVICE_PROPERTY):
            raise Refused(f"the annotation {name[:64]} changes the device rules of the container; remove it")
