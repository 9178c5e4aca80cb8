"""Two operators and a node agent as Prometheus sees them; healthy until told otherwise."""

from __future__ import annotations

from sandbox_restore.agent.detect import Detection
from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.state import Kubelet, NodeSeen, Plan, Reason, Seen, Step
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.metric_set import MetricSet
from sandbox_restore.metrics import Metrics
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import StoredLineage
from sandbox_restore.placement.gate import GateSettings
from tests.support.scrapes import Labels
from tests.unit.fleet.nodes import fleet, node

NAMESPACE = "sandbox-restore-system"
INTEL, AMD = "intel-6-106-6", "amd-25-17-1"
ON, OFF = GateSettings(enabled=True), GateSettings()


def target(job: str, pod: str, instance: str) -> dict[str, str]:
    """What Prometheus adds to the series of one pod."""
    return {"namespace": NAMESPACE, "job": job, "pod": pod, "instance": instance}


LEADER = target("sandbox-restore", "sandbox-restore-a", "10.0.0.1:8080")
STANDBY = target("sandbox-restore", "sandbox-restore-b", "10.0.0.2:8080")
AGENT = target("sandbox-restore-node-agent", "sandbox-restore-node-agent-x", "10.0.0.3:8080")


class Installation:
    """The processes; a test changes what their metrics say by what the programs call."""

    def __init__(self) -> None:
        self.leader, self.standby, self.agent = Metrics(), Metrics(), AgentMetrics()
        self.healthy()

    def healthy(self) -> None:
        """Nothing for a person to do."""
        self.targets: dict[str, tuple[Labels, MetricSet]] = {
            "leader": (LEADER, self.leader),
            "standby": (STANDBY, self.standby),
            "agent": (AGENT, self.agent),
        }
        self.set_gate(ON)
        for metrics in (self.leader, self.standby):
            metrics.set_connections(database=True, api_server=True)
        self.leader.leading.set(1)
        self.leader.index_warm.set(1)
        self.leader.history_read.set(1)
        self.leader.history_waiting.set(0)
        self.leader.set_stranded({})
        self.leader.circuit_open.clear()
        for watch in ("nodes", "pods", "sandboxrestores"):
            self.leader.watch_age.labels(watch).set(12)
        self.has_nodes(node("n1", INTEL), node("n2", AMD))
        self.has_snapshots({INTEL: 40, AMD: 7, "": 2}, published=(INTEL, AMD))
        self.agent_says(Reason.PUBLISHED)

    def set_gate(self, gate: GateSettings) -> None:
        for metrics in (self.leader, self.standby):
            metrics.set_gate(gate)

    def has_nodes(self, *nodes: NodeFacts) -> None:
        """The fleet, counted by the real index."""
        self.leader.set_fleet(fleet(*nodes).counts())

    def has_snapshots(self, counted: dict[str, int], *, published: tuple[str, ...]) -> None:
        """Snapshots by capture CPU, in a fleet with these CPUs."""
        pairs, _ = Compatibility.parse("")
        self.leader.set_rows(
            {"suspended": 47},
            [
                StoredLineage(capture_cpu=cpu or None, snapshots=number, sandboxes=number)
                for cpu, number in counted.items()
            ],
            has_loader=lambda cpu, ancestors: bool(pairs.loaders(cpu, ancestors, published)),
        )

    def agent_says(self, reason: Reason, *, held: tuple[str, ...] = ()) -> None:
        """One look of the node agent has ended so."""
        seen = Seen(
            detection=Detection(value=INTEL),
            node=NodeSeen(name="n1", uid="u1"),
            kubelet=Kubelet(slots=8, registered=True),
            ended_pods=held,
        )
        found = Plan(step=Step.NONE, reason=reason, message="")
        self.agent.looked(seen, found, label_ok=reason is Reason.PUBLISHED)
