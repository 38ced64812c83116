-- solejob write_lives: what calls made of jobs.
update jobs as j
set state = c.state::job_state, ready = c.ready, blocked_on = null, attempt = c.attempt,
    attempt_limit = c.attempt_limit, run_at = c.run_at, lease_token = c.lease_token,
    lease_expires_at = c.lease_expires_at, attempt_ends_at = c.attempt_ends_at, worker = c.worker,
    reserved_at = c.reserved_at, started_at = c.started_at, attempt_finished_at = c.attempt_finished_at,
    attempt_error = c.attempt_error, ended_token = c.ended_token, ended_by = c.ended_by::attempt_end,
    cancel_requested = c.cancel_requested, result = c.result, error = c.error, finished_at = c.finished_at,
    delete_after = c.delete_after,
    reserve_id = case when c.lease_token is null then null else j.reserve_id end
from unnest(
    $1::bigint[], $2::uuid[], $3::text[], $4::boolean[], $5::integer[], $6::integer[], $7::timestamptz[], $8::uuid[],
    $9::timestamptz[], $10::timestamptz[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[],
    $15::text[], $16::uuid[], $17::text[], $18::boolean[], $19::text[], $20::text[], $21::timestamptz[],
    $22::timestamptz[]
) as c (
    app_id, job_id, state, ready, attempt, attempt_limit, run_at, lease_token, lease_expires_at, attempt_ends_at,
    worker, reserved_at, started_at, attempt_finished_at, attempt_error, ended_token, ended_by, cancel_requested,
    result, error, finished_at, delete_after
)
where j.app_id = c.app_id and j.job_id = c.job_id
