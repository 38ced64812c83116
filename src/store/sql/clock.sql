-- solejob clock: what time it is here.
select clock_timestamp() as now
