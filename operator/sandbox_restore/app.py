"""The composition root: builds everything once, starts and stops it in a stated order.

Start: template, database and its schema, API server and its CRD, health server, Lease; then the
LISTEN connection, the warm lists and the node history, the recorder, the workers, and last Kopf
with its watches. Stop: Kopf, the workers (each ends its pass), the recorder, the LISTEN
connection, the Lease, the health server, the API client, the pool. When the Lease is lost the
process ends at once, with none of that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from sandbox_restore.counting import Counting
from sandbox_restore.errors import (
    ConfigurationError,
    LeaseLostError,
    PermissionDeniedError,
    SandboxRestoreError,
    SchemaError,
    UnavailableError,
)
from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.handlers.registry import build_registry
from sandbox_restore.handlers.watching import session_factory, watch
from sandbox_restore.health import Health, serve
from sandbox_restore.kube.client import KubeClient, NotFoundError, load_configuration
from sandbox_restore.kube.lease import Lease
from sandbox_restore.kube.objects import CRD, CRD_FILE, KubeObjects, Listed
from sandbox_restore.metrics import Metrics
from sandbox_restore.model import names
from sandbox_restore.model.crd import absent_fields
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.relisting import Relisting
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.budget import RedirectBudget
from sandbox_restore.restore.intake import Intake
from sandbox_restore.restore.placing import Placer, PlacingConfig
from sandbox_restore.restore.queue import KeyedQueue
from sandbox_restore.restore.reader import WorldReader
from sandbox_restore.restore.reconciler import Reconciler
from sandbox_restore.restore.reporter import Reporter
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.stranded import by_reason, stranded_rows
from sandbox_restore.restore.sweep import Sweeper
from sandbox_restore.restore.views import ViewCache
from sandbox_restore.restore.watches import WatchLog
from sandbox_restore.restore.world import PlannerConfig
from sandbox_restore.settings import Settings
from sandbox_restore.store.listener import ChangeListener
from sandbox_restore.store.node_recorder import Ages, NodeRecorder
from sandbox_restore.store.store import Store

log = structlog.get_logger()

STOP_GRACE = 8.0
"""Seconds that running passes get to end at a shutdown."""
PING_EVERY = 10.0


def run(settings: Settings) -> int:
    """Runs the operator until SIGTERM, SIGINT or a fatal error; the exit code.

    Raises this project's errors for what is wrong before it is up.
    """
    return asyncio.run(_Operator(settings).main())


def _template(settings: Settings) -> PodTemplate:
    """The administrator's pod template; ConfigurationError with every problem in it."""
    path = settings.pod_template_file
    if path is None:
        return PodTemplate.default()
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(
            [f"SPACE_SANDBOX_RESTORE_POD_TEMPLATE_FILE {path}: {error.strerror}"]
        ) from error
    return PodTemplate.parse(text, origin=str(path))


def utc_now() -> datetime:
    """The one clock of decisions."""
    return datetime.now(UTC)


class _Operator:
    """One process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.metrics = Metrics()
        self.health = Health()
        self.stop = asyncio.Event()
        self.queue = KeyedQueue()
        self.database_problem: str | None = None
        self.api_problem: str | None = None

    async def main(self) -> int:
        self._take_signals()
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            await self._lead(stack)
        log.info("operator_stopped")
        return 0

    # --- connections, each checked before the next

    async def _connect(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        self.template = _template(settings)
        configuration = await load_configuration()
        self.configuration = configuration
        self.store = await stack.enter_async_context(
            await Store.open(
                settings.current_dsn, pool_size=settings.workers + 2, observe=self.metrics.statement
            )
        )
        (await self.store.schema_state()).require_current()
        client = KubeClient(configuration)
        client.on_write = self.metrics.api_write
        stack.push_async_callback(client.close)
        self.client = client
        self.kube = KubeObjects(client, namespaces=settings.namespaces)
        await self._check_api()
        await self._serve_health(stack)
        log.info(
            "servers_connected",
            api_server=client.server,
            gate=settings.host_cpu_placement_enabled,
            instance=self.instance,
        )

    async def _check_api(self) -> None:
        """The API server answers and has the CRD, with every field that this program writes."""
        try:
            await self.kube.ask_for_restores()
        except NotFoundError as error:
            raise SchemaError(
                f"the API server {self.client.server} has no {names.PLURAL}.{names.GROUP} "
                f"{names.VERSION}: apply the CRD ({CRD_FILE})"
            ) from error
        try:
            raw = await self.client.request("GET", CRD)
        except PermissionDeniedError as error:
            log.warning("crd_not_checked", problem=str(error))
            return
        absent = absent_fields(msgspec.json.decode(raw))
        if absent:
            raise SchemaError(
                f"the CRD that {self.client.server} serves is older than this program: it lacks "
                f"{', '.join(absent[:5])}; apply {CRD_FILE}"
            )

    async def _serve_health(self, stack: AsyncExitStack) -> None:
        health = self.health
        health.database = lambda: self.database_problem
        health.api_server = lambda: self.api_problem
        health.refresh = self._refresh_connections
        self.metrics.set_gate(self.settings.gate)
        host, port = self.settings.health_host, self.settings.health_port
        try:
            bound, close = await serve(health, host=host, port=port, metrics=self.metrics.text)
        except OSError as error:
            raise ConfigurationError(
                [
                    f"cannot serve probes on {host}:{port}: {error.strerror or error}; choose "
                    "another SPACE_SANDBOX_RESTORE_HEALTH_PORT"
                ]
            ) from error
        stack.push_async_callback(close)
        log.info("probes_served", host=host, port=bound)

    # --- standing by and leading

    async def _lead(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        await stack.enter_async_context(self._background("pings", self._ping()))
        lease = Lease(
            self.client,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            holder=self.instance,
            duration=settings.lease_duration.total_seconds(),
            renew_interval=settings.lease_renew_interval.total_seconds(),
            monotonic=time.monotonic,
        )
        self.health.lease_held = lambda: lease.held
        if not await self._until_stopped(lease.acquire(on_wait=self._stand_by)):
            return
        stack.push_async_callback(lease.give_back)
        holding = asyncio.create_task(lease.hold(), name="lease")
        holding.add_done_callback(self._lease_ended)
        stack.callback(holding.cancel)
        self.metrics.leading.set(1)
        self.health.phase = "warming"
        self._build()
        listener = ChangeListener(
            settings.current_dsn, on_change=self._on_change, on_gap=self._on_db_gap
        )
        self.listener = await stack.enter_async_context(listener)
        if not await self._until_stopped(self._warm()):
            return
        async with self._workers():
            await self._watch()

    def _build(self) -> None:
        settings = self.settings
        self.history = NodeHistory()
        fleet = FleetIndex(
            cpu_label=settings.host_cpu_label,
            published_hold=settings.published_hold,
            history=self.history,
        )
        self.state = ClusterState(fleet)
        warm_by = time.monotonic() + settings.cold_cache_wait.total_seconds()
        self.breaker = Breaker(settings.circuit_window)
        self.placer = Placer(
            fleet=fleet,
            breaker=self.breaker,
            template=self.template,
            compatibility=settings.compatibility,
            config=PlacingConfig(
                gate=settings.gate,
                hard_pin=settings.source_node_hard_pin,
                fallbacks=settings.shortlist_fallbacks,
                observation_ttl=settings.observation_ttl,
                loosen_after=settings.loosen_after,
            ),
            may_wait_for_cache=lambda: time.monotonic() < warm_by,
        )
        self.views = ViewCache(trusted=lambda: self.listener.healthy)
        self.watch_log = WatchLog(
            monotonic=time.monotonic, on_gap=lambda kind: self.relisting.gap(kind)
        )
        self.intake = Intake(
            state=self.state, queue=self.queue, clock=utc_now, heard=self.watch_log.event
        )
        self.relisting = Relisting(
            state=self.state, kube=self.kube, intake=self.intake, views=self.views, clock=utc_now
        )
        self.counting = Counting(
            metrics=self.metrics,
            settings=settings,
            state=self.state,
            queue=self.queue,
            breaker=self.breaker,
            history=self.history,
            watches=self.watch_log,
            store=self.store,
            clock=utc_now,
        )
        reporter = Reporter(
            state=self.state,
            kube=self.kube,
            placer=self.placer,
            instance=self.instance,
            on_finished=self.counting.finished,
            on_blocked=self.counting.blocked,
            on_would_change=self.counting.would_change,
        )
        budget = RedirectBudget(settings.redirects_per_minute)
        reader = WorldReader(
            state=self.state,
            store=self.store,
            kube=self.kube,
            placer=self.placer,
            views=self.views,
            config=PlannerConfig(
                gone_grace=settings.node_gone_grace,
                pod_grace_seconds=self.template.grace_seconds,
                backoff_base=settings.retry_backoff_base,
                backoff_max=settings.retry_backoff_max,
                storage_uri_prefixes=settings.storage_uri_prefixes,
                observation_ttl=settings.observation_ttl,
                drain_marks=settings.drain_marks,
                cpu_label=settings.host_cpu_label,
            ),
            budget=budget,
            clock=utc_now,
        )
        self.reconciler = Reconciler(
            state=self.state,
            store=self.store,
            kube=self.kube,
            placer=self.placer,
            reporter=reporter,
            views=self.views,
            reader=reader,
            budget=budget,
            breaker=self.breaker,
            clock=utc_now,
            requeue=self.queue.add_after,
            on_step=self.counting.step,
            on_placed=self.counting.placed,
        )
        self.sweeper = Sweeper(
            store=self.store,
            state=self.state,
            intake=self.intake,
            served=lambda namespace: not settings.namespaces or namespace in settings.namespaces,
            stranded=lambda rows: stranded_rows(
                rows,
                fleet,
                settings.compatibility,
                now=utc_now(),
                gone_grace=settings.node_gone_grace,
                observation_ttl=settings.observation_ttl,
            ),
            on_stranded=lambda rows: self.metrics.set_stranded(by_reason(rows)),
        )
        self.recorder = NodeRecorder(
            store=self.store,
            fleet=fleet,
            history=self.history,
            ages=Ages(
                published_hold=settings.published_hold,
                node_history=settings.node_history_ttl,
                observations=max(settings.observation_ttl, settings.circuit_window),
            ),
            clock=utc_now,
            may_write=lambda: self.health.lease_held(),
            on_late_read=lambda: self.intake.concerned(self.state.sandboxes(), slow=True),
        )
        self.health.ages = self.watch_log.ages
        self.health.index_warm = lambda: fleet.warm
        self.health.refresh = self._refresh_gauges

    async def _warm(self) -> None:
        """Index, pods and restores from our own chunked lists, and the node history, before the
        first decision."""
        began = time.monotonic()
        wait = self.settings.cold_cache_wait.total_seconds()
        (nodes, pods, restores), _ = await asyncio.gather(
            self._first_lists(), self.recorder.first_read(wait=wait)
        )
        self.state.replace_nodes(nodes.items, utc_now(), version=nodes.version)
        self.state.replace_pods(pods.items, version=pods.version)
        self.state.replace_restores(restores.items, version=restores.version)
        self.intake.concerned(self.state.sandboxes())
        log.info(
            "index_warm",
            nodes=len(nodes.items),
            pods=len(pods.items),
            restores=len(restores.items),
            seconds=round(time.monotonic() - began, 3),
        )

    async def _first_lists(
        self,
    ) -> tuple[Listed[NodeFacts], Listed[PodFacts], Listed[Restore]]:
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    nodes = group.create_task(self.kube.nodes())
                    pods = group.create_task(self.kube.pods())
                    restores = group.create_task(self.kube.restores())
                return nodes.result(), pods.result(), restores.result()
            except* UnavailableError as errors:
                log.warning("index_not_warm", problem=str(errors.exceptions[0]))
                await asyncio.sleep(1.0)

    def _stand_by(self) -> None:
        self.health.phase = "standby"

    @asynccontextmanager
    async def _workers(self) -> AsyncIterator[None]:
        settings = self.settings
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.recorder.running())
            await stack.enter_async_context(self._reconciling())
            for name, interval, once in (
                ("sweep", settings.sweep_interval, self._sweep),
                ("observations", settings.sweep_interval, self._read_observations),
                ("counts", settings.sweep_interval, self.counting.rows),
                ("resync", settings.resync_interval, self._look_again),
                ("relist", settings.relist_interval, self.relisting.relist_all),
            ):
                loop = _every(interval.total_seconds(), once, name=name)
                await stack.enter_async_context(self._background(name, loop))
            await stack.enter_async_context(self._background("gaps", self.relisting.mend_gaps()))
            await stack.enter_async_context(
                self._background("first-sweep", self.sweeper.first_sweep())
            )
            yield

    @asynccontextmanager
    async def _reconciling(self) -> AsyncIterator[None]:
        """The workers; at the end each gets to end the pass that it is in."""
        workers = [
            asyncio.create_task(
                self.queue.work(self._reconcile, on_error=self._on_error), name=f"worker-{number}"
            )
            for number in range(self.settings.workers)
        ]
        try:
            yield
        finally:
            self.queue.close()
            _, late = await asyncio.wait(workers, timeout=STOP_GRACE)
            for worker in late:
                worker.cancel()
            if late:
                await asyncio.wait(late)

    async def _watch(self) -> None:
        """Kopf, last in and first out. Its end without being told to is fatal.

        Kopf takes the signals for itself and, told by them, waits 5 s for whatever task is younger
        than itself, such as an open probe connection; so they are taken back, and it is cancelled.
        """
        ready = asyncio.Event()
        registry = build_registry(
            self.intake, login=session_factory(self.configuration, self.watch_log)
        )
        watching = asyncio.create_task(
            watch(registry, namespaces=self.settings.namespaces, ready=ready), name="kopf"
        )
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        began = asyncio.create_task(ready.wait(), name="kopf-ready")
        await asyncio.wait({watching, stopping, began}, return_when=asyncio.FIRST_COMPLETED)
        self._take_signals()
        self.health.phase = "leading"
        log.info("operator_started", instance=self.instance)
        await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self.health.phase = "stopping"
        for task in (stopping, began):
            task.cancel()
        if not watching.done():
            watching.cancel()
            await asyncio.wait({watching}, timeout=STOP_GRACE)
        elif not watching.cancelled() and watching.exception() is not None:
            error = watching.exception()
            raise UnavailableError(f"a watch ended for good: {error}") from error

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    # --- what the parts call

    async def _reconcile(self, sandbox_id: str) -> None:
        with bound_contextvars(**self._scope(sandbox_id)), self.metrics.reconcile_seconds.time():
            await self.reconciler.reconcile(sandbox_id)

    def _scope(self, sandbox_id: str) -> dict[str, str]:
        """What is on every log line about a sandbox's pass, the libraries' lines included."""
        spaces = {r.namespace for r in self.state.restores_of(sandbox_id)}
        return {"sandbox": sandbox_id} | ({"namespace": spaces.pop()} if len(spaces) == 1 else {})

    def _on_error(self, key: str, error: Exception, delay: float) -> None:
        self.metrics.reconcile_errors.labels(type(error).__name__).inc()
        if isinstance(error, SandboxRestoreError):
            log.warning(
                "reconcile_failed",
                **self._scope(key),
                problem=str(error),
                retry_in=round(delay, 2),
            )
        else:
            log.error("reconcile_crashed", **self._scope(key), exc_info=error)

    def _on_change(self, sandbox_id: str, version: int) -> None:
        if self.views.announced(sandbox_id, version) and self._is_ours(sandbox_id):
            self.queue.add(sandbox_id)

    def _is_ours(self, sandbox_id: str) -> bool:
        """Named by a restore or a restore pod: the platform reports on every other one as well."""
        return bool(self.state.restores_of(sandbox_id) or self.state.pods_of(sandbox_id))

    def _on_db_gap(self) -> None:
        self.views.forget()
        self.intake.concerned(self.state.sandboxes(), slow=True)

    async def _sweep(self) -> None:
        await self.sweeper.sweep()
        await self.recorder.prune()

    async def _look_again(self) -> None:
        self.relisting.look_again(unfinished_for=self.settings.resync_interval)

    async def _read_observations(self) -> None:
        """What an operator before this one, or beside it, has seen hosts do (section 11)."""
        if self.settings.circuit_window:
            since = utc_now() - self.settings.circuit_window
            self.breaker.record(reversed(await self.store.observations(since)))

    async def _ping(self) -> None:
        while True:
            self.database_problem = await _problem(self.store.ping())
            self.api_problem = await _problem(self.client.request("GET", "/livez"))
            await asyncio.sleep(PING_EVERY)

    def _lease_ended(self, task: asyncio.Task[None]) -> None:
        """The Lease is lost: end at once, so that the next holder has no rival."""
        if task.cancelled():
            return
        error = task.exception()
        log.error("lease_lost", problem=str(error))
        if not isinstance(error, LeaseLostError):
            log.error("lease_failed", exc_info=error)
        os._exit(6)

    def _refresh_connections(self) -> None:
        """What a process that stands by can tell too."""
        self.metrics.set_connections(
            database=self.database_problem is None, api_server=self.api_problem is None
        )

    def _refresh_gauges(self) -> None:
        self._refresh_connections()
        self.counting.gauges()

    @asynccontextmanager
    async def _background(self, name: str, work: Awaitable[None]) -> AsyncIterator[None]:
        """A task that lives as long as the block; its crash is logged, and fatal for the probe."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                log.error("task_crashed", task=name, exc_info=error)
                self.health.fatal = f"task {name} has crashed: {error}"

        task = asyncio.create_task(guarded(), name=name)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_GRACE)

    async def _until_stopped(self, work: Awaitable[None]) -> bool:
        """Waits for the work, or for the stop: False."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
            return False
        await task
        return not self.stop.is_set()


async def _problem(check: Awaitable[object]) -> str | None:
    try:
        await check
    except SandboxRestoreError as error:
        return str(error)
    return None


async def _every(seconds: float, once: Callable[[], Awaitable[None]], *, name: str) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await once()
        except SandboxRestoreError as error:
            log.warning("periodic_task_failed", task=name, problem=str(error))
