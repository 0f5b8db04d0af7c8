"""The manifests of deploy/kubernetes/, which Helm renders from the chart. This module writes them.

    python -m tests.support.kubernetes_manifests

It needs `pip install -e '.[deploy]'`.
"""

from collections.abc import Mapping
from typing import Any

from tests.support.documents import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "dieselfs"
FOLDER = REPOSITORY / "deploy" / "kubernetes"
NAMESPACE = "dieselfs"

_DATASETS = [{"name": "imagenet", "source": "dl://imagenet", "memory": "16GiB"}]
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "first-start.yaml": {"server": {"initStore": True}},
    "server.yaml": {},
    "nodes.yaml": {"nodes": {"enabled": True, "datasets": _DATASETS}},
    "csi.yaml": {"csi": {"enabled": True, "keySecret": "dieselfs-node-key"}},
}
_TITLES = {
    "first-start.yaml": "The server, and its store, which is new: apply it once, then server.yaml.",
    "server.yaml": "The server.",
    "nodes.yaml": "The mounts of the nodes: edit the datasets.",
    "csi.yaml": "The CSI driver, for volumes as in volumes.yaml.",
}

_MAKER = "# Made from deploy/helm/dieselfs by `python -m tests.support.kubernetes_manifests`."


def render(values: Mapping[str, Any]) -> dict[str, str]:
    """The text of each template by its file name, as Helm makes it in the namespace `dieselfs`."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        made = chart.render(values=dict(values), name="dieselfs", namespace=NAMESPACE)
    return {path.rpartition("/")[2]: text for path, text in made.items()}


def manifests() -> dict[str, str]:
    """The content of each file of deploy/kubernetes/ that Helm makes."""
    files = {}
    for name, values in _VALUES.items():
        template = "server.yaml" if name == "first-start.yaml" else name
        title = f"# {_TITLES[name]}\n{_MAKER}\n"
        files[name] = title + render(values)[template].strip() + "\n"
    return files


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in manifests().items():
        (FOLDER / name).write_text(text)
