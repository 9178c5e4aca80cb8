"""Names and calls of the device plugin protocol, v1beta1, as the kubelet has them."""

from __future__ import annotations

from typing import Any, Final

import grpc

from sandbox_restore.agent.deviceplugin import v1beta1_pb2 as pb

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

REGISTER: Final = "/v1beta1.Registration/Register"
PLUGIN_SERVICE: Final = "v1beta1.DevicePlugin"
OPTIONS: Final = "GetDevicePluginOptions"
LIST_AND_WATCH: Final = "ListAndWatch"
ALLOCATE: Final = "Allocate"


def plugin_handler(*, options: Any, list_and_watch: Any, allocate: Any) -> Any:
    """The service that the kubelet calls, from three coroutine functions."""
    return grpc.method_handlers_generic_handler(
        PLUGIN_SERVICE,
        {
            OPTIONS: grpc.unary_unary_rpc_method_handler(
                options,
                request_deserializer=pb.Empty.FromString,
                response_serializer=pb.DevicePluginOptions.SerializeToString,
            ),
            LIST_AND_WATCH: grpc.unary_stream_rpc_method_handler(
                list_and_watch,
                request_deserializer=pb.Empty.FromString,
                response_serializer=pb.ListAndWatchResponse.SerializeToString,
            ),
            ALLOCATE: grpc.unary_unary_rpc_method_handler(
                allocate,
                request_deserializer=pb.AllocateRequest.FromString,
                response_serializer=pb.AllocateResponse.SerializeToString,
            ),
        },
    )


async def register(socket: str, *, endpoint: str, resource: str, timeout: float) -> None:
    """Asks the kubelet behind `socket` to connect to the plugin at `endpoint`, a file name.

    Raises grpc.RpcError with the kubelet's words.
    """
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            REGISTER,
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=endpoint,
            resource_name=resource,
            options=pb.DevicePluginOptions(),
        )
        await call(request, timeout=timeout)
