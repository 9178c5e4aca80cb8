"""What one successful restore costs: API writes and SQL statements, on the real API server.

API writes are counted from the API server's own audit log, SQL statements from the store's count
of what it sent (BEGIN and COMMIT not counted; tests/store checks that count against the server's).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.demo.scene import Scene, raised
from tests.support.fleet import matrix_fleet, sandbox_seeds
from tests.support.waiting import until

RESTORES = 100
NAMESPACE = "cost"
PER_RESTORE = {"pods", "sandboxrestores", "events"}
UNRELATED = {
    "ping",
    "schema_state",
    "active_executions",
    "unreleased_active",
    "restoring_without_active",
    "left_pinned",
    "observations",
    "counts",
    "node_history",
    "cpus_last_seen",
    "record_nodes",
    "prune",
}
"""Statements that run by the clock or once, whatever is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Counts of one run, for restores that all succeeded at once."""

    restores: int
    api_writes: Counter[str]
    statements: Counter[str]

    @property
    def api_writes_per_restore(self) -> float:
        return round(self.api_writes.total() / self.restores, 3)

    @property
    def sql_per_restore(self) -> float:
        return round(self.statements.total() / self.restores, 3)


class _Quiet:
    def doing(self, _text: str) -> None:
        return None


async def measure(*, restores: int = RESTORES) -> Cost:
    """Restores that many sandboxes with the gate on; every one must succeed at its first try."""
    fleet = matrix_fleet(nodes_per_cpu=2, unlabelled=0)
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        async with raised(
            fleet,
            folder=Path(folder),
            narrator=_Quiet(),
            audit=True,  # type: ignore[arg-type]
        ) as scene:
            await scene.add_namespace(NAMESPACE)
            return await run(scene, restores=restores, namespace=NAMESPACE)


async def run(scene: Scene, *, restores: int, namespace: str, **spec: object) -> Cost:
    """The same in a namespace of a scene that is up, whose API server keeps an audit log."""
    seeds = sandbox_seeds(restores, seed=1, namespace=namespace, prefix=f"{namespace}-cost")
    await scene.add_sandboxes(seeds)
    async with scene.operator(
        host_cpu_placement_enabled="true", host_cpu_compatibility=scene.matrix.compatibility()
    ) as operator:
        before = await _settled(operator.health_port)
        found = await scene.wake(seeds, **spec)
        failed = [one.seed.restore_name for one in found.sandboxes if not one.succeeded]
        if failed:
            raise SystemExit(f"error: {len(failed)} restores failed, such as {failed[0]}")
        statements = await _statements(operator.health_port)
        statements.subtract(before)
    return Cost(
        restores=restores,
        api_writes=_audited(scene.plane.audit_log, namespace),
        statements=+statements,
    )


async def _settled(port: int) -> Counter[str]:
    """The count once the operator has looked at all that was there when it started."""
    last: Counter[str] | None = None

    async def unchanged() -> tuple[Counter[str]] | None:
        nonlocal last
        now = await _statements(port)
        same, last = now == last, now
        return (now,) if same else None

    found = await until(
        unchanged, deadline_s=60, what="the operator asks nothing more", interval_s=0.5
    )
    return found[0]


async def _statements(port: int) -> Counter[str]:
    """The store's own count by statement, without what runs once or by the clock."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = await answer.text()
    name = "sandbox_restore_store_statements_total{"
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith(name):
            label = line.split('"')[1]
            if label not in UNRELATED:
                found[label] += int(float(line.rsplit(" ", 1)[1]))
    return found


def _audited(log: Path, namespace: str) -> Counter[str]:
    """Write requests about pods, restores and Events that the operator made, by verb."""
    found: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        target = entry.get("objectRef", {})
        if entry.get("stage") != "ResponseComplete" or target.get("namespace") != namespace:
            continue
        if entry["verb"] in ("get", "list", "watch") or target.get("resource") not in PER_RESTORE:
            continue
        if not entry.get("userAgent", "").startswith("sandbox-restore"):
            continue
        what = "/".join(p for p in (target["resource"], target.get("subresource")) if p)
        found[f"{entry['verb']} {what}"] += 1
    return found


def main(arguments: list[str]) -> int:
    """The command `python -m bench cost`."""
    parser = argparse.ArgumentParser(prog="python -m bench cost", description=__doc__)
    parser.add_argument("--restores", type=int, default=RESTORES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cost = asyncio.run(measure(restores=options.restores))
    if options.json:
        print(
            json.dumps(
                {
                    "restores": cost.restores,
                    "api_writes_per_restore": cost.api_writes_per_restore,
                    "sql_per_restore": cost.sql_per_restore,
                    "api_writes": dict(cost.api_writes),
                    "statements": dict(cost.statements),
                }
            )
        )
        return 0
    print(f"{cost.restores} restores, all successful at the first try")
    print(f"API writes per restore: {cost.api_writes_per_restore}  (target: at most 8)")
    for name, count in cost.api_writes.most_common():
        print(f"  {name:<32} {count / cost.restores:.2f}")
    print(f"SQL statements per restore: {cost.sql_per_restore}  (target: at most 6)")
    for name, count in cost.statements.most_common():
        print(f"  {name:<32} {count / cost.restores:.2f}")
    return 0
