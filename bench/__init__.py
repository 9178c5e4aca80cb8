"""Measurements, each runnable by itself: `python -m bench NAME`."""
