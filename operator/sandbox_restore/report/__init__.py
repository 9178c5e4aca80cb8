"""What people are told when they ask: of one restore, of the fleet, of an installation. PURE."""
