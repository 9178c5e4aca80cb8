"""Pure: Kubernetes matching rules, the placement term, pod rendering and explanation."""
