"""Checks of settings that one value alone cannot pass: unknown names, files, contradictions.

Nothing here is raised: each function gives back lines for `load_settings` to report together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandbox_restore.model import names
from sandbox_restore.redact import redact
from sandbox_restore.settings_values import format_duration

if TYPE_CHECKING:
    from sandbox_restore.settings import Settings

_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)
_LONGEST_SHOWN: Final = 80
_RISKY_GRACE: Final = timedelta(minutes=1)


def quoted(value: str) -> str:
    """A value in quotes for an error line: one line, no secrets, not endless."""
    text = redact(value)
    if len(text) > _LONGEST_SHOWN:
        text = text[:_LONGEST_SHOWN] + "…"
    return '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + '"'


def unknown_variables(given: Collection[str], *, known: Collection[str]) -> list[str]:
    """A line for each variable that has our prefix and is no setting.

    Kubernetes sets variables for the Services of the namespace in every pod; a Service named
    `space-sandbox-restore…` gives them our prefix, and they are nobody's mistake. Values are not
    shown: a mistyped name may hold a password.
    """
    return [
        _unknown(name, known=known)
        for name in sorted(given)
        if name not in known and not _SERVICE_LINK.search(name)
    ]


def _unknown(name: str, *, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name.upper(), list(known), n=1, cutoff=0.7)
    hint = f"did you mean {nearest[0]}?" if nearest else "see docs/configuration.md, or unset it"
    return f"{name}: no such setting; {hint}"


def read_database_url(path: str, *, variable: str) -> tuple[str | None, str | None]:
    """The URL in a file, or the line that says why there is none. Never quotes the content, nor
    what is no absolute path: a password that was put there is told from a path by nothing else."""
    if "://" in path:
        return None, (
            f"{variable} (value not shown): looks like a URL, expected the path of a file that"
            " holds it; a URL goes into the variable without _FILE"
        )
    shown = f"={quoted(path)}" if Path(path).is_absolute() else " (value not shown)"
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        return None, f"{variable}{shown}: the file is not UTF-8 text"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return (
            None,
            f"{variable}{shown}: cannot be read ({reason}); mount it or mend the path",
        )
    if not text:
        return None, f"{variable}{shown}: the file is empty, expected the database URL"
    return text, None


def read_namespace(path: Path) -> str | None:
    """The namespace of the pod this process runs in; None outside a pod."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One rule over several settings; skipped when one of them is wrong by itself."""

    fields: tuple[str, ...]
    line: Callable[[Settings], str | None]


def problems_between(settings: Settings, *, wrong: Collection[str]) -> Iterator[str]:
    """A line for each contradiction; fields in `wrong` have been reported already."""
    return _apply(_PROBLEMS, settings, wrong=wrong)


def warnings_about(settings: Settings) -> Iterator[str]:
    """A line for each thing that is allowed and probably not meant."""
    return _apply(_WARNINGS, settings, wrong=())


def _apply(
    rules: tuple[_Rule, ...], settings: Settings, *, wrong: Collection[str]
) -> Iterator[str]:
    for rule in rules:
        if not set(rule.fields) & set(wrong) and (line := rule.line(settings)):
            yield line


def _name(field: str) -> str:
    return f"SPACE_SANDBOX_RESTORE_{field.upper()}"


def _renew(settings: Settings) -> str | None:
    renew, duration = settings.lease_renew_interval, settings.lease_duration
    if renew * 2 <= duration:
        return None
    return (
        f"{_name('lease_renew_interval')}: {format_duration(renew)} is more than half of"
        f" {_name('lease_duration')} ({format_duration(duration)}), so that one slow answer loses"
        " the Lease; shorten it or lengthen the duration"
    )


def _backoff(settings: Settings) -> str | None:
    base, longest = settings.retry_backoff_base, settings.retry_backoff_max
    if base <= longest:
        return None
    return (
        f"{_name('retry_backoff_base')}: {format_duration(base)} is more than"
        f" {_name('retry_backoff_max')} ({format_duration(longest)}); lower it or raise the maximum"
    )


def _history(settings: Settings) -> str | None:
    kept, hold = settings.node_history_ttl, settings.published_hold
    if hold <= kept:
        return None
    return (
        f"{_name('node_history_ttl')}: {format_duration(kept)} is less than"
        f" {_name('published_hold')} ({format_duration(hold)}), which a restart would then cut"
        " short; raise it or lower the hold"
    )


def _label_taken(settings: Settings) -> str | None:
    taken = {names.PLACEMENT_BLOCK_LABEL, names.NODE_GROUP_LABEL, names.COHORT_LABEL}
    if settings.host_cpu_label not in taken:
        return None
    return (
        f"{_name('host_cpu_label')}={quoted(settings.host_cpu_label)}: that label has another"
        f" meaning; unset it for the default ({names.HOST_CPU_LABEL})"
    )


def _template(settings: Settings) -> str | None:
    path = settings.pod_template_file
    if path is None:
        return None
    try:
        with path.open("rb"):
            return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
    return (
        f"{_name('pod_template_file')}={quoted(str(path))}: cannot be read ({reason});"
        " mount it, mend the path, or unset it for the template in the package"
    )


def _rollout_outside_namespaces(settings: Settings) -> str | None:
    served = set(settings.namespaces)
    outside = [name for name in settings.rollout_namespaces if served and name not in served]
    if not outside:
        return None
    return (
        f"{_name('rollout_namespaces')}: {', '.join(outside)} not among the namespaces served"
        f" ({_name('namespaces')}); add them there or drop them here"
    )


def _observe_without_effect(settings: Settings) -> str | None:
    everywhere = settings.rollout_percent == 100 and not settings.rollout_namespaces
    if settings.host_cpu_placement_observe and settings.host_cpu_placement_enabled and everywhere:
        return (
            f"{_name('host_cpu_placement_observe')} has no effect: the gate is on for every"
            " restore; unset it"
        )
    return None


def _rollout_without_gate(settings: Settings) -> str | None:
    narrowed = settings.rollout_percent != 100 or settings.rollout_namespaces
    if narrowed and not settings.host_cpu_placement_enabled:
        return (
            f"{_name('rollout_percent')} and {_name('rollout_namespaces')} have no effect while"
            f" {_name('host_cpu_placement_enabled')} is false"
        )
    return None


def _short_grace(settings: Settings) -> str | None:
    if settings.node_gone_grace >= _RISKY_GRACE:
        return None
    return (
        f"{_name('node_gone_grace')}: {format_duration(settings.node_gone_grace)} is short; a node"
        " whose object was deleted may still run its VMs, and a sandbox may then run twice"
    )


_PROBLEMS: Final = (
    _Rule(fields=("lease_renew_interval", "lease_duration"), line=_renew),
    _Rule(fields=("retry_backoff_base", "retry_backoff_max"), line=_backoff),
    _Rule(fields=("node_history_ttl", "published_hold"), line=_history),
    _Rule(fields=("host_cpu_label",), line=_label_taken),
    _Rule(fields=("pod_template_file",), line=_template),
    _Rule(fields=("rollout_namespaces", "namespaces"), line=_rollout_outside_namespaces),
)
_WARNINGS: Final = (
    _Rule(
        fields=("host_cpu_placement_observe", "host_cpu_placement_enabled", "rollout_percent"),
        line=_observe_without_effect,
    ),
    _Rule(fields=("rollout_percent", "rollout_namespaces"), line=_rollout_without_gate),
    _Rule(fields=("node_gone_grace",), line=_short_grace),
)
