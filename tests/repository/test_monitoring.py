"""`deploy/monitoring/`: the rules and the dashboard use metrics that exist, and Prometheus accepts the files."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.counters_page import declarations

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)
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
    ran = subprocess.run(
        ["promtool", "check", kind, str(FOLDER / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    tests = Path(__file__).parent / "alerts_test.yml"
    ran = subprocess.run(
        ["promtool", "test", "rules", tests], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    alerts = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert [name for name in alerts if name not in tests.read_text()] == []
