"""Section 13 [beyond]: which running sandbox pods a new label would end."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.agent.relabel import pods_ended_by
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS, SANDBOX_LABEL

ICE, CASCADE, MILAN = "intel-6-106-6", "intel-6-85-7", "amd-25-1-1"


def pod(
    name: str = "wake-1",
    *,
    operator: str | None = None,
    values: tuple[str, ...] = (),
    selector: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    slots: str | None = "1",
    phase: str = "Running",
) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "runner"}]}
    if slots:
        spec["containers"][0]["resources"] = {"limits": {NETWORK_SLOTS: slots}}
    if selector:
        spec["nodeSelector"] = selector
    if operator:
        term = {"matchExpressions": [{"key": HOST_CPU_LABEL, "operator": operator}]}
        if values:
            term["matchExpressions"][0]["values"] = list(values)
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    metadata = {"namespace": "team-a", "name": name, "labels": labels or {}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def ended(
    *pods: dict[str, Any], now: str | None = ICE, value: str | None = CASCADE
) -> tuple[str, ...]:
    labels = {HOST_CPU_LABEL: now} if now else {}
    return pods_ended_by(pods, node_name="n1", labels=labels, key=HOST_CPU_LABEL, value=value)


def test_a_pod_whose_required_term_excludes_the_new_value_would_end() -> None:
    assert ended(pod(operator="NotIn", values=(CASCADE,))) == ("team-a/wake-1",)
    assert ended(pod(operator="In", values=(ICE,))) == ("team-a/wake-1",)
    assert ended(pod(selector={HOST_CPU_LABEL: ICE})) == ("team-a/wake-1",)


def test_a_pod_whose_term_admits_the_new_value_stays() -> None:
    assert ended(pod(operator="NotIn", values=(MILAN,))) == ()
    assert ended(pod(operator="In", values=(ICE, CASCADE))) == ()
    assert ended(pod()) == ()


def test_a_first_label_can_end_a_pod_that_an_unlabelled_node_took() -> None:
    assert ended(pod(operator="NotIn", values=(CASCADE,)), now=None) == ("team-a/wake-1",)


def test_taking_the_label_off_ends_what_requires_one() -> None:
    assert ended(pod(operator="In", values=(ICE,)), value=None) == ("team-a/wake-1",)
    assert ended(pod(operator="NotIn", values=(CASCADE,)), value=None) == ()


def test_a_pod_that_does_not_match_now_is_not_made_worse() -> None:
    assert ended(pod(operator="In", values=(MILAN,))) == ()
    assert ended(pod(operator="NotIn", values=(ICE,)), now=ICE) == ()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_no_more(phase: str) -> None:
    assert ended(pod(operator="NotIn", values=(CASCADE,), phase=phase)) == ()


def test_only_sandbox_pods_count() -> None:
    other = pod(operator="NotIn", values=(CASCADE,), slots=None)
    assert ended(other) == ()
    ours = pod(operator="NotIn", values=(CASCADE,), slots=None, labels={SANDBOX_LABEL: "s1"})
    assert ended(ours) == ("team-a/wake-1",)


def test_pods_are_named_in_order() -> None:
    pods = [pod(name, operator="In", values=(ICE,)) for name in ("b", "a")]
    assert ended(*pods) == ("team-a/a", "team-a/b")
