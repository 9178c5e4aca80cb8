"""Tests of sandbox_restore.cli."""
