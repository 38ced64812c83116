-- solejob revoke_token: a token is refused from now on, on each server once its cache has let go.
update tokens set revoked_at = clock_timestamp()
where token_id = $1 and revoked_at is null
