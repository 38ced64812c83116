-- solejob add_application: the application's id, new or not. The update that changes nothing makes it return.
insert into applications (application, environment)
values ($1, $2)
on conflict (application, environment) do update set application = excluded.application
returning app_id
