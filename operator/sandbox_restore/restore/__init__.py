"""Pure planner, redirect rules and failure classes; the reconciler that carries plans out."""
