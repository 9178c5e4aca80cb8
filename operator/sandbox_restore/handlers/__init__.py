"""Kopf handlers: parse, hand over, return."""
