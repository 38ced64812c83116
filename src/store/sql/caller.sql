-- solejob caller: whom a token acts for.
select t.token_id, t.app_id, t.rights, a.application, a.environment
from tokens as t
join applications as a using (app_id)
where t.secret_hash = $1 and t.revoked_at is null
