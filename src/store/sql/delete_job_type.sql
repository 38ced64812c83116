-- solejob delete_job_type: nothing is declared for this name any more.
with gone as (
    delete from job_types where app_id = $1 and name = $2 returning name
),
raised as (
    update applications set types_version = types_version + 1 where app_id = $1 and exists (select from gone)
)
select count(*) > 0 as deleted from gone
