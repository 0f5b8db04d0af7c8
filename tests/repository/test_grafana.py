"""The dashboard and its provisioning, by the types that Grafana publishes; Grafana itself is in no package registry."""

import json
from collections.abc import Iterator
from enum import EnumMeta
from pathlib import Path
from typing import Any, get_type_hints

import pytest

typeguard = pytest.importorskip("typeguard", reason="needs typeguard (the extra `deploy`)")
yaml = pytest.importorskip("yaml", reason="needs PyYAML (the extra `deploy`)")
models = pytest.importorskip(
    "grafana_foundation_sdk.models.dashboard", reason="needs grafana-foundation-sdk (the extra `deploy`)"
)

FOLDER = Path(__file__).parents[2] / "deploy/monitoring/grafana"


def read_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dieselfs.json").read_text())
    return found


def faults(dashboard: dict[str, Any]) -> list[str]:
    """Fields that Grafana does not know, and values of another type than it expects."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()  # the types of panels and queries
    parsed = models.Dashboard.from_json(dashboard)
    known = json.loads(JSONEncoder(sort_keys=True).encode(parsed))
    return [*unknown(dashboard, known, ""), *mistyped(parsed, "")]


def unknown(value: Any, known: Any, path: str) -> Iterator[str]:
    """What of `value` is not in `known`."""
    if isinstance(value, dict) and isinstance(known, dict):
        for name, part in value.items():
            yield from unknown(part, known.get(name), f"{path}.{name}")
    elif isinstance(value, list) and isinstance(known, list) and len(value) == len(known):
        for number, parts in enumerate(zip(value, known, strict=True)):
            yield from unknown(*parts, f"{path}.{number}")
    elif value != known:
        yield f"{path} is unknown"


def mistyped(parsed: Any, path: str) -> Iterator[str]:
    for name, hint in get_type_hints(type(parsed)).items():
        value, place = getattr(parsed, name), f"{path}.{name}"
        if isinstance(hint, EnumMeta):
            if value not in [*hint]:  # members are texts
                yield f"{place}: {value!r}"
            continue
        try:
            typeguard.check_type(
                value, hint, collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS
            )
        except typeguard.TypeCheckError as error:
            yield f"{place}: {error}"
        for part in value if isinstance(value, list) else [value]:
            if type(part).__module__.startswith("grafana_foundation_sdk.models"):
                yield from mistyped(part, place)


def test_grafana_knows_all_of_the_dashboard() -> None:
    assert faults(read_dashboard()) == []


def test_the_check_finds_what_is_wrong() -> None:
    for change in (
        {"refreshes": "30s"},
        {"tags": "dieselfs"},
        {"schemaVersion": "39"},
        {"time": {"from": "now-1h", "until": "now"}},
    ):
        assert faults(read_dashboard() | change), change
    for key, value in (("gridPos", {"h": "8", "w": 12, "x": 0, "y": 0}), ("titel", "x"), ("id", "1")):
        dashboard = read_dashboard()
        dashboard["panels"][0][key] = value
        assert faults(dashboard), key
    dashboard = read_dashboard()
    dashboard["panels"][0]["targets"][0]["expression"] = "up"
    assert faults(dashboard)


def test_panels_do_not_overlap_and_ask_the_chosen_prometheus() -> None:
    dashboard = read_dashboard()
    (variable,) = dashboard["templating"]["list"]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"] == {"type": variable["query"], "uid": f"${{{variable['name']}}}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_provisioning_names_a_prometheus_and_a_folder() -> None:
    sources = yaml.safe_load((FOLDER / "datasources/dieselfs.yml").read_text())
    assert sources["apiVersion"] == 1
    (source,) = sources["datasources"]
    assert source.keys() == {"name", "type", "access", "url", "isDefault"}
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    dashboards = yaml.safe_load((FOLDER / "dashboards/dieselfs.yml").read_text())
    assert dashboards["apiVersion"] == 1
    (provider,) = dashboards["providers"]
    assert provider.keys() == {"name", "type", "options"} and provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()
