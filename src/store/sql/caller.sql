-- solejob caller: whom a token acts for.
select t.token_id, t.app_id, t.rights, t.queues, a.application, a.environment
from tokens as t
join applications as a using (app_id)
where t.secret_hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp())
