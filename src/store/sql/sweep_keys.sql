-- solejob sweep_keys: forgets window keys whose window is over, in one stretch of the table's pages: no index
-- is needed for it, which every dispatch would have to pay for. Who is just taking one over keeps it.
delete from job_keys
where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid
    and expires_at <= clock_timestamp()
