"""Rows that the sweeps and metrics read, and how JSON rows become records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from sandbox_restore.errors import SchemaError
from sandbox_restore.model.sandbox import SandboxView

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExecution:
    """An active execution of a restore whose pod has not been released (section 15, the sweep)."""

    sandbox_id: str
    namespace: str
    execution_id: str
    restore_uid: str
    restore_name: str
    pod_name: str
    loaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedExecution:
    """A retired execution whose pod was released: the pod is deleted once it is terminal."""

    sandbox_id: str
    namespace: str
    execution_id: str
    restore_uid: str
    restore_name: str
    pod_name: str
    pod_uid: str
    retired_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoringRow:
    """A row that says `restoring` while no execution is active."""

    sandbox_id: str
    namespace: str
    restore_uid: str | None
    """The restore of the newest execution; None when the platform started the newest one."""
    restore_name: str | None
    restore_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the metrics show of the database."""

    sandboxes: Mapping[str, int] = field(default_factory=dict)
    """Rows by state; a state without rows is absent."""


def decode(raw: str | bytes, kind: type[T]) -> T:
    """The record that a JSON row stands for.

    Raises SchemaError when the row does not have the shape this program knows.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise SchemaError(
            f"database: a {kind.__name__} row has an unknown shape: {error}"
        ) from None


def encode(rows: Sequence[object]) -> str:
    """Records as the JSON text of a parameter."""
    return msgspec.json.encode(rows).decode()


def storable(text: str | None) -> str | None:
    """The text as a Postgres text can hold it: what a runner says may hold anything."""
    if text is None:
        return None
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def decode_view(raw: Any) -> SandboxView | None:
    """The view in the one column of an answer, or None when there is no such row."""
    return None if raw is None else decode(raw, SandboxView)


def decode_rows(raw: Any, kind: type[T]) -> list[T]:
    """The list of records in the one column of an answer."""
    return decode("[]" if raw is None else raw, list[kind])  # type: ignore[valid-type]
