-- solejob add_token: keeps the hash of a new token.
insert into tokens (token_id, app_id, rights, secret_hash, created_at)
values ($1, $2, $3, $4, clock_timestamp())

