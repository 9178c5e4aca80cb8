"""Follows objects of one kind for ever: list, watch, and list again when a watch cannot go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from tests.support.simnode.client import ABSENCE, ApiAnswerError, Client, Object

log = logging.getLogger("simnode")

_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Followed:
    """What to follow: a path of the API, selectors, and whether metadata is enough."""

    path: str
    _: KW_ONLY
    query: Mapping[str, str] = field(default_factory=dict)
    metadata_only: bool = False


async def follow(
    client: Client,
    what: Followed,
    *,
    replace: Callable[[list[Object]], None],
    change: Callable[[str, Object], None],
) -> None:
    """Call `replace` with all objects after each list and `change` with each event after it."""
    while True:
        try:
            items, version = await client.list(
                what.path, query=what.query, metadata_only=what.metadata_only
            )
            replace(items)
            async for kind, item in _changes(client, what, version=version):
                change(kind, item)
        except ApiAnswerError as error:
            log.info("watch of %s: %s; listing again", what.path, error)
        except ABSENCE as error:
            log.info("watch of %s: %r; listing again", what.path, error)
        await asyncio.sleep(_RETRY_SECONDS)


async def _changes(
    client: Client, what: Followed, *, version: str
) -> AsyncIterator[tuple[str, Object]]:
    """Yield the changes after `version`, over as many watches as it takes."""
    while True:
        before = version
        async for kind, item in client.watch(
            what.path, query=what.query, version=version, metadata_only=what.metadata_only
        ):
            version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                yield kind, item
        if version == before:
            # A server that ends a watch at once is going down: let the caller wait.
            return
