"""What is kept of a pod that waits: what it requires of its node, and where room is made for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sandbox_restore.kube.decode import pod_from_body, pod_from_json
from sandbox_restore.model.pod import PodFacts

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}


def decoded(**parts: Any) -> PodFacts:
    body = {"metadata": {"name": "p"}, **parts}
    found = pod_from_body(body)
    assert pod_from_json(msgspec.json.encode(body)) == found
    return found


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        (None, None),
        ({}, None),
        ({"nodeAffinity": None}, None),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, None),
        ({"nodeAffinity": {REQUIRED: None}}, None),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}, ()),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM, {}, None]}}}, (TERM, {}, {})),
    ],
)
def test_the_required_terms_of_an_unbound_pod_are_kept_as_they_are(
    affinity: Any, terms: Any
) -> None:
    assert decoded(spec={"affinity": affinity}).required_terms == terms
    assert decoded(spec={"affinity": affinity, "nodeName": "n1"}).required_terms is None


def test_the_node_on_which_kube_scheduler_makes_room_is_kept() -> None:
    assert decoded(status={"nominatedNodeName": "n1"}).nominated_node == "n1"
    assert decoded(status={"nominatedNodeName": ""}).nominated_node is None
    assert decoded().nominated_node is None
