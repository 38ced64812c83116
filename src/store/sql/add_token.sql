-- solejob add_token: keeps the hash of a token. A token that is there already keeps its row.
insert into tokens (token_id, app_id, rights, secret_hash, created_at)
values ($1, $2, $3, $4, clock_timestamp())
on conflict (token_id) do nothing
