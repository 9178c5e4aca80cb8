"""The store's edge: every exception of the driver becomes one clear line of ours."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from sandbox_restore.errors import (
    ConfigurationError,
    ConflictError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    SchemaError,
    UnavailableError,
)
from sandbox_restore.store.edge import redact, translate, translated
from sandbox_restore.store.store import Store
from tests.store.helpers import with_option

ERRORS: list[tuple[BaseException, type[SandboxRestoreError]]] = [
    (asyncpg.UniqueViolationError("twice"), ConflictError),
    (asyncpg.ExclusionViolationError("overlaps"), ConflictError),
    (asyncpg.SerializationError("try again"), ConflictError),
    (asyncpg.DeadlockDetectedError("deadlock"), ConflictError),
    (asyncpg.LockNotAvailableError("locked"), ConflictError),
    (asyncpg.CheckViolationError("impossible"), RejectedError),
    (asyncpg.ForeignKeyViolationError("nobody"), RejectedError),
    (asyncpg.NotNullViolationError("null"), RejectedError),
    (asyncpg.InvalidParameterValueError("no"), RejectedError),
    (asyncpg.StringDataRightTruncationError("long"), RejectedError),
    (asyncpg.InFailedSQLTransactionError("aborted"), RejectedError),
    (asyncpg.InsufficientPrivilegeError("no rights"), PermissionDeniedError),
    (asyncpg.InvalidPasswordError("wrong"), PermissionDeniedError),
    (asyncpg.InvalidAuthorizationSpecificationError("who"), PermissionDeniedError),
    (asyncpg.UndefinedTableError("gone"), SchemaError),
    (asyncpg.UndefinedColumnError("gone"), SchemaError),
    (asyncpg.UndefinedFunctionError("gone"), SchemaError),
    (asyncpg.InvalidSchemaNameError("gone"), SchemaError),
    (asyncpg.InvalidCatalogNameError("gone"), SchemaError),
    (asyncpg.TooManyConnectionsError("full"), UnavailableError),
    (asyncpg.DiskFullError("full"), UnavailableError),
    (asyncpg.OutOfMemoryError("full"), UnavailableError),
    (asyncpg.AdminShutdownError("bye"), UnavailableError),
    (asyncpg.CannotConnectNowError("starting up"), UnavailableError),
    (asyncpg.QueryCanceledError("too slow"), UnavailableError),
    (asyncpg.ReadOnlySQLTransactionError("a standby"), UnavailableError),
    (asyncpg.IdleInTransactionSessionTimeoutError("idle"), UnavailableError),
    (asyncpg.ConnectionDoesNotExistError("cut"), UnavailableError),
    (asyncpg.InterfaceError("connection is closed"), UnavailableError),
    (asyncpg.InternalClientError("odd"), UnavailableError),
    (ConnectionRefusedError("refused"), UnavailableError),
    (TimeoutError(), UnavailableError),
    (asyncpg.ClientConfigurationError("secret"), ConfigurationError),
    (asyncpg.exceptions._base.DataError("not a str"), RejectedError),
]


@pytest.mark.parametrize(
    ("error", "kind"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS]
)
async def test_each_error_has_its_class_and_one_line(
    error: BaseException, kind: type[SandboxRestoreError]
) -> None:
    @translated
    async def fail() -> None:
        raise error

    with pytest.raises(SandboxRestoreError) as caught:
        await fail()
    assert type(caught.value) is kind
    assert str(caught.value).startswith("database")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("error", [KeyError("ours"), asyncio.CancelledError(), ZeroDivisionError()])
async def test_what_is_no_error_of_the_driver_goes_through(error: BaseException) -> None:
    @translated
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await fail()
    assert caught.value is error


def test_a_message_of_many_lines_becomes_its_first() -> None:
    said = translate(asyncpg.RaiseError("first\n  second"))
    assert str(said) == "database: first [P0001]"


async def test_a_hint_is_shown_and_a_row_is_not(store: Store) -> None:
    async with store._connection() as connection:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.raw.execute(
                "INSERT INTO sandbox_restore.sandbox (id, namespace, state)"
                " VALUES ('top-secret', 'ns', 'odd')"
            )
        line = str(translate(caught.value))
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.raw.execute("SELECT sandbox_restore.sandbox_command('x')")
        hint = str(translate(caught.value))
    assert "sandbox_state_known" in line
    assert "top-secret" not in line
    assert hint.endswith('sandbox "x" does not exist (report it with sandbox_created() first)')


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgres://u:p%40@h1:1,h2:2/d?sslmode=require&password=p", "postgres://u@h1:1,h2:2/d"),
        ("postgresql:///d?host=/run/pg&password=p", "postgresql:///d"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("mysql://u:p@h/d", "postgresql://…"),
        ("postgresql://[u:p@h/d", "postgresql://…"),
        ("", "postgresql://…"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact(url) == shown


async def test_a_store_shows_itself_without_secrets(dsn: str) -> None:
    async with await Store.open(with_option(dsn, "password=hidden")) as store:
        assert "hidden" not in repr(store)
        assert repr(store).startswith("Store(postgresql://")
