"""Pure: host-CPU identity, compatibility and the fleet index."""
