"""The measurements measure what they say; no time is asserted."""
