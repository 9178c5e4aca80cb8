"""What a lost token of the operator may still do to pods: the chart's admission policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox_restore.model.names import API_VERSION, EXECUTION_ANNOTATION, FENCE, SANDBOX_LABEL
from sandbox_restore.placement.template import PodTemplate
from tests.chart.release import token
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm
from tests.support.testbed import Api, ApiError, ControlPlane, ensure_built, wait_until

TEAM = "team-a"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
ACCOUNT = "runner"

SPEC = dict(PodTemplate.default().spec)
GATED = {**SPEC, "schedulingGates": [{"name": FENCE}]}
LABELS = {SANDBOX_LABEL: "s"}
OWNER = {"apiVersion": API_VERSION, "kind": "SandboxRestore", "name": "r", "uid": "u"}
STRANGER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "r", "uid": "u"}
MADE = {"name": "made", "labels": LABELS, "finalizers": [FENCE], "ownerReferences": [OWNER]}
"""The metadata that a restore pod is made with."""

IMAGE = [{"op": "replace", "path": "/spec/containers/0/image", "value": "x"}]
UNGATED = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
RELEASED = {"metadata": {"finalizers": None, "ownerReferences": None}}

NAMES = (f"pod-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane without nodes, and a namespace with a service account for runners."""
    with ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane:
        for name in (NAMESPACE, TEAM):
            plane.kubectl("create", "namespace", name)
        plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", TEAM)
        # A pod of an account that the controller has not made yet is refused for that.
        default = f"/api/v1/namespaces/{TEAM}/serviceaccounts"
        wait_until(
            lambda: len(list(plane.api().items(default))) == 2,
            what="the namespace has its service accounts",
            timeout=30,
        )
        yield plane


class Release:
    """The chart on the server, and the operator's token."""

    def __init__(self, plane: ControlPlane, helm: Helm) -> None:
        self._plane = plane
        self._helm = helm
        self._api: Api | None = None
        self._pod_template: dict[str, Any] | None = None

    def configure(self, pod_template: dict[str, Any]) -> None:
        """Install or upgrade, unless that is how it is."""
        if pod_template == self._pod_template:
            return
        self._pod_template = pod_template
        values = {"database": {"migration": {"enabled": False}}, "podTemplate": pod_template}
        where = ("upgrade", "--install", RELEASE, str(CHART), "-n", NAMESPACE)
        self._helm.run(*where, values=values)
        if self._api is None:
            given = token(self._plane, RELEASE)
            self._api = Api(self._plane.server, ca=self._plane.ca, token=given)

    def why_not(self, method: str, path: str, body: object = None) -> str:
        """What the policy has against a request, which is tried only; nothing when it has none."""
        assert self._api is not None
        kind = "application/json"
        if method == "PATCH":
            kind = f"application/{'json' if isinstance(body, list) else 'merge'}-patch+json"
        try:
            self._api.request(method, f"{path}?dryRun=All", body=body, content_type=kind)
        except ApiError as error:
            if "ValidatingAdmissionPolicy" not in str(error):
                raise
            return str(error)
        return ""

    def make(self, spec: dict[str, Any], **metadata: Any) -> str:
        """Why a restore pod with this spec is not made."""
        return self.why_not("POST", PODS, {"metadata": {**MADE, **metadata}, "spec": spec})

    def acts(self, spec: dict[str, Any], *, refused: bool) -> None:
        """Wait until this spec is refused, or is not."""

        def as_meant() -> bool:
            try:
                return bool(self.make(spec)) is refused
            except ApiError:
                # RBAC's no: the roles of the release have not been heard of yet.
                return False

        wait_until(as_meant, what=f"the policy acts, refused: {refused}", timeout=60)


@pytest.fixture(scope="module")
def release(plane: ControlPlane, program: Any, tmp_path_factory: pytest.TempPathFactory) -> Release:
    home = tmp_path_factory.mktemp("admin")
    return Release(plane, Helm(program, home=home, kubeconfig=plane.kubeconfig))


@pytest.fixture
def default(release: Release) -> Release:
    """The release with the chart's own pod template."""
    release.configure({})
    release.acts(GATED, refused=False)
    release.acts({**GATED, "serviceAccountName": ACCOUNT}, refused=True)
    return release


def pod(plane: ControlPlane, spec: dict[str, Any], **metadata: Any) -> str:
    """The path of a pod that somebody else has made."""
    name = next(NAMES)
    plane.api().post(PODS, {"metadata": {"name": name, **metadata}, "spec": spec})
    return f"{PODS}/{name}"


def test_the_operators_token_writes_to_no_other_pod(plane: ControlPlane, default: Release) -> None:
    """RBAC lets it write every pod; the policy of the chart says which."""
    other = pod(plane, SPEC, labels={"app": "other"})
    made = {"metadata": MADE, "spec": GATED}
    refusals: dict[str, tuple[str, str, Any]] = {
        "without a label": ("POST", PODS, {**made, "metadata": {**MADE, "labels": {}}}),
        "without a fence": ("POST", PODS, {**made, "metadata": {**MADE, "finalizers": []}}),
        "without a gate": ("POST", PODS, {**made, "spec": SPEC}),
        "without an owner": ("POST", PODS, {**made, "metadata": {**MADE, "ownerReferences": []}}),
        "of another owner": (
            "POST",
            PODS,
            {**made, "metadata": {**MADE, "ownerReferences": [STRANGER]}},
        ),
        "another's image": ("PATCH", other, IMAGE),
        "taking another over": ("PATCH", other, {"metadata": {"labels": LABELS}}),
        "fencing another": ("PATCH", other, {"metadata": {"finalizers": [FENCE]}}),
        "claiming another": (
            "PATCH",
            other,
            {"metadata": {"annotations": {EXECUTION_ANNOTATION: "e"}}},
        ),
        "ending another": ("DELETE", other, None),
    }
    for what, request in refusals.items():
        assert default.why_not(*request), what
    assert default.make(GATED) == ""


MARKS: dict[str, dict[str, Any]] = {
    "label": {"labels": LABELS},
    "fence": {"finalizers": [FENCE]},
    "execution": {"annotations": {EXECUTION_ANNOTATION: "e"}},
}


@pytest.mark.parametrize("mark", MARKS)
def test_a_pod_with_one_mark_left_is_still_the_operators(
    plane: ControlPlane, default: Release, mark: str
) -> None:
    """Whoever edits the label away blocks no restore: the pod is ungated, released and ended."""
    mine = pod(plane, GATED, **MARKS[mark])
    assert default.why_not("PATCH", mine, UNGATED) == ""
    assert default.why_not("PATCH", mine, RELEASED) == ""
    assert default.why_not("DELETE", mine) == ""
    assert "changes no container" in default.why_not("PATCH", mine, IMAGE)
    assert "changes no label" in default.why_not(
        "PATCH", mine, {"metadata": {"labels": {"a": "b"}}}
    )


def with_container(**more: Any) -> dict[str, Any]:
    return {**GATED, "containers": [{**SPEC["containers"][0], **more}]}


def with_init(**context: Any) -> dict[str, Any]:
    first = {"name": "first", "image": "x", "securityContext": context}
    return {**GATED, "initContainers": [first]}


def with_host_path(path: str) -> dict[str, Any]:
    volume = {"name": "host", "hostPath": {"path": path}}
    return {**GATED, "volumes": [*SPEC["volumes"], volume]}


BEYOND: dict[str, tuple[dict[str, Any], str]] = {
    "another account": ({**GATED, "serviceAccountName": ACCOUNT}, "service account default"),
    "the node's network": ({**GATED, "hostNetwork": True}, "hostNetwork"),
    "the node's processes": ({**GATED, "hostPID": True}, "hostPID"),
    "the node's IPC": ({**GATED, "hostIPC": True}, "hostIPC"),
    "the node's files": (with_host_path("/"), "hostPath"),
    "a privileged runner": (with_container(securityContext={"privileged": True}), "privileged"),
    "a privileged helper": (with_init(privileged=True), "privileged"),
    "capabilities": (with_init(capabilities={"add": ["SYS_ADMIN"]}), "capabilities"),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_restore_pod_gets_nothing_that_the_template_does_not_have(
    default: Release, what: str
) -> None:
    spec, words = BEYOND[what]
    assert words in default.make(spec)


def test_what_the_template_has_restore_pods_may_have(release: Release) -> None:
    """And no more than that: not another account, not another folder."""
    runner = {**SPEC["containers"][0], "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}
    kvm = {"name": "kvm", "hostPath": {"path": "/dev/kvm"}}
    spec = {
        **SPEC,
        "serviceAccountName": ACCOUNT,
        "hostNetwork": True,
        "containers": [runner],
        "volumes": [*SPEC["volumes"], kvm],
    }
    release.configure({"spec": spec})
    gated = {**spec, "schedulingGates": [{"name": FENCE}]}
    release.acts(gated, refused=False)
    assert "service account runner" in release.make({**gated, "serviceAccountName": "default"})
    assert "hostPID" in release.make({**gated, "hostPID": True})
    more = [*gated["volumes"], {"name": "etc", "hostPath": {"path": "/etc"}}]
    assert "hostPath" in release.make({**gated, "volumes": more})
    assert "capabilities" in release.make(
        {
            **gated,
            "initContainers": with_init(capabilities={"add": ["SYS_ADMIN"]})["initContainers"],
        }
    )
    release.configure(
        {"spec": {**spec, "initContainers": with_init(privileged=True)["initContainers"]}}
    )
    release.acts(
        {**gated, "initContainers": with_init(privileged=True)["initContainers"]}, refused=False
    )


def test_a_template_of_ones_own_the_chart_does_not_know(release: Release) -> None:
    release.configure({"existingConfigMap": "mine"})
    release.acts({**GATED, "serviceAccountName": ACCOUNT, "hostNetwork": True}, refused=False)
    assert release.make(SPEC)
