-- solejob resume_queue: a queue gives out jobs again.
delete from paused_queues where app_id = $1 and queue = $2
