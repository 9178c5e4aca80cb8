"""Network slots as devices of this node's kubelet (section 13).

A device plugin's resources are in the kubelet's checkpoint, so that pods which hold slots outlive
its restart; extended resources patched into the Node's status are zeroed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from sandbox_restore.agent.deviceplugin import protocol
from sandbox_restore.agent.deviceplugin import v1beta1_pb2 as pb
from sandbox_restore.agent.state import Kubelet
from sandbox_restore.errors import UnavailableError

log = structlog.get_logger()

REGISTER_SECONDS: Final = 10.0
"""How long a kubelet may take to answer a registration, and then to ask for the devices."""

STOP_SECONDS: Final = 0.5
"""How long calls of the kubelet may take to end when the server stops."""

SOCKET_LOOK_SECONDS: Final = 1.0
"""How often the kubelet's socket is looked at: one `stat`."""


class DevicePlugin:
    """Offers slots to the kubelet whose socket is in `folder`; belongs to one event loop.

    `devices` is how many there are; those that are not offered are called unhealthy, which keeps
    them in the node's capacity: a kubelet that restarts without its checkpoint would otherwise end
    the pods that hold one (docs/adr/0001).

    `changed` is called when the kubelet has gone or come back: what it was told is forgotten, and
    nothing is offered until `offer` is called again. So whoever decides looks at the Node first.
    """

    def __init__(
        self, *, folder: Path, resource: str, devices: int, changed: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._resource = resource
        self._total = devices
        self._changed = changed
        self._kubelet_socket = folder / protocol.KUBELET_SOCKET
        self._socket = folder / f"{resource.replace('/', '-')}.sock"
        self._server: Any = None
        self._slots = 0
        self._streams: set[asyncio.Event] = set()
        self._asked = asyncio.Event()
        self._registered_with: tuple[int, int] | None = None
        self._problem = ""

    @property
    def state(self) -> Kubelet:
        """What the kubelet has been told."""
        return Kubelet(
            slots=self._slots if self._registered else 0,
            registered=self._registered,
            problem=self._problem,
        )

    @property
    def _registered(self) -> bool:
        return self._registered_with is not None and bool(self._streams)

    async def offer(self, slots: int) -> None:
        """Registers if need be and offers that many slots. Raises UnavailableError with why not.

        With 0 the kubelet is told that none can be had; pods that hold one keep it.
        """
        self._slots = slots
        try:
            if not self._registered:
                await self._register()
        except UnavailableError as error:
            self._slots = 0
            self._problem = str(error)
            await self._close()
            raise
        self._problem = ""
        self._tell()

    async def stop(self) -> None:
        """Goes away: the kubelet then counts all slots as unhealthy, allocatable 0."""
        self._slots = 0
        await self._close()

    async def follow_kubelet(self) -> None:
        """Watches for the kubelet's going and coming until cancelled.

        A kubelet that starts empties the folder and makes its socket anew.
        """
        before = _identity(self._kubelet_socket)
        while True:
            await asyncio.sleep(SOCKET_LOOK_SECONDS)
            now = _identity(self._kubelet_socket)
            known = self._registered_with
            if known is not None and (now != known or not self._socket.exists()):
                log.info("kubelet_restarted", socket=str(self._kubelet_socket))
                await self._close()
                self._changed()
            elif known is None and now is not None and now != before:
                self._changed()
            before = now

    # --- the kubelet's calls

    async def _options(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def _list_and_watch(
        self, _request: pb.Empty, _context: Any
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """The whole list now and at each change, for as long as the kubelet listens."""
        told, server = asyncio.Event(), self._server
        self._streams.add(told)
        self._asked.set()
        try:
            while self._server is server:
                told.clear()
                yield _devices(self._slots, total=self._total)
                await told.wait()
        finally:
            self._streams.discard(told)
            if not self._streams:
                self._lost()

    async def _allocate(self, request: pb.AllocateRequest, _context: Any) -> pb.AllocateResponse:
        """A slot is only counted: its container gets nothing from us."""
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse() for _ in request.container_requests]
        )

    # --- our side

    async def _register(self) -> None:
        identity = _identity(self._kubelet_socket)
        if identity is None:
            raise UnavailableError(f"there is no kubelet at {self._kubelet_socket}")
        await self._serve()
        self._asked.clear()
        try:
            await protocol.register(
                str(self._kubelet_socket),
                endpoint=self._socket.name,
                resource=self._resource,
                timeout=REGISTER_SECONDS,
            )
            async with asyncio.timeout(REGISTER_SECONDS):
                await self._asked.wait()
        except grpc.RpcError as error:
            words = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise UnavailableError(f"the kubelet refused the registration: {words}") from error
        except TimeoutError as error:
            raise UnavailableError(
                "the kubelet took the registration and did not ask for the devices"
            ) from error
        self._registered_with = identity
        log.info("device_plugin_registered", resource=self._resource, slots=self._slots)

    async def _serve(self) -> None:
        """A server on a fresh socket: a kubelet that started meanwhile has removed the old one."""
        await self._close()
        with contextlib.suppress(FileNotFoundError):
            self._socket.unlink()
        server = grpc.aio.server()
        handler = protocol.plugin_handler(
            options=self._options,
            list_and_watch=self._list_and_watch,
            allocate=self._allocate,
        )
        server.add_generic_rpc_handlers((handler,))
        try:
            server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError as error:
            raise UnavailableError(f"{self._socket} cannot be made: {error}") from error
        self._server = server
        await server.start()

    async def _close(self) -> None:
        self._registered_with = None
        server, self._server = self._server, None
        if server is not None:
            # Streams end by themselves; one that a dead kubelet left open is cut.
            self._tell()
            await server.stop(grace=STOP_SECONDS)

    def _lost(self) -> None:
        """The kubelet listens no more."""
        if self._registered_with is not None:
            self._registered_with = None
            log.info("kubelet_stopped_listening", resource=self._resource)
            self._changed()

    def _tell(self) -> None:
        for told in self._streams:
            told.set()


def _devices(slots: int, *, total: int) -> pb.ListAndWatchResponse:
    """As many healthy devices as slots are offered; the others are there and take no pod."""
    health = [protocol.HEALTHY] * slots + [protocol.UNHEALTHY] * (total - slots)
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=f"slot-{n}", health=word) for n, word in enumerate(health)]
    )


def _identity(socket: Path) -> tuple[int, int] | None:
    """Which socket it is: another one of the same name has another inode or another time."""
    try:
        found = os.stat(socket)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
