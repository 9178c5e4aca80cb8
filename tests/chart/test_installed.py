"""The chart on a real API server, in a namespace that enforces `restricted` Pod Security."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_restore.placement.template import PodTemplate
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, Object, pick
from tests.support.testbed import ApiError, ControlPlane, NodeSpec, ensure_built, wait_until

AGENT = "sandbox-restore-node-agent"
TEAM = "team-a"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
USERS = ("view", "edit", "admin")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane with one node, whose kubelet nobody plays, and the chart installed."""
    with ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane:
        for name, labels in ((NAMESPACE, RESTRICTED), (TEAM, RESTRICTED), ("agents", PRIVILEGED)):
            plane.api().post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        plane.add_nodes([NodeSpec("n1", heartbeats=False)])
        for role in USERS:
            binding = (role, f"--clusterrole={role}", f"--user={role}", "-n", TEAM)
            plane.kubectl("create", "rolebinding", *binding)
        yield plane


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm as an administrator, after an install; migrations are tested elsewhere."""
    helm = Helm(program, home=tmp_path_factory.mktemp("admin"), kubeconfig=plane.kubeconfig)
    helm.run(
        *("install", RELEASE, str(CHART), "-n", NAMESPACE),
        values={"database": {"migration": {"enabled": False}}},
    )
    return helm


# The API server takes every object

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "slots, in a namespace of their own": {
        "nodeAgent": {"namespace": "agents", "settings": {"networkSlots": 8}}
    },
    "namespaces": {"settings": {"namespaces": [TEAM]}},
    "everything said": {
        "commonLabels": {"team": "a"},
        "image": {"digest": f"sha256:{'a' * 64}", "pullSecrets": ["pull"]},
        "operator": {
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "v", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
            "serviceAccount": {"annotations": {"a": "b"}},
        },
        "nodeAgent": {
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "v", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
            "serviceAccount": {"annotations": {"a": "b"}},
        },
        "metrics": {"service": {"enabled": True}},
    },
}


@pytest.mark.parametrize("which", VARIANTS)
def test_the_api_server_takes_every_object_without_a_warning(
    plane: ControlPlane, helm: Helm, which: str
) -> None:
    manifest = helm.template(VARIANTS[which])
    where = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    done = plane.kubectl("apply", *where, "-f", "-", stdin=manifest)
    assert len(done.stdout.splitlines()) == len(helm.objects(VARIANTS[which]))
    assert done.stderr == ""


# Pod Security


def names_of(plane: ControlPlane, component: str) -> list[str]:
    selector = f"app.kubernetes.io/component={component}"
    items = plane.api().items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)
    return [pod["metadata"]["name"] for pod in items]


def test_operators_and_agents_are_admitted_where_restricted_is_enforced(
    plane: ControlPlane, installed: Helm
) -> None:
    """Made by the controllers of Deployment and DaemonSet themselves."""
    for component, count in (("operator", 2), ("node-agent", 1)):
        wait_until(
            lambda c=component, n=count: len(names_of(plane, c)) == n,
            what=f"{count} pods of {component} are there",
            timeout=60,
        )


def admitted(plane: ControlPlane, pod: Object, namespace: str) -> str:
    """What the API server says against a pod; nothing when it is admitted."""
    body = {**pod, "metadata": {"labels": pod["metadata"].get("labels"), "name": "asked"}}
    try:
        plane.api().post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except ApiError as error:
        return str(error)
    return ""


def test_the_migration_and_restore_pods_are_restricted_too(
    plane: ControlPlane, installed: Helm, helm: Helm
) -> None:
    job = pick(helm.objects(), "Job", f"{RELEASE}-migrate")
    assert admitted(plane, job["spec"]["template"], NAMESPACE) == ""
    assert admitted(plane, {"metadata": {}, "spec": PodTemplate.default().spec}, TEAM) == ""


def test_an_agent_with_slots_needs_a_namespace_that_lets_it_mount(
    plane: ControlPlane, installed: Helm, helm: Helm
) -> None:
    objects = helm.objects({"nodeAgent": {"settings": {"networkSlots": 8}}})
    pod = pick(objects, "DaemonSet", AGENT)["spec"]["template"]
    refused = admitted(plane, pod, NAMESPACE)
    assert "hostPath" in refused
    assert "allowPrivilegeEscalation" not in refused
    assert "capabilities" not in refused
    del pod["spec"]["serviceAccountName"]
    assert admitted(plane, pod, "agents") == ""


# Who may do what

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READ = {"get", "list", "watch"}
RESTORES = "sandboxrestores.space.pplx.net"

RESOURCES = (
    RESTORES,
    f"{RESTORES}/status",
    f"{RESTORES}/finalizers",
    "pods",
    "pods/status",
    "pods/exec",
    "pods/binding",
    "pods/eviction",
    "nodes",
    "nodes/status",
    "nodes/proxy",
    "namespaces",
    "secrets",
    "configmaps",
    "serviceaccounts",
    "serviceaccounts/token",
    "events",
    "events.events.k8s.io",
    "leases.coordination.k8s.io",
    "deployments.apps",
    "daemonsets.apps",
    "jobs.batch",
    "customresourcedefinitions.apiextensions.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "persistentvolumes",
)

OPERATOR_USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
AGENT_USER = f"system:serviceaccount:{NAMESPACE}:{AGENT}"

ALLOWED: dict[tuple[str, str], dict[str, set[str]]] = {
    (OPERATOR_USER, TEAM): {
        RESTORES: {*READ, "delete"},
        f"{RESTORES}/status": {"patch"},
        "pods": {*READ, "create", "patch", "delete"},
        "nodes": READ,
        "namespaces": {"get"},
        "events.events.k8s.io": {"create"},
    },
    (OPERATOR_USER, NAMESPACE): {
        RESTORES: {*READ, "delete"},
        f"{RESTORES}/status": {"patch"},
        "pods": {*READ, "create", "patch", "delete"},
        "nodes": READ,
        "namespaces": {"get"},
        "events.events.k8s.io": {"create"},
        "leases.coordination.k8s.io": {"create"},
    },
    (AGENT_USER, TEAM): {
        "nodes": {"get", "watch", "patch"},
        "nodes/status": {"patch"},
        "pods": {"list"},
    },
    (AGENT_USER, "default"): {
        "nodes": {"get", "watch", "patch"},
        "nodes/status": {"patch"},
        "pods": {"list"},
        "events.events.k8s.io": {"create"},
    },
}
"""By user and namespace: all that is allowed. Whatever is not here is refused."""

WRITE = {"create", "update", "patch", "delete", "deletecollection"}
USERS_ALLOWED: dict[str, dict[str, set[str]]] = {
    "view": {RESTORES: READ, f"{RESTORES}/status": READ},
    "edit": {RESTORES: READ | WRITE, f"{RESTORES}/status": READ},
    "admin": {RESTORES: READ | WRITE, f"{RESTORES}/status": READ},
}
"""What Kubernetes' own roles allow of SandboxRestores in the namespace where they are bound."""


def may(
    plane: ControlPlane, user: str, verb: str, resource: str, *, namespace: str, name: str = ""
) -> bool:
    whole, _, subresource = resource.partition("/")
    plural, _, group = whole.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    answer = plane.api().post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def table(
    plane: ControlPlane, user: str, resources: tuple[str, ...], *, namespace: str
) -> dict[str, set[str]]:
    """What the user may do, by resource; resources of which it may do nothing are left out."""
    found: dict[str, set[str]] = {}
    for resource, verb in itertools.product(resources, VERBS):
        if may(plane, user, verb, resource, namespace=namespace):
            found.setdefault(resource, set()).add(verb)
    return found


@pytest.mark.parametrize(("user", "namespace"), ALLOWED)
def test_the_service_accounts_may_do_this_and_no_more(
    plane: ControlPlane, installed: Helm, user: str, namespace: str
) -> None:
    assert table(plane, user, RESOURCES, namespace=namespace) == ALLOWED[user, namespace]


def test_one_lease_and_one_custom_resource_alone_may_be_read_by_name(
    plane: ControlPlane, installed: Helm
) -> None:
    def asked(resource: str, name: str, *, namespace: str = "") -> set[str]:
        return {
            verb
            for verb in VERBS
            if may(plane, OPERATOR_USER, verb, resource, namespace=namespace, name=name)
        }

    leases, crds = "leases.coordination.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"
    named = asked(leases, "sandbox-restore", namespace=NAMESPACE)
    assert named == {"create", "get", "update"}
    assert asked(leases, "another", namespace=NAMESPACE) == {"create"}
    assert asked(leases, "sandbox-restore", namespace="kube-system") == set()
    assert asked(crds, RESTORES) == {"get"}
    assert asked(crds, "others.example.com") == set()


@pytest.mark.parametrize("role", USERS)
def test_users_get_restores_by_kubernetes_own_roles(
    plane: ControlPlane, installed: Helm, role: str
) -> None:
    ours = tuple(resource for resource in RESOURCES if resource.startswith(RESTORES))
    wait_until(
        lambda: may(plane, role, "get", RESTORES, namespace=TEAM),
        what=f"the rights are added to {role}",
        timeout=30,
    )
    assert table(plane, role, ours, namespace=TEAM) == USERS_ALLOWED[role]
    assert table(plane, role, ours, namespace="default") == {}


def test_nobody_else_may_do_anything(plane: ControlPlane, installed: Helm) -> None:
    for user in ("stranger", f"system:serviceaccount:{NAMESPACE}:default"):
        for namespace in (TEAM, NAMESPACE):
            assert table(plane, user, RESOURCES, namespace=namespace) == {}
