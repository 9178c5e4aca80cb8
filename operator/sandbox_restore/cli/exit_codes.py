"""What the exit code of a command tells a script."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from sandbox_restore.errors import (
    ConfigurationError,
    LeaseLostError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    SchemaError,
    UnavailableError,
)


class ExitCode(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILED = 1
    """The answer is no, or the command could not do what was asked."""
    USAGE = 2
    """A setting, a file given or the command line is wrong; nothing was touched."""
    DATABASE = 3
    """The database cannot be reached or refuses us."""
    API_SERVER = 4
    """The Kubernetes API server cannot be reached or refuses us."""
    SCHEMA = 5
    """The database schema or the CRD is missing, behind or ahead of this program."""
    LEASE_LOST = 6
    """`run` only: another operator holds the Lease now; start again to stand by."""
    INTERNAL = 70
    """A fault of this program."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""


MEANING: Final = {
    ExitCode.OK: "done, or the answer is yes",
    ExitCode.FAILED: "the answer is no, or it failed",
    ExitCode.USAGE: "wrong settings or usage; nothing was touched",
    ExitCode.DATABASE: "the database cannot be reached or refuses",
    ExitCode.API_SERVER: "the API server cannot be reached or refuses",
    ExitCode.SCHEMA: "database schema or CRD missing, behind or ahead",
    ExitCode.LEASE_LOST: "run: another operator holds the Lease now",
    ExitCode.INTERNAL: "a fault of this program",
    ExitCode.INTERRUPTED: "interrupted",
}
"""One line for each code, as the help shows it."""


def exit_code_of(error: SandboxRestoreError) -> ExitCode:
    """The exit code that an error ends a command with.

    The database's errors begin with `database:` (store.edge), which is how an error that both
    servers can cause is told apart.
    """
    match error:
        case ConfigurationError():
            return ExitCode.USAGE
        case LeaseLostError():
            return ExitCode.LEASE_LOST
        case SchemaError():
            return ExitCode.SCHEMA
        case UnavailableError() | PermissionDeniedError():
            of_database = str(error).startswith("database:")
            return ExitCode.DATABASE if of_database else ExitCode.API_SERVER
        case RejectedError() if not str(error).startswith("database:"):
            return ExitCode.API_SERVER
    return ExitCode.FAILED
