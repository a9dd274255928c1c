"""Alerts and the dashboard ask for what the learner exports, and say what to do.

`promtool` of Prometheus, where it is installed, checks the language and lets the alerts fire; what does
not need it is checked here in any case.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.promql import read
from tests.learner.telemetry.scraping import everything, exposed

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "k8s" / "components" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))
DEMAND_RULES = yaml.safe_load(
    (ROOT / "k8s" / "components" / "actor-demand" / "rules.yaml").read_text(encoding="utf-8")
)
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

ALERTS = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]
DEMAND = [rule for group in DEMAND_RULES["spec"]["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in DEMAND}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

OF_THE_SCRAPE = {"namespace", "pod"}
"""Labels that Prometheus adds to every series of a pod."""


@cache
def exported() -> dict[str, dict[str, set[str]]]:
    """Values of each label of each series, by the series' name."""
    series: dict[str, dict[str, set[str]]] = {}
    for family in exposed(everything()).values():
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return series


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of all alerts, panels and variables, and of what actors scale by."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for rule in DEMAND:
        yield f"{rule['record']} {rule.get('labels', {})}", rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def variables() -> dict[str, Any]:
    return {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text[:40])
def test_expressions_ask_for_what_is_exported(where: str, expression: str) -> None:
    found = read(expression)
    assert found.metrics, where
    asked = found.metrics - RECORDED
    assert asked <= set(exported())
    known = {label for metric in asked for label in exported()[metric]}
    assert found.labels <= known | OF_THE_SCRAPE
    for metric, label, operator, value in found.matchers:
        if label not in OF_THE_SCRAPE:
            assert operator in ("=", "=~")
            assert set(value.split("|")) <= exported()[metric][label]


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(seedbed_updates_total[5m]", r"expected \), found the end"),
        ("rate(seedbed_updates_total[5m]})", "expected another bracket, found }"),
        ("raet(seedbed_updates_total[5m])", "expected a known function, found raet"),
        ("rate(seedbed_updates_total[5 minutes])", "expected a duration"),
        ('seedbed_updates_total{pod="a" & b}', "expected PromQL"),
    ],
)
def test_a_wrong_expression_would_be_noticed(expression: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(expression)


def test_metrics_are_found_wherever_they_stand() -> None:
    found = read(
        'sum by (pod) (rate(one{code=~"a|b"}[5m])) / on (pod) group_left two > 3 unless three offset 5m'
    )
    assert found.metrics == {"one", "two", "three"}
    assert found.functions == {"sum", "rate"}
    assert found.labels == {"pod", "code"}
    assert found.matchers == {("one", "code", "=~", "a|b")}


# Alerts -----------------------------------------------------------------------------------------


def test_alerts_are_a_rule_of_the_operator() -> None:
    assert (RULES["apiVersion"], RULES["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    groups = [group["name"] for group in RULES["spec"]["groups"]]
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(groups)) == len(groups)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_says_what_how_bad_and_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Seedbed([A-Z][a-z]+)+", alert["alert"])
    assert re.fullmatch(r"\d+m", alert.get("for", "1m"))
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    for text in ("summary", "description"):
        assert alert["annotations"][text].endswith(".")
    words = re.findall("[A-Z][a-z]+", alert["alert"].removeprefix("Seedbed"))
    anchor = "-".join(words).lower()
    assert alert["annotations"]["runbook"] == f"docs/operations.md#{anchor}"
    # A value or a label in a text: {{ $labels.NAME }}, {{ $value | FORMAT }}.
    for term in re.findall(r"{{(.*?)}}", str(alert["annotations"])):
        assert re.fullmatch(r" \$labels\.pod | \$value \| humanize\w* ", term), term


def test_the_page_lists_the_alerts_and_which_metrics_they_are_about() -> None:
    listed = dict(re.findall(r"^\| (Seedbed\w+) \| .* \| (\w+) \|$", PAGE, re.MULTILINE))
    assert listed == {alert["alert"]: alert["labels"]["severity"] for alert in ALERTS}
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w, -]+) \|$", PAGE, re.MULTILINE)
    served = {name: set(alerts.split(", ")) - {"-"} for name, alerts in rows}
    expected: dict[str, set[str]] = {name: set() for name in served}
    for alert in ALERTS:
        for metric in read(alert["expr"]).metrics:
            expected[re.sub("_(sum|count|bucket)$", "", metric)].add(alert["alert"])
    assert served == expected


# The dashboard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_has_a_title_a_unit_and_a_description(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"
        # Nothing of another learner than those that were chosen.
        for metric in read(target["expr"]).metrics:
            assert f'{metric}{{namespace="$namespace", pod=~"$pod"}}' in target["expr"]


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables_choose_among_learners() -> None:
    assert list(variables()) == ["datasource", "namespace", "pod"]
    for name in ("namespace", "pod"):
        query = re.fullmatch(r"label_values\((.*), (\w+)\)", variables()[name]["definition"])
        assert query is not None
        assert read(query[1]).metrics == {"seedbed_build_info"}
        assert query[2] == name


def test_what_is_measured_is_shown() -> None:
    """But for counts that another number on the dashboard says better."""
    shown = {metric for _, expression in expressions() for metric in read(expression).metrics}
    unseen = {name for name in exposed(everything()) if not any(each.startswith(name) for each in shown)}
    assert unseen == {
        "seedbed_environment_frames_total", "seedbed_inference_rows_total", "seedbed_policy_version",
        "seedbed_unroll_steps_dropped_total", "seedbed_replay_evicted_unrolls_total",
        "seedbed_training_batches_ready", "seedbed_checkpoints_saved_total",
        "seedbed_recording_entries_total", "seedbed_recording_missing_total",
        "seedbed_local_actor_restarts_total", "process_virtual_memory_bytes", "process_open_fds",
        "process_max_fds",
    }  # fmt: skip


# With promtool ----------------------------------------------------------------------------------

PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Prometheus is not installed")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES["spec"]))
    shutil.copy(Path(__file__).with_name("alerts.yaml"), tmp_path)
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
