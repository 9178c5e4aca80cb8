"""A node for the agent on a real API server: its Node, its pod's token, a simulated kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from sandbox_restore.agent.reading import CONDITION
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.fakekubelet import FakeKubelet
from tests.support.operator_process import OperatorProcess
from tests.support.testbed import Api, ApiError, ControlPlane, NodeSpec
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "docs" / "install"
FIXTURES = ROOT / "tests" / "fixtures" / "cpuinfo"
NAMESPACE = "sandbox-restore-system"
ACCOUNT = "sandbox-restore-node-agent"
_PREFIX = "SPACE_SANDBOX_RESTORE_"
_ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"


def install(plane: ControlPlane) -> None:
    """The agent's rights and the policy, exactly as docs/install has them."""
    plane.kubectl("create", "namespace", NAMESPACE)
    for name in ("node-agent-rbac.yaml", "node-agent-policy.yaml"):
        plane.kubectl("apply", "-f", str(INSTALL / name))


class AgentNode:
    """One node: what an administrator sees and does, and the agent's own way in.

    Sockets are made in `folder`: its path must be short.
    """

    def __init__(self, plane: ControlPlane, name: str, folder: Path) -> None:
        self.plane = plane
        self.name = name
        self.folder = folder
        self.admin = plane.api()
        self.path = f"/api/v1/nodes/{name}"
        self.kubelet = FakeKubelet(folder / "k", on_devices=self._report)

    # The Node

    def create(self, **labels: str) -> None:
        """The Node, as a kubelet registers it: no slots yet."""
        spec = NodeSpec(
            self.name, labels=labels, allocatable={NETWORK_SLOTS: None}, heartbeats=False
        )
        self.plane.add_nodes([spec])

    def delete(self) -> None:
        self.admin.delete(self.path)

    def get(self) -> dict[str, Any]:
        """The Node; one without anything while there is none."""
        try:
            found: dict[str, Any] = self.admin.get(self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            return {"metadata": {"labels": {}}, "status": {}}
        return found

    @property
    def label(self) -> str | None:
        value: str | None = self.get()["metadata"]["labels"].get(HOST_CPU_LABEL)
        return value

    def set_label(self, value: str | None) -> None:
        self.admin.merge(self.path, {"metadata": {"labels": {HOST_CPU_LABEL: value}}})

    @property
    def slots(self) -> int:
        return slots_of(self.get())

    @property
    def condition(self) -> dict[str, str]:
        conditions = self.get()["status"].get("conditions") or ()
        return next((c for c in conditions if c["type"] == CONDITION), {})

    def events(self) -> list[tuple[str, str]]:
        """Type and reason of the Events about the Node."""
        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        return [
            (event["type"], event["reason"])
            for event in self.admin.items(path)
            if event["regarding"]["name"] == self.name
            and event["reportingController"].endswith("/node-agent")
        ]

    async def _report(self, devices: int) -> None:
        """As a kubelet: what the plugin offers becomes allocatable."""
        amount = {NETWORK_SLOTS: str(devices)}
        status = {"status": {"allocatable": amount, "capacity": amount}}
        try:
            await asyncio.to_thread(self.admin.strategic, f"{self.path}/status", status)
        except ApiError:
            return  # No Node, or no API server: a kubelet tries again later.

    async def until(self, reason: str, *, deadline_s: float = 30) -> None:
        """Wait until the agent's condition has this reason."""
        await until(
            lambda: self.condition.get("reason") == reason,
            deadline_s=deadline_s,
            what=f"{self.name} says {reason}",
            detail=lambda: (self.condition, self.label, self.slots),
        )

    async def settled(self, value: str, *, slots: int = 4, deadline_s: float = 30) -> None:
        """Wait until the label has this value and the slots are there."""
        await until(
            lambda: self.label == value and self.slots == slots,
            deadline_s=deadline_s,
            what=f"{self.name} is {value} with {slots} slots",
            detail=lambda: (self.label, self.slots, self.condition),
        )

    # The agent

    def bind_agent_pod(self, *, image: str = "sandbox-restore") -> str:
        """The agent's pod, bound to this node, and a token bound to that pod.

        `image` is what a real kubelet runs in it: the agent itself is a process beside it.
        """
        pod = f"agent-{self.name}"
        self.admin.post(
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {
                "metadata": {"name": pod},
                "spec": {
                    "nodeName": self.name,
                    "serviceAccountName": ACCOUNT,
                    "tolerations": [{"operator": "Exists"}],
                    "hostNetwork": True,
                    "containers": [{"name": "agent", "image": image, "imagePullPolicy": "Never"}],
                },
            },
        )
        return self.token({"kind": "Pod", "apiVersion": "v1", "name": pod})

    def token(self, bound_to: Mapping[str, str] | None) -> str:
        """A real token of the agent's service account, by TokenRequest."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if bound_to is not None:
            spec["boundObjectRef"] = dict(bound_to)
        answer = self.admin.post(f"{_ACCOUNTS}/{ACCOUNT}/token", {"spec": spec})
        return str(answer["status"]["token"])

    def api(self, token: str) -> Api:
        return Api(self.plane.server, ca=self.plane.ca, token=token)

    def agent(
        self, token: str, *, cpuinfo: str, arguments: tuple[str, ...] = (), **settings: str
    ) -> OperatorProcess:
        """`sandbox-restore node-agent` of this node, with 4 slots unless told otherwise."""
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(self.plane, token))
        given = {
            "node_name": self.name,
            "network_slots": "4",
            "agent_device_plugin_dir": str(self.folder / "k"),
            "agent_cpuinfo_file": str(FIXTURES / cpuinfo),
            "agent_retry_max": "500ms",
            **settings,
        }
        return OperatorProcess(
            kubeconfig,
            "",
            env={f"{_PREFIX}{name.upper()}": value for name, value in given.items()},
            log_path=self.folder / "agent.log",
            arguments=("node-agent", *arguments),
        )


def slots_of(node: Mapping[str, Any]) -> int:
    return int((node["status"].get("allocatable") or {}).get(NETWORK_SLOTS, "0"))


def _kubeconfig(plane: ControlPlane, token: str) -> str:
    cluster = {"server": plane.server, "certificate-authority": str(plane.ca)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


class Watched:
    """Every state of one object that a watch shows, from before it exists."""

    def __init__(self, plane: ControlPlane, collection: str, name: str) -> None:
        self._plane = plane
        self._path = f"{collection}?watch=1&fieldSelector=metadata.name%3D{name}"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    def take(self, found: dict[str, Any]) -> None:
        """Called with each state."""
        raise NotImplementedError

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            str(self._plane._layout.programs.kubectl),
            *("get", "--raw", self._path),
            stdout=asyncio.subprocess.PIPE,
            limit=2**22,
            env={"PATH": os.environ["PATH"], "KUBECONFIG": str(self._plane.kubeconfig)},
        )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.take(json.loads(line)["object"])

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class History(Watched):
    """Every state of one Node: (uid, label, slots), and when each was seen."""

    def __init__(self, node: AgentNode) -> None:
        super().__init__(node.plane, "/api/v1/nodes", node.name)
        self.states: list[tuple[str, str | None, int]] = []
        self.times: list[float] = []
        """Of the clock `time.monotonic`, one for each state."""

    def take(self, found: dict[str, Any]) -> None:
        label = found["metadata"].get("labels", {}).get(HOST_CPU_LABEL)
        self.states.append((found["metadata"]["uid"], label, slots_of(found)))
        self.times.append(time.monotonic())

    def since(self, start: float) -> list[tuple[float, tuple[str, str | None, int]]]:
        """Seconds after `start` and state, of those seen since."""
        pairs = zip(self.times, self.states, strict=True)
        return [(at - start, state) for at, state in pairs if at >= start]


def history(node: AgentNode) -> History:
    """Records the node's states until the end of the block."""
    return History(node)


_REFUSAL = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuse-NODE}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [nodes]}
  matchConditions:
    - {name: agent, expression: 'request.userInfo.username.endsWith(":sandbox-restore-node-agent")'}
    - {name: node, expression: 'request.name == "NODE"'}
  validations:
    - {expression: "false", message: no labels today}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuse-NODE}
spec: {policyName: refuse-NODE, validationActions: [Deny]}
"""

REFUSED = "no labels today"
"""What the API server says while `refuse_labels` holds."""


async def refuse_labels(node: AgentNode, token: str) -> None:
    """A policy that refuses the agent's label, whatever it is; returns once it acts."""
    node.plane.kubectl("apply", "-f", "-", stdin=_REFUSAL.replace("NODE", node.name))
    api = node.api(token)

    def refused() -> bool:
        body = {"metadata": {"labels": {HOST_CPU_LABEL: "intel-6-106-6"}}}
        try:
            api.merge(f"{node.path}?dryRun=All", body)
        except ApiError as error:
            return REFUSED in str(error)
        return False

    await until(refused, deadline_s=30, what="the policy refuses")


async def allow_labels(node: AgentNode) -> None:
    """Takes the policy away."""
    node.plane.kubectl("delete", "-f", "-", stdin=_REFUSAL.replace("NODE", node.name))
