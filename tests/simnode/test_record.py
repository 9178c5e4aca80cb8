"""The record, and what it proves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simnode import Event, check_record
from tests.support.simnode.record import Entry, History, Record, RecordInUseError, read_record


def start(record: Record, pod: str, *, sandbox: str = "sb", version: int = 1) -> Entry:
    return record.append(
        Event.VM_STARTED,
        sandbox=sandbox,
        pod=pod,
        pod_uid=pod,
        node=f"node-of-{pod}",
        snapshot=f"{sandbox}-v{version}",
        version=version,
    )


def end(record: Record, pod: str, *, sandbox: str = "sb") -> Entry:
    return record.append(Event.VM_ENDED, sandbox=sandbox, pod=pod, pod_uid=pod)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record.jsonl")


def test_one_vm_after_another_is_well(record: Record) -> None:
    start(record, "a")
    end(record, "a")
    start(record, "b")
    start(record, "c", sandbox="other")
    assert check_record(record.path) == record.violations == []


def test_two_live_vms_of_one_sandbox_are_found(record: Record) -> None:
    start(record, "a")
    start(record, "b")
    assert check_record(record.path) == [
        "line 2: two live VMs of sandbox sb: b on node-of-b beside a on node-of-a"
    ]
    assert record.violations == check_record(record.path)


def test_a_second_vm_in_one_pod_is_found(record: Record) -> None:
    start(record, "a")
    end(record, "a")
    start(record, "a")
    assert check_record(record.path) == ["line 3: pod a (a) started two VMs"]


def test_an_end_without_a_start_is_found(record: Record) -> None:
    end(record, "a")
    assert check_record(record.path) == ["line 1: the VM of pod a ended and did not live"]


def test_a_load_of_older_state_than_acknowledged_is_found_unless_the_user_named_it(
    record: Record,
) -> None:
    record.append(Event.STATE_ACKNOWLEDGED, sandbox="sb", version=2)
    start(record, "a", version=1)
    assert check_record(record.path) == [
        "line 2: sandbox sb was restored from snapshot sb-v1 (version 1), older than acknowledged "
        "state (version 2)"
    ]
    assert check_record(record.path, named_by_user=["sb-v1"]) == []
    assert check_record(record.path, check_older=False) == []


def test_state_acknowledged_later_does_not_condemn_an_earlier_load(record: Record) -> None:
    start(record, "a", version=1)
    record.append(Event.STATE_ACKNOWLEDGED, sandbox="sb", version=2)
    assert check_record(record.path) == []


def test_a_record_goes_on_where_it_ended(record: Record) -> None:
    start(record, "a")
    record.close()
    later = Record(record.path)
    assert later.history.lives("a")
    start(later, "b")
    assert [entry.seq for entry in read_record(record.path)] == [1, 2]
    assert len(later.violations) == 1


def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(record: Record) -> None:
    start(record, "a")
    record.close()
    with record.path.open("ab") as file:
        file.write(b'{"seq":2,"at":1.0,"event":"vm-sta')
    later = Record(record.path)
    end(later, "a")
    assert [entry.event for entry in read_record(record.path)] == [
        Event.VM_STARTED,
        Event.VM_ENDED,
    ]
    assert check_record(record.path) == []


def test_one_process_at_a_time_writes(record: Record) -> None:
    with pytest.raises(RecordInUseError):
        Record(record.path)


def test_files_stay_on_the_node_that_loaded_or_refused_them(record: Record) -> None:
    start(record, "a")
    record.append(Event.LOAD_REFUSED, node="n", pod_uid="b", snapshot="s", capture_cpu="x")
    record.append(Event.LOAD_REFUSED, node="n", pod_uid="c", snapshot="not-found")
    assert record.history.files == {"node-of-a": {"sb-v1"}, "n": {"s"}}
    record.append(Event.FILES_DROPPED, node="n")
    assert record.history.files == {"node-of-a": {"sb-v1"}}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_a_violation_is_found_exactly_when_two_vms_live(steps: list[tuple[str, bool]]) -> None:
    history, live, used, expected, found = History(), set[str](), set[str](), 0, 0
    for number, (pod, starts) in enumerate(steps, start=1):
        if starts and pod not in used:
            event, expected = Event.VM_STARTED, expected + bool(live)
            live.add(pod)
            used.add(pod)
        elif not starts and pod in live:
            event = Event.VM_ENDED
            live.remove(pod)
        else:
            continue
        entry = Entry(seq=number, at=0.0, event=event, sandbox="sb", pod=pod, pod_uid=pod)
        found += len(history.apply(entry))
    assert found == expected
    assert set(history.live.get("sb", {})) == live
