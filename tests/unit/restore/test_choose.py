"""Section 14: which snapshot an attempt may be made from. The rest is in test_planner.py."""

from __future__ import annotations

from sandbox_restore.model.sandbox import SnapshotKind
from sandbox_restore.restore.choose import NoPlan, StoragePlan, choose
from tests.support.builders import ago, restore, snapshot, view


def test_only_a_full_snapshot_is_restored_from() -> None:
    diff = snapshot("s2", kind=SnapshotKind.DIFF, captured_at=ago(60))
    found = choose(view(snapshots=[snapshot(), diff]), restore())
    assert isinstance(found, StoragePlan)
    assert found.snapshot.id == "s1"
    for asked in (restore(), restore(snapshot_id="s2")):
        alone = choose(view(snapshots=[diff]), asked)
        assert isinstance(alone, NoPlan)
        assert (alone.reason, alone.final) == ("SnapshotUnavailable", True)


def test_a_storage_uri_outside_the_configured_prefixes_is_refused() -> None:
    """Section 16: a row may not lead a restore to what the administrator did not allow."""
    for prefixes in ((), ("s3://snapshots/",), ("gs://other/", "s3://snapshots/")):
        allowed = choose(view(), restore(), storage_uri_prefixes=prefixes)
        assert isinstance(allowed, StoragePlan)
    for asked in (restore(), restore(snapshot_id="s1")):
        found = choose(view(), asked, storage_uri_prefixes=("s3://snapshots-of-others/",))
        assert isinstance(found, NoPlan)
        assert (found.reason, found.final) == ("SnapshotUnavailable", True)
        assert "STORAGE_URI_PREFIXES" in found.message
