"""How a revision runs its SQL."""

from __future__ import annotations

from alembic import op


def run(*statements: str) -> None:
    """Runs each statement as it is written: no parameter, no escape is looked for in it."""
    connection = op.get_bind()
    for statement in statements:
        connection.exec_driver_sql(statement)
