"""The only place with SQL: the shared Postgres schema, its migrations, and the operator's access.

`store.Store` is the operator's door, `listener.ChangeListener` tells it of changes, `schema` brings
the database up to date. docs/schema.md is the contract with the platform.
"""
