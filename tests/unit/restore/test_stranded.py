"""Which rows that restores left pinned are stranded (section 10): what sweep and metrics count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.sandbox import LeftPinned
from sandbox_restore.restore.blocked import Reason
from sandbox_restore.restore.stranded import Why, by_reason, stranded_rows
from tests.support.builders import NOW, ago, node

INTEL, AMD, OTHER = "intel-6-106-6", "amd-25-17-1", "intel-6-85-7"


def row(pinned: str = "n1", **fields: Any) -> LeftPinned:
    given: dict[str, Any] = {
        "sandbox_id": "box",
        "namespace": "team-a",
        "pinned_node": pinned,
        "marker": False,
        "failure_class": "transport",
        "node_name": pinned,
        "node_uid": f"uid-{pinned}",
        "retired_at": ago(60),
        "snapshot_id": "s1",
        "captured_at": ago(3600),
        "uploaded_by": None,
        "host_cpu": INTEL,
        "ancestor_cpus": (),
        "in_storage": True,
        **fields,
    }
    return LeftPinned(**given)


def index(cpu: str | None = AMD, *, warm: bool = True) -> FleetIndex:
    fleet = FleetIndex(cpu_label=HOST_CPU_LABEL, published_hold=timedelta())
    if warm:
        labels = {HOST_CPU_LABEL: cpu} if cpu else {}
        fleet.replace([node("n1", labels=labels)], now=ago(3600))
    return fleet


def why(one: LeftPinned, fleet: FleetIndex, pairs: str = "") -> str | None:
    found = stranded_rows(
        [one],
        fleet,
        Compatibility.parse(pairs)[0],
        now=NOW,
        gone_grace=timedelta(minutes=5),
        observation_ttl=timedelta(hours=1),
    )
    return found[0].why.value if found else None


def test_a_pinned_node_whose_cpu_is_no_loader_strands() -> None:
    assert why(row(), index()) == Why.CPU


@pytest.mark.parametrize("cpu", [INTEL, None, "unknown"])
def test_a_pinned_node_that_can_load_or_is_not_known_does_not(cpu: str | None) -> None:
    assert why(row(), index(cpu)) is None


def test_the_compatibility_list_and_the_ancestors_count() -> None:
    assert why(row(host_cpu=OTHER), index(INTEL), f"{OTHER}=>{INTEL}") is None
    assert why(row(host_cpu=OTHER, ancestor_cpus=(AMD,)), index(INTEL), f"{OTHER}=>{INTEL}")


def test_a_node_that_refused_lately_strands_whatever_its_label() -> None:
    refused = {"failure_class": "cpu-incompatible"}
    assert why(row(**refused), index(INTEL)) == Why.REFUSED
    assert why(row(**refused, node_uid="another"), index(INTEL)) is None
    assert why(row(**refused, retired_at=ago(3601)), index(INTEL)) is None


def test_a_node_that_is_gone_strands_after_the_grace_period() -> None:
    fleet = index()
    fleet.remove("n1", "uid-n1", now=ago(299))
    assert why(row(), fleet) is None
    assert why(row("n2"), fleet) == Why.GONE
    longer = index()
    longer.remove("n1", "uid-n1", now=ago(300))
    assert why(row(), longer) == Why.GONE


def test_an_unknown_capture_cpu_strands_on_no_label() -> None:
    assert why(row(host_cpu=None), index()) is None
    assert why(row(snapshot_id=None, host_cpu=None), index()) is None


def test_nothing_is_said_on_a_cold_index() -> None:
    assert why(row(), index(warm=False)) is None


def test_they_are_counted_by_capture_cpu_and_reason() -> None:
    rows = stranded_rows(
        [row(), row(), row("n2", snapshot_id=None, host_cpu=None)],
        index(),
        Compatibility.parse("")[0],
        now=NOW,
        gone_grace=timedelta(minutes=5),
        observation_ttl=timedelta(hours=1),
    )
    assert by_reason(rows) == {
        (INTEL, Why.CPU, ""): 2,
        ("", Why.GONE, Reason.NO_STORAGE_COPY): 1,
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"marker": True}, Reason.LOCAL_ARTIFACT_MARKER),
        ({"host_cpu": None}, Reason.CAPTURE_CPU_UNKNOWN),
        ({"in_storage": False}, Reason.NO_STORAGE_COPY),
        ({"snapshot_id": None, "host_cpu": None}, Reason.NO_STORAGE_COPY),
        # In the order of section 10.
        ({"in_storage": False, "marker": True}, Reason.NO_STORAGE_COPY),
        ({"host_cpu": None, "marker": True}, Reason.CAPTURE_CPU_UNKNOWN),
    ],
)
def test_what_the_row_tells_of_why_it_may_not_leave_is_told(
    fields: dict[str, Any], reason: str
) -> None:
    [found] = stranded_rows(
        [row("n2", **fields)],
        index(),
        Compatibility.parse("")[0],
        now=NOW,
        gone_grace=timedelta(minutes=5),
        observation_ttl=timedelta(hours=1),
    )
    assert (found.why, found.blocked_by) == (Why.GONE, reason)
