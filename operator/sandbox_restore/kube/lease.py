"""A Lease of our own: one operator of several acts (architecture.md; no part of the proof)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from sandbox_restore.errors import (
    ConflictError,
    LeaseLostError,
    SandboxRestoreError,
    UnavailableError,
)
from sandbox_restore.kube.client import KubeClient, NotFoundError

log = structlog.get_logger()


class Lease:
    """Acquire, renew, give back. Times in seconds; expiry is judged by this process's own clock.

    Another holder's Lease counts as expired when it has not changed for its own duration as
    observed here, so that clocks of different machines are never compared.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        holder: str,
        duration: float,
        renew_interval: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"
        self._path = f"{self._collection}/{quote(name)}"
        self._namespace, self._name = namespace, name
        self.holder = holder
        self._duration = duration
        self._interval = renew_interval
        self._monotonic = monotonic
        self._seen: tuple[str, float] = ("", 0.0)
        self._current: dict[str, Any] = {}
        self.renewed_at: float | None = None

    @property
    def held(self) -> bool:
        """Held and renewed within its duration."""
        return self.renewed_at is not None and self._monotonic() - self.renewed_at < self._duration

    async def acquire(self, *, on_wait: Callable[[], None]) -> None:
        """Waits until the Lease is ours; raises what waiting cannot mend (rights, namespace)."""
        while True:
            try:
                if await self._try():
                    log.info("lease_acquired", lease=self._name, holder=self.holder)
                    return
                on_wait()
            except (ConflictError, UnavailableError) as error:
                log.warning("lease_not_acquired", lease=self._name, problem=str(error))
            await asyncio.sleep(min(self._interval, 1.0))

    async def _try(self) -> bool:
        now = self._monotonic()
        try:
            found = await self._read()
        except NotFoundError:
            await self._create()
            return True
        spec = found.get("spec", {})
        version = found["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, now)
        theirs = float(spec.get("leaseDurationSeconds") or 0)
        holder = spec.get("holderIdentity")
        if holder and holder != self.holder and now - self._seen[1] < theirs:
            return False
        await self._write(found, transitions=int(spec.get("leaseTransitions") or 0) + 1)
        return True

    async def hold(self) -> None:
        """Renews until cancelled; LeaseLostError when that fails for the whole duration."""
        assert self.renewed_at is not None
        while True:
            await asyncio.sleep(self._interval)
            left = self._duration - (self._monotonic() - self.renewed_at)
            if left <= 0:
                raise LeaseLostError(
                    f"Lease {self._name} was not renewed for {self._duration:.0f} s"
                )
            try:
                async with asyncio.timeout(min(left, max(self._interval, 1.0))):
                    await self._write(self._current)
            except ConflictError:
                await self._look_again()
            except NotFoundError:
                self._current = {}
                await self._restore_missing()
            except (SandboxRestoreError, TimeoutError) as error:
                log.warning("lease_not_renewed", lease=self._name, problem=str(error))

    async def _look_again(self) -> None:
        """Somebody has written the Lease: LeaseLostError if it is another holder's now."""
        try:
            found = await self._read()
        except SandboxRestoreError as error:
            log.warning("lease_not_read", lease=self._name, problem=str(error))
            return
        holder = found.get("spec", {}).get("holderIdentity")
        if holder != self.holder:
            raise LeaseLostError(f"Lease {self._name} is held by {holder}")
        self._current = found

    async def _restore_missing(self) -> None:
        try:
            await self._create()
        except SandboxRestoreError as error:
            log.warning("lease_not_created", lease=self._name, problem=str(error))

    async def give_back(self) -> None:
        """Clears the holder, so that another need not wait for the Lease to expire."""
        if not self.held:
            return
        body = dict(self._current)
        body["spec"] = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        self.renewed_at = None
        try:
            await self._client.request("PUT", self._path, body=body, timeout=3.0)
        except SandboxRestoreError as error:
            log.info("lease_not_given_back", lease=self._name, problem=str(error))

    async def _read(self) -> dict[str, Any]:
        raw = await self._client.request("GET", self._path)
        found: dict[str, Any] = msgspec.json.decode(raw)
        return found

    async def _create(self) -> None:
        sent = self._monotonic()
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}, transitions=0),
        }
        raw = await self._client.request("POST", self._collection, body=body)
        self._current, self.renewed_at = msgspec.json.decode(raw), sent

    async def _write(self, found: dict[str, Any], *, transitions: int | None = None) -> None:
        sent = self._monotonic()
        body = {**found, "spec": self._spec(found.get("spec", {}), transitions=transitions)}
        raw = await self._client.request("PUT", self._path, body=body)
        self._current, self.renewed_at = msgspec.json.decode(raw), sent

    def _spec(self, old: dict[str, Any], *, transitions: int | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": int(self._duration),
            "acquireTime": now if transitions is not None else old.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": (
                transitions if transitions is not None else old.get("leaseTransitions", 0)
            ),
        }
