"""The cluster as commands reach it: credentials, namespace, one client for one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.kube.client import KubeClient, current_namespace, load_configuration
from sandbox_restore.kube.objects import KubeObjects


@asynccontextmanager
async def cluster(
    *, kubeconfig: Path | None, context: str | None, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[KubeObjects]:
    """Requests to the API server that the credentials name; `namespaces` narrows the lists.

    A command that lists restores gives the namespaces served: the operator may have rights in
    these alone. Raises ConfigurationError.
    """
    client = KubeClient(await load_configuration(kubeconfig=kubeconfig, context=context))
    try:
        yield KubeObjects(client, namespaces=namespaces)
    finally:
        await client.close()


def namespace_of(given: str | None, *, kubeconfig: Path | None, context: str | None) -> str:
    """The namespace that was named, the context's, or `default`."""
    return given or current_namespace(kubeconfig=kubeconfig, context=context) or "default"


def split_name(name: str, namespace: str | None) -> tuple[str, str | None]:
    """`NAMESPACE/NAME` as kubectl users paste it; both ways of naming the namespace must agree."""
    if "/" not in name:
        return name, namespace
    given, _, rest = name.partition("/")
    if given in ("sbr", "sandboxrestore", "sandboxrestores", "sandboxrestores.space.pplx.net"):
        return rest, namespace
    if namespace is not None and namespace != given:
        raise ConfigurationError([f"{name!r} and --namespace {namespace!r} name two namespaces"])
    return rest, given
