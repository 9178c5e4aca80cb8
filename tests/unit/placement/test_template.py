"""The pod template: what is accepted, and every problem told at once."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.model.names import NETWORK_SLOTS
from sandbox_restore.placement.template import PodTemplate
from tests.unit.placement.asks import GOLDEN

RUNNER: dict[str, Any] = {
    "name": "runner",
    "image": "registry.example/runner:1",
    "readinessProbe": {"exec": {"command": ["true"]}},
    "resources": {"limits": {NETWORK_SLOTS: "1"}},
}
TERMS = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
)


def document(*, runner: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**RUNNER, **(runner or {})}], **spec}}


def parsed(found: Any) -> PodTemplate:
    return PodTemplate.parse(found if isinstance(found, str) else yaml.safe_dump(found))


def problems(found: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parsed(found)
    return caught.value.problems


def affinity(terms: Any) -> dict[str, Any]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}


# --- accepted


@pytest.mark.parametrize(
    "wrapped",
    [
        document(),
        {"apiVersion": "v1", "kind": "Pod", **document()},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": None}, **document()},
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": document(),
        },
        {"status": {}, **document()},
    ],
)
def test_a_pod_a_pod_template_or_just_its_parts(wrapped: dict[str, Any]) -> None:
    found = parsed(wrapped)
    assert found.spec["containers"][0]["name"] == "runner"
    assert found.spec["restartPolicy"] == "Never"
    assert found.warnings == ()


def test_yaml_may_merge_one_mapping_into_another() -> None:
    text = yaml.safe_dump(document()).replace(
        "spec:\n", "spec:\n  nodeSelector: {<<: &a {zone: a, disk: ssd}, disk: nvme}\n"
    )
    assert parsed(text).requirements.selector == (("disk", "nvme"), ("zone", "a"))


def test_the_container_need_not_be_named() -> None:
    runner = {k: v for k, v in RUNNER.items() if k != "name"}
    found = parsed({"spec": {"containers": [runner]}})
    assert found.spec["containers"][0]["name"] == "runner"


def test_the_built_in_template_is_sound_and_restricted() -> None:
    found = PodTemplate.default()
    (warning,) = found.warnings
    assert "placeholder" in warning
    spec, runner = found.spec, found.spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert runner["securityContext"]["allowPrivilegeEscalation"] is False
    assert runner["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert runner["resources"]["requests"][NETWORK_SLOTS] == "1"
    assert runner["resources"]["limits"][NETWORK_SLOTS] == "1"
    assert runner["terminationMessagePolicy"] == "File"
    assert runner["readinessProbe"]["exec"]
    assert spec["automountServiceAccountToken"] is False
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))


def test_requirements_are_parsed_once() -> None:
    found = PodTemplate.parse((GOLDEN / "template_affinity.yaml").read_text("utf-8"))
    assert found.requirements.terms is not None
    assert len(found.requirements.terms) == 3
    assert any("nodeSelectorTerms[1]: empty" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (document(restartPolicy="Always"), "spec.restartPolicy: 'Always' is replaced by 'Never'"),
        (document(activeDeadlineSeconds=60), "spec.activeDeadlineSeconds: 60 ends the sandbox"),
        (document(runner={"livenessProbe": {"exec": {}}}), "livenessProbe"),
        (document(runner={"resources": None}), "no space.pplx.net/network-slots"),
        (document(tolerations=[{"key": "a", "operator": "Gt", "value": "1"}]), "tolerates nothing"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(found: dict[str, Any], says: str) -> None:
    assert any(says in warning for warning in parsed(found).warnings)


def test_init_containers_and_foreign_metadata_are_allowed() -> None:
    found = parsed(
        {
            "metadata": {
                "labels": {"app.kubernetes.io/name": "x", "team": "a"},
                "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            },
            **document(initContainers=[{"name": "fetch", "image": "x"}]),
        }
    )
    assert found.labels == {"app.kubernetes.io/name": "x", "team": "a"}


# --- refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 documents"),
        ("---\na: 1\n---\nb: 2\n", "2 documents"),
        ("[1, 2]", "expected a Pod"),
        ("just text", "expected a Pod"),
        ("a: [", "line 1, column 5"),
        ("spec: {}\nspec: {}\n", "line 2, column 1: not YAML: the key 'spec' stands twice"),
        ("a: !!python/object:os.system {}", "not YAML"),
        ("spec: {1: 2}", "spec.1: key 1; expected a string"),
        ("metadata: {labels: {a: 2024-01-01}}", "metadata.labels.a: datetime.date"),
    ],
)
def test_text_that_is_no_pod(text: str, says: str) -> None:
    found = problems(text)
    assert any(says in p for p in found), found


@pytest.mark.parametrize(
    ("found", "path", "says"),
    [
        ({"kind": "Deployment", **document()}, "kind", "expected v1 Pod"),
        ({"apiVersion": "v2", **document()}, "kind", "expected v1 Pod"),
        ({"kind": "PodTemplate", "template": 3}, "template", "expected metadata and spec"),
        ({"data": {}, **document()}, "data", "not a field of a Pod"),
        ({}, "spec", "None; expected a pod spec"),
        ({"metadata": 3, **document()}, "metadata", "expected labels and annotations"),
        ({"metadata": {"name": "x"}, **document()}, "metadata.name", "names each pod"),
        ({"metadata": {"generateName": "x"}, **document()}, "metadata.generateName", "names each"),
        ({"metadata": {"namespace": "x"}, **document()}, "metadata.namespace", "SandboxRestore"),
        ({"metadata": {"finalizers": ["x"]}, **document()}, "metadata.finalizers", "finalizer"),
        (
            {"metadata": {"ownerReferences": [{}]}, **document()},
            "metadata.ownerReferences",
            "owner",
        ),
        ({"metadata": {"uid": "x"}, **document()}, "metadata.uid", "labels and annotations only"),
        (
            {"metadata": {"labels": {"space.pplx.net/sandbox": "x"}}, **document()},
            "metadata.labels['space.pplx.net/sandbox']",
            "the operator sets it",
        ),
        (
            {"metadata": {"labels": {"sub.space.pplx.net/x": "x"}}, **document()},
            "metadata.labels['sub.space.pplx.net/x']",
            "the operator sets it",
        ),
        (
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}, **document()},
            "metadata.labels['app.kubernetes.io/managed-by']",
            "the operator sets it",
        ),
        (
            {"metadata": {"annotations": {"space.pplx.net/execution": "x"}}, **document()},
            "metadata.annotations['space.pplx.net/execution']",
            "the operator sets it",
        ),
        ({"metadata": {"labels": {"a": 1}}, **document()}, "metadata.labels['a']", "in quotes"),
        ({"metadata": {"labels": {"a": "b c"}}, **document()}, "metadata.labels['a']", "value"),
        ({"metadata": {"labels": {"a b": "c"}}, **document()}, "metadata.labels['a b']", "the key"),
        ({"metadata": {"labels": ["a"]}, **document()}, "metadata.labels", "map of strings"),
        (document(nodeName="n1"), "spec.nodeName", "'n1'; expected nothing"),
        (document(schedulingGates=[{"name": "x"}]), "spec.schedulingGates", "its own gate"),
        (document(ephemeralContainers=[{"name": "x"}]), "spec.ephemeralContainers", "nothing"),
        (document(terminationGracePeriodSeconds=-1), "spec.terminationGracePeriodSeconds", "-1"),
        (document(terminationGracePeriodSeconds="3"), "spec.terminationGracePeriodSeconds", "'3'"),
        (
            document(terminationGracePeriodSeconds=True),
            "spec.terminationGracePeriodSeconds",
            "True",
        ),
        ({"spec": {}}, "spec.containers", "none; expected exactly one"),
        ({"spec": {"containers": []}}, "spec.containers", "0 containers"),
        ({"spec": {"containers": [RUNNER, RUNNER]}}, "spec.containers", "2 containers"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]", "expected a container"),
        (document(runner={"name": "main"}), "spec.containers[0].name", "'main'; expected 'runner'"),
        (document(runner={"image": ""}), "spec.containers[0].image", "expected an image"),
        (document(runner={"readinessProbe": None}), "spec.containers[0].readinessProbe", "probe"),
        (
            document(runner={"terminationMessagePolicy": "Logs"}),
            "spec.containers[0].terminationMessagePolicy",
            "'Logs'; expected File or FallbackToLogsOnError",
        ),
        (
            document(runner={"env": [{"name": "A"}, {"name": "SANDBOX_RESTORE_PLAN"}]}),
            "spec.containers[0].env[1].name",
            "the operator sets this variable",
        ),
        (document(runner={"env": [{"name": "NODE_NAME"}]}), "spec.containers[0].env[0].name", ""),
        (document(runner={"env": "x"}), "spec.containers[0].env", "expected a list"),
        (document(runner={"resources": 3}), "spec.containers[0].resources", "requests and limits"),
        (document(initContainers=[{"name": "runner"}]), "spec.initContainers[0].name", "another"),
        (document(nodeSelector={"a": 1}), "spec.nodeSelector['a']", "in quotes"),
        (document(nodeSelector={"a": "b c"}), "spec.nodeSelector['a']", "value"),
        (document(nodeSelector={"a b": "c"}), "spec.nodeSelector['a b']", "the key"),
        (document(tolerations=[{"operator": "In"}]), "spec.tolerations[0].operator", "'In'"),
        (document(tolerations=[{"value": "x"}]), "spec.tolerations[0].operator", "there is no key"),
        (
            document(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
            "spec.tolerations[0].value",
            "expected nothing with Exists",
        ),
        (
            document(tolerations=[{"key": "a", "effect": "No"}]),
            "spec.tolerations[0].effect",
            "'No'",
        ),
        (document(tolerations=[{"key": 1}]), "spec.tolerations[0].key", "expected a string"),
        (document(affinity=affinity([])), TERMS, "expected at least one term"),
        (document(affinity=affinity(None)), TERMS, "None; expected at least one term"),
        (document(affinity=affinity(["x"])), f"{TERMS}[0]", "'x'; expected a term"),
        (document(affinity={"nodeAffinity": 3}), "spec.affinity.nodeAffinity", "a mapping"),
        (
            document(affinity=affinity([{"matchExpressions": [{"key": "a", "operator": "Gt"}]}])),
            f"{TERMS}[0].matchExpressions[0].values",
            "wants one integer",
        ),
        (
            document(
                affinity=affinity(
                    [{"matchExpressions": [{"key": "a", "operator": "In", "values": [True]}]}]
                )
            ),
            f"{TERMS}[0].matchExpressions[0].values[0]",
            "in quotes",
        ),
        (
            document(
                affinity=affinity(
                    [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["a", "b"]}
                            ]
                        }
                    ]
                )
            ),
            f"{TERMS}[0].matchFields[0].values",
            "exactly one value",
        ),
    ],
)
def test_a_problem_is_told_with_path_seen_and_wanted(
    found: dict[str, Any], path: str, says: str
) -> None:
    told = problems(found)
    assert any(p.startswith(f"pod template: {path}: ") and says in p for p in told), told


def test_every_problem_is_told_at_once() -> None:
    told = problems(
        {
            "metadata": {"name": "x", "labels": {"space.pplx.net/x": "y"}},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main"}],
                "nodeSelector": {"a": 1},
                "affinity": affinity([]),
            },
        }
    )
    assert len(told) == 8


def test_the_origin_begins_each_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PodTemplate.parse("{}", origin="/etc/template.yaml")
    assert all(p.startswith("/etc/template.yaml: ") for p in caught.value.problems)
