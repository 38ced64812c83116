-- solejob keep_attempts: attempts that their job's row no longer shows.
insert into job_attempts (
    app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error
)
select app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by::attempt_end, error
from unnest(
    $1::bigint[], $2::uuid[], $3::uuid[], $4::integer[], $5::text[], $6::timestamptz[], $7::timestamptz[],
    $8::timestamptz[], $9::text[], $10::text[]
) as a (app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error)
