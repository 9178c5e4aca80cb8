"""Section 15: two roles with only the rights that each side needs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from sandbox_restore.errors import PermissionDeniedError
from sandbox_restore.model.sandbox import NodeCpuSpan, Outcome, SandboxState
from sandbox_restore.store.migrations.roles import OPERATOR, PLATFORM, PLATFORM_FUNCTIONS
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, load, with_option


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    await db.stored()
    await db.started()
    return db


@pytest.fixture
async def acting(box: Database, other: Database) -> AsyncIterator[Database]:
    """A connection that takes a role with SET ROLE."""
    yield other
    await other.raw.execute("RESET ROLE")


TABLES = ("sandbox", "snapshot", "execution", "load_observation", "node_cpu_history")

FORBIDDEN_TO_BOTH = [
    "INSERT INTO sandbox_restore.sandbox (id, namespace) VALUES ('new', 'ns')",
    "DELETE FROM sandbox_restore.sandbox",
    "UPDATE sandbox_restore.sandbox SET id = 'other'",
    "UPDATE sandbox_restore.sandbox SET namespace = 'other'",
    "UPDATE sandbox_restore.sandbox SET version = 1",
    "UPDATE sandbox_restore.sandbox SET node_group = 'g'",
    "UPDATE sandbox_restore.sandbox SET node_selector = '{}'",
    "UPDATE sandbox_restore.sandbox SET last_command_at = now()",
    "UPDATE sandbox_restore.sandbox SET last_access_at = now()",
    "INSERT INTO sandbox_restore.snapshot (id, sandbox_id) VALUES ('new', 'box')",
    "UPDATE sandbox_restore.snapshot SET state = 'failed'",
    "UPDATE sandbox_restore.snapshot SET host_cpu = 'a'",
    "DELETE FROM sandbox_restore.snapshot",
    "DELETE FROM sandbox_restore.execution",
    "UPDATE sandbox_restore.execution SET sandbox_id = 'box'",
    "UPDATE sandbox_restore.execution SET created_at = now()",
    "UPDATE sandbox_restore.execution SET suspended_at = now()",
    "UPDATE sandbox_restore.execution SET prior_pin = NULL",
    "UPDATE sandbox_restore.execution SET source = 'local'",
    "UPDATE sandbox_restore.load_observation SET result = 'loaded'",
    "UPDATE sandbox_restore.node_cpu_history SET host_cpu = 'a'",
    "UPDATE sandbox_restore.alembic_version SET version_num = '0'",
    *(f"TRUNCATE sandbox_restore.{table} CASCADE" for table in TABLES),
    "CREATE TABLE sandbox_restore.mine (id int)",
    "DROP TABLE sandbox_restore.sandbox",
    "ALTER TABLE sandbox_restore.sandbox DISABLE TRIGGER raise_version",
    "SELECT sandbox_restore.platform_held('box')",
    "SELECT sandbox_restore.platform_stored_since('box', now())",
    "SELECT sandbox_restore.touch_sandbox()",
]

FORBIDDEN_TO_PLATFORM = [
    "UPDATE sandbox_restore.sandbox SET state = 'suspended'",
    "UPDATE sandbox_restore.sandbox SET pinned_node = NULL",
    "UPDATE sandbox_restore.sandbox SET local_artifact_marker = false",
    "SELECT FROM sandbox_restore.sandbox FOR UPDATE",
    "INSERT INTO sandbox_restore.execution (id, sandbox_id) VALUES ('e', 'box')",
    "UPDATE sandbox_restore.execution SET state = 'retired'",
    "INSERT INTO sandbox_restore.load_observation (execution_id) VALUES ('e')",
    "DELETE FROM sandbox_restore.load_observation",
    "INSERT INTO sandbox_restore.node_cpu_history (node_name) VALUES ('n')",
    "DELETE FROM sandbox_restore.node_cpu_history",
    "SELECT sandbox_restore.operator_view('box', '{}')",
    "SELECT sandbox_restore.operator_lock('box', '{}')",
    "SELECT sandbox_restore.operator_set_marker('box', '{}', false)",
    "SELECT sandbox_restore.operator_fail_row('box', '{}', now())",
    "SELECT sandbox_restore.operator_mark_released('box', '{}', 'e', 'u', now())",
    "SELECT sandbox_restore.operator_observe('e', 'loaded', now())",
]

FORBIDDEN_TO_OPERATOR = [
    "SELECT sandbox_restore.sandbox_created('new', 'ns')",
    "SELECT sandbox_restore.sandbox_command('box')",
    "SELECT sandbox_restore.sandbox_access('box')",
    "SELECT sandbox_restore.execution_started('box', 'n', 'p', 'u')",
    "SELECT sandbox_restore.sandbox_suspended('box', 'n', 'u')",
    "SELECT sandbox_restore.node_state_lost('box')",
    "SELECT sandbox_restore.snapshot_started('box', 's')",
    "SELECT sandbox_restore.snapshot_ready('box', 's')",
    "SELECT sandbox_restore.snapshot_failed('box', 's')",
]


@pytest.mark.parametrize(
    ("role", "statements"),
    [
        (OPERATOR, FORBIDDEN_TO_BOTH + FORBIDDEN_TO_OPERATOR),
        (PLATFORM, FORBIDDEN_TO_BOTH + FORBIDDEN_TO_PLATFORM),
    ],
)
async def test_what_a_role_does_not_need_is_refused(
    acting: Database, role: str, statements: list[str]
) -> None:
    await acting.raw.execute(f"SET ROLE {role}")
    allowed = []
    for statement in statements:
        try:
            await acting.raw.execute(statement)
        except asyncpg.InsufficientPrivilegeError:
            continue
        allowed.append(statement)
    assert allowed == []


def test_every_platform_function_is_forbidden_to_the_operator() -> None:
    tried = " ".join(FORBIDDEN_TO_OPERATOR)
    assert [name for name in PLATFORM_FUNCTIONS if f"{name}(" not in tried] == []


@pytest.mark.parametrize("role", [OPERATOR, PLATFORM])
async def test_both_may_read_everything_and_the_revision(acting: Database, role: str) -> None:
    await acting.raw.execute(f"SET ROLE {role}")
    for table in (*TABLES, "alembic_version"):
        await acting.raw.execute(f"SELECT * FROM sandbox_restore.{table}")


async def test_nobody_else_may_do_anything(acting: Database) -> None:
    await acting.raw.execute("DROP ROLE IF EXISTS sr_test_nobody; CREATE ROLE sr_test_nobody")
    try:
        await acting.raw.execute("SET ROLE sr_test_nobody")
        for statement in (
            "SELECT * FROM sandbox_restore.sandbox",
            *FORBIDDEN_TO_BOTH,
            *FORBIDDEN_TO_PLATFORM,
            *FORBIDDEN_TO_OPERATOR,
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await acting.raw.execute(statement)
    finally:
        await acting.raw.execute("RESET ROLE; DROP ROLE sr_test_nobody")


async def test_the_platforms_rights_are_enough_for_all_it_reports(
    acting: Database, box: Database
) -> None:
    await acting.raw.execute(f"SET ROLE {PLATFORM}")
    await acting.created("mine")
    await acting.call("sandbox_command", sandbox_id=SANDBOX)
    await acting.call("sandbox_access", sandbox_id=SANDBOX)
    await acting.stored("later", second=30)
    await acting.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="bad")
    await acting.call("snapshot_failed", sandbox_id=SANDBOX, snapshot_id="bad")
    assert await acting.suspended()
    await acting.started("pod-2")
    assert await acting.call("node_state_lost", sandbox_id=SANDBOX)


async def test_the_operators_rights_are_enough_for_all_it_does(box: Database, dsn: str) -> None:
    await box.suspended()
    async with await Store.open(with_option(dsn, f"role={OPERATOR}")) as store:
        await store.ping()
        (await store.schema_state()).require_current()
        async with store.locked(SANDBOX) as locked:
            await locked.set_marker()
            await locked.clear_marker()
            await begin(locked, 1, clear_pin=True)
            await locked.retire(
                execution_id="execution-1",
                outcome=Outcome.FAILED,
                failure_class="cpu-incompatible",
                node_name="node-b",
                row_state=SandboxState.RESTORING,
                pinned_node="node-b",
                marker=False,
                now=at(110),
            )
            await locked.fail_row(at(110))
            await begin(locked, 2)
            await load(locked, 2)
        view = await store.mark_released(SANDBOX, "execution-2", pod_uid="pod-of-2", now=at(120))
        assert view is not None
        assert view.active is not None
        await store.unreleased_active()
        await store.restoring_without_active()
        await store.released_retired(at(0))
        await store.counts()
        assert await store.refusals(at(0)) == {}
        assert len(await store.observations(at(0))) == 2
        span = NodeCpuSpan(
            node_name="n", node_uid="u", host_cpu="a", first_seen_at=at(0), last_seen_at=at(1)
        )
        await store.record_nodes([span])
        assert await store.node_history(at(0)) == [span]
        assert await store.prune(observations_before=at(999), spans_before=at(999)) == 3


async def test_the_operator_may_not_write_what_is_the_platforms_through_the_store(
    box: Database, dsn: str
) -> None:
    async with await Store.open(with_option(dsn, f"role={PLATFORM}")) as store:
        with pytest.raises(PermissionDeniedError, match="permission denied for function"):
            await store.view(SANDBOX)


async def test_functions_with_the_owners_rights_have_a_fixed_search_path(db: Database) -> None:
    rows = await db.raw.fetch(
        """
        SELECT p.proname FROM pg_proc p
        WHERE p.pronamespace = 'sandbox_restore'::regnamespace
            AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{}'))
        """
    )
    assert rows == []


async def test_a_platforms_own_objects_do_not_lead_a_function_astray(
    acting: Database, box: Database
) -> None:
    """A temporary table or operator of the caller must not be taken for the schema's."""
    await acting.raw.execute(
        f"""
        SET ROLE {PLATFORM};
        CREATE TEMPORARY TABLE sandbox (id text, state text);
        CREATE TEMPORARY TABLE execution (id text, state text);
        CREATE FUNCTION pg_temp.now() RETURNS timestamptz
            LANGUAGE sql AS 'SELECT NULL::timestamptz';
        SET search_path = pg_temp, sandbox_restore, pg_catalog;
        """
    )
    assert await acting.suspended()
    assert (await box.view()).sandbox.state is SandboxState.SUSPENDED
    await acting.raw.execute("RESET search_path; RESET ROLE; DISCARD TEMP")
