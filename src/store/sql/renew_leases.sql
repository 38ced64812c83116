-- solejob renew_leases: the jobs of a repeated reserve get new tokens and full leases; the old tokens are void.
update jobs as j
set lease_token = lease.token, lease_expires_at = clock_timestamp() + make_interval(secs => $4::bigint / 1000.0)
from unnest($2::uuid[], $3::uuid[]) as lease (job_id, token)
where j.app_id = $1 and j.job_id = lease.job_id and j.lease_token is not null
returning j.job_id
