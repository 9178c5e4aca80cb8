"""The node agent: detect the CPU, publish the label, then advertise slots."""
