"""The service `kubernetes` for pods with a network of their own: what kube-proxy would do."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from tests.support.testbed import ControlPlane

PORT = 443
_CHUNK = 2**16


class ApiService:
    """Hands connections to the service's address on to the API server; a context manager.

    The address is on this machine only while a pod is (config.cni_conflist): the socket is bound
    to it all the same.
    """

    def __init__(self, plane: ControlPlane) -> None:
        host, port = plane.server.removeprefix("https://").rsplit(":", 1)
        self._address = (str(plane.api_service), PORT)
        self._server = (host, int(port))
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.setsockopt(socket.IPPROTO_IP, _FREE_BIND, 1)
        self._open: set[socket.socket] = set()

    def __enter__(self) -> ApiService:
        self._listening.bind(self._address)
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self._listening, *self._open):
            _cut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                # The API server is away: its client finds no answer either.
                client.close()
                continue
            self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(_CHUNK):
                target.sendall(content)
        for one in (source, target):
            _cut(one)
            self._open.discard(one)


_FREE_BIND = 15
"""IP_FREEBIND of Linux, which Python 3.11 has no name for."""


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
