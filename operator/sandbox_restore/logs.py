"""Logs: one JSON object a line, or lines for people; the libraries' logs in the same form.

A log line is a constant event name with key=value fields, the same keys everywhere:
`namespace`, `restore`, `sandbox`, `node`, `pod`, `error`. Every value and every exception text
goes through `redact` on its way out.
"""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.redact import HIDDEN, names_a_secret, printable, redact

Form = Literal["auto", "json", "console"]

OURS: Final = "sandbox_restore"
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_DEEPEST: Final = 6
"""Nesting of values beyond this depth is cut: a log line is no place for documents."""
_INTERNAL: Final = ("_record", "_from_structlog")


def configure_logging(
    *, level: str = "info", form: Form = "auto", stream: TextIO | None = None
) -> None:
    """Sends structlog and the standard library's logging to `stream` (standard error by default).

    `level` is one of `LEVELS` and holds for this project; everything else stays one level quieter,
    because what the libraries tell at info is their own business. `form` as in the setting
    LOG_FORMAT. May be called again: the last call holds.
    """
    out = sys.stderr if stream is None else stream
    ours = LEVELS[level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter(), _object_named],
        processors=[
            _told_once,
            structlog.processors.format_exc_info,
            _redacted,
            *_renderers(form, out),
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(ours + 10, logging.INFO) if ours < logging.ERROR else logging.ERROR)
    logging.getLogger(OURS).setLevel(ours)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _renderers(form: Form, out: TextIO) -> list[Processor]:
    terminal = out.isatty()
    if form == "json" or (form == "auto" and not terminal):
        return [structlog.processors.JSONRenderer(_to_json, sort_keys=False)]
    # The plain formatter: the pretty one prints the local variables of each frame.
    return [
        structlog.dev.ConsoleRenderer(
            colors=terminal, exception_formatter=structlog.dev.plain_traceback
        )
    ]


def _to_json(event: Mapping[str, Any], **_: Any) -> str:
    first = ("timestamp", "level", "event")
    ordered = {key: event[key] for key in first if key in event}
    return json.dumps(ordered | dict(event), ensure_ascii=False)


def _told_once(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Our own errors say in one line what happened, so that they need no traceback."""
    found = event.get("exc_info")
    if found is True:
        found = sys.exc_info()
    error = found[1] if isinstance(found, tuple) else found
    if isinstance(error, SandboxRestoreError):
        del event["exc_info"]
        event.setdefault("error", error)
        event.setdefault("error_type", type(error).__name__)
    return event


def _object_named(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Kopf says which object a line is about beside the text; it becomes fields like ours."""
    reference = getattr(event.get("_record"), "k8s_ref", None)
    if isinstance(reference, Mapping):
        for key in ("kind", "namespace", "name"):
            if reference.get(key):
                event.setdefault(key, reference[key])
    return event


def _redacted(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Plain values without secrets; the last step before rendering, so that nothing escapes it."""
    return {
        printable(key): _plain(value, key=key, depth=0)
        for key, value in event.items()
        if key not in _INTERNAL and value is not None
    }


def _plain(value: object, *, key: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if names_a_secret(key):
        return HIDDEN
    if isinstance(value, Enum):
        return _plain(value.value, key=key, depth=depth)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {
                printable(str(name)): _plain(item, key=str(name), depth=depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, set | frozenset):
            return sorted(str(_plain(item, key="", depth=depth + 1)) for item in value)
        if isinstance(value, list | tuple):
            return [_plain(item, key="", depth=depth + 1) for item in value]
    return printable(redact(_words(value)))


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # a log line must not be lost to an object that cannot be told
        return f"<{type(value).__name__} without words: {type(error).__name__}>"
