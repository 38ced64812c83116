-- solejob add_token: keeps the hash of a new token.
insert into tokens (token_id, app_id, rights, secret_hash, created_at, name, queues, expires_at)
select $1, $2, $3, $4, now.at, $5, $6, now.at + $7 * interval '1 millisecond'
from (select clock_timestamp() as at) as now
