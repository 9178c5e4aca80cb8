"""Our matcher beside kube-scheduler's own filter plugins: they must agree on every node."""
