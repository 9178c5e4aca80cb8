"""Operator that places Firecracker snapshot restores on hosts whose CPU can load them."""

__version__ = "0.1.0"
