"""How a field of the settings is declared: its default, its section, what its value looks like."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandbox_restore import settings_values as values
from sandbox_restore.settings_values import DURATION_FORMS


def setting(default: Any, *, section: str, expects: str, **bounds: Any) -> Any:
    """A field with its section of the reference page and what its value must look like."""
    return Field(default, json_schema_extra={"section": section, "expects": expects}, **bounds)


def duration(default: str, /, *, section: str, at_least: str, at_most: str) -> Any:
    """A duration field with bounds, all written as a person writes them."""
    low, high = values.parse_duration(at_least), values.parse_duration(at_most)
    return setting(
        values.parse_duration(default),
        section=section,
        expects=f"a duration from {at_least} to {at_most}, {DURATION_FORMS}",
        ge=low,
        le=high,
    )
