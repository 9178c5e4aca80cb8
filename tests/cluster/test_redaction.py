"""The database password of a real operator is in nothing that anybody can read."""

from __future__ import annotations

import asyncio
import json

from tests.cluster.test_cancel import ONLY_LOADERS, pods_of, reason_of, says, settings
from tests.support.demo.scene import OPERATOR, Scene
from tests.support.fleet import sandbox_seeds
from tests.support.waiting import until

SECRET = "Hunter2Zz"


async def test_the_database_password_shows_nowhere(scene: Scene, namespace: str) -> None:
    seeds = sandbox_seeds(2, seed=5, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    process = scene.operator_process(**settings(scene), log_level="debug")
    url = process.environment["SPACE_SANDBOX_RESTORE_DATABASE_URL"]
    process.environment["SPACE_SANDBOX_RESTORE_DATABASE_URL"] = url.replace(
        f"//{OPERATOR}@", f"//{OPERATOR}:{SECRET}@"
    )
    assert SECRET in process.environment["SPACE_SANDBOX_RESTORE_DATABASE_URL"]
    told: list[str] = []
    async with process:
        await scene.apply(seeds[:1], **ONLY_LOADERS)
        await says(scene, seeds[0], "SnapshotLoaded")
        await asyncio.to_thread(scene.postgres.stop)
        try:
            await scene.apply(seeds[1:], **ONLY_LOADERS)
            await says(scene, seeds[1], "Unavailable")

            async def not_ready() -> bool:
                return await process.probe("/readyz") == 503

            await until(not_ready, deadline_s=60, what="the operator is not ready")
            told += [await process.text(path) for path in ("/readyz", "/metrics")]
            told += [json.dumps(scene.restores(namespace))]
        finally:
            await asyncio.to_thread(scene.postgres.start)
        await says(scene, seeds[1], "SnapshotLoaded")
    api = scene.plane.api()
    for path in (
        f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
        "/apis/coordination.k8s.io/v1/namespaces/sandbox-restore-system/leases",
    ):
        items = list(api.items(path))
        assert items
        told.append(json.dumps(items))
    told += [json.dumps(pods_of(scene, seed)) for seed in seeds]
    told += [json.dumps(scene.restores(namespace)), process.log(), reason_of(scene, seeds[0])]
    assert "Unavailable" in told[2]
    assert "sandbox_restore_database_up 0.0" in told[1]
    assert "reconcile_failed" in process.log()
    assert [text for text in told if SECRET in text] == []
