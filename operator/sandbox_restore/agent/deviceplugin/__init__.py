"""The kubelet's device plugin protocol: messages, method names, and our side of it."""
