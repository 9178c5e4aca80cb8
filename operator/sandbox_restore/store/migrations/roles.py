"""The two roles and their rights: not a history but a state, made true on every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection

OPERATOR: Final = "sandbox_restore_operator"
PLATFORM: Final = "sandbox_restore_platform"

READ: Final = (
    "USAGE ON SCHEMA sandbox_restore",
    "SELECT ON ALL TABLES IN SCHEMA sandbox_restore",
)

RIGHTS: Final = {
    OPERATOR: (
        *READ,
        "UPDATE (state, pinned_node, local_artifact_marker, restore_started_at, namespace_uid)"
        " ON sandbox_restore.sandbox",
        "INSERT (id, sandbox_id, snapshot_id, source, restore_uid, restore_name, attempt,"
        " pod_name, target_node, prior_pin, gate, capture_cpu, state, created_at)"
        " ON sandbox_restore.execution",
        "UPDATE (state, outcome, failure_class, failure_message, pod_uid, node_name, node_uid,"
        " node_cpu, loaded_at, released_at, retired_at) ON sandbox_restore.execution",
        "INSERT, DELETE ON sandbox_restore.load_observation",
        "INSERT, DELETE, UPDATE (last_seen_at) ON sandbox_restore.node_cpu_history",
    ),
    PLATFORM: READ,
}

PLATFORM_FUNCTIONS: Final = (
    "sandbox_created",
    "sandbox_command",
    "sandbox_access",
    "execution_started",
    "sandbox_suspended",
    "node_state_lost",
    "snapshot_started",
    "snapshot_ready",
    "snapshot_failed",
)

EXISTS: Final = "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = '{role}'"
MAY_CREATE: Final = (
    "SELECT rolcreaterole OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"
)
FUNCTIONS: Final = (
    "SELECT p.oid::regprocedure::text, p.proname FROM pg_catalog.pg_proc p"
    " WHERE p.pronamespace = 'sandbox_restore'::regnamespace AND p.prokind = 'f'"
)


def ensure_roles(connection: Connection, *, notify: Callable[[str], None]) -> None:
    """Creates the roles that are missing and grants exactly what each side needs.

    A user who may not create roles is told so and goes on: the schema is complete, and the next run
    after somebody has created them grants the rights. Rights granted by hand are taken back.
    """
    every = connection.exec_driver_sql(FUNCTIONS).all()
    _revoke(connection, "PUBLIC")
    for role, rights in RIGHTS.items():
        if not _ensure(connection, role, notify=notify):
            continue
        _revoke(connection, role)
        for right in rights:
            connection.exec_driver_sql(f"GRANT {right} TO {role}")
        for signature, name in every:
            if (name in PLATFORM_FUNCTIONS) if role == PLATFORM else name.startswith("operator_"):
                connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")


def _revoke(connection: Connection, role: str) -> None:
    connection.exec_driver_sql(f"REVOKE ALL ON SCHEMA sandbox_restore FROM {role}")
    for kind in ("TABLES", "SEQUENCES", "ROUTINES"):
        connection.exec_driver_sql(
            f"REVOKE ALL ON ALL {kind} IN SCHEMA sandbox_restore FROM {role}"
        )


def _ensure(connection: Connection, role: str, *, notify: Callable[[str], None]) -> bool:
    """Whether the role exists now."""
    if connection.exec_driver_sql(EXISTS.format(role=role)).first():
        return True
    if connection.exec_driver_sql(MAY_CREATE).scalar_one():
        # Roles belong to the whole server: a migration of another database may be creating it too.
        connection.exec_driver_sql(
            f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
        return True
    notify(
        f"role {role} does not exist and this user may not create roles: no rights were granted to"
        f" it; have it created (CREATE ROLE {role} NOLOGIN), then run `sandbox-restore migrate`"
        " again"
    )
    return False
