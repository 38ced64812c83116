-- solejob pause_queue: a queue gives out no jobs from now on.
insert into paused_queues (app_id, queue, paused_at)
values ($1, $2, clock_timestamp())
on conflict do nothing
