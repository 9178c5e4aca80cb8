"""A simulation of a kubelet's device manager: the registration server, and a client of plugins.

It is no kubelet. It shows that the agent speaks the protocol and in which order; what a real
kubelet does to running pods at its restart it cannot show.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from sandbox_restore.agent.deviceplugin import v1beta1_pb2 as pb

_NAME = "DevicePlugin"


class FakeKubelet:
    """A kubelet in `folder` that can be started and stopped again and again.

    `on_devices` is awaited with the number of healthy devices at each list that a plugin sends, and
    with 0 when the plugin goes: where a kubelet would report allocatable slots.
    """

    def __init__(
        self, folder: Path, *, on_devices: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        self.folder = folder
        self.registrations: list[pb.RegisterRequest] = []
        self.lists: list[int] = []
        """The number of healthy devices in each list, oldest first."""
        self.capacities: list[int] = []
        """The number of devices in each list that a plugin sent, healthy or not."""
        self.refuse = ""
        """Words with which registrations are refused; empty takes them."""
        self.deaf = False
        """Takes registrations and asks for nothing."""
        self._on_devices = on_devices
        self._server: Any = None
        self._listening: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeKubelet:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """As a kubelet starts: empties the folder but for its checkpoint, then listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.name != "kubelet_internal_checkpoint":
                path.unlink()
        handler = grpc.method_handlers_generic_handler(
            "v1beta1.Registration",
            {
                "Register": grpc.unary_unary_rpc_method_handler(
                    self._register,
                    request_deserializer=pb.RegisterRequest.FromString,
                    response_serializer=pb.Empty.SerializeToString,
                )
            },
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        """Goes away, with every connection; its socket file stays, as that of a killed one."""
        await self.hang_up()
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    async def hang_up(self) -> None:
        """Listens to no plugin any more, and stays."""
        for task in list(self._listening):
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def allocate(self, *containers: list[str]) -> int:
        """Ask the newest plugin for these devices; return how many answers came."""
        async with self._channel(self.registrations[-1].endpoint) as channel:
            call = channel.unary_unary(
                f"/v1beta1.{_NAME}/Allocate",
                request_serializer=pb.AllocateRequest.SerializeToString,
                response_deserializer=pb.AllocateResponse.FromString,
            )
            asked = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
            answer = await call(pb.AllocateRequest(container_requests=asked), timeout=5)
            return len(answer.container_responses)

    def _channel(self, endpoint: str) -> Any:
        return grpc.aio.insecure_channel(f"unix:{self.folder / endpoint}")

    async def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        self.registrations.append(request)
        if self.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        # A kubelet asks the plugin for its options before it answers.
        async with self._channel(request.endpoint) as channel:
            options = channel.unary_unary(
                f"/v1beta1.{_NAME}/GetDevicePluginOptions",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.DevicePluginOptions.FromString,
            )
            await options(pb.Empty(), timeout=5)
        if not self.deaf:
            task = asyncio.create_task(self._listen(request.endpoint))
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)
        return pb.Empty()

    async def _listen(self, endpoint: str) -> None:
        with contextlib.suppress(grpc.RpcError):
            async with self._channel(endpoint) as channel:
                watch = channel.unary_stream(
                    f"/v1beta1.{_NAME}/ListAndWatch",
                    request_serializer=pb.Empty.SerializeToString,
                    response_deserializer=pb.ListAndWatchResponse.FromString,
                )
                async for answer in watch(pb.Empty()):
                    self.capacities.append(len(answer.devices))
                    await self._heard(sum(d.health == "Healthy" for d in answer.devices))
        await self._heard(0)

    async def _heard(self, devices: int) -> None:
        self.lists.append(devices)
        if self._on_devices is not None:
            await self._on_devices(devices)
