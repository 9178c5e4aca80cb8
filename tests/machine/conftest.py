"""One Postgres for the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import TestPostgres, open_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestPostgres]:
    with open_postgres() as server:
        yield server
