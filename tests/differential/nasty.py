"""Pods and fleets that are nasty on purpose, from a seed.

Words come from small lists, so that a pod and a node meet often, and the lists hold what parsers
get wrong: empty and overlong names, numbers at the edges of 64 bits, blanks and line ends.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sandbox_restore.model.names import (
    COHORT_LABEL,
    HOST_CPU_LABEL,
    NODE_GROUP_LABEL,
    PLACEMENT_BLOCK_LABEL,
    UNSCHEDULABLE_TAINT,
)

Json = dict[str, Any]

CPUS = ("intel-6-106-6", "intel-6-143-8", "amd-25-17-1", "arm-41-d40-r1p1")
BAD_CPUS = ("Intel-6-106-6", "unknown", "")
GROUPS = ("g", "h")
COHORTS = ("blue", "green")

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

KEYS = ("a", "size", "example.com/zone", HOST_CPU_LABEL)
BAD_KEYS = (
    "",
    "-a",
    "a-",
    "a b",
    "a\n",
    "é",
    "/a",
    "a/",
    "a/b/c",
    "Example.com/zone",
    "example..com/zone",
    "a" * 64,
    "a" * 63,
    "a_.-Z",
    "9",
    "p" * 253 + "/a",
    "p" * 254 + "/a",
    "metadata.name",
)
"""Some are odd and valid all the same."""

VALUES = ("x", "y", "1", "10", "")
BAD_VALUES = (
    "X",
    "x\n",
    "\n",
    " x",
    "x y",
    "-x",
    ".x",
    "x_",
    "é",
    "x" * 63,
    "x" * 64,
    "é" * 40,
)
NUMBERS = (
    "0",
    "-0",
    "-5",
    "+3",
    "007",
    "9",
    "11",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "0" * 40 + "5",
    "1" * 70,
    "1.0",
    "1e3",
    "1_000",
    "0x10",
    "0b1",
    "٣",
    " 1",
    "1 ",
    "1\n",
    "--1",
    "+",
    "-",
)
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
BAD_OPERATORS = ("", "in", "Equals", "=", "In ", "Gte")

TAINT_KEYS = ("gpu", "example.com/reserved", UNSCHEDULABLE_TAINT)
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
BAD_EFFECTS = ("", "noschedule", "NoAdmit")
TOLERATION_OPERATORS = ("", "Equal", "Exists")
BAD_TOLERATION_OPERATORS = ("Gt", "Lt", "exists", "In")


class Nasty:
    """Makes pods and nodes; the same seed makes the same ones, on every machine."""

    def __init__(self, seed: str | random.Random) -> None:
        """`seed`: a text, or the dice themselves."""
        self.random = random.Random(seed) if isinstance(seed, str) else seed

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one_of(self, usual: Sequence[str], odd: Sequence[str] = (), *, share: float = 0.15) -> str:
        """One of the usual words or, with a chance of `share`, one of the odd ones."""
        return self.random.choice(odd if odd and self.chance(share) else usual)

    def _few(self, most: int) -> int:
        return min(self.random.randint(0, most), self.random.randint(0, most))

    # --- fleets

    def fleet(self, size: int) -> list[Json]:
        """Nodes n0, n1, …"""
        return [self.node(f"n{number}") for number in range(size)]

    def node(self, name: str) -> Json:
        """A Node as the API server would send it, whatever is in its labels and taints."""
        metadata: Json = {"name": name, "uid": f"uid-{self.random.getrandbits(32):08x}"}
        labels = self._labels()
        if labels or self.chance(0.5):
            metadata["labels"] = labels
        if self.chance(0.08):
            metadata["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        spec: Json = {}
        taints = self._taints()
        if taints or self.chance(0.1):
            spec["taints"] = taints
        if self.chance(0.2):
            # The node controller puts the taint beside the cordon, a moment later.
            spec["unschedulable"] = True
            if self.chance(0.5):
                taint = {"key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}
                spec["taints"] = [*taints, taint]
        elif self.chance(0.1):
            spec["unschedulable"] = False
        ready = self.chance(0.7)
        conditions = [
            {
                "type": "space.pplx.net/NodeServicesReady",
                "status": "True" if ready else "False",
                "lastTransitionTime": "2026-03-01T12:00:00Z",
            }
        ]
        return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}

    def _labels(self) -> dict[str, str]:
        labels = {
            self.one_of(KEYS, BAD_KEYS): self._label_value()
            for _ in range(self.random.randint(0, 4))
        }
        if self.chance(0.8):
            labels[HOST_CPU_LABEL] = self.one_of(CPUS, BAD_CPUS)
        if self.chance(0.6):
            labels[NODE_GROUP_LABEL] = self.one_of(GROUPS)
        if self.chance(0.6):
            labels[COHORT_LABEL] = self.one_of(COHORTS)
        if self.chance(0.08):
            labels[PLACEMENT_BLOCK_LABEL] = self.one_of(("", "maintenance"))
        return labels

    def _label_value(self) -> str:
        return self.one_of(NUMBERS) if self.chance(0.3) else self.one_of(VALUES, BAD_VALUES)

    def _taints(self) -> list[Json]:
        taints = [self._taint() for _ in range(self._few(3))]
        if taints and self.chance(0.2):
            # The same key and effect twice, or the very same taint.
            twin = dict(self.random.choice(taints))
            if self.chance(0.5):
                twin["value"] = self.one_of(VALUES)
            taints.append(twin)
        return taints

    def _taint(self) -> Json:
        taint: Json = {
            "key": self.one_of(TAINT_KEYS, ("", "a")),
            "effect": self.one_of(EFFECTS, BAD_EFFECTS, share=0.1),
        }
        if self.chance(0.5):
            taint["value"] = self.one_of(VALUES, NUMBERS)
        if taint["effect"] == "NoExecute" and self.chance(0.3):
            taint["timeAdded"] = "2026-03-01T12:00:00Z"
        return taint

    # --- pods

    def pod(self, names: Sequence[str], *, odd: float = 0.15) -> Json:
        """A Pod that asks for some of the nodes.

        `odd`: how often something is not as it should be.
        """
        spec: Json = {}
        if self.chance(0.25):
            spec["nodeSelector"] = self._selector(odd)
        if self.chance(0.75):
            spec["affinity"] = self._affinity(names, odd)
        if self.chance(0.6):
            spec["tolerations"] = self.tolerations(odd)
        return {"metadata": {"name": "p"}, "spec": spec}

    def tolerations(self, odd: float) -> list[Json] | None:
        if self.chance(odd / 3):
            return None
        found = [self._toleration(odd) for _ in range(self._few(4))]
        if self.chance(0.25):
            found.append({"operator": "Exists"})
        return found

    def _toleration(self, odd: float) -> Json:
        toleration: Json = {
            "key": self.one_of(TAINT_KEYS, ("", "a", "GPU"), share=odd),
            "operator": self.one_of(TOLERATION_OPERATORS, BAD_TOLERATION_OPERATORS, share=odd),
            "effect": self.one_of(("", *EFFECTS), BAD_EFFECTS, share=odd),
        }
        if toleration["operator"] != "Exists" or self.chance(odd):
            toleration["value"] = self.one_of(VALUES, NUMBERS, share=odd)
        if self.chance(0.1):
            toleration["tolerationSeconds"] = 30
        for name in ("key", "operator", "effect"):
            if not toleration[name] and self.chance(0.5):
                toleration.pop(name)
        if self.chance(odd / 2):
            toleration[self.one_of(("key", "operator", "value", "effect"))] = None
        return toleration

    def _selector(self, odd: float) -> Json | None:
        if self.chance(odd / 3):
            return None
        return {
            self.one_of(KEYS, BAD_KEYS, share=odd): self._value(odd)
            for _ in range(self.random.choice((0, 1, 1, 1, 2)))
        }

    def _affinity(self, names: Sequence[str], odd: float) -> Json | None:
        if self.chance(odd / 8):
            return self.random.choice((None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}))
        node_affinity: Json = {_REQUIRED: self._required(names, odd)}
        if self.chance(0.1):
            # It never filters, whatever it says.
            preferred = {"weight": 5, "preference": self.term(names, odd=0.5)}
            node_affinity[_PREFERRED] = [preferred]
        return {"nodeAffinity": node_affinity}

    def _required(self, names: Sequence[str], odd: float) -> Json | None:
        if self.chance(odd / 8):
            return self.random.choice(
                (None, {}, {"nodeSelectorTerms": None}, {"nodeSelectorTerms": []})
            )
        count = self.random.choice((1, 1, 1, 2, 2, 3))
        return {"nodeSelectorTerms": [self.term(names, odd=odd) for _ in range(count)]}

    def term(self, names: Sequence[str], *, odd: float) -> Json | None:
        """A node selector term; now and then an empty one, in one of its shapes. Null is one."""
        if self.chance(odd):
            empty: tuple[Json | None, ...] = (
                {},
                None,
                {"matchExpressions": []},
                {"matchFields": None},
                {"matchExpressions": [], "matchFields": []},
            )
            return self.random.choice(empty)
        term: Json = {}
        if self.chance(0.85):
            count = self.random.choice((1, 1, 1, 2, 3))
            term["matchExpressions"] = [self._expression(odd) for _ in range(count)]
        if not term or self.chance(0.2):
            count = self.random.choice((1, 1, 1, 2))
            term["matchFields"] = [self._field(names, odd) for _ in range(count)]
        return term

    def _expression(self, odd: float) -> Json:
        key = self.one_of((*KEYS, NODE_GROUP_LABEL), BAD_KEYS, share=odd)
        operator = self.one_of(OPERATORS, BAD_OPERATORS, share=odd / 2)
        wrong = self.chance(odd / 2)
        if operator in ("Gt", "Lt"):
            count = self.random.choice((0, 2)) if wrong else 1
            values = [self._bound(odd) for _ in range(count)]
        elif operator in ("Exists", "DoesNotExist"):
            values = [self._value(odd)] if wrong else []
        else:
            values = [] if wrong else [self._value_of(key, odd) for _ in range(1 + self._few(3))]
        expression: Json = {"key": key, "operator": operator, "values": values}
        if not values and self.chance(0.5):
            expression["values"] = None
        elif not values:
            expression.pop("values")
        return expression

    def _value_of(self, key: str, odd: float) -> str:
        if key == HOST_CPU_LABEL:
            return self.one_of(CPUS, BAD_CPUS, share=odd)
        if key == NODE_GROUP_LABEL:
            return self.one_of(GROUPS)
        return self._value(odd)

    def _value(self, odd: float) -> str:
        if self.chance(0.15):
            return self.one_of(("0", "9", "10", "11"), NUMBERS, share=odd)
        return self.one_of(VALUES, BAD_VALUES, share=odd)

    def _bound(self, odd: float) -> str:
        return self.one_of(("0", "1", "5", "10", "9223372036854775807"), NUMBERS, share=2 * odd)

    def _field(self, names: Sequence[str], odd: float) -> Json:
        key = self.one_of(
            ("metadata.name",), ("metadata.namespace", "name", "", "spec.unschedulable"), share=odd
        )
        operator = self.one_of(("In", "NotIn"), ("Exists", "Gt", "", "NotIn "), share=odd / 2)
        count = self.random.choice((0, 2)) if self.chance(odd) else 1
        values = [self.one_of(names, ("", "nobody", "N0", "n0 "), share=odd) for _ in range(count)]
        return {"key": key, "operator": operator, "values": values}
