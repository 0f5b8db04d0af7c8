"""The messages and calls of CSI 1 that a node plugin needs, and of the kubelet's registration of plugins. No I/O.

Names and numbers of fields are those of csi.proto of github.com/container-storage-interface/spec, and of
pluginregistration/v1 of k8s.io/kubelet, both under the Apache License 2.0. Fields that the plugin does not use are left
out: protobuf skips what it does not know. A map is a list of entries, which is the same on the wire.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

CSI, REGISTRATION = "csi.v1", "pluginregistration"

CALLS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    f"{CSI}.Identity": {
        name: (f"{name}Request", f"{name}Response")
        for name in ("GetPluginInfo", "GetPluginCapabilities", "Probe")
    },
    f"{CSI}.Node": {
        name: (f"{name}Request", f"{name}Response")
        for name in ("NodePublishVolume", "NodeUnpublishVolume", "NodeGetCapabilities", "NodeGetInfo")
    },
    f"{REGISTRATION}.Registration": {
        "GetInfo": ("InfoRequest", "PluginInfo"),
        "NotifyRegistrationStatus": ("RegistrationStatus", "RegistrationStatusResponse"),
    },
}
"""The names of the messages of each call, by service and call."""

# NUMBER NAME TYPE, of each field; `*` for any number of values. Values of enumerations are numbers.
_MESSAGES: Mapping[str, Mapping[str, str]] = {
    CSI: {
        "Entry": "1 key string, 2 value string",
        "GetPluginInfoRequest": "",
        "GetPluginInfoResponse": "1 name string, 2 vendor_version string",
        "GetPluginCapabilitiesRequest": "",
        "GetPluginCapabilitiesResponse": "",
        "ProbeRequest": "",
        "ProbeResponse": "",
        "BlockVolume": "",
        "MountVolume": "1 fs_type string, 2 mount_flags string*",
        "AccessMode": "1 mode int32",
        "VolumeCapability": "1 block BlockVolume, 2 mount MountVolume, 3 access_mode AccessMode",
        "NodePublishVolumeRequest": "1 volume_id string, 4 target_path string, 5 volume_capability VolumeCapability,"
        "6 readonly bool, 7 secrets Entry*, 8 volume_context Entry*",
        "NodePublishVolumeResponse": "",
        "NodeUnpublishVolumeRequest": "1 volume_id string, 2 target_path string",
        "NodeUnpublishVolumeResponse": "",
        "NodeGetCapabilitiesRequest": "",
        "NodeGetCapabilitiesResponse": "",
        "NodeGetInfoRequest": "",
        "NodeGetInfoResponse": "1 node_id string",
    },
    REGISTRATION: {
        "InfoRequest": "",
        "PluginInfo": "1 type string, 2 name string, 3 endpoint string, 4 supported_versions string*",
        "RegistrationStatus": "1 plugin_registered bool, 2 error string",
        "RegistrationStatusResponse": "",
    },
}

MULTI_NODE_SINGLE_WRITER, MULTI_NODE_MULTI_WRITER = 4, 5
"""Access modes of volumes that pods on several nodes may write."""


@cache
def messages(package: str) -> Mapping[str, Any]:
    """The classes of the messages of a package, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL, "int32": kinds.TYPE_INT32}
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in _MESSAGES[package].items():
        message = file.message_type.add(name=name)
        for number, field, kind in (text.split() for text in fields.split(",") if text):
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            one = message.field.add(name=field, number=int(number), label=label)
            one.type = scalars.get(kind.rstrip("*"), kinds.TYPE_MESSAGE)
            if one.type == kinds.TYPE_MESSAGE:
                one.type_name = f".{package}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES[package]
    }


def entries(values: Iterable[Any]) -> dict[str, str]:
    """The map of which these are the entries."""
    return {entry.key: entry.value for entry in values}
