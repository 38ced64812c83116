-- solejob tokens: every token, without its secret.
select t.token_id, a.application, a.environment, t.rights, t.name, t.queues, t.created_at, t.expires_at, t.revoked_at
from tokens as t
join applications as a using (app_id)
order by t.created_at, t.token_id
