"""Errors of the test bed: each message is one clear line with what, where and what to do."""


class TestbedError(Exception):
    """The test bed cannot do what was asked; the message is for a person."""

    # Not a test class, whatever its name looks like to a collector.
    __test__ = False


class BuildError(TestbedError):
    """A program could not be built; the message names the log that holds the whole output."""


class ComponentDiedError(TestbedError):
    """A component ended by itself; the message has its exit code and its last log lines."""


class DeadlineError(TestbedError):
    """Something that was waited for did not come about in time."""


class ApiError(TestbedError):
    """The API server answered a request with an error.

    `status` is the HTTP status; `reason` is the machine-readable reason of the `Status` object
    (`NotFound`, `Conflict`, ...) or an empty string.
    """

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
