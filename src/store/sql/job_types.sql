-- solejob job_types: what is declared for an application, all of it or one name, and the version that it is at.
select a.types_version, t.name, t.definition, t.updated_at
from applications as a
left join job_types as t on t.app_id = a.app_id and ($2::text is null or t.name = $2)
where a.app_id = $1
order by t.name
