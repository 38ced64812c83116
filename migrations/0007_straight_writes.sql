-- For dispatches that are written by one statement.

-- A statement sees what was there when it began. This function, called in it, sees what is there now: with the locks of
-- the keys held, everything that anybody stored under them.
create function any_key_is_held(app_ids bigint[], digests uuid[]) returns boolean
language plpgsql volatile parallel unsafe
as $$
begin
    return exists (
        select
        from unnest(app_ids, digests) as asked (app_id, digest)
        join job_keys as k on k.app_id = asked.app_id and k.digest = asked.digest
    );
end
$$;
comment on function any_key_is_held is 'Whether any of these keys has a row by now, and not by when the calling statement began.';
