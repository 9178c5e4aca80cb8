"""Everything a newcomer needs around the operator, on one machine: `make playground`.

A control plane, a Postgres, simulated nodes that play kubelet and runner, and a file for the shell
that names them. Custom resource, schema, nodes and the operator itself are left to docs/start.md.
"""
