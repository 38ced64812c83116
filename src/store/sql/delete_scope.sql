-- solejob delete_scope: the capacity of this scope is 1 again.
delete from resource_scopes where app_id = $1 and scope = $2
