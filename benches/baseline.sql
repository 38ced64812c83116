-- What a dispatch is measured against: a plain table of jobs as people write it, and one bare single-row INSERT a
-- transaction into it. It does not follow our schema, so that the unit stays the same when ours changes.
drop table if exists baseline_jobs;
create table baseline_jobs (
    job_id uuid primary key, -- version 7
    application integer not null,
    name text not null,
    queue text not null,
    priority smallint not null,
    state text not null,
    payload json not null,
    metadata jsonb not null,
    fingerprint bytea not null,
    active_key text,
    dispatched_at timestamptz not null,
    run_at timestamptz not null,
    finished_at timestamptz
);
create unique index baseline_active on baseline_jobs (application, name, active_key) where finished_at is null;
create index baseline_reserve on baseline_jobs (application, queue, priority desc, run_at) where state = 'pending';
