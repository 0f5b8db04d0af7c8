"""What deploy/ has for containers: Helm accepts the chart, Kubernetes the manifests, and they are those of the chart.

deploy/container/try.sh runs the image, deploy/compose/try.sh the compose file, deploy/kubernetes/try.sh the manifests.
They are run by hand, because they need an engine or a cluster.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dieselfs import __version__
from dieselfs_client.csi.plugin import NAME, run
from dieselfs_client.csi.volumes import AUDIENCE
from dieselfs_server.settings import ServerSettings
from tests.support.documents import REPOSITORY
from tests.support.kubernetes_manifests import CHART, FOLDER, manifests, render

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = ("1.25", "1.34")
"""The oldest release that the chart names, and a new one."""

helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk (the extra `deploy`)")
kubernetes = pytest.importorskip(
    "kubernetes_validate", reason="needs kubernetes-validate (the extra `deploy`)"
)
yaml = pytest.importorskip("yaml", reason="needs PyYAML (the extra `deploy`)")

DATASETS = [{"name": "imagenet", "source": "dl://imagenet", "memory": "16GiB", "options": "job=auto"}]
EVERYTHING: dict[str, Any] = {
    "server": {
        "initStore": True,
        "replicas": 3,
        "metadata": "redis://dieselfs@redis:6379/0?password_file=/etc/dieselfs/secrets/redis/password",
        "settings": {"large_reads": "1", "attach_roots": "/srv/tars"},
        "metrics": {"enabled": True},
        "chunks": {"accessMode": "ReadWriteMany", "storageClass": "shared"},
        "secrets": ["redis"],
        "envFrom": [{"secretRef": {"name": "bucket"}}],
    },
    "nodes": {"enabled": True, "datasets": DATASETS, "disk": "/nvme/dieselfs"},
    "csi": {"enabled": True, "keySecret": "dieselfs-node-key"},
}


def objects(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each]


def test_the_manifests_are_those_of_the_chart() -> None:
    """Else: python -m tests.support.kubernetes_manifests"""
    assert manifests() == {name: (FOLDER / name).read_text() for name in manifests()}


@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_accepts_what_the_chart_makes(values: dict[str, Any], release: str) -> None:
    made = [each for name, text in render(values).items() if name.endswith(".yaml") for each in objects(text)]
    assert {each["kind"] for each in made} >= {"ConfigMap", "Service", "StatefulSet", "PersistentVolumeClaim"}
    for each in made:
        kubernetes.validate(each, release, strict=True)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_kubernetes_accepts_the_manifests(name: str) -> None:
    for each in objects((FOLDER / name).read_text()):
        kubernetes.validate(each, KUBERNETES[-1], strict=True)


def test_helm_accepts_the_chart() -> None:
    found = helm.lint(str(CHART), strict=True)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_the_chart_has_our_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert f"dieselfs:{__version__}" in (DEPLOY / "compose" / "compose.yaml").read_text()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"server": {"replicas": 2}}, "several servers need server.metadata in Redis"),
        ({"nodes": {"enabled": True}}, "nodes.datasets: name at least one"),
        ({"server": {"stroe": "posix:///x"}}, "stroe"),
        ({"server": {"store": "/srv/chunks"}}, "store"),
        ({"nodes": {"datasets": [{"name": "Image_Net", "source": "dl://x"}]}}, "name"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm.HelmError, match=reason):
        render(values)


def test_a_server_accepts_the_settings_of_the_chart(tmp_path: Path) -> None:
    config = objects(render(EVERYTHING)["server.yaml"])[0]["data"]["server.toml"]
    (tmp_path / "server.toml").write_text(config)
    settings = ServerSettings.load(tmp_path / "server.toml", {})
    assert settings.large_reads == 1 and settings.attach_roots == ("/srv/tars",)
    for path in (DEPLOY / "container" / "server.toml", DEPLOY / "compose" / "server.toml"):
        assert (
            ServerSettings.load(path, {}).store == settings.store == tomllib.loads(path.read_text())["store"]
        )


def test_nodes_know_each_server_by_its_name() -> None:
    """So that they use another one when one fails."""
    (nodes,) = objects(render(EVERYTHING)["nodes.yaml"])
    (container,) = nodes["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    servers = [f"tcp://dieselfs-server-{number}.dieselfs-server.dieselfs:7070" for number in range(3)]
    assert variables["DIESELFS_SERVER"] == ",".join(servers)
    assert container["args"] == [
        "dl://imagenet",
        "/var/lib/dieselfs-mounts/imagenet",
        "allow_other,memory=16GiB,disk=/nvme/dieselfs,job=auto",
    ]
    assert {
        "name": "mounts",
        "mountPath": "/var/lib/dieselfs-mounts",
        "mountPropagation": "Bidirectional",
    } in (container["volumeMounts"])


def test_kubernetes_knows_the_driver_by_the_name_of_the_plugin() -> None:
    driver, plugin = objects(render(EVERYTHING)["csi.yaml"])
    assert driver["metadata"]["name"] == NAME and driver["spec"]["podInfoOnMount"]
    assert [each["audience"] for each in driver["spec"]["tokenRequests"]] == [AUDIENCE]
    assert driver["spec"]["requiresRepublish"]
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    options = {option.opts[0] for option in run.params}
    given = dict(word.split("=", 1) for word in container["args"])
    assert set(given) <= options
    places = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert given["--keys"] not in places, "all users of the node could enter it"
    volumes, _, pod = (each["spec"] for each in objects((FOLDER / "volumes.yaml").read_text()))
    sources = [volumes["csi"], *(volume["csi"] for volume in pod["volumes"] if "csi" in volume)]
    assert [source["driver"] for source in sources] == [NAME, NAME]


def test_servers_have_no_rights() -> None:
    (server,) = (each for each in objects(render(EVERYTHING)["server.yaml"]) if each["kind"] == "StatefulSet")
    pod = server["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    for container in pod["initContainers"] + pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_health_checks_ask_the_same_socket() -> None:
    dockerfile = (DEPLOY / "container" / "Dockerfile").read_text()
    (command,) = re.findall(r"HEALTHCHECK.*?CMD (\[.*?\])$", dockerfile, re.MULTILINE | re.DOTALL)
    (server,) = (each for each in objects(render({})["server.yaml"]) if each["kind"] == "StatefulSet")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    asked = {json.dumps(container[probe]["exec"]["command"]) for probe in ("startupProbe", "livenessProbe")}
    assert asked == {json.dumps(json.loads(command))}
    socket = json.loads(command)[2]
    for name in ("container", "compose"):
        assert socket in tomllib.loads((DEPLOY / name / "server.toml").read_text())["listen"]
