-- solejob renew_leases: the jobs of a repeated reserve get new tokens and full leases; the old tokens are void.
with lease as materialized (
    select $1::bigint as app_id, lease.*
    from unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::text[]) as lease (job_id, token, lease_ms, token_id)
)
update jobs as j
set lease_token = lease.token, lease_expires_at = clock_timestamp() + make_interval(secs => lease.lease_ms / 1000.0),
    leased_by = lease.token_id
from lease
where j.app_id = lease.app_id and j.job_id = lease.job_id
