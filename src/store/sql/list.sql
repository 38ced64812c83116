-- solejob list: a page of jobs, newest first. A filter that is null lets everything pass.
select
    job_id, name, queue, priority, state::text as state, payload, metadata::text as metadata, resource_keys, active_key,
    parent_job_id, parent_attempt, max_attempts, backoff::text as backoff, backoff_initial_ms,
    backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, attempt, cancel_requested, dispatched_at,
    run_at, started_at, finished_at, result, error
from jobs
where app_id = $1
    and job_id < $2
    and ($3::text[] is null or name = any($3))
    and ($4::text[] is null or queue = any($4))
    and ($5::text[] is null or state = any($5::job_state[]))
    and ($11::boolean is null or state <> 'pending' or (run_at > clock_timestamp()) = $11)
    and ($6::text is null or active_key = $6)
    and ($7::text is null or metadata @> $7::jsonb)
    and ($8::timestamptz is null or dispatched_at > $8)
    and ($9::timestamptz is null or dispatched_at < $9)
order by job_id desc
limit $10
