"""Typed records that cross the edges: Kubernetes facts, database rows, the custom resource."""
