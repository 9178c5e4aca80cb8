"""Tests of sandbox_restore.restore."""
