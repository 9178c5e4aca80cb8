"""docs/install.md: what it tells to type is what these tests run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from sandbox_restore.store import schema
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmError, pick
from tests.support.postgres import open_postgres

DOC = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("yaml"), ids=lambda text: text.split(":")[0].strip("# \n"))
def test_every_example_of_values_is_right(helm: Helm, text: str) -> None:
    assert helm.objects(yaml.safe_load(text))


def test_the_example_reaches_the_objects(helm: Helm) -> None:
    values: dict[str, Any] = yaml.safe_load(blocks("yaml")[0])
    objects = helm.objects(values)
    job = pick(objects, "Job", f"{RELEASE}-migrate")
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["items"] == [{"key": "owner-url", "path": "url"}]
    assert "image-not-set" not in helm.template(values)


def test_the_commands_name_the_chart_and_its_namespace() -> None:
    lines = [line for text in blocks("sh") for line in text.splitlines() if "helm " in line]
    assert lines
    for line in lines:
        assert f"-n {NAMESPACE}" in line or "--take-ownership" in line, line
        assert "uninstall" in line or f"charts/{CHART.name}" in line, line


def test_a_wrong_value_is_told_as_the_docs_show(helm: Helm) -> None:
    wrong = {"settings": {"coldCacheWait": "soon", "hostCpuPlacementEnable": True}}
    with pytest.raises(HelmError) as refused:
        helm.run("install", RELEASE, str(CHART), "--dry-run=client", values=wrong)
    assert f"{refused.value}\n" == blocks("text")[0]


async def test_the_two_database_users_of_the_docs_are_enough() -> None:
    """The first migrates; the second may do what the operator does, and no more."""
    first, second = blocks("sql")
    with open_postgres() as postgres:
        for statement in (first + second).split(";"):
            if statement.strip():
                await postgres.execute(statement)
        owner = postgres.dsn_for("space", user="restore_owner")
        notes: list[str] = []
        assert await schema.migrate(owner, notify=notes.append)
        assert notes == []
        operator = postgres.dsn_for("space", user="restore_operator")
        assert (await schema.schema_state(operator)).status is schema.SchemaStatus.CURRENT
        connection = await asyncpg.connect(operator)
        try:
            await connection.fetch("SELECT * FROM sandbox_restore.sandbox FOR UPDATE")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("DROP SCHEMA sandbox_restore CASCADE")
        finally:
            await connection.close()
