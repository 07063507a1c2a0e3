# SPDX-License-Identifier: MIT
"""Messages of the kubelet's sockets, as far as cgpu-kube uses them: an object for each API has its messages as classes.

Names and numbers are those of k8s.io/kubelet/pkg/apis of Kubernetes 1.36. protobuf makes the classes of this table when
it is imported: no code is generated, so neither a build nor an installation needs protoc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_FIELD = re.compile(r"(repeated )?(?:map<string, (\w+)>|(\w+)) (\w+) = (\d+)")
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}


def _api(package: str, messages: Mapping[str, str]) -> Any:
    """@messages: the fields of each, as a .proto file has them between the braces."""
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for repeated, map_of, kind, field, number in _FIELD.findall(fields):
            if map_of:
                kind = "".join(word.capitalize() for word in field.split("_")) + "Entry"
                entry = message.nested_type.add(name=kind)
                entry.options.map_entry = True
                _add(entry, package, "key", 1, "string")
                _add(entry, package, "value", 2, map_of)
                kind = f"{name}.{kind}"
            _add(message, package, field, int(number), kind, is_list=bool(repeated or map_of))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClassesForFiles([file.name], pool)
    return SimpleNamespace(**{name: found[f"{package}.{name}"] for name in messages})


def _add(message: DescriptorProto, package: str, name: str, number: int, kind: str, is_list: bool = False) -> None:
    label = FieldDescriptorProto.LABEL_REPEATED if is_list else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"


#: deviceplugin/v1beta1. `endpoint` is the name of the plugin's socket in the kubelet's directory, `health` Healthy or
#: Unhealthy.
plugin = _api(
    "v1beta1",
    {
        "Empty": "",
        "DevicePluginOptions": "bool pre_start_required = 1; bool get_preferred_allocation_available = 2",
        "RegisterRequest": """
            string version = 1; string endpoint = 2; string resource_name = 3; DevicePluginOptions options = 4
        """,
        "Device": "string ID = 1; string health = 2",
        "ListAndWatchResponse": "repeated Device devices = 1",
        "ContainerPreferredAllocationRequest": """
            repeated string available_deviceIDs = 1; repeated string must_include_deviceIDs = 2;
            int32 allocation_size = 3
        """,
        "PreferredAllocationRequest": "repeated ContainerPreferredAllocationRequest container_requests = 1",
        "ContainerPreferredAllocationResponse": "repeated string deviceIDs = 1",
        "PreferredAllocationResponse": "repeated ContainerPreferredAllocationResponse container_responses = 1",
        "ContainerAllocateRequest": "repeated string devices_ids = 1",
        "AllocateRequest": "repeated ContainerAllocateRequest container_requests = 1",
        "ContainerAllocateResponse": "map<string, string> envs = 1",
        "AllocateResponse": "repeated ContainerAllocateResponse container_responses = 1",
        "PreStartContainerRequest": "repeated string devices_ids = 1",
        "PreStartContainerResponse": "",
    },
)

#: podresources/v1, the same since Kubernetes 1.20: the devices that the kubelet gave to containers.
resources = _api(
    "v1",
    {
        "ListPodResourcesRequest": "",
        "ContainerDevices": "string resource_name = 1; repeated string device_ids = 2",
        "ContainerResources": "string name = 1; repeated ContainerDevices devices = 2",
        "PodResources": "string name = 1; string namespace = 2; repeated ContainerResources containers = 3",
        "ListPodResourcesResponse": "repeated PodResources pod_resources = 1",
    },
)

#: pluginregistration/v1: how the kubelet learns of a DRA driver. `endpoint` is the absolute path of its socket.
registration = _api(
    "pluginregistration",
    {
        "InfoRequest": "",
        "PluginInfo": "string type = 1; string name = 2; string endpoint = 3; repeated string supported_versions = 4",
        "RegistrationStatus": "bool plugin_registered = 1; string error = 2",
        "RegistrationStatusResponse": "",
    },
)

#: dra/v1: the kubelet's calls to a DRA driver. An empty `share_id` is sent as none.
dra = _api(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    {
        "Claim": "string namespace = 1; string uid = 2; string name = 3",
        "Device": """
            repeated string request_names = 1; string pool_name = 2; string device_name = 3;
            repeated string cdi_device_ids = 4; string share_id = 5
        """,
        "NodePrepareResourcesRequest": "repeated Claim claims = 1",
        "NodePrepareResourceResponse": "repeated Device devices = 1; string error = 2",
        "NodePrepareResourcesResponse": "map<string, NodePrepareResourceResponse> claims = 1",
        "NodeUnprepareResourcesRequest": "repeated Claim claims = 1",
        "NodeUnprepareResourceResponse": "string error = 1",
        "NodeUnprepareResourcesResponse": "map<string, NodeUnprepareResourceResponse> claims = 1",
    },
)

#: dra-health/v1alpha1: the health of a DRA driver's devices. `health` is an enum there, with the values below, and
#: `last_updated_time` is in seconds since 1970.
health = _api(
    "v1alpha1",
    {
        "NodeWatchResourcesRequest": "",
        "DeviceIdentifier": "string pool_name = 1; string device_name = 2",
        "DeviceHealth": "DeviceIdentifier device = 1; int32 health = 2; int64 last_updated_time = 3",
        "NodeWatchResourcesResponse": "repeated DeviceHealth devices = 1",
    },
)
HEALTHY, UNHEALTHY = 1, 2
