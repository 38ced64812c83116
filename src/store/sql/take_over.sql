-- solejob take_over: window keys whose window is over get a new holder, if they still have the one that was seen.
update job_keys as k
set job_id = claim.job_id, since = $1, expires_at = claim.expires_at, fingerprint = claim.fingerprint,
    release_on = claim.release_on, linked = claim.linked, job_dispatched_at = claim.job_dispatched_at,
    job_active_key = claim.job_active_key
from unnest(
    $2::bigint[], $3::uuid[], $4::uuid[], $5::timestamptz[], $6::bytea[], $7::smallint[], $8::boolean[],
    $9::timestamptz[], $10::text[], $11::uuid[], $12::timestamptz[]
) as claim (
    app_id, digest, job_id, expires_at, fingerprint, release_on, linked, job_dispatched_at, job_active_key,
    seen_job_id, seen_expires_at
)
where k.app_id = claim.app_id and k.digest = claim.digest
    and k.job_id = claim.seen_job_id and k.expires_at = claim.seen_expires_at
