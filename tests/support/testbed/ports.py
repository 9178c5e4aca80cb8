"""Free ports on loopback."""

import contextlib
import random
import socket

from tests.support.testbed.errors import TestbedError

LOOPBACK = "127.0.0.1"
"""The only address that any program of the test bed listens on."""

_RANGE = range(15_000, 32_000)
"""Below the ports that Linux and macOS give to outgoing connections, so that a port stays free
while its program is down for a while."""

_TRIES = 1_000


def is_free(port: int) -> bool:
    """Tell whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports, at random so that two test runs seldom meet.

    Raises TestbedError when too few are free.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            port = random.choice(_RANGE)
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                found.append(port)
    raise TestbedError(
        f"only {len(found)} of {count} ports in {_RANGE.start}-{_RANGE.stop} on {LOOPBACK} are "
        "free; end what holds them"
    )
