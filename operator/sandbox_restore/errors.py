"""The errors of this project; they know no framework, and their class decides what happens next."""

from __future__ import annotations


class SandboxRestoreError(Exception):
    """Root of all errors raised on purpose: one line saying what, where, and what to do."""


class ConfigurationError(SandboxRestoreError):
    """Settings, a template or a file given by a person are wrong: exit code 2, nothing touched.

    `problems` holds one line per problem, so that all are reported at once.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnavailableError(SandboxRestoreError):
    """A server cannot be reached or answers that it is overloaded: worth trying again."""


class PermissionDeniedError(SandboxRestoreError):
    """A server refused for want of rights: a person must grant them; tried again slowly."""


class SchemaError(SandboxRestoreError):
    """The database schema is behind or ahead of this program, or the CRD is missing or too old."""


class ConflictError(SandboxRestoreError):
    """Another writer came first; what was read is stale and must be read again."""


class RejectedError(SandboxRestoreError):
    """A server refused a request for good: asking the same again gets the same answer."""


class LeaseLostError(SandboxRestoreError):
    """The Lease could not be renewed in time, or another holder has it: this process must end."""
