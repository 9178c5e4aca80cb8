"""Tests without a cluster, a database or a clock."""
