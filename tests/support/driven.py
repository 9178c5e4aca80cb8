"""An operator without its process: the real reconciler, driven pass by pass by a test.

Real: planner, reconciler, reader, placer, reporter, caches, store, requests. Left out: Kopf's
watches (the test hands news over), the queue (the test says who is looked at), the Lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.placement.gate import GateSettings
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.budget import RedirectBudget
from sandbox_restore.restore.intake import Intake
from sandbox_restore.restore.placing import Placer, PlacingConfig
from sandbox_restore.restore.queue import KeyedQueue
from sandbox_restore.restore.reader import WorldReader
from sandbox_restore.restore.reconciler import Reconciler
from sandbox_restore.restore.reporter import Reporter
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.views import ViewCache
from sandbox_restore.restore.world import PlannerConfig, Step

TEMPLATE = PodTemplate.default()


@dataclass(kw_only=True)
class DrivenOperator:
    """One operator's memory, and its reconciler over the given store and client."""

    store: Any
    client: Any
    clock: Callable[[], datetime]
    name: str = "driven"
    gate: bool = True
    compatibility: str = ""
    hard_pin: bool = False
    redirects_per_minute: int = 1000
    config: PlannerConfig = field(
        default_factory=lambda: PlannerConfig(
            gone_grace=timedelta(seconds=120),
            backoff_base=timedelta(seconds=1),
            backoff_max=timedelta(seconds=5),
            drain_marks=("space.pplx.net/draining",),
        )
    )
    steps: list[Step] = field(default_factory=list)
    """What it has carried out or begun to, in order."""
    due: dict[str, float] = field(default_factory=dict)
    """Sandbox to the seconds after which it asked to be looked at again."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets everything, as a new process does."""
        fleet = FleetIndex()
        breaker = Breaker(timedelta(0))
        compatibility, _ = Compatibility.parse(self.compatibility)
        self.state = ClusterState(fleet)
        self.views = ViewCache(trusted=lambda: True)
        self.kube = KubeObjects(self.client)
        placer = Placer(
            fleet=fleet,
            template=TEMPLATE,
            compatibility=compatibility,
            breaker=breaker,
            config=PlacingConfig(gate=GateSettings(enabled=self.gate), hard_pin=self.hard_pin),
        )
        budget = RedirectBudget(self.redirects_per_minute)
        reader = WorldReader(
            state=self.state,
            store=self.store,
            kube=self.kube,
            placer=placer,
            views=self.views,
            config=self.config,
            budget=budget,
            clock=self.clock,
        )
        self.reconciler = Reconciler(
            state=self.state,
            store=self.store,
            kube=self.kube,
            placer=placer,
            reporter=Reporter(state=self.state, kube=self.kube, placer=placer, instance=self.name),
            views=self.views,
            reader=reader,
            budget=budget,
            breaker=breaker,
            clock=self.clock,
            requeue=lambda sandbox, delay: self.due.update({sandbox: delay}),
            on_step=self.steps.append,
        )
        self.intake = Intake(state=self.state, queue=KeyedQueue(), clock=self.clock)
        self.due.clear()

    async def warm(self) -> None:
        """The authoritative lists, as at start and after a gap."""
        nodes, pods = await self.kube.nodes(), await self.kube.pods()
        restores = await self.kube.restores()
        now = self.clock()
        self.state.replace_nodes(nodes.items, now, version=nodes.version)
        self.state.replace_pods(pods.items, version=pods.version)
        self.state.replace_restores(restores.items, version=restores.version)

    def hear(self, kind: str, *, deleted: bool, body: Mapping[str, Any]) -> None:
        """One watch event."""
        match kind:
            case "nodes":
                self.intake.node(deleted=deleted, body=body)
            case "pods":
                self.intake.pod(deleted=deleted, body=body)
            case _:
                self.intake.restore(deleted=deleted, body=body)

    async def look(self, sandbox_id: str) -> None:
        """One pass."""
        await self.reconciler.reconcile(sandbox_id)
