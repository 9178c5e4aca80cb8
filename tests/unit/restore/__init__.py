"""Tests of the unit/restore part."""
