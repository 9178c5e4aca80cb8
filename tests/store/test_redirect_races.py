"""Between the check and the write of a redirect, somebody else acts (domain.md sections 10, 15).

Real Postgres, two connections: the operator's transaction and the platform's call. The operator is
the real reconciler; each of its requests waits at a gate until the test lets it go, and a call that
has to wait for the row's lock is seen waiting in Postgres. The API server is simulated: here it is
the lock that matters, tests/cluster has the same races where pods matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from sandbox_restore.model.sandbox import SandboxState, Source
from sandbox_restore.store.store import Store
from tests.machine.beginnings import begin
from tests.machine.moves import moves
from tests.machine.story import BEGINNING, RIGHT, Operator, Rig, Story
from tests.store.helpers import Database, blocked
from tests.support.gates import Fate

JUST_NOW = BEGINNING - timedelta(seconds=30)
"""After the snapshot in storage was captured."""

Event = Callable[[Story, Database], Awaitable[object]]


@pytest.fixture
async def story(db: Database, other: Database, dsn: str) -> AsyncIterator[Story]:
    """A sandbox stranded on node a, a restore of it, and two operators that know of both."""
    eye = Database(await asyncpg.connect(dsn, server_settings={"timezone": "UTC"}))
    async with await Store.open(dsn) as first, await Store.open(dsn) as second:
        rig = Rig(loop=asyncio.get_running_loop(), stores=[first, second], db=db, eye=eye)
        told = Story(rig, gates=(True, True), odd=RIGHT)
        told.add_restore()
        await begin(told, "stranded")
        yield told
        for operator in told.operators:
            if not operator.line.idle:
                await told.conductor.crash(operator.line, late=False)
    await eye.raw.close()


async def until(story: Story, operator: Operator, place: str) -> None:
    """The operator goes on until it is about to do that."""
    if operator.line.idle:
        story.advance(operator, 0)
        await story.conductor.settle()
    for _ in range(50):
        if (operator.line.parked or "").startswith(place):
            return
        story.advance(operator, 1)
        await story.conductor.settle()
    raise AssertionError(f"{operator.line.name} never came to {place}: {story.told[-20:]}")


async def to_the_end(story: Story, operator: Operator) -> None:
    """The rest of the pass, or a whole one."""
    story.advance(operator, 1000)
    await story.conductor.settle()
    await story.check()


async def with_a_cached_row(story: Story, operator: Operator) -> None:
    """The operator has read the row before: it decides on its cache, and again under the lock."""
    story.api.edit_restore("r1", suspend=True)
    story.tell(operator)
    await to_the_end(story, operator)
    story.api.edit_restore("r1", suspend=False)
    story.tell(operator)


# --- what the platform reports meanwhile


async def command(story: Story, db: Database) -> object:
    return await db.call("sandbox_command", sandbox_id=story.id, command_at=JUST_NOW)


async def access(story: Story, db: Database) -> object:
    return await db.call("sandbox_access", sandbox_id=story.id, access_at=JUST_NOW)


async def upload_starts(story: Story, db: Database) -> object:
    return await db.call(
        "snapshot_started",
        sandbox_id=story.id,
        snapshot_id="box-s2",
        captured_at=JUST_NOW,
        host_cpu=RIGHT,
    )


async def upload_fails(story: Story, db: Database) -> object:
    await upload_starts(story, db)
    return await db.call("snapshot_failed", sandbox_id=story.id, snapshot_id="box-s2")


async def newer_is_ready(story: Story, db: Database) -> object:
    await upload_starts(story, db)
    return await db.call(
        "snapshot_ready",
        sandbox_id=story.id,
        snapshot_id="box-s2",
        storage_uri="s3://bucket/box-s2",
    )


async def marker_is_set(story: Story, db: Database) -> object:
    return await db.raw.fetchval(
        "SELECT sandbox_restore.operator_set_marker($1, $2, true)::text", story.id, []
    )


async def platform_starts(story: Story, db: Database) -> object:
    return await db.call(
        "execution_started",
        sandbox_id=story.id,
        node_name="a",
        pod_name="own",
        pod_uid="own-uid",
        started_at=BEGINNING,
    )


async def state_is_lost(story: Story, db: Database) -> object:
    return await db.call("node_state_lost", sandbox_id=story.id)


BLOCKING: dict[str, tuple[Event, str]] = {
    "a command is recorded": (command, "SnapshotBehindActivity"),
    "an access is recorded": (access, "SnapshotBehindActivity"),
    "a newer snapshot starts uploading": (upload_starts, "NewerSnapshotUploading"),
    "a newer snapshot fails": (upload_fails, "NewerSnapshotFailed"),
    "the marker is set": (marker_is_set, "LocalArtifactMarker"),
}
EVENTS = {
    **{name: event for name, (event, _) in BLOCKING.items()},
    "a newer snapshot is ready": newer_is_ready,
    "the node's state is lost": state_is_lost,
}


def redirected(story: Story) -> str | None:
    """From which snapshot, if the sandbox was redirected."""
    run = story.view.active
    if run is None or run.source is not Source.STORAGE or run.prior_pin != "a":
        return None
    return run.snapshot_id


# --- the report gets the lock first


@pytest.mark.parametrize("name", BLOCKING)
@pytest.mark.parametrize("cached", [False, True], ids=["first look", "cached row"])
async def test_what_is_reported_before_the_lock_blocks_the_redirect(
    story: Story, other: Database, name: str, cached: bool
) -> None:
    """The operator waits inside Postgres for a lock that the report's transaction holds."""
    event, reason = BLOCKING[name]
    one = story.operators[0]
    if cached:
        await with_a_cached_row(story, one)
    await until(story, one, "lock")
    async with other.raw.transaction():
        await event(story, other)
        story.advance(one, 1000)
        await blocked(story.rig.eye)
    await story.conductor.settle()
    await story.check()
    assert redirected(story) is None
    assert story.view.sandbox.pinned_node == "a"
    told = story.api.restores["r1"]["status"]["redirect"]
    assert (told["decision"], reason in str(told["conditions"])) == ("Stay", True)


@pytest.mark.parametrize("cached", [False, True], ids=["first look", "cached row"])
async def test_a_newer_snapshot_that_is_ready_before_the_lock_is_the_one_restored(
    story: Story, other: Database, cached: bool
) -> None:
    one = story.operators[0]
    if cached:
        await with_a_cached_row(story, one)
    await until(story, one, "lock")
    async with other.raw.transaction():
        await newer_is_ready(story, other)
        story.advance(one, 1000)
        await blocked(story.rig.eye)
    await story.conductor.settle()
    await story.check()
    assert redirected(story) == "box-s2"


async def test_a_sandbox_that_the_platform_starts_before_the_lock_gets_no_second_vm(
    story: Story, other: Database
) -> None:
    one = story.operators[0]
    await with_a_cached_row(story, one)
    await until(story, one, "lock")
    async with other.raw.transaction():
        await platform_starts(story, other)
        story.advance(one, 1000)
        await blocked(story.rig.eye)
    await story.conductor.settle()
    await story.check()
    assert story.view.active is not None
    assert story.view.active.source is Source.PLATFORM
    assert story.api.pods == {}


# --- the redirect gets the lock first


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("place", ["GET", "commit"])
async def test_what_is_reported_after_the_lock_waits_for_the_redirect_and_is_not_lost(
    story: Story, other: Database, name: str, place: str
) -> None:
    """`GET`: the row is read and the pods are not yet; `commit`: all is written but the commit."""
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, place)
    report = asyncio.ensure_future(EVENTS[name](story, other))
    await blocked(story.rig.eye)
    await until(story, one, "POST /api/v1")
    if name != "the marker is set":
        await report
    else:
        # A row without a pin cannot carry one.
        with pytest.raises(asyncpg.CheckViolationError):
            await report
    await story.check()
    row, run = story.view.sandbox, story.view.active
    assert run is not None
    assert (row.state, row.pinned_node, run.snapshot_id) == (
        SandboxState.RESTORING,
        None,
        "box-s1",
    )
    assert run.prior_pin == (None if name == "the node's state is lost" else "a")
    assert (row.last_command_at, row.last_access_at) == (
        JUST_NOW if name == "a command is recorded" else None,
        JUST_NOW if name == "an access is recorded" else None,
    )
    known = {s.id for s in story.view.snapshots}
    assert ("box-s2" in known) is ("snapshot" in name)


async def test_the_platform_is_refused_while_a_redirect_is_under_way(
    story: Story, other: Database
) -> None:
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, "commit")
    start = asyncio.ensure_future(platform_starts(story, other))
    await blocked(story.rig.eye)
    await until(story, one, "POST /api/v1")
    with pytest.raises(asyncpg.ObjectInUseError):
        await start


async def test_a_redirect_whose_commit_is_lost_has_not_happened(story: Story) -> None:
    """Nothing of it is kept, and the next pass begins the same attempt again."""
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, "commit")
    story.advance(one, 1, Fate.LOST)
    await story.conductor.settle()
    await story.check()
    assert (story.view.active, story.view.sandbox.pinned_node) == (None, "a")
    await to_the_end(story, one)
    await to_the_end(story, one)
    assert redirected(story) == "box-s1"


async def test_a_redirect_whose_commit_is_lost_is_not_told(story: Story, other: Database) -> None:
    """Before the next pass the platform starts the sandbox: nothing was redirected."""
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, "commit")
    story.advance(one, 1, Fate.LOST)
    await story.conductor.settle()
    await to_the_end(story, one)
    await platform_starts(story, other)
    await story.check()
    story.tell(one)
    await to_the_end(story, one)
    assert story.view.active is not None
    assert story.view.active.source is Source.PLATFORM
    status = story.api.restores["r1"]["status"]
    assert status.get("redirect", {}).get("decision") != "Redirect"
    assert "RedirectedToStorage" not in {e["reason"] for e in story.api.events.values()}


async def test_a_redirect_whose_commit_is_not_answered_happens_once(story: Story) -> None:
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, "commit")
    story.advance(one, 1, Fate.UNANSWERED)
    await story.conductor.settle()
    await story.check()
    begun = story.view.active
    assert redirected(story) == "box-s1"
    await to_the_end(story, one)
    await to_the_end(story, one)
    assert story.view.active == begun
    assert len(story.api.pods) == 1
    told = story.api.restores["r1"]["status"]["redirect"]
    assert (told["decision"], len(told["conditions"])) == ("Redirect", 7)


# --- a second operator, a second restore, and requests that come late


@pytest.mark.parametrize("place", ["GET", "commit"])
async def test_of_two_operators_one_redirects_and_the_other_follows(
    story: Story, place: str
) -> None:
    one, two = story.operators
    await with_a_cached_row(story, two)
    story.tell(one)
    await until(story, one, "lock")
    await until(story, one, place)
    story.advance(two, 1000)
    await blocked(story.rig.eye)
    await to_the_end(story, one)
    await to_the_end(story, two)
    assert redirected(story) == "box-s1"
    assert len(story.view.attempts) == 1
    assert len(story.api.pods) == 1


async def test_a_second_restore_that_arrives_meanwhile_waits_for_the_first(story: Story) -> None:
    one = story.operators[0]
    await until(story, one, "lock")
    await until(story, one, "commit")
    story.add_restore()
    story.tell(one)
    await to_the_end(story, one)
    await to_the_end(story, one)
    assert [a.restore_uid for a in story.view.attempts] == ["box-r1"]
    second = story.api.restores["r2"]["status"]["conditions"]
    assert "SandboxBusy" in {c["reason"] for c in second}


@pytest.mark.parametrize("when", ["before the successor's", "after it", "after the attempt"])
async def test_a_late_post_of_a_dead_operator_makes_no_second_pod(story: Story, when: str) -> None:
    """Same name, gated, fenced: it is adopted, or refused, or swept before anything can run."""
    one, two = story.operators
    await until(story, one, "POST /api/v1")
    await story.restart(one, late=True)
    if when == "before the successor's":
        story.arrive(0)
        await to_the_end(story, two)
    elif when == "after it":
        story.tell(two)
        await to_the_end(story, two)
        story.arrive(0)
    else:
        story.api.remove("restores", "r1")
        story.tell(two)
        await to_the_end(story, two)
        assert story.view.active is None
        story.arrive(0)
        assert [label for label, _ in moves(story.cluster) if "binds" in label] == []
        story.tell(two)
        await to_the_end(story, two)
    await story.check()
    assert len(story.api.pods) == (0 if when == "after the attempt" else 1)
    assert len(story.view.attempts) <= 1


async def test_a_status_that_comes_late_takes_nothing_back(story: Story) -> None:
    """The old leader's words arrive after the new one has said how the restore ended."""
    one, two = story.operators
    await until(story, one, "PATCH /apis/")
    await story.restart(one, late=True)
    story.api.edit_restore("r1", activeDeadlineSeconds=1)
    story.cluster.pass_time(timedelta(seconds=5))
    story.tell(two)
    for _ in range(4):
        await to_the_end(story, two)
    ended = story.api.restores["r1"]["status"]
    assert {c["reason"] for c in ended["conditions"] if c["type"] == "Succeeded"} == {
        "DeadlineExceeded"
    }
    story.arrive(0)
    assert story.api.restores["r1"]["status"] == ended
