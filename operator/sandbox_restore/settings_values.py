"""How the text of one environment variable becomes a value: durations, lists, label keys, URLs.

Every parser raises ValueError whose text says what is wrong with the value; the setting itself
adds what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DNS_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_URI_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s?#]*/", re.ASCII)

DURATION_FORMS: Final = "such as 30s, 2m, 1h30m, 500ms or plain seconds"


def parse_duration(value: object) -> timedelta:
    """A span of time from `30s`, `2m`, `1h30m`, `500ms`, `1d` or a plain number of seconds."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    if _SECONDS.fullmatch(text):
        return _span(float(text), _UNITS["s"])
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError("not a duration")
    return sum((_span(float(amount), _UNITS[unit]) for amount, unit in parts), timedelta())


def _span(amount: float, unit: timedelta) -> timedelta:
    try:
        return amount * unit
    except OverflowError:
        raise ValueError("too long for a duration") from None


def format_duration(span: timedelta) -> str:
    """The shortest form that `parse_duration` reads back as the same span: `1m30s`, `0s`."""
    left = span
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        amount = left // _UNITS[unit]
        left -= amount * _UNITS[unit]
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def split_list(value: str | Iterable[str]) -> tuple[str, ...]:
    """Comma-separated items, blanks around each allowed; a repeated item counts once.

    An empty item is refused: a stray comma is more often a lost value than a wish.
    """
    if isinstance(value, str):
        items = [item.strip() for item in value.split(",")] if value.strip() else []
    else:
        items = [str(item) for item in value]
    for position, item in enumerate(items, start=1):
        if not item:
            raise ValueError(f"item {position} is empty (stray comma)")
    return tuple(dict.fromkeys(items))


def _items(
    check: Callable[[str], str],
) -> Callable[[str | Iterable[str]], tuple[str, ...]]:
    def parse(value: str | Iterable[str]) -> tuple[str, ...]:
        parsed = []
        for position, item in enumerate(split_list(value), start=1):
            try:
                parsed.append(check(item))
            except ValueError as error:
                raise ValueError(f'item {position}, "{item}": {error}') from None
        return tuple(parsed)

    return parse


def namespace_name(value: str) -> str:
    """A namespace name: an RFC 1123 label."""
    if not _DNS_LABEL.fullmatch(value):
        raise ValueError(
            "not a namespace name (lower-case letters, digits and -, at most 63 characters)"
        )
    return value


def object_name(value: str) -> str:
    """The name of an object: an RFC 1123 subdomain."""
    if len(value) > 253 or not all(_DNS_PART.fullmatch(part) for part in value.split(".")):
        raise ValueError("not an object name (lower-case letters, digits, - and .)")
    return value


def label_key(value: str) -> str:
    """The key of a label or taint: an optional domain, a slash, a name."""
    domain, slash, name = value.rpartition("/")
    if slash:
        try:
            object_name(domain)
        except ValueError:
            raise ValueError(f'"{domain}" is not a domain') from None
    if not _LABEL_NAME.fullmatch(name):
        raise ValueError(f'"{name}" is not a label name (letters, digits, -, _ and ., at most 63)')
    return value


def uri_prefix(value: str) -> str:
    """A URI prefix that ends at a slash, so that `s3://a/` does not admit `s3://a-else/`."""
    if not _URI_PREFIX.fullmatch(value):
        raise ValueError('not SCHEME://… ending with "/"')
    # A prefix test on text must not be fooled by a path that climbs out of the prefix.
    if any(part in (".", "..") for part in value.split("/")):
        raise ValueError('has a "." or ".." in its path')
    return value


def database_url(value: str) -> str:
    """A libpq URL; the error never quotes any of it."""
    scheme, separator, _ = value.partition("://")
    if not separator:
        raise ValueError("not a URL")
    if scheme.lower() not in ("postgresql", "postgres"):
        base = scheme.split("+")[0].lower()
        if base in ("postgresql", "postgres"):
            raise ValueError(f'drop the driver name: begin with "{base}://"')
        raise ValueError("another scheme than postgresql://")
    try:
        port = urlsplit(value).port
    except ValueError:
        raise ValueError(
            "its host or port does not parse (in the password write / ? # @ as %2F %3F %23 %40)"
        ) from None
    if port == 0:
        raise ValueError("port 0 is not a port to connect to")
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
]
Namespaces = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items(namespace_name))]
LabelKeys = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items(label_key))]
UriPrefixes = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items(uri_prefix))]


def shown(value: Any) -> str:
    """A value as a person would type it into the variable."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)
