"""The CRD says what the models say; nothing a model can hold is refused or dropped by it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct

from sandbox_restore.model import crd
from sandbox_restore.model.restore import (
    AttemptStatus,
    Condition,
    Evacuation,
    FilterCount,
    HostCpuPolicy,
    PlacementStatus,
    PlanStatus,
    RedirectCondition,
    RedirectStatus,
    RestoreSpec,
    RestoreStatus,
)
from tests.unit.model.structural_schema import not_structural, refusals

FILE = Path(__file__).parents[3] / crd.FILE


def version() -> dict[str, Any]:
    found: dict[str, Any] = crd.definition()["spec"]["versions"][0]
    return found


# The file


def test_the_file_is_what_the_models_say() -> None:
    assert FILE.read_text() == crd.as_yaml(), "run python -m sandbox_restore.model.crd"


def test_the_file_reads_back_as_the_definition() -> None:
    assert yaml.safe_load(crd.as_yaml()) == crd.definition()


def test_check_tells_a_file_that_drifted_and_one_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "crds" / "crd.yaml"
    assert crd.main(["--check", str(file)]) == 1
    assert crd.main([str(file)]) == 0
    assert crd.main(["--check", str(file)]) == 0
    file.write_text(file.read_text().replace("maximum: 100", "maximum: 101"))
    assert crd.main(["--check", str(file)]) == 1
    assert "run python -m sandbox_restore.model.crd" in capsys.readouterr().err


# The schema


def test_the_schema_is_structural() -> None:
    assert list(not_structural(crd.object_schema())) == []


def test_names_are_those_users_type() -> None:
    definition = crd.definition()
    assert definition["metadata"]["name"] == "sandboxrestores.space.pplx.net"
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"]["shortNames"] == ["sbr"]
    assert definition["spec"]["names"]["categories"] == ["space"]
    assert version()["subresources"] == {"status": {}}


def test_columns_stand_in_the_order_people_read_them() -> None:
    columns = version()["additionalPrinterColumns"]
    narrow = [c["name"] for c in columns if not c.get("priority")]
    wide = [c["name"] for c in columns if c.get("priority")]
    assert narrow == ["Succeeded", "Reason", "Sandbox", "Capture-CPU", "Source", "Node", "Age"]
    assert wide == ["Decision", "Attempts", "Redirect", "Snapshot", "Pod"]


def test_every_column_shows_a_field_that_exists() -> None:
    schema = crd.object_schema()
    for column in version()["additionalPrinterColumns"]:
        node = schema
        path = re.sub(r'\[(\?\(@\.type=="[A-Z][a-z]+"\)|-1:)\]', "[]", column["jsonPath"])
        for part in path.removeprefix(".").split("."):
            if node is schema and part == "metadata":
                break
            node = node["properties"][part.removesuffix("[]")]
            node = node["items"] if part.endswith("[]") else node


def test_defaults_stand_in_the_spec_and_not_in_the_status() -> None:
    schema = crd.object_schema()["properties"]
    defaults = {n: f["default"] for n, f in schema["spec"]["properties"].items() if "default" in f}
    assert defaults == {
        "hostCpuPolicy": "Auto",
        "nodeSelector": {},
        "backoffLimit": 4,
        "activeDeadlineSeconds": 600,
        "ttlSecondsAfterFinished": 3600,
        "suspend": False,
    }
    assert "default" not in set(_keys(schema["status"]))


def _keys(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from _keys(value)
    elif isinstance(node, list):
        for item in node:
            yield from _keys(item)


def test_conditions_are_a_map_by_type_and_other_lists_are_replaced_as_a_whole() -> None:
    status = crd.object_schema()["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-type"] == "map"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["attempts"]["x-kubernetes-list-type"] == "atomic"


@pytest.mark.parametrize("field", ["sandboxId", "snapshotId", "hostCpuPolicy", "evacuation"])
def test_each_immutable_field_has_a_rule_on_the_spec(field: str) -> None:
    spec = crd.object_schema()["properties"]["spec"]
    (rule,) = [
        rule
        for rule in spec["x-kubernetes-validations"]
        if rule["message"].startswith(f"{field} is immutable")
    ]
    assert f"self.{field} == oldSelf.{field}" in rule["rule"]
    if field not in spec["required"]:
        assert f"has(self.{field}) == has(oldSelf.{field})" in rule["rule"]


def test_a_field_without_a_description_is_refused() -> None:
    class Bare(Struct):
        mute: int

    with pytest.raises(TypeError, match=r"Bare\.mute: no description"):
        crd.structural(Bare)


def test_a_type_that_a_structural_schema_cannot_say_is_refused() -> None:
    class Either(Struct):
        value: Annotated[int | str, Meta(description="One or the other.")]

    with pytest.raises(TypeError, match=r"Either\.value"):
        crd.structural(Either)


# A definition that a server has


def test_a_server_with_this_definition_lacks_nothing() -> None:
    assert crd.absent_fields(crd.definition()) == ()


def test_a_field_that_the_server_would_prune_is_named() -> None:
    served = copy.deepcopy(crd.definition())
    status = served["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["podName"]
    del status["properties"]["attempts"]["items"]["properties"]["cpu"]
    assert crd.absent_fields(served) == (".status.attempts[].cpu", ".status.podName")


@pytest.mark.parametrize("change", [{"name": "v1beta1"}, {"served": False}])
def test_a_version_that_is_not_served_is_named(change: dict[str, object]) -> None:
    served = copy.deepcopy(crd.definition())
    served["spec"]["versions"][0] |= change
    assert crd.absent_fields(served) == ("v1alpha1",)
    assert crd.absent_fields({}) == ("v1alpha1",)


# Any record, there and back

WORDS = st.text(st.characters(codec="utf-8"), max_size=40)
SOME_WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
COUNTS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(
    min_value=datetime(1970, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
LABELS = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True).filter(
    str.isascii
)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just(UNSET) | strategy


def whole(record: type[Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any such record; a field added to it must be added here, or it would never be tried."""
    assert set(fields) == set(record.__struct_fields__)
    return st.builds(record, **fields)


def lists(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3)


SPECS = whole(
    RestoreSpec,
    sandbox_id=LABELS,
    snapshot_id=optional(SOME_WORDS),
    host_cpu_policy=st.sampled_from(HostCpuPolicy),
    node_selector=st.dictionaries(SOME_WORDS, st.just("") | LABELS, max_size=32),
    evacuation=optional(whole(Evacuation, cohort=LABELS)),
    backoff_limit=st.integers(1, 100),
    active_deadline_seconds=st.integers(1, 604800),
    ttl_seconds_after_finished=st.integers(0, 31536000),
    suspend=st.booleans(),
)
CONDITIONS = whole(
    Condition,
    type=SOME_WORDS,
    status=st.sampled_from(["True", "False", "Unknown"]),
    observed_generation=COUNTS,
    last_transition_time=TIMES,
    reason=SOME_WORDS,
    message=WORDS,
)
PLANS = whole(
    PlanStatus,
    source=WORDS,
    snapshot_id=WORDS,
    captured_at=optional(TIMES),
    node=WORDS,
    origin=WORDS,
)
PLACEMENTS = whole(
    PlacementStatus,
    capture_cpu=WORDS,
    evidence=WORDS,
    decision=WORDS,
    reason=WORDS,
    gate=st.booleans(),
    policy=WORDS,
    published=lists(WORDS),
    excluded=lists(WORDS),
    loaders=lists(WORDS),
    nodes=COUNTS,
    reachable=COUNTS,
    reachable_loaders=COUNTS,
    removed=lists(whole(FilterCount, filter=WORDS, removed=COUNTS)),
    message=WORDS,
)
ATTEMPTS = whole(
    AttemptStatus,
    attempt=COUNTS,
    pod=WORDS,
    node=WORDS,
    cpu=WORDS,
    source=WORDS,
    outcome=WORDS,
    failure_class=WORDS,
    message=WORDS,
    started_at=optional(TIMES),
    ended_at=optional(TIMES),
)
REDIRECTS = whole(
    RedirectStatus,
    decision=WORDS,
    blocked_by=WORDS,
    conditions=lists(
        whole(RedirectCondition, name=WORDS, met=st.booleans(), reason=WORDS, message=WORDS)
    ),
)
STATUSES = whole(
    RestoreStatus,
    observed_generation=COUNTS,
    conditions=st.lists(CONDITIONS, max_size=3, unique_by=lambda one: one.type),
    plan=optional(PLANS),
    placement=optional(PLACEMENTS),
    redirect=optional(REDIRECTS),
    observed=optional(PLACEMENTS),
    attempts=st.lists(ATTEMPTS, max_size=3),
    failed_attempts=COUNTS,
    pod_name=WORDS,
    node_name=WORDS,
    start_time=optional(TIMES),
    completion_time=optional(TIMES),
    suspended_at=optional(TIMES),
    suspended_seconds=COUNTS,
)


def schema_of(part: str) -> dict[str, Any]:
    found: dict[str, Any] = crd.object_schema()["properties"][part]
    return found


SPEC_SCHEMA, STATUS_SCHEMA = schema_of("spec"), schema_of("status")


@settings(deadline=None)
@given(SPECS)
def test_every_spec_is_accepted_and_comes_back_as_it_was(spec: RestoreSpec) -> None:
    raw = msgspec.json.encode(spec)
    assert list(refusals(SPEC_SCHEMA, msgspec.json.decode(raw))) == []
    assert msgspec.json.decode(raw, type=RestoreSpec) == spec


@settings(deadline=None)
@given(STATUSES)
def test_every_status_is_accepted_and_comes_back_as_it_was(status: RestoreStatus) -> None:
    raw = msgspec.json.encode(status)
    assert list(refusals(STATUS_SCHEMA, msgspec.json.decode(raw))) == []
    assert msgspec.json.decode(raw, type=RestoreStatus) == status


@settings(deadline=None)
@given(SPECS)
def test_a_spec_without_its_defaults_reads_as_the_same_spec(spec: RestoreSpec) -> None:
    """What a server has not filled in (an object older than a default) reads the same."""
    body = msgspec.to_builtins(spec)
    for name, field in SPEC_SCHEMA["properties"].items():
        if name in body and body[name] == field.get("default"):
            del body[name]
    assert msgspec.convert(body, RestoreSpec) == spec
