"""The values: each setting is one; right ones reach the operator, Helm refuses wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.cli import chart_files
from sandbox_restore.cli.chart_files import NOT_VALUES, documented, fields, value_name
from sandbox_restore.settings import PREFIX, Settings, load_settings
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmError, Object, pick

URL = "postgresql://operator@db/space"
NOWHERE = Path("/nonexistent/namespace")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
AGENT = "sandbox-restore-node-agent"


def settings_of(objects: list[Object], name: str, **more: str) -> Settings:
    """What the process reads in its pod, as the chart's ConfigMap gives it."""
    data = pick(objects, "ConfigMap", f"{name}-settings")["data"]
    given = {PREFIX + key.upper(): value for key, value in more.items()}
    return load_settings({**data, **given}, namespace_file=NOWHERE)


# Nothing drifts


def test_every_setting_is_a_value_or_the_charts_own_affair() -> None:
    values = {*VALUES["settings"], *VALUES["nodeAgent"]["settings"]}
    assert values == {value_name(f) for f in Settings.model_fields if f not in NOT_VALUES}
    assert set(NOT_VALUES) <= set(Settings.model_fields)


def test_the_charts_files_are_what_they_are_made_from() -> None:
    assert chart_files.main(["--check", str(CHART)]) == 0


def test_a_file_that_has_drifted_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in chart_files.wanted(CHART).items():
        copy = tmp_path / path.relative_to(CHART)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(text.replace("Restores reconciled", "Restores done"))
    assert chart_files.main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "values.yaml" in told
    assert "values.schema.json" in told
    assert "crd.yaml" not in told
    assert chart_files.main([str(tmp_path)]) == 0
    assert chart_files.main(["--check", str(tmp_path)]) == 0


def test_a_value_without_a_comment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.b has no comment"):
        list(documented("a:\n  # An ordinary one.\n  b: 1\n"))


def test_every_value_of_values_yaml_is_known_to_the_schema_and_the_other_way_round() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def same(value: Any, rule: Any, path: str) -> None:
        if "properties" not in rule or not isinstance(value, dict) or path == "podTemplate.spec":
            return
        known = set(rule["properties"]) - {"global"}
        optional = {"claims", "annotations"}
        assert set(value) - known == set(), path
        assert known - set(value) <= optional, path
        assert rule["additionalProperties"] is False, path
        for key, item in value.items():
            found = rule["properties"][key]
            if "$ref" in found:
                found = schema["definitions"][found["$ref"].rpartition("/")[2]]
            same(item, found, f"{path}.{key}".strip("."))

    same(VALUES, schema, "")


# Right ones


def test_the_defaults_are_the_operators_own(default: list[Object]) -> None:
    found = settings_of(default, RELEASE, database_url=URL)
    own = load_settings({f"{PREFIX}DATABASE_URL": URL}, namespace_file=NOWHERE)
    for field in fields(agent=False):
        if field == "lease_namespace":
            assert found.lease_namespace == NAMESPACE
        else:
            assert getattr(found, field) == getattr(own, field), field
    agent = settings_of(default, AGENT, database_url=URL, node_name="n")
    for field in fields(agent=True):
        assert getattr(agent, field) == getattr(own, field), field


RIGHT: dict[str, tuple[Any, str]] = {
    "hostCpuPlacementEnabled": (True, "true"),
    "hostCpuCompatibility": (["a-1=>b-1", "b-1 => c-1"], "a-1=>b-1,b-1 => c-1"),
    "rolloutNamespaces": (["team-a", "team-b"], "team-a,team-b"),
    "rolloutPercent": (0, "0"),
    "redirectsPerMinute": (10000, "10000"),
    "coldCacheWait": ("1h30m500ms", None),
    "leaseNamespace": ("elsewhere", "elsewhere"),
    "storageUriPrefixes": (["s3://a/", "gs://b/c/"], "s3://a/,gs://b/c/"),
    "drainMarks": (["example.com/away"], "example.com/away"),
    "healthHost": ("::", "::"),
    "logFormat": ("json", "json"),
}  # type: ignore[assignment]


@pytest.mark.parametrize("name", RIGHT)
def test_a_value_reaches_the_process_as_it_is_meant(helm: Helm, name: str) -> None:
    value, text = RIGHT[name]
    objects = helm.objects({"settings": {name: value}})
    field = next(f for f in fields(agent=False) if value_name(f) == name)
    data = pick(objects, "ConfigMap", f"{RELEASE}-settings")["data"]
    assert data[PREFIX + field.upper()] == (text or value)


def test_shared_settings_reach_the_agent_too(helm: Helm) -> None:
    shared = {"hostCpuLabel": "example.com/cpu", "logLevel": "debug", "healthPort": 9090}
    objects = helm.objects({"settings": shared})
    found = settings_of(objects, AGENT, database_url=URL, node_name="n")
    assert found.host_cpu_label == "example.com/cpu"
    assert found.log_level == "debug"
    assert found.health_port == 9090
    for kind, name in (("Deployment", RELEASE), ("DaemonSet", AGENT)):
        (container,) = pick(objects, kind, name)["spec"]["template"]["spec"]["containers"]
        assert container["ports"][0]["containerPort"] == 9090


# Wrong ones


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found


WRONG: list[tuple[str, Any]] = [
    ("setings", {}),
    ("settings.hostCpuPlacementEnable", True),
    ("nodeAgent.settings.workers", 8),
    ("operator.replica", 2),
    ("operator.resources.request", {}),
    ("image.tag", 1),
    ("image.pullPolicy", "Sometimes"),
    ("image.digest", "sha256:abc"),
    ("operator.replicas", "2"),
    ("operator.replicas", -1),
    ("operator.priorityClassName", "Very High"),
    ("database.secretName", ""),
    ("database.url", "postgresql://u:p@db/x"),
    ("podTemplate.metadata.name", "mine"),
    ("podTemplate.spec.containers", []),
    ("nodeAgent.namespace", "Agents"),
    ("networkPolicy.database.ports", [70000]),
    ("networkPolicy.apiServer.ports", []),
    ("metrics.podMonitor.interval", "often"),
    ("settings.hostCpuPlacementEnabled", "true"),
    ("settings.hostCpuCompatibility", "a-1=>b-1"),
    ("settings.hostCpuCompatibility", ["a-1"]),
    ("settings.hostCpuCompatibility", ["a-1=>b-1=>c-1"]),
    ("settings.hostCpuCompatibility", ["A-1=>b-1"]),
    ("settings.hostCpuLabel", "not a key"),
    ("settings.rolloutPercent", 101),
    ("settings.rolloutPercent", 1.5),
    ("settings.namespaces", ["a", "a"]),
    ("settings.namespaces", [""]),
    ("settings.storageUriPrefixes", ["s3://bucket"]),
    ("settings.drainMarks", []),
    ("settings.coldCacheWait", "soon"),
    ("settings.coldCacheWait", "30 s"),
    ("settings.coldCacheWait", "30s,"),
    ("settings.coldCacheWait", 30),
    ("settings.leaseName", "Lease"),
    ("settings.leaseNamespace", "a.b"),
    ("settings.healthPort", 0),
    # No kubelet reaches a loopback address of a pod.
    ("settings.healthHost", "127.0.0.1"),
    ("settings.healthHost", "::1"),
    ("settings.healthHost", "::ffff:127.0.0.1"),
    ("settings.logLevel", "loud"),
    ("settings.databaseUrl", "postgresql://u:p@db/x"),
    ("nodeAgent.settings.advertiseUnlabelledAfter", "always"),
    ("nodeAgent.settings.agentValueSuffix", "Fw"),
    ("nodeAgent.settings.networkSlots", 10001),
    ("nodeAgent.settings.agentDevicePluginDir", "relative"),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{p}={v}" for p, v in WRONG])
def test_a_wrong_value_is_refused_with_its_path(helm: Helm, path: str, value: Any) -> None:
    with pytest.raises(HelmError) as refused:
        helm.template(nested(path, value))
    text = str(refused.value)
    assert "values don't meet the specifications of the schema" in text
    assert path.rpartition(".")[2] in text


def test_every_setting_refuses_a_value_of_another_kind(helm: Helm) -> None:
    """One render tells them all: a setting that is missing in it takes anything."""
    wrong = {
        "settings": {value_name(f): {"no": "setting"} for f in fields(agent=False)},
        "nodeAgent": {"settings": {value_name(f): {"no": "setting"} for f in fields(agent=True)}},
    }
    with pytest.raises(HelmError) as refused:
        helm.template(wrong)
    for field in (*fields(agent=False), *fields(agent=True)):
        assert f"{value_name(field)}'" in str(refused.value), field
