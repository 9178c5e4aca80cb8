"""The demo: a story of restores on a fleet of mixed CPUs, told in the terminal from real parts."""
