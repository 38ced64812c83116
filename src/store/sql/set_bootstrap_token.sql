-- solejob set_bootstrap_token: keeps the hash of a token under its id, in place of the one before.
insert into tokens (token_id, app_id, rights, secret_hash, created_at)
values ($1, $2, $3, $4, clock_timestamp())
on conflict (token_id) do update
set app_id = excluded.app_id, rights = excluded.rights, secret_hash = excluded.secret_hash, revoked_at = null
