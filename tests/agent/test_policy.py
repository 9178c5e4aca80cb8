"""The agent's own token on a real API server: its node, its label, its condition, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox_restore.agent.reading import CONDITION
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.agentbed import ACCOUNT, INSTALL, NAMESPACE, AgentNode
from tests.support.testbed import Api, ApiError, ControlPlane, wait_until

ICE = "intel-6-106-6"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@dataclass(frozen=True)
class Bed:
    """Two nodes; `agent` acts with the token of the agent's pod on the first."""

    plane: ControlPlane
    own: AgentNode
    other: AgentNode
    agent: Api

    def path(self, which: str) -> str:
        return {"own": self.own.path, "other": self.other.path}[which]


@pytest.fixture(scope="module")
def bed(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    own, other = (
        AgentNode(plane, name, tmp_path_factory.mktemp(name)) for name in ("policy-a", "policy-b")
    )
    for node in (own, other):
        node.create()
    plane.wait_nodes_ready(names=[own.name, other.name])
    bed = Bed(plane, own, other, own.api(own.bind_agent_pod()))
    wait_until(
        lambda: status(bed.agent, "PATCH", other.path, label(ICE)) == 403,
        what="the policy acts",
        timeout=30,
    )
    return bed


def status(api: Api, method: str, path: str, body: object = None, *, kind: str = "merge") -> int:
    """The HTTP status of a request; 200 for every success."""
    content = {
        "merge": "application/merge-patch+json",
        "strategic": "application/strategic-merge-patch+json",
        "apply": "application/apply-patch+yaml",
        "json": "application/json",
    }[kind]
    try:
        api.request(method, path, body=body, content_type=content)
    except ApiError as error:
        return error.status
    return 200


def state(api: Api, path: str) -> dict[str, Any]:
    """What a refused write must have left alone; controllers write annotations meanwhile."""
    node = api.get(path)
    return {
        "labels": node["metadata"]["labels"],
        "spec": node["spec"],
        "status": node["status"],
    }


def label(value: str | None, key: str = HOST_CPU_LABEL) -> dict[str, Any]:
    return {"metadata": {"labels": {key: value}}}


def condition(type_: str = CONDITION) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": type_, "status": "True", "reason": "Test"}]}}


def event(regarding: dict[str, str], name: str = "e") -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{abs(hash(json.dumps(regarding))):x}"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "space.pplx.net/node-agent",
        "reportingInstance": "test",
        "action": "Test",
        "reason": "Test",
        "type": "Normal",
        "regarding": regarding,
    }


# What it may


def test_it_sets_changes_and_takes_off_its_own_label(bed: Bed) -> None:
    for value in (ICE, "amd-25-1-1", None):
        assert status(bed.agent, "PATCH", bed.own.path, label(value)) == 200
        assert bed.own.label == value


def test_it_sets_its_own_condition(bed: Bed) -> None:
    path = f"{bed.own.path}/status"
    assert status(bed.agent, "PATCH", path, condition(), kind="strategic") == 200
    assert bed.own.condition["reason"] == "Test"


def test_it_tells_events_about_its_own_node(bed: Bed) -> None:
    regarding = {"apiVersion": "v1", "kind": "Node", "name": bed.own.name}
    assert status(bed.agent, "POST", EVENTS, event(regarding), kind="json") == 200


def test_it_reads_nodes_and_lists_pods(bed: Bed) -> None:
    """Reads of other nodes stay possible: RBAC cannot say otherwise."""
    for path in (bed.own.path, bed.other.path, "/api/v1/pods"):
        assert status(bed.agent, "GET", path) == 200


# What it may not, on a node

NODE_WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "the label of another node": ("other", label(ICE)),
    "taking the label off another node": ("other", label(None)),
    "another label": ("own", label("x", "example.com/other")),
    "a label of Kubernetes": ("own", label("x", "kubernetes.io/hostname")),
    "the placement block": ("own", label("x", "space.pplx.net/placement-block")),
    "taking another label off": ("own", label(None, "kubernetes.io/os")),
    "the label and another one": (
        "own",
        {"metadata": {"labels": {HOST_CPU_LABEL: ICE, "example.com/other": "x"}}},
    ),
    "all labels": ("own", {"metadata": {"labels": None}}),
    "a value that is not canonical": ("own", label("Intel_6")),
    "an annotation": ("own", {"metadata": {"annotations": {"a": "b"}}}),
    "a finalizer": ("own", {"metadata": {"finalizers": ["example.com/f"]}}),
    "an owner": (
        "own",
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]
            }
        },
    ),
    "a cordon": ("own", {"spec": {"unschedulable": True}}),
    "a taint": ("own", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    "a provider": ("own", {"spec": {"providerID": "a://b"}}),
}


@pytest.mark.parametrize("what", NODE_WRITES)
def test_a_write_to_a_node_is_refused(bed: Bed, what: str) -> None:
    which, body = NODE_WRITES[what]
    before = state(bed.own.admin, bed.path(which))
    assert status(bed.agent, "PATCH", bed.path(which), body) == 403
    assert state(bed.own.admin, bed.path(which)) == before


STATUS_WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "the condition of another node": ("other", condition()),
    "the slots": ("own", {"status": {"allocatable": {NETWORK_SLOTS: "9"}}}),
    "the capacity": ("own", {"status": {"capacity": {"cpu": "999"}}}),
    "Ready": ("own", condition("Ready")),
    "node services": ("own", condition("space.pplx.net/NodeServicesReady")),
    "a condition taken off": (
        "own",
        {"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}},
    ),
    "an address": (
        "own",
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
    ),
    "the images": ("own", {"status": {"images": [{"names": ["a"], "sizeBytes": 1}]}}),
    "what the kubelet says of itself": (
        "own",
        {"status": {"nodeInfo": {"kubeletVersion": "v9.9.9"}}},
    ),
    "volumes": ("own", {"status": {"volumesInUse": ["a"]}}),
    "the kubelet's port": (
        "own",
        {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
    ),
    "features": (
        "own",
        {"status": {"features": {"supplementalGroupsPolicy": True}}},
    ),
    "runtime handlers": ("own", {"status": {"runtimeHandlers": [{"name": "a"}]}}),
    "declared features": ("own", {"status": {"declaredFeatures": ["Gate/Feature"]}}),
    "the label, by way of the status": ("own", label(ICE)),
    "another label, by way of the status": ("own", label("x", "example.com/other")),
    "an annotation, by way of the status": ("own", {"metadata": {"annotations": {"a": "b"}}}),
}


@pytest.mark.parametrize("what", STATUS_WRITES)
def test_a_write_to_a_nodes_status_is_refused(bed: Bed, what: str) -> None:
    which, body = STATUS_WRITES[what]
    path = bed.path(which)
    before = state(bed.own.admin, path)
    assert status(bed.agent, "PATCH", f"{path}/status", body, kind="strategic") == 403
    assert state(bed.own.admin, path) == before


def test_server_side_apply_is_no_way_around(bed: Bed) -> None:
    body = {"apiVersion": "v1", "kind": "Node", **label("x", "example.com/other")}
    path = f"{bed.own.path}?fieldManager=a&force=true"
    assert status(bed.agent, "PATCH", path, body, kind="apply") == 403


# What it may not, elsewhere

OTHER_REQUESTS: dict[str, tuple[str, str, Any]] = {
    "listing nodes": ("GET", "/api/v1/nodes", None),
    "creating a node": ("POST", "/api/v1/nodes", {"metadata": {"name": "made"}}),
    "deleting its node": ("DELETE", "OWN", None),
    "deleting another node": ("DELETE", "OTHER", None),
    "replacing its node": ("PUT", "OWN", {"metadata": {"name": "policy-a"}}),
    "a pod": (
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    ),
    "deleting its pod": ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/agent-policy-a", None),
    "changing its pod": (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/agent-policy-a",
        {"metadata": {"labels": {"a": "b"}}},
    ),
    "secrets": ("GET", "/api/v1/secrets", None),
    "a token": (
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token",
        {"spec": {}},
    ),
    "restores": ("GET", "/apis/space.pplx.net/v1alpha1/sandboxrestores", None),
    "the policy": (
        "DELETE",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"
        "sandbox-restore-node-agent",
        None,
    ),
    "an event in another namespace": (
        "POST",
        f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events",
        event({"kind": "Node", "name": "policy-a"}),
    ),
    "an event of the older kind": (
        "POST",
        "/api/v1/namespaces/default/events",
        {"metadata": {"name": "old"}, "involvedObject": {"kind": "Node", "name": "policy-a"}},
    ),
    "an event about another node": (
        "POST",
        EVENTS,
        event({"kind": "Node", "name": "policy-b"}),
    ),
    "an event about a pod": (
        "POST",
        EVENTS,
        event({"kind": "Pod", "name": "policy-a", "namespace": "default"}),
    ),
    "deleting events": ("DELETE", EVENTS, None),
}


@pytest.mark.parametrize("what", OTHER_REQUESTS)
def test_another_request_is_refused(bed: Bed, what: str) -> None:
    method, path, body = OTHER_REQUESTS[what]
    path = path.replace("OWN", bed.own.path).replace("OTHER", bed.other.path)
    kind = "merge" if method == "PATCH" else "json"
    assert status(bed.agent, method, path, body, kind=kind) == 403


@pytest.fixture
def wide_rights(bed: Bed) -> Iterator[None]:
    """The agent's account may do anything that the policy lets it."""
    bed.plane.kubectl(
        *("create", "clusterrolebinding", "too-much", "--clusterrole=cluster-admin"),
        f"--serviceaccount={NAMESPACE}:{ACCOUNT}",
    )
    wait_until(
        lambda: status(bed.agent, "GET", "/api/v1/nodes") == 200, what="the rights act", timeout=30
    )
    yield
    bed.plane.kubectl("delete", "clusterrolebinding", "too-much")
    wait_until(
        lambda: status(bed.agent, "GET", "/api/v1/nodes") == 403, what="they are gone", timeout=30
    )


@pytest.mark.usefixtures("wide_rights")
def test_the_policy_holds_whatever_rights_were_given_by_mistake(bed: Bed) -> None:
    for what in ("creating a node", "deleting its node", "deleting another node"):
        method, path, body = OTHER_REQUESTS[what]
        path = path.replace("OWN", bed.own.path).replace("OTHER", bed.other.path)
        assert status(bed.agent, method, path, body, kind="json") == 403, what
    replaced = bed.own.get()
    replaced["metadata"]["labels"]["example.com/other"] = "x"
    assert status(bed.agent, "PUT", bed.own.path, replaced, kind="json") == 403
    assert status(bed.agent, "PUT", f"{bed.own.path}/status", replaced, kind="json") == 403
    for what in ("an event of the older kind", "an event about another node", "deleting events"):
        method, path, body = OTHER_REQUESTS[what]
        assert status(bed.agent, method, path, body, kind="json") == 403, what


# Tokens


def test_a_token_without_a_pod_writes_nothing(bed: Bed) -> None:
    api = bed.own.api(bed.own.token(None))
    assert status(api, "PATCH", bed.own.path, label(ICE)) == 403
    assert status(api, "PATCH", f"{bed.own.path}/status", condition(), kind="strategic") == 403


def test_the_token_of_another_nodes_pod_writes_nothing_here(bed: Bed) -> None:
    api = bed.other.api(bed.other.bind_agent_pod())
    assert status(api, "PATCH", bed.own.path, label(ICE)) == 403
    assert status(api, "PATCH", bed.other.path, label(ICE)) == 200
    assert status(api, "PATCH", bed.other.path, label(None)) == 200


def test_the_policy_binds_nobody_but_the_agent(bed: Bed) -> None:
    assert status(bed.own.admin, "PATCH", bed.other.path, label("x", "example.com/free")) == 200
    assert status(bed.own.admin, "PATCH", bed.other.path, label(None, "example.com/free")) == 200


# The policy itself


def test_every_field_of_a_nodes_status_is_in_the_policy(bed: Bed) -> None:
    """A field that a later Kubernetes adds must be added there too."""
    schema = bed.own.admin.get("/openapi/v3/api/v1")["components"]["schemas"]
    fields = set(schema["io.k8s.api.core.v1.NodeStatus"]["properties"])
    text = (INSTALL / "node-agent-policy.yaml").read_text()
    assert fields - {"conditions"} == set(re.findall(r"\(object\)\.status\.\?(\w+)", text)) | set(
        re.findall(r"\bobject\.status\.\?(\w+)", text)
    )


def test_the_api_server_finds_no_fault_in_the_policy(bed: Bed) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    for name in ("sandbox-restore-node-agent", "sandbox-restore-node-agent-events"):

        def checked(name: str = name) -> bool:
            found = bed.own.admin.get(f"{path}/{name}").get("status") or {}
            return "typeChecking" in found

        wait_until(checked, what=f"{name} was checked", timeout=30)
        warnings = bed.own.admin.get(f"{path}/{name}")["status"]["typeChecking"]
        assert warnings == {}


def test_the_rights_are_those_of_the_docs() -> None:
    """A wider role must be a decision: it is written down here a second time."""
    import yaml

    documents = list(yaml.safe_load_all(Path(INSTALL / "node-agent-rbac.yaml").read_text()))
    rules = [
        (resource, *sorted(rule["verbs"]))
        for document in documents
        for rule in document.get("rules", ())
        for resource in rule["resources"]
    ]
    assert rules == [
        ("nodes", "get", "patch", "watch"),
        ("nodes/status", "patch"),
        ("pods", "list"),
        ("events", "create"),
    ]
