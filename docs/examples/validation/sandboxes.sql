-- In your environment the platform makes these: one sandbox for each CPU model, booted on a node of it,
-- suspended, its snapshot uploaded. Here, on simulated nodes, they are only reported.
SET search_path = sandbox_restore;

SELECT sandbox_created(sandbox_id => 'probe-icelake', namespace => 'validation');
SELECT snapshot_started(sandbox_id => 'probe-icelake', snapshot_id => 'probe-icelake-1', captured_at => now());
SELECT snapshot_ready(sandbox_id => 'probe-icelake', snapshot_id => 'probe-icelake-1',
    host_cpu => 'intel-6-106-6', storage_uri => 's3://snapshots/probe-icelake/1');

SELECT sandbox_created(sandbox_id => 'probe-broadwell', namespace => 'validation');
SELECT snapshot_started(sandbox_id => 'probe-broadwell', snapshot_id => 'probe-broadwell-1', captured_at => now());
SELECT snapshot_ready(sandbox_id => 'probe-broadwell', snapshot_id => 'probe-broadwell-1',
    host_cpu => 'intel-6-79-1', storage_uri => 's3://snapshots/probe-broadwell/1');
