"""Tests of the unit part."""
