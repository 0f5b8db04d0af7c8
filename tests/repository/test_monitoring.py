"""`deploy/monitoring/`: the rules and the dashboard use metrics that exist, and Prometheus accepts the files."""

import json
import re
from pathlib import Path

import pytest

from tests.support.counters_page import declarations
from tests.support.promtool import needs_promtool, promtool

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
_NAME = re.compile(r"dieselfs_\w+")


def exported() -> set[str]:
    names = set()
    for declaration in declarations():
        family = declaration.family
        if family.kind == "histogram":
            names |= {f"{family.exported_name}_{part}" for part in ("bucket", "count", "sum")}
        elif family.kind != "info":
            names.add(family.exported_name)
    return names


def test_alerts_and_panels_use_metrics_that_exist() -> None:
    dashboard = json.loads((FOLDER / "grafana/dieselfs.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += re.findall(r"expr: (?:>\n)?(.*)", (FOLDER / "alerts.yml").read_text())
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    assert len(used) > 15 and used - exported() == set()


@needs_promtool
@pytest.mark.parametrize(("kind", "name"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_prometheus_accepts(kind: str, name: str) -> None:
    promtool("check", kind, FOLDER / name)


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    tests = Path(__file__).parent / "alerts_test.yml"
    promtool("test", "rules", tests)
    alerts = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert [name for name in alerts if name not in tests.read_text()] == []
