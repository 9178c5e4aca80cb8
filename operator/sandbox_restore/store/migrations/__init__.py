"""The schema's revisions, as SQL, and what runs them. No alembic.ini: the package is enough."""
