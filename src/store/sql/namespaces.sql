-- solejob namespaces: the applications, the first so many of them.
select app_id, application, environment
from applications
order by app_id
limit $1
