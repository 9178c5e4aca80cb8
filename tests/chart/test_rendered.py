"""The chart without a server: what it makes, and what follows from each switch."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.model import crd
from sandbox_restore.placement.template import PodTemplate
from tests.chart.snapshot import GOLDEN, snapshot
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmError, Object, pick
from tests.support.testbed.gomodules import KUBERNETES_VERSION

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "docs" / "install"
AGENT = "sandbox-restore-node-agent"


def documents(path: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def kinds(objects: list[Object]) -> set[str]:
    return {found["kind"] for found in objects}


def pod_spec(found: Object) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


# The whole


def test_helm_lint_has_nothing_to_say(helm: Helm) -> None:
    printed = helm.run("lint", "--strict", "--kube-version", KUBERNETES_VERSION, str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in printed
    assert "[WARNING]" not in printed


def test_the_defaults_make_what_the_golden_file_says(helm: Helm) -> None:
    """After a change that is meant: python -m tests.chart.snapshot, and read the diff."""
    assert snapshot(helm) == GOLDEN.read_text(encoding="utf-8")


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    program = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == program


def test_no_two_objects_share_a_name_and_all_are_labelled(default: list[Object]) -> None:
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in default]
    assert len(names) == len(set(names))
    for found in default:
        if found["kind"] != "CustomResourceDefinition":
            assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def test_a_long_release_name_still_makes_valid_names(helm: Helm) -> None:
    for found in helm.objects(release="r" * 53):
        assert len(found["metadata"]["name"]) <= 63


def test_another_release_shares_no_cluster_wide_name_but_the_custom_resource(
    helm: Helm, default: list[Object]
) -> None:
    def wide(objects: list[Object]) -> set[tuple[str, str]]:
        return {
            (o["kind"], o["metadata"]["name"]) for o in objects if "namespace" not in o["metadata"]
        }

    other = helm.objects(release="blue", namespace="blue-system")
    assert wide(default) & wide(other) == {("CustomResourceDefinition", crd.NAME)}


# The custom resource


def test_the_custom_resource_is_the_repositorys_and_is_kept(default: list[Object]) -> None:
    found = pick(default, "CustomResourceDefinition", crd.NAME)
    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == crd.definition()
    assert (CHART / "files" / "crd.yaml").read_text() == (ROOT / crd.FILE).read_text()


def test_the_custom_resource_can_be_left_out_or_be_given_up(helm: Helm) -> None:
    assert "CustomResourceDefinition" not in kinds(helm.objects({"crd": {"install": False}}))
    found = pick(helm.objects({"crd": {"keep": False}}), "CustomResourceDefinition", crd.NAME)
    assert "annotations" not in found["metadata"]


# Pods


def test_the_operator_is_probed_spread_and_runs_twice(default: list[Object]) -> None:
    found = pick(default, "Deployment", RELEASE)
    assert found["spec"]["replicas"] == 2
    spec = pod_spec(found)
    assert spec["enableServiceLinks"] is False
    (operator,) = spec["containers"]
    assert operator["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert operator["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert operator["securityContext"]["readOnlyRootFilesystem"] is True
    selector = found["spec"]["selector"]["matchLabels"]
    assert {
        constraint["topologyKey"]: constraint["labelSelector"]["matchLabels"]
        for constraint in spec["topologySpreadConstraints"]
    } == {"kubernetes.io/hostname": selector, "topology.kubernetes.io/zone": selector}
    budget = pick(default, "PodDisruptionBudget", RELEASE)["spec"]
    assert budget["selector"]["matchLabels"] == selector
    assert budget["maxUnavailable"] == 1


def test_each_selector_finds_the_pods_of_its_own_component_alone(default: list[Object]) -> None:
    pods = {
        found["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: found
        for found in default
        if found["kind"] in ("Deployment", "DaemonSet", "Job")
    }
    assert set(pods) == {"operator", "node-agent", "migration"}
    for component in ("operator", "node-agent"):
        selector = pods[component]["spec"]["selector"]["matchLabels"]
        matched = [
            name
            for name, found in pods.items()
            if selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert matched == [component]


@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"logLevel": "debug"}},
        {"podTemplate": {"image": "runner:2"}},
    ],
)
def test_what_is_read_at_the_start_rolls_the_operator(
    helm: Helm, default: list[Object], values: dict[str, Any]
) -> None:
    def marks(objects: list[Object]) -> Any:
        return pick(objects, "Deployment", RELEASE)["spec"]["template"]["metadata"]["annotations"]

    assert marks(helm.objects(values)) != marks(default)


def test_a_setting_of_the_operator_does_not_roll_the_agents(
    helm: Helm, default: list[Object]
) -> None:
    changed = helm.objects({"settings": {"workers": 9}, "podTemplate": {"image": "runner:2"}})
    assert pick(changed, "DaemonSet", AGENT) == pick(default, "DaemonSet", AGENT)


def test_only_operator_and_agent_get_a_token(default: list[Object]) -> None:
    tokens = {
        found["metadata"]["name"]: pod_spec(found)["automountServiceAccountToken"]
        for found in default
        if found["kind"] in ("Deployment", "DaemonSet", "Job")
    }
    assert tokens == {RELEASE: True, AGENT: True, f"{RELEASE}-migrate": False}


# The database's URL


def secret_of(found: Object) -> tuple[str, str]:
    volume = next(v for v in pod_spec(found)["volumes"] if v["name"] == "database")
    (item,) = volume["secret"]["items"]
    return volume["secret"]["secretName"], item["key"]


def test_the_database_url_comes_from_a_file_of_a_secret_and_stands_in_no_object(
    default: list[Object],
) -> None:
    for name, kind in ((RELEASE, "Deployment"), (f"{RELEASE}-migrate", "Job")):
        found = pick(default, kind, name)
        assert secret_of(found) == ("sandbox-restore-database", "url")
        (container,) = pod_spec(found)["containers"]
        given = {e["name"]: e["value"] for e in container["env"]}
        file = Path(given["SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE"])
        mounts = {m["mountPath"] for m in container["volumeMounts"] if m["name"] == "database"}
        assert mounts == {str(file.parent)}
        assert file.name == "url"
        assert "SPACE_SANDBOX_RESTORE_DATABASE_URL" not in given
    assert "Secret" not in kinds(default)


def test_the_migration_runs_before_everything_and_may_have_a_user_of_its_own(helm: Helm) -> None:
    objects = helm.objects(
        {"database": {"migration": {"secretName": "owner", "secretKey": "owner-url"}}}
    )
    job = pick(objects, "Job", f"{RELEASE}-migrate")
    hook = job["metadata"]["annotations"]
    assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
    policy = pick(objects, "NetworkPolicy", f"{RELEASE}-migrate")["metadata"]["annotations"]
    assert policy["helm.sh/hook"] == hook["helm.sh/hook"]
    assert int(policy["helm.sh/hook-weight"]) < int(hook["helm.sh/hook-weight"])
    assert secret_of(job) == ("owner", "owner-url")
    assert secret_of(pick(objects, "Deployment", RELEASE)) == ("sandbox-restore-database", "url")
    without = helm.objects({"database": {"migration": {"enabled": False}}})
    assert "Job" not in kinds(without)


# The pod template


def template_of(objects: list[Object], key: str = "pod.yaml") -> str:
    text: str = pick(objects, "ConfigMap", f"{RELEASE}-pod-template")["data"][key]
    return text


def test_the_default_pod_template_is_the_operators_own(default: list[Object]) -> None:
    found, own = PodTemplate.parse(template_of(default)), PodTemplate.default()
    assert (found.labels, found.annotations, found.spec) == (own.labels, own.annotations, own.spec)


def test_the_runners_image_goes_into_the_template(helm: Helm) -> None:
    found = PodTemplate.parse(template_of(helm.objects({"podTemplate": {"image": "runner:2"}})))
    assert found.spec["containers"][0]["image"] == "runner:2"
    assert not found.warnings


def test_a_template_of_ones_own_is_mounted_in_its_place(helm: Helm) -> None:
    objects = helm.objects({"podTemplate": {"existingConfigMap": "mine", "key": "t.yaml"}})
    volume = next(
        v for v in pod_spec(pick(objects, "Deployment", RELEASE))["volumes"] if "configMap" in v
    )
    assert volume["configMap"] == {"name": "mine", "items": [{"key": "t.yaml", "path": "pod.yaml"}]}
    assert not any(o["metadata"]["name"].endswith("-pod-template") for o in objects)


# Rights


def rules(found: Object) -> list[tuple[tuple[str, ...], ...]]:
    """The rules of a role in one order, each split to one resource."""
    return sorted(
        (
            tuple(rule["apiGroups"]),
            (resource,),
            tuple(sorted(rule["verbs"])),
            tuple(rule.get("resourceNames", ())),
        )
        for rule in found["rules"]
        for resource in rule["resources"]
    )


@pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]])
def test_no_rule_has_a_star(helm: Helm, namespaces: list[str]) -> None:
    roles = [
        found
        for found in helm.objects({"settings": {"namespaces": namespaces}})
        if found["kind"] in ("ClusterRole", "Role")
    ]
    assert len(roles) == 6 + len(namespaces)
    for found in roles:
        for rule in found["rules"]:
            assert "nonResourceURLs" not in rule
            for part in ("apiGroups", "resources", "verbs"):
                assert rule[part]
                assert not any("*" in word for word in rule[part]), (found["metadata"], rule)


def test_the_rights_are_those_of_the_docs(default: list[Object]) -> None:
    """Without Helm one installs docs/install; only the Lease is named more closely here."""
    told = [*documents(INSTALL / "rbac.yaml"), *documents(INSTALL / "node-agent-rbac.yaml")]
    for found in told:
        name, kind = found["metadata"]["name"], found["kind"]
        ours = pick(default, kind, name)
        assert ours["metadata"].get("namespace") == found["metadata"].get("namespace")
        if name == "sandbox-restore-lease" and kind == "Role":
            lease = (("coordination.k8s.io",), ("leases",))
            assert rules(ours) == [
                (*lease, ("create",), ()),
                (*lease, ("get", "update"), ("sandbox-restore",)),
            ]
        elif "rules" in found:
            assert rules(ours) == rules(found)
        elif "roleRef" in found:
            assert (ours["roleRef"], ours["subjects"]) == (found["roleRef"], found["subjects"])


def test_with_namespaces_named_the_operator_has_rights_in_these_alone(helm: Helm) -> None:
    objects = helm.objects({"settings": {"namespaces": ["team-a", "team-b"]}})
    wide = rules(pick(objects, "ClusterRole", RELEASE))
    assert {resource for _, (resource,), _, _ in wide} == {
        "nodes",
        "namespaces",
        "customresourcedefinitions",
    }
    assert [rule for rule in wide if rule[1] == ("namespaces",)] == [
        (("",), ("namespaces",), ("get",), ("team-a", "team-b"))
    ]
    roles = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == RELEASE]
    assert [o["metadata"]["namespace"] for o in roles] == ["team-a", "team-b"]
    everywhere = rules(pick(helm.objects(), "ClusterRole", RELEASE))
    named = {"nodes", "namespaces", "customresourcedefinitions"}
    for role in roles:
        assert rules(role) == [rule for rule in everywhere if rule[1][0] not in named]


def test_an_agent_that_checks_no_pods_may_list_none(helm: Helm) -> None:
    objects = helm.objects({"nodeAgent": {"settings": {"agentCheckPods": False}}})
    assert not [rule for rule in rules(pick(objects, "ClusterRole", AGENT)) if rule[1] == ("pods",)]


# The node agent


def test_the_agents_policy_is_that_of_the_docs(default: list[Object]) -> None:
    for found in documents(INSTALL / "node-agent-policy.yaml"):
        assert pick(default, found["kind"], found["metadata"]["name"])["spec"] == found["spec"]


def test_the_agents_policy_follows_its_account_and_its_label(helm: Helm) -> None:
    objects = helm.objects(
        {
            "settings": {"hostCpuLabel": "example.com/cpu"},
            "nodeAgent": {"namespace": "agents", "serviceAccount": {"name": "teller"}},
        }
    )
    user = '"system:serviceaccount:agents:teller"'
    for name in (AGENT, f"{AGENT}-events"):
        spec = pick(objects, "ValidatingAdmissionPolicy", name)["spec"]
        assert user in spec["matchConditions"][0]["expression"]
    variables = pick(objects, "ValidatingAdmissionPolicy", AGENT)["spec"]["variables"]
    assert {"name": "label", "expression": '"example.com/cpu"'} in variables
    binding = pick(objects, "ClusterRoleBinding", AGENT)
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "teller", "namespace": "agents"}
    ]
    assert pick(objects, "DaemonSet", AGENT)["metadata"]["namespace"] == "agents"


def test_an_agent_with_slots_is_the_one_of_the_docs(helm: Helm) -> None:
    objects = helm.objects({"nodeAgent": {"settings": {"networkSlots": 64}}})
    (told,) = documents(INSTALL / "node-agent.yaml")
    ours, theirs = pod_spec(pick(objects, "DaemonSet", AGENT)), pod_spec(told)
    for key in ("nodeSelector", "tolerations", "priorityClassName", "volumes"):
        assert ours[key] == theirs[key]
    (agent,), (documented,) = ours["containers"], theirs["containers"]
    for key in ("securityContext", "volumeMounts", "resources"):
        assert agent[key] == documented[key]
    settings = pick(objects, "ConfigMap", f"{AGENT}-settings")["data"]
    assert settings["SPACE_SANDBOX_RESTORE_NETWORK_SLOTS"] == "64"


def test_an_agent_without_slots_mounts_nothing_and_is_not_root(default: list[Object]) -> None:
    spec = pod_spec(pick(default, "DaemonSet", AGENT))
    assert "volumes" not in spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert "runAsUser" not in spec["containers"][0]["securityContext"]


def test_without_the_agent_nothing_of_it_is_made(helm: Helm) -> None:
    assert not any(
        "node-agent" in found["metadata"]["name"]
        for found in helm.objects({"nodeAgent": {"enabled": False}})
    )


# The network


def test_every_pod_is_denied_what_is_not_named(helm: Helm) -> None:
    objects = helm.objects({"nodeAgent": {"namespace": "agents"}})
    denied = {
        o["metadata"]["namespace"]: o["spec"]
        for o in objects
        if o["kind"] == "NetworkPolicy" and o["metadata"]["name"].endswith("default-deny")
    }
    assert set(denied) == {NAMESPACE, "agents"}
    for found in objects:
        if found["kind"] in ("Deployment", "DaemonSet", "Job"):
            spec = denied[found["metadata"]["namespace"]]
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            labels = found["spec"]["template"]["metadata"]["labels"]
            assert spec["podSelector"]["matchLabels"].items() <= labels.items()
            assert not {"ingress", "egress"} & set(spec)


def ports(objects: list[Object], name: str) -> set[int]:
    spec = pick(objects, "NetworkPolicy", name)["spec"]
    return {port["port"] for rule in spec["egress"] for port in rule["ports"]}


def test_each_pod_reaches_what_it_needs_and_no_other_port(default: list[Object]) -> None:
    assert ports(default, RELEASE) == {53, 443, 6443, 5432}
    assert ports(default, f"{RELEASE}-migrate") == {53, 5432}
    assert ports(default, AGENT) == {53, 443, 6443}


def test_metrics_are_read_by_whom_the_values_name(helm: Helm, default: list[Object]) -> None:
    (rule,) = pick(default, "NetworkPolicy", RELEASE)["spec"]["ingress"]
    assert rule["ports"] == [{"port": "health", "protocol": "TCP"}]
    closed = helm.objects({"networkPolicy": {"metricsFrom": []}})
    for name in (RELEASE, AGENT):
        assert pick(closed, "NetworkPolicy", name)["spec"]["ingress"] == []


def test_network_policies_can_be_left_out(helm: Helm) -> None:
    assert "NetworkPolicy" not in kinds(helm.objects({"networkPolicy": {"enabled": False}}))


# Monitoring

MONITORING = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"team": "a"}},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    }
}


def test_nothing_of_another_operators_api_is_made_by_default(default: list[Object]) -> None:
    assert not [o for o in default if o["apiVersion"].startswith("monitoring.coreos.com")]


@pytest.fixture
def monitored(tmp_path: Path) -> Path:
    """The chart with an alert and a dashboard that have all that Helm could take for its own."""
    chart = tmp_path / "sandbox-restore"
    shutil.copytree(CHART, chart)
    (chart / "files" / "alerts.yaml").write_text(
        "groups:\n  - name: g\n    rules:\n      - alert: A\n        expr: up == 0\n"
        "        annotations: {summary: '{{ $labels.instance }} is gone'}\n"
    )
    (chart / "files" / "dashboard.json").write_text('{"title": "{{cpu}}", "panels": []}\n')
    return chart


def test_monitors_watch_each_component_by_its_port(helm: Helm, monitored: Path) -> None:
    objects = helm.objects(MONITORING, chart=monitored)
    monitor = pick(objects, "ServiceMonitor", RELEASE)
    assert monitor["metadata"]["labels"]["team"] == "a"
    service = pick(objects, "Service", f"{RELEASE}-metrics")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    for component, kind, name in (
        ("operator", "Deployment", RELEASE),
        ("node-agent", "DaemonSet", AGENT),
    ):
        pod = pick(objects, kind, name)
        spec = pick(objects, "PodMonitor", f"{RELEASE}-{component}")["spec"]
        assert spec["selector"]["matchLabels"] == pod["spec"]["selector"]["matchLabels"]
        (port,) = pod_spec(pod)["containers"][0]["ports"]
        assert spec["podMetricsEndpoints"][0]["port"] == port["name"]


@pytest.mark.parametrize("own", [True, False], ids=["the chart's own", "nasty ones"])
def test_alerts_and_dashboard_come_from_their_files_unread(
    helm: Helm, monitored: Path, own: bool
) -> None:
    chart = CHART if own else monitored
    objects = helm.objects(MONITORING, chart=chart)
    rule = pick(objects, "PrometheusRule", RELEASE)["spec"]
    assert rule == yaml.safe_load((chart / "files" / "alerts.yaml").read_text())
    dashboard = pick(objects, "ConfigMap", f"{RELEASE}-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    text = (chart / "files" / "dashboard.json").read_text()
    assert dashboard["data"]["sandbox-restore.json"] == text


def test_a_switch_without_its_file_is_an_error(helm: Helm, monitored: Path) -> None:
    (monitored / "files" / "alerts.yaml").unlink()
    with pytest.raises(HelmError, match=r"this chart holds no files/alerts\.yaml"):
        helm.objects(MONITORING, chart=monitored)


# What is said after an install


def notes(helm: Helm, values: dict[str, Any]) -> str:
    printed = helm.run(
        *("install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client"), values=values
    )
    return printed.partition("NOTES:")[2]


def test_the_notes_say_what_is_missing(helm: Helm) -> None:
    said = notes(helm, {})
    assert "podTemplate.image" in said
    assert "nodeAgent.settings.networkSlots" in said
    assert "settings.hostCpuPlacementObserve" in said
    done = notes(
        helm,
        {
            "podTemplate": {"image": "runner:2"},
            "nodeAgent": {"settings": {"networkSlots": 8}},
            "settings": {"hostCpuPlacementEnabled": True},
        },
    )
    assert "NEXT" not in done
    assert "NOTE:" not in done
    assert "is off" not in done
