"""`dieselfs-csi`: the node plugin of Kubernetes, which serves CSI over a Unix socket. This module serves and logs.

It registers itself with the kubelet, by a second socket in the kubelet's folder of plugins.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import click

from dieselfs import __version__
from dieselfs.errors import AccessDenied, AlreadyExists, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import Place, Settings
from dieselfs_client.csi.messages import (
    CALLS,
    CSI,
    MULTI_NODE_MULTI_WRITER,
    MULTI_NODE_SINGLE_WRITER,
    REGISTRATION,
    entries,
    messages,
)
from dieselfs_client.csi.volumes import ATTRIBUTE_PREFIX, Pending, Volume, Volumes

NAME = "csi.dieselfs"
"""Of the driver, in CSIDriver objects and volumes."""
CSI_VERSION = "1.0.0"
PUBLISH_TIMEOUT_S = 100.0
"""For a mount to be ready. The kubelet asks again after 120 s."""
CALLS_MAX = 16
"""Calls that are served at a time, of which each may wait for a mount; the others wait."""
STOP_TIMEOUT_S = 10.0
"""For calls to end after a signal."""

_CODES: Mapping[type[DieselfsError], str] = {
    Pending: "ABORTED",
    InvalidInput: "INVALID_ARGUMENT",
    AlreadyExists: "ALREADY_EXISTS",
    NotFound: "NOT_FOUND",
    AccessDenied: "PERMISSION_DENIED",
    Unavailable: "UNAVAILABLE",
    DieselfsError: "INTERNAL",
}
"""The codes of gRPC for errors; the first that matches."""

_log = logging.getLogger(__name__)


class Plugin:
    """The calls of CSI and of the registration. Each takes a request, and returns the fields of the response.

    - `endpoint`: the path of the socket, as the kubelet sees it
    - `fail`: ends the plugin, with the reason
    """

    def __init__(self, volumes: Volumes, node: str, endpoint: str, fail: Callable[[str], object]) -> None:
        self._volumes, self._node, self._endpoint, self._fail = volumes, node, endpoint, fail

    def GetPluginInfo(self, _: Any) -> dict[str, Any]:
        return {"name": NAME, "vendor_version": __version__}

    def GetPluginCapabilities(self, _: Any) -> dict[str, Any]:
        return {}

    Probe = NodeGetCapabilities = GetPluginCapabilities

    def NodeGetInfo(self, _: Any) -> dict[str, Any]:
        return {"node_id": self._node}

    def NodePublishVolume(self, request: Any) -> dict[str, Any]:
        _require(request, "volume_id", "target_path")
        if not request.HasField("volume_capability"):
            raise InvalidInput("volume_capability: missing")
        capability = request.volume_capability
        if capability.HasField("block"):
            raise InvalidInput("a dataset is no block device: volumeMode is Filesystem")
        writers = MULTI_NODE_SINGLE_WRITER, MULTI_NODE_MULTI_WRITER
        if capability.access_mode.mode in writers and not request.readonly:
            raise InvalidInput("a dataset is mounted read-only: the access mode is ReadOnlyMany")
        attributes = entries(request.volume_context)
        # Kubernetes says it of each volume, with podInfoOnMount.
        is_inline = attributes.get(f"{ATTRIBUTE_PREFIX}ephemeral") != "false"
        flags = [flag for flag in capability.mount.mount_flags if flag != "ro"]
        volume = Volume(request.target_path, attributes, flags, entries(request.secrets), is_inline)
        self._volumes.publish(volume, PUBLISH_TIMEOUT_S)
        return {}

    def NodeUnpublishVolume(self, request: Any) -> dict[str, Any]:
        _require(request, "volume_id", "target_path")
        self._volumes.unpublish(request.target_path)
        return {}

    def GetInfo(self, _: Any) -> dict[str, Any]:
        version = [CSI_VERSION]
        return {"type": "CSIPlugin", "name": NAME, "endpoint": self._endpoint, "supported_versions": version}

    def NotifyRegistrationStatus(self, request: Any) -> dict[str, Any]:
        if not request.plugin_registered:
            self._fail(f"the kubelet does not register the plugin: {request.error}")
        return {}


def _require(request: Any, *names: str) -> None:
    for name in names:
        if not getattr(request, name):
            raise InvalidInput(f"{name}: missing")


def _answered(call: Callable[[Any], dict[str, Any]], response: Any, request: Any, context: Any) -> Any:
    import grpc

    try:
        return response(**call(request))
    except DieselfsError as error:
        code, text = next(code for kind, code in _CODES.items() if isinstance(error, kind)), str(error)
    except Exception:  # a bug ends this call, not the plugin
        _log.exception("%s", call.__name__)
        code, text = "INTERNAL", "an error of the plugin, which its log shows"
    _log.warning("%s: %s", call.__name__, text)
    return context.abort(grpc.StatusCode[code], text)


def serve(plugin: Plugin, *addresses: str) -> Any:
    """A started server of gRPC at these Unix sockets, which are replaced. Raises InvalidInput."""
    try:
        import grpc

        known = {package: messages(package) for package in (CSI, REGISTRATION)}
    except ImportError:
        raise InvalidInput("CSI needs grpcio and protobuf: in a checkout: pip install '.[csi]'") from None
    server = grpc.server(ThreadPoolExecutor(CALLS_MAX))
    for service, calls in CALLS.items():
        kinds = known[service.rpartition(".")[0]]
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(_answered, getattr(plugin, name), kinds[response]),
                kinds[request].FromString,
                kinds[response].SerializeToString,
            )
            for name, (request, response) in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    for address in addresses:
        Path(address).unlink(missing_ok=True)
        try:
            server.add_insecure_port(f"unix:{address}")
        except RuntimeError:
            raise InvalidInput(f"{address}: cannot listen there; the folder must exist") from None
    server.start()
    return server


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="dieselfs-csi %(version)s")
@click.option("--endpoint", required=True, metavar="SOCKET", help="Where to serve CSI.")
@click.option("--node", default=socket.gethostname, metavar="NAME", help="The node's name. [the host name]")
@click.option("--plugins", metavar="FOLDER", help="The kubelet's plugins_registry, to register there.")
@click.option(
    "--keys", required=True, metavar="FOLDER", help="Where keys of volumes are kept, best in memory."
)
@settings_options(Place.VERB)
def run(endpoint: str, node: str, plugins: str | None, keys: str, given: dict[str, Any]) -> None:
    """Mount datasets as volumes of Kubernetes on this node."""
    settings = Settings.load(given.get("server"), given.get("key_file"))
    if settings.server is None:
        raise InvalidInput("give --server tcp://HOST:PORT: a node has no embedded server")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    ended, failures = Event(), list[str]()

    def fail(reason: str) -> None:
        failures.append(reason)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    registered = [str(Path(plugins) / f"{NAME}-reg.sock")] if plugins else []
    volumes = Volumes(Path(keys).absolute(), settings)
    server = serve(Plugin(volumes, node, endpoint, fail), endpoint, *registered)
    _log.info("%s %s serves %s on node %s", NAME, __version__, endpoint, node)
    ended.wait()
    server.stop(STOP_TIMEOUT_S).wait()
    if failures:
        raise Unavailable(failures[0])
