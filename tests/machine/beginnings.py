"""How stories begin: in the middle of things, or a random walk would seldom get there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from sandbox_restore.model.sandbox import Outcome, SandboxState, Source
from tests.machine.cluster import Snapshot
from tests.machine.moves import moves
from tests.machine.story import BEGINNING, NAMESPACE, RIGHT, Story

EMPTY = """
DELETE FROM sandbox_restore.load_observation;
DELETE FROM sandbox_restore.execution;
DELETE FROM sandbox_restore.snapshot;
DELETE FROM sandbox_restore.sandbox;
"""
"""Every story tells the same names, so that it can be told again."""

EARLIER = BEGINNING - timedelta(minutes=5)


async def begin(story: Story, start: str, *, writes: int = 0) -> None:
    """The row, what lies where, and two operators that know nothing yet but their first lists.

    `writes`: how many of them the operator of `dead` had done.
    """
    await story.rig.db.raw.execute(EMPTY)
    await story.rig.db.call("sandbox_created", sandbox_id=story.id, namespace=NAMESPACE)
    await _stored(story, f"{story.id}-s1", version=0, at=BEGINNING - timedelta(hours=1))
    if start == "dead":
        await dead(story, writes=writes)
    else:
        await BEGINNINGS[start](story)


async def _operators(story: Story) -> None:
    story.view = await story.look()
    for operator in story.operators:
        await story.warm(operator)


async def _stored(
    story: Story, name: str, *, version: int, at: datetime, ready: bool = True
) -> None:
    """A full snapshot, in storage or on its way."""
    story.cluster.snapshots[name] = Snapshot(
        version=version, cpu=RIGHT, captured_at=at, reported=True
    )
    story.cluster.versions = max(story.cluster.versions, version)
    call = story.rig.db.call
    await call(
        "snapshot_started",
        sandbox_id=story.id,
        snapshot_id=name,
        captured_at=at,
        host_cpu=RIGHT,
        uploaded_by="b",
    )
    if ready:
        await call(
            "snapshot_ready",
            sandbox_id=story.id,
            snapshot_id=name,
            storage_uri=f"s3://bucket/{name}",
        )


async def _earlier_attempt(story: Story, *, node: str, outcome: Outcome, failure: str) -> None:
    """A storage attempt of a restore that is gone, and how it ended."""
    async with story.rig.stores[0].locked(story.id) as locked:
        await locked.begin_attempt(
            execution_id=f"{story.id}-first",
            restore_uid=f"{story.id}-first",
            restore_name="first",
            attempt=1,
            source=Source.STORAGE,
            snapshot_id=f"{story.id}-s1",
            pod_name="first-1",
            target_node=None,
            gate=False,
            clear_pin=False,
            namespace_uid=story.api.namespace_uid,
            now=EARLIER,
        )
        await locked.retire(
            execution_id=f"{story.id}-first",
            outcome=outcome,
            row_state=SandboxState.FAILED,
            pinned_node=node,
            marker=False,
            now=EARLIER,
            failure_class=failure,
            pod_uid="first-1-uid",
            node_name=node,
            node_uid=story.api.nodes[node]["metadata"]["uid"],
            node_cpu=story.cluster.machines[node].label,
        )


async def fresh(story: Story) -> None:
    """Never ran here."""
    await _operators(story)


async def stranded(story: Story) -> None:
    """A cross-node restore failed on a node that cannot load it."""
    await _earlier_attempt(story, node="a", outcome=Outcome.FAILED, failure="cpu-incompatible")
    await _operators(story)


async def stuck(story: Story) -> None:
    """The same, and the row carries a marker, as an older platform left it."""
    await _earlier_attempt(story, node="a", outcome=Outcome.FAILED, failure="cpu-incompatible")
    async with story.rig.stores[0].locked(story.id) as locked:
        await locked.set_marker()
    await _operators(story)


async def lost(story: Story) -> None:
    """An attempt ended on b without the runner's word: it had run, and was being uploaded."""
    await _earlier_attempt(story, node="b", outcome=Outcome.LOST, failure="unknown")
    await _newer_state_on_b(story, ready=False)
    await _operators(story)


async def _newer_state_on_b(story: Story, *, ready: bool) -> None:
    story.cluster.machines["b"].local = 1
    story.platform.captures = 1
    await _stored(story, f"{story.id}-s2", version=1, at=EARLIER, ready=ready)
    if not ready:
        story.platform.expect_upload(f"{story.id}-s2", machine="b")


async def suspended(story: Story, *, ready: bool = False) -> None:
    """Suspended on b a while ago: its newest state lies there, and is being uploaded."""
    call, pod = story.rig.db.call, f"{story.id}-earlier"
    await call(
        "execution_started",
        sandbox_id=story.id,
        node_name="b",
        pod_name="earlier",
        pod_uid=pod,
        started_at=EARLIER - timedelta(minutes=5),
    )
    await call("sandbox_command", sandbox_id=story.id, command_at=EARLIER - timedelta(seconds=1))
    await call(
        "sandbox_suspended",
        sandbox_id=story.id,
        node_name="b",
        pod_uid=pod,
        suspended_at=EARLIER,
    )
    story.cluster.told = 1
    await _newer_state_on_b(story, ready=ready)
    await _operators(story)


async def stored(story: Story) -> None:
    """Suspended on b, and all of it is in storage too."""
    await suspended(story, ready=True)


async def loading(story: Story) -> None:
    """An operator has begun an attempt, and its pod is bound."""
    story.add_restore()
    await _operators(story)
    await _until(story, lambda: bool(story.cluster.vms))


async def running(story: Story) -> None:
    """A restore has succeeded and the sandbox runs."""
    story.add_restore()
    await _operators(story)
    await _until(story, lambda: bool(story.cluster.succeeded))


async def dead(story: Story, *, writes: int) -> None:
    """An operator has died before one of its writes, and that one is still under way."""
    story.add_restore()
    await _operators(story)
    one = story.operators[0]
    for _ in range(writes):
        await _round(story, permits=1)
    story.tell(one)
    await story.step("a pass", lambda: story.advance(one, 0, fine=False))
    await story.step("it is killed", lambda: story.restart(one, late=True))


async def _until(story: Story, there: Callable[[], bool]) -> None:
    """Everything goes well until then."""
    for _ in range(20):
        if there():
            return
        await _round(story, permits=1000)
    raise AssertionError(f"it never came to that: {story.told}")


async def _round(story: Story, *, permits: int) -> None:
    """An operator does so many writes, and the world what is next; it binds to b if it can."""
    one = story.operators[0]
    story.tell(one)
    await story.step("a pass", lambda: story.advance(one, permits, fine=False))
    found = [m for m in moves(story.cluster) if "fails" not in m[0] and "dies" not in m[0]]
    if found:
        await story.step(*max(found, key=lambda move: move[0].endswith("to b")))


BEGINNINGS: dict[str, Callable[[Story], Awaitable[None]]] = {
    "fresh": fresh,
    "stranded": stranded,
    "stuck": stuck,
    "lost": lost,
    "suspended": suspended,
    "stored": stored,
    "loading": loading,
    "running": running,
}
UNDER_WAY = ("loading", "running", "dead")
"""Beginnings that have a restore of their own."""
