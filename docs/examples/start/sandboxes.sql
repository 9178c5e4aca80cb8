-- What a platform reports of two sandboxes that sleep, their snapshots in storage.
SET search_path = sandbox_restore;

SELECT sandbox_created(sandbox_id => 'box-1', namespace => 'team-a');
SELECT snapshot_started(sandbox_id => 'box-1', snapshot_id => 'snap-1', captured_at => now());
SELECT snapshot_ready(sandbox_id => 'box-1', snapshot_id => 'snap-1',
    host_cpu => 'intel-6-79-1', storage_uri => 's3://snapshots/box-1/snap-1');

SELECT sandbox_created(sandbox_id => 'box-2', namespace => 'team-a');
SELECT snapshot_started(sandbox_id => 'box-2', snapshot_id => 'snap-2', captured_at => now());
SELECT snapshot_ready(sandbox_id => 'box-2', snapshot_id => 'snap-2',
    host_cpu => 'intel-6-106-6.d4sv5', storage_uri => 's3://snapshots/box-2/snap-2');
