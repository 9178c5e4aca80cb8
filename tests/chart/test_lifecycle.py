"""A release from its install to its end on a real API server, its migrations on a real Postgres."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from sandbox_restore.model import crd
from sandbox_restore.store.schema import SchemaStatus, schema_state
from tests.chart.migrations import Migrations
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmError
from tests.support.postgres import TestPostgres, open_postgres
from tests.support.testbed import Api, ApiError, ControlPlane, ensure_built, wait_until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RESTORES = "/apis/space.pplx.net/v1alpha1/namespaces/default/sandboxrestores"
DOC = Path(__file__).parents[2] / "docs" / "install.md"
FIELD = "podName"
"""A field of the status that the older chart's custom resource lacks."""

pytestmark = pytest.mark.timeout(600)


class World:
    """An empty cluster with the database's Secret, and helm as its administrator."""

    def __init__(self, plane: ControlPlane, postgres: TestPostgres, helm: Helm, dsn: str) -> None:
        self.plane = plane
        self.postgres = postgres
        self.helm = helm
        self.dsn = dsn

    @property
    def api(self) -> Api:
        return self.plane.api()

    def chart(self, verb: str, chart: Path, *args: str) -> list[int]:
        """Run helm and return the exit codes of the migrations that it started."""
        with Migrations(self.plane) as migrations:
            self.helm.run(verb, RELEASE, str(chart), "-n", NAMESPACE, "--timeout=60s", *args)
        return migrations.ran

    def status_fields(self) -> set[str]:
        (version,) = self.api.get(f"{CRDS}/{crd.NAME}")["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        return set(schema["status"]["properties"])

    def there(self, path: str) -> bool:
        try:
            self.api.get(path)
        except ApiError as error:
            # 429: a custom resource whose storage is being made.
            if error.status not in (404, 429):
                raise
            return False
        return True


@pytest_asyncio.fixture
async def world(program: Path, tmp_path: Path) -> AsyncIterator[World]:
    with (
        ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane,
        open_postgres() as postgres,
    ):
        dsn = await postgres.create_database("chart")
        plane.kubectl("create", "namespace", NAMESPACE)
        secret = ("create", "secret", "generic", "sandbox-restore-database", "-n", NAMESPACE)
        plane.kubectl(*secret, f"--from-literal=url={dsn}")
        helm = Helm(program, home=tmp_path, kubeconfig=plane.kubeconfig)
        yield World(plane, postgres, helm, dsn)


def older_chart(folder: Path) -> Path:
    """This chart as an earlier release may have been: its custom resource has a field less."""
    chart = folder / "sandbox-restore"
    shutil.copytree(CHART, chart)
    definition = crd.definition()
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"][FIELD]
    (chart / "files" / "crd.yaml").write_text(yaml.safe_dump(definition, sort_keys=False))
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9"}))
    return chart


async def test_restores_outlive_upgrade_uninstall_and_the_next_install(
    world: World, tmp_path: Path
) -> None:
    api, operator = world.api, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"

    assert world.chart("install", older_chart(tmp_path)) == [0]
    assert (await schema_state(world.dsn)).status is SchemaStatus.CURRENT
    assert world.there(operator)
    assert FIELD not in world.status_fields()
    made = {"metadata": {"name": "wake-1"}, "spec": {"sandboxId": "s-1"}}
    kind = {"apiVersion": "space.pplx.net/v1alpha1", "kind": "SandboxRestore"}
    wait_until(lambda: world.there(RESTORES), what="restores can be made", timeout=30)
    uid = api.post(RESTORES, kind | made)["metadata"]["uid"]

    assert world.chart("upgrade", CHART) == [0]
    assert FIELD in world.status_fields()
    assert api.get(f"{RESTORES}/wake-1")["metadata"]["uid"] == uid

    said = world.helm.run("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    assert said.strip() in DOC.read_text(encoding="utf-8")
    assert not world.there(operator)
    assert api.get(f"{RESTORES}/wake-1")["metadata"]["uid"] == uid
    assert [one["metadata"]["name"] for one in api.items(CRDS)] == [crd.NAME]
    for kinds in ("clusterroles", "clusterrolebindings"):
        path = f"/apis/rbac.authorization.k8s.io/v1/{kinds}"
        left = [o for o in api.items(path) if o["metadata"]["name"].startswith(RELEASE)]
        assert left == []

    assert world.chart("install", CHART) == [0]
    assert world.there(operator)
    assert api.get(f"{RESTORES}/wake-1")["metadata"]["uid"] == uid


async def test_the_migration_of_an_upgrade_reaches_the_database_that_the_upgrade_names(
    world: World,
) -> None:
    """Also the first migration of a release: its network policy is there before it."""
    policies = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    assert world.chart("install", CHART, "--set", "database.migration.enabled=false") == []
    for port in (5432, 6432):
        with Migrations(world.plane) as migrations:
            world.helm.run(
                *("upgrade", RELEASE, str(CHART), "-n", NAMESPACE, "--timeout=60s"),
                *("--set", f"networkPolicy.database.ports={{{port}}}"),
            )
        assert migrations.ran == [0]
        assert migrations.reached == [{53, port}]
        # An uninstall would not know of it.
        assert not world.there(f"{policies}/{RELEASE}-migrate")


async def test_a_migration_that_fails_stops_the_install_before_anything_else(
    world: World,
) -> None:
    data = {"stringData": {"url": world.postgres.dsn_for("nowhere")}}
    world.api.merge(f"/api/v1/namespaces/{NAMESPACE}/secrets/sandbox-restore-database", data)
    with pytest.raises(HelmError, match="pre-install"):
        world.chart("install", CHART, "--set", "database.migration.backoffLimit=0")
    assert not world.there(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}")
    assert not world.there(f"{CRDS}/{crd.NAME}")
    # The Job stays, for its log.
    job = world.api.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{RELEASE}-migrate")
    assert job["status"]["failed"] == 1
