-- solejob renew_leases: the jobs of a repeated reserve get new tokens and full leases; the old tokens are void.
update jobs as j
set lease_token = lease.token, lease_expires_at = clock_timestamp() + make_interval(secs => lease.lease_ms / 1000.0),
    leased_by = lease.token_id
from unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::text[]) as lease (job_id, token, lease_ms, token_id)
where j.app_id = $1 and j.job_id = lease.job_id and j.lease_token is not null
