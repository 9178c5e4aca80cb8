"""Reads the planner's view of one sandbox: cached, live, or live with a fresh row (section 14)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import Execution, SandboxView, Source
from sandbox_restore.restore.budget import RedirectBudget
from sandbox_restore.restore.liveness import NodeSighting
from sandbox_restore.restore.placing import Placer
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.views import ViewCache
from sandbox_restore.restore.world import PlannerConfig, World, is_pod_of
from sandbox_restore.store.store import Store

KEPT_NAMESPACES = 50_000
"""Restores whose namespace's UID is remembered."""


class WorldReader:
    """What is known, and what is read, of one sandbox at a time."""

    def __init__(
        self,
        *,
        state: ClusterState,
        store: Store,
        kube: KubeObjects,
        placer: Placer,
        views: ViewCache,
        config: PlannerConfig,
        budget: RedirectBudget,
        clock: Callable[[], datetime],
    ) -> None:
        self._state = state
        self._store = store
        self._kube = kube
        self._placer = placer
        self._views = views
        self._config = config
        self._budget = budget
        self._clock = clock
        self._namespace_uids: OrderedDict[str, str] = OrderedDict()

    def uids(self, sandbox_id: str) -> tuple[str, ...]:
        """UIDs of the restores that name the sandbox: whose attempts a view is asked for."""
        return tuple(r.uid for r in self._state.restores_of(sandbox_id))

    async def cached(self, sandbox_id: str) -> World:
        """From the caches, and the row as last read where nothing newer was announced."""
        uids = self.uids(sandbox_id)
        view = self._views.current(sandbox_id, uids)
        if view is None:
            read = self._views.reading()
            view = await self._store.view(sandbox_id, restore_uids=uids)
            if view is not None:
                self._views.put(view, uids, read=read)
        await self._learn_namespaces(sandbox_id, view)
        namespace = view.sandbox.namespace if view is not None else None
        pods = [p for p in self._state.pods_of(sandbox_id) if p.namespace == namespace]
        pods += await self._unlisted_pod(view, pods)
        return self._world(sandbox_id, view, pods, self._cached_sightings(pods, view), None)

    async def _learn_namespaces(self, sandbox_id: str, view: SandboxView | None) -> None:
        """A restore lives in one incarnation of its namespace: read once for each restore, where
        the row says which one it belongs to."""
        if view is None or view.sandbox.namespace_uid is None:
            return
        for restore in self._state.restores_of(sandbox_id):
            known = restore.uid in self._namespace_uids or restore.finished
            if known or restore.namespace != view.sandbox.namespace:
                continue
            uid = await self._kube.namespace_uid(restore.namespace)
            self._namespace_uids[restore.uid] = uid or "gone"
            while len(self._namespace_uids) > KEPT_NAMESPACES:
                self._namespace_uids.popitem(last=False)

    async def _unlisted_pod(self, view: SandboxView | None, pods: list[PodFacts]) -> list[PodFacts]:
        """The active execution's pod where no watch shows it: the platform made it, somebody has
        edited our label away, or it is not made yet."""
        active = view.active if view is not None else None
        if view is None or active is None or active.pod_name is None:
            return []
        if any(is_pod_of(p, active) for p in pods):
            return []
        pod = await self._kube.pod(view.sandbox.namespace, active.pod_name)
        if pod is None or any(p.uid == pod.uid for p in pods):
            return []
        return [pod]

    async def live(self, sandbox_id: str, view: SandboxView | None) -> World:
        """Pods, the nodes that decide on them, the restore and the namespace, read now."""
        if view is None:
            return self._world(sandbox_id, None, [], {}, None)
        namespace = view.sandbox.namespace
        listed = await self._kube.sandbox_pods(namespace, sandbox_id)
        self._state.forget_unlisted(namespace, sandbox_id, listed.items, listed.version)
        return await self._live_from(sandbox_id, view, listed.items)

    async def _live_from(self, sandbox_id: str, view: SandboxView, listed: list[PodFacts]) -> World:
        namespace = view.sandbox.namespace
        pods = [*listed, *await self._unlisted_pod(view, listed)]
        if view.active is not None:
            await self._check_restore(namespace, view.active)
        pods = [self._state.merged(pod) for pod in pods]
        for pod in pods:
            self._state.apply_pod(pod)
        sightings = {name: await self._sight(name) for name in sorted(_deciding_nodes(pods, view))}
        uid = await self._kube.namespace_uid(namespace)
        return self._world(sandbox_id, view, pods, sightings, uid)

    async def _check_restore(self, namespace: str, active: Execution) -> None:
        """A restore that the cache does not show is gone only if a live read says so (by UID)."""
        name = active.restore_name
        if name is None or active.restore_uid in self.uids(active.sandbox_id):
            return
        found = await self._kube.restore(namespace, name)
        if found is not None and found.uid == active.restore_uid:
            self._state.apply_restore(found)

    async def reread(self, restore: Restore) -> None:
        """No attempt begins for a restore that is gone or finished, whatever the cache says."""
        found = await self._kube.restore(restore.namespace, restore.name)
        if found is None or found.uid != restore.uid:
            self._state.remove_restore(restore.namespace, restore.name, restore.uid)
        if found is not None:
            self._state.apply_restore(found)

    async def _sight(self, name: str) -> NodeSighting:
        node = await self._kube.node(name)
        if node is None:
            return NodeSighting(name=name, node=None, absent_since=self._absent_since(name))
        self._state.forget_absent(name)
        return NodeSighting(name=name, node=self._state.timed(node))

    def _absent_since(self, name: str) -> datetime:
        return self._state.absent_since(name, self._clock())

    def _cached_sightings(
        self, pods: list[PodFacts], view: SandboxView | None
    ) -> dict[str, NodeSighting]:
        return {
            name: self._state.sighting(name, self._clock())
            for name in (_deciding_nodes(pods, view) if view is not None else ())
        }

    def _world(
        self,
        sandbox_id: str,
        view: SandboxView | None,
        pods: list[PodFacts],
        sightings: dict[str, NodeSighting],
        namespace_uid: str | None,
    ) -> World:
        now = self._clock()
        gone: dict[str, datetime] = {}
        ended: dict[str, PodFacts] = {}
        active = view.active if view is not None else None
        if view is not None and active is not None and active.pod_uid is not None:
            name = active.pod_name or ""
            if not any(is_pod_of(p, active) for p in pods):
                gone[name] = self._state.gone_since(active.pod_uid, now)
                last = self._state.ended(view.sandbox.namespace, name)
                if last is not None:
                    ended[name] = last
        return World(
            now=now,
            sandbox_id=sandbox_id,
            restores=tuple(self._state.restores_of(sandbox_id)),
            view=view,
            pods=tuple(pods),
            sightings=sightings,
            gone_since=gone,
            ended_pods=ended,
            seen_terminal={
                p.uid: self._state.seen_terminal(p, now) for p in pods if p.bound and p.terminal
            },
            namespace_uid=namespace_uid,
            namespace_uids=self._namespace_uids,
            gate_for=self._placer.gate_for,
            observes=self._placer.observes,
            hold_for=lambda restore, choice: self._placer.hold_for(restore, choice, view, now),
            capture_for=self._placer.capture_for,
            loaders_for=lambda restore, snapshot: self._placer.loaders_for(
                restore, snapshot, view, now
            ),
            redirect_wait=lambda: self._budget.wait(sandbox_id, now),
            rerender_for=lambda restore, execution, pod: self._placer.rerender_for(
                restore, execution, pod, view, now
            ),
            config=self._config,
        )

    async def fresh(self, world: World) -> World:
        """Pods first, then the row: a pod that was read belongs to no execution younger than the
        view, so that none is taken for a left-over that is not."""
        assert world.view is not None
        uids = self.uids(world.sandbox_id)
        namespace = world.view.sandbox.namespace
        listed = await self._kube.sandbox_pods(namespace, world.sandbox_id)
        read = self._views.reading()
        view = await self._store.view(world.sandbox_id, restore_uids=uids)
        if view is None:
            return self._world(world.sandbox_id, None, [], {}, None)
        self._views.put(view, uids, read=read)
        return await self._live_from(world.sandbox_id, view, listed.items)


def _deciding_nodes(pods: list[PodFacts], view: SandboxView) -> set[str]:
    """Nodes that may have to decide whether a pod is alive (section 15), and the pinned one, on
    which a redirect depends (section 10)."""
    found = {
        p.node_name
        for p in pods
        if p.node_name is not None
        and not (p.terminal and p.runner_end is not None and p.runner_end.is_report)
    }
    active = view.active
    if active is not None and active.node_name is not None:
        found.add(active.node_name)
    if view.sandbox.pinned_node is not None and (active is None or active.source is Source.LOCAL):
        found.add(view.sandbox.pinned_node)
    return found
