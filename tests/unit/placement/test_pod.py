"""Sections 7, 14 and 15: how a restore pod is rendered."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.model import names
from sandbox_restore.model.sandbox import Source
from sandbox_restore.placement.match import PodRequirements, matches
from sandbox_restore.placement.pod import (
    NodeSelectorConflictError,
    PodIdentity,
    RunnerPlan,
    apply_decision,
    base_pod,
    canonical_bytes,
    demand_of,
    local_only_pod,
    pod_name,
)
from sandbox_restore.placement.reachable import is_reachable
from tests.unit.fleet.nodes import AMD, INTEL_A, fleet, node
from tests.unit.placement.asks import (
    IDENTITY,
    PLAN,
    decided,
    rendered,
    request,
    sandbox,
    spec,
    template,
    terms_of,
)

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


# --- names


def test_a_pods_name_is_a_function_of_restore_and_attempt() -> None:
    assert pod_name("wake", "uid", 1) == pod_name("wake", "uid", 1)
    made = {pod_name(n, u, a) for n in ("wake", "other") for u in ("u1", "u2") for a in (1, 2)}
    assert len(made) == 8


@settings(deadline=None)
@given(
    name=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True),
    attempt=st.integers(1, 10_000),
)
def test_a_pods_name_is_a_dns_label(name: str, attempt: int) -> None:
    made = pod_name(name, "restore-uid", attempt)
    assert len(made) <= 63
    assert DNS_LABEL.fullmatch(made)


@pytest.mark.parametrize(
    "name", ["a" * 253, "a" * 45 + ".b", f"{'a' * 40}{'-' * 20}b", "a.b.c", "1", "x" * 63]
)
@pytest.mark.parametrize("attempt", [1, 99_999])
def test_a_long_or_dotted_restore_name_gives_a_dns_label(name: str, attempt: int) -> None:
    made = pod_name(name, "restore-uid", attempt)
    assert len(made) <= 63
    assert DNS_LABEL.fullmatch(made)
    assert made.endswith(f"-{attempt}")


def test_long_names_of_the_same_beginning_stay_apart() -> None:
    assert pod_name("a" * 100 + "x", "u1", 1) != pod_name("a" * 100 + "y", "u2", 1)


# --- node selectors


def test_node_selectors_of_template_row_and_restore_are_joined() -> None:
    row = sandbox(node_selector={"tenant": "acme"})
    pod = rendered(row=row, asked=spec(selector={"zone": "a"}))
    assert pod["spec"]["nodeSelector"] == {
        "kubernetes.io/arch": "amd64",
        "tenant": "acme",
        "zone": "a",
    }


def test_the_same_pair_twice_is_no_conflict() -> None:
    row = sandbox(node_selector={"kubernetes.io/arch": "amd64", "zone": "a"})
    assert rendered(row=row, asked=spec(selector={"zone": "a"}))


@pytest.mark.parametrize(
    ("row", "asked", "who"),
    [
        ({"kubernetes.io/arch": "arm64"}, {}, "pod template requires 'amd64' and the sandbox row"),
        ({}, {"kubernetes.io/arch": "arm64"}, "pod template requires 'amd64' and the Sandbox"),
        ({"zone": "a"}, {"zone": "b"}, "sandbox row requires 'a' and the SandboxRestore 'b'"),
    ],
)
def test_a_restore_cannot_undo_what_template_or_row_require(
    row: dict[str, str], asked: dict[str, str], who: str
) -> None:
    with pytest.raises(NodeSelectorConflictError, match=who) as caught:
        rendered(row=sandbox(node_selector=row), asked=spec(selector=asked))
    assert caught.value.reason == "NodeSelectorConflict"
    with pytest.raises(NodeSelectorConflictError):
        demand_of(template(), sandbox=sandbox(node_selector=row), spec=spec(selector=asked))


# --- the runner's contract


def plan_of(pod: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    (entry,) = [e for e in pod["spec"]["containers"][0]["env"] if e["name"] == names.PLAN_ENV]
    return entry["value"], json.loads(entry["value"])


def test_the_plan_is_compact_json_with_sorted_keys() -> None:
    text, plan = plan_of(rendered())
    assert text == json.dumps(plan, sort_keys=True, separators=(",", ":"))
    assert plan == {
        "version": 1,
        "sandboxId": "sb-1",
        "snapshotId": "snap-1",
        "source": "storage",
        "storageUri": "s3://snapshots/snap-1",
        "attempt": 1,
        "executionId": "exec-1",
        "restore": {"name": "wake-1", "namespace": "team-a", "uid": "restore-uid-1"},
    }


@settings(deadline=None)
@given(uri=st.text(max_size=40))
def test_the_kubelet_can_expand_nothing_in_the_plan(uri: str) -> None:
    plan = RunnerPlan(
        snapshot_id="$(POD_UID)", source=Source.STORAGE, storage_uri=f"s3://$(NODE_NAME)/{uri}"
    )
    pod = base_pod(template(), identity=IDENTITY, plan=plan, sandbox=sandbox(), spec=spec())
    text, found = plan_of(pod)
    assert "$" not in text
    assert found["storageUri"] == f"s3://$(NODE_NAME)/{uri}"
    assert found["snapshotId"] == "$(POD_UID)"


def test_a_local_plan_names_no_storage() -> None:
    plan = RunnerPlan(snapshot_id="snap-1", source=Source.LOCAL, storage_uri="s3://x")
    pod = base_pod(template(), identity=IDENTITY, plan=plan, sandbox=sandbox(), spec=spec())
    assert plan_of(pod)[1]["storageUri"] is None


def test_the_runner_is_told_where_it_is_before_the_templates_variables() -> None:
    env = rendered()["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env] == [
        "SANDBOX_RESTORE_PLAN",
        "NODE_NAME",
        "POD_NAME",
        "POD_NAMESPACE",
        "POD_UID",
        "LOG_LEVEL",
    ]


# --- fence and owner


def test_the_pod_is_gated_fenced_and_owned_by_its_restore() -> None:
    pod = rendered()
    assert pod["spec"]["schedulingGates"] == [{"name": names.FENCE}]
    assert pod["metadata"]["finalizers"] == [names.FENCE]
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("restore-uid-1", True)
    assert owner["blockOwnerDeletion"] is False
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["annotations"][names.EXECUTION_ANNOTATION] == "exec-1"


# --- required terms


def test_the_base_pods_terms_say_what_section_7_asks_of_a_node() -> None:
    """The pod as rendered and the demand that decisions use are the same question."""
    row = sandbox(node_group="g", node_selector={"tenant": "acme"})
    for name in ("template.yaml", "template_affinity.yaml"):
        found = template(name)
        for asked in (spec(), spec(cohort="blue"), spec(selector={"zone": "a"})):
            pod = base_pod(found, identity=IDENTITY, plan=PLAN, sandbox=row, spec=asked)
            demand = demand_of(found, sandbox=row, spec=asked)
            requirements = PodRequirements.of(pod)
            for facts in NODES:
                taken = matches(requirements, facts) and not facts.deleting
                assert taken == is_reachable(demand, facts), (name, facts)


LABELS = {"kubernetes.io/arch": "amd64", "tenant": "acme", "zone": "a", "disk": "nvme"}
NODES = [
    node("n1", labels=LABELS, group="g", cohort="blue"),
    node("n2", labels=LABELS, group="g", cohort="green"),
    node("n3", labels=LABELS, group="h", cohort="blue"),
    node("n4", labels=LABELS, group="g", cohort="blue", blocked=True),
    node("n5", labels={**LABELS, "tenant": "other"}, group="g", cohort="blue"),
    node("n6", labels={**LABELS, "zone": "b"}, group="g", cohort="blue"),
    node("n7", labels={**LABELS, "disk": "ssd", "cores": "16"}, group="g", cohort="blue"),
    node("broken-node", labels={**LABELS, "disk": "ssd", "cores": "16"}, group="g", cohort="blue"),
    node("n8", labels={**LABELS, "disk": "ssd", "cores": "8"}, group="g", cohort="blue"),
    node("n9", labels=LABELS, group="g", cohort="blue", unschedulable=True),
    node("n10", labels=LABELS, group="g", cohort="blue", taints=[("sandboxes", "", "NoSchedule")]),
]


def test_a_local_only_pod_can_run_only_on_its_node() -> None:
    pod = local_only_pod(
        template("template_affinity.yaml"),
        identity=IDENTITY,
        plan=PLAN,
        sandbox=sandbox(),
        spec=spec(),
        node="n7",
    )
    assert [n.name for n in NODES if matches(PodRequirements.of(pod), n)] == ["n7"]
    assert terms_of(pod)[1] == {}


# --- purity


def test_nothing_is_shared_with_the_template_and_no_input_changes() -> None:
    found = template()
    before = copy.deepcopy(found.spec)
    row = sandbox(node_selector={"tenant": "acme"})
    pod = rendered(found, row=row)
    decision = decided(request(), fleet(node("n1", INTEL_A), node("n2", AMD)))
    plain = copy.deepcopy(pod)
    narrowed = apply_decision(pod, decision)
    assert pod == plain
    assert narrowed != pod
    pod["spec"]["containers"][0]["image"] = "changed"
    pod["spec"]["tolerations"].append({})
    pod["spec"]["affinity"]["nodeAffinity"].clear()
    assert found.spec == before
    assert row.node_selector == {"tenant": "acme"}


def test_rendering_is_deterministic() -> None:
    assert canonical_bytes(rendered()) == canonical_bytes(rendered())
    assert canonical_bytes({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}'


def test_labels_are_valid_label_values() -> None:
    identity = PodIdentity(
        name="p",
        namespace="n",
        sandbox_id="sb",
        restore_name="r",
        restore_uid="123e4567-e89b-12d3-a456-426614174000",
        attempt=12,
        execution_id="e",
    )
    pod = base_pod(template(), identity=identity, plan=PLAN, sandbox=sandbox(), spec=spec())
    labels = pod["metadata"]["labels"]
    assert labels[names.ATTEMPT_LABEL] == "12"
    assert labels[names.RESTORE_UID_LABEL] == identity.restore_uid
    assert labels["app.kubernetes.io/managed-by"] == "sandbox-restore"
