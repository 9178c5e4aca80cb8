"""Tests of the unit/cli part."""
