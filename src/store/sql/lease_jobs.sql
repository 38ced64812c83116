-- solejob lease_jobs: gives jobs out. The attempt before, if one is still shown, is kept apart.
with clock as materialized (
    select clock_timestamp() as now
), lease as (
    select $1::bigint as app_id, lease.* from unnest($2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::text[])
        as lease (job_id, token, worker, lease_ms, reserve_id, token_id)
), kept as (
    insert into job_attempts (
        app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error
    )
    select j.app_id, j.job_id, j.ended_token, j.attempt, j.worker, j.reserved_at, j.started_at, j.attempt_finished_at,
        j.ended_by, j.attempt_error
    from lease
    join jobs as j on j.app_id = lease.app_id and j.job_id = lease.job_id
    where j.reserved_at is not null
)
update jobs as j
set state = 'reserved', ready = false, attempt = j.attempt + 1, lease_token = lease.token,
    lease_expires_at = clock.now + make_interval(secs => lease.lease_ms / 1000.0), reserve_id = lease.reserve_id,
    worker = lease.worker, reserved_at = clock.now, started_at = null,
    attempt_ends_at = clock.now + make_interval(secs => j.timeout_ms / 1000.0), attempt_finished_at = null,
    attempt_error = null, leased_by = lease.token_id, ended_token = null, ended_by = null
from lease, clock
where j.app_id = lease.app_id and j.job_id = lease.job_id
returning j.job_id, j.queue, (select b.state::text from jobs as b where b.app_id = $1 and b.job_id = j.job_id) as was
