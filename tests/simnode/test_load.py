"""What a runner makes of its plan and its snapshot, without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simnode.pods import PodSpec, manifest, plan
from tests.support.simnode import Capture, CapturesFile, load_matrix, write_captures
from tests.support.simnode.load import Loaded, Refused, load
from tests.support.simnode.plan import excluded_cpus

ICX_OLD, BDX, CLX, ICX_NEW = load_matrix().cpus


def outcome(
    spec: PodSpec, *, on: str = ICX_NEW, local: bool = False, pod: dict[str, Any] | None = None
) -> Loaded | Refused:
    """Load the pod's snapshot, captured on ICX_NEW, which storage has and `local` says the node."""
    capture = Capture(cpu=ICX_NEW, version=7)
    return load(
        pod or manifest(spec),
        matrix=load_matrix(),
        node_cpu=on,
        stored=lambda snapshot_id: capture if snapshot_id == "snap-1" else None,
        local=lambda snapshot_id: capture if local and snapshot_id == "snap-1" else None,
    )


def refusal(result: Loaded | Refused) -> Refused:
    assert isinstance(result, Refused)
    return result


def test_a_load_that_fits_keeps_plan_and_snapshot() -> None:
    result = outcome(PodSpec(name="a"))
    assert isinstance(result, Loaded)
    assert (result.plan.snapshot_id, result.capture.version) == ("snap-1", 7)


def test_a_cpu_that_does_not_fit_refuses() -> None:
    result = refusal(outcome(PodSpec(name="a"), on=BDX))
    assert result.code == "cpu-incompatible"
    assert result.capture is not None


def test_a_local_plan_reads_only_the_files_of_the_node() -> None:
    spec = PodSpec(name="a", source="local")
    assert isinstance(outcome(spec, local=True), Loaded)
    assert refusal(outcome(spec)).code == "missing"


BROKEN = {
    "another sandbox": {"sandboxId": "other"},
    "an unknown source": {"source": "nowhere"},
    "an unknown version": {"version": 2},
    "no storage URI": {"storageUri": None},
    "an attempt that is no number": {"attempt": "one"},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_a_plan_that_is_wrong_is_a_usage_failure(change: dict[str, Any]) -> None:
    spec = PodSpec(name="a")
    text = json.dumps(json.loads(plan(spec)) | change)
    assert refusal(outcome(replace(spec, plan=text))).code == "usage"


def test_a_plan_without_its_variable_or_container_is_a_usage_failure() -> None:
    spec = PodSpec(name="a")
    bare = manifest(spec)
    bare["spec"]["containers"][0]["env"] = []
    assert refusal(outcome(spec, pod=bare)).code == "usage"
    bare["spec"]["containers"][0]["name"] = "other"
    assert refusal(outcome(spec, pod=bare)).code == "usage"


def test_a_runner_tells_a_failure_as_json_or_as_text() -> None:
    result = refusal(outcome(PodSpec(name="a"), on=BDX))
    assert json.loads(result.termination_message("coded")) == {
        "code": "cpu-incompatible",
        "message": result.text,
    }
    assert result.termination_message("plain") == result.text


def test_a_captures_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "captures.json"
    captures = CapturesFile(file)
    assert captures.find("a") is None
    write_captures(file, {"a": BDX})
    assert captures.find("a") == Capture(cpu=BDX)
    newer = Capture(cpu=CLX, version=3, ancestors=(BDX,))
    write_captures(file, {"a": BDX, "b": newer})
    assert captures.find("b") == newer
    write_captures(file, {"b": newer})
    assert captures.find("a") is None


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod with these required terms."""
    pod = manifest(PodSpec(name="a"))
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    return pod


def test_only_what_every_required_term_excludes_is_excluded() -> None:
    def not_in(*cpus: str) -> dict[str, Any]:
        return {"key": "space.pplx.net/host-cpu", "operator": "NotIn", "values": list(cpus)}

    other = {"key": "zone", "operator": "NotIn", "values": ["a"]}
    assert excluded_cpus(manifest(PodSpec(name="a"))) == []
    assert excluded_cpus(affinity([not_in(CLX, BDX), other])) == sorted([BDX, CLX])
    assert excluded_cpus(affinity([not_in(CLX, BDX)], [not_in(CLX)])) == [CLX]
    assert excluded_cpus(affinity([not_in(CLX)], [other])) == []
