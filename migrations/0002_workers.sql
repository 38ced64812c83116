-- The life of a job: leases, attempts, retries, resources, paused queues, counts.

create type attempt_end as enum ('succeed', 'fail', 'release', 'lease_expired', 'timeout', 'release_cancelled', 'cancel');

alter table jobs
    -- Pending or retrying, due, and blocked by nothing: what a reserve looks through.
    add column ready boolean not null default false,
    -- The resource key that had no room when the job was last tried.
    add column blocked_on text,
    -- The attempt after which a failure is final. A retry by hand moves it.
    add column attempt_limit integer not null default 0,
    -- The lease of a reserved or running job.
    add column lease_token uuid,
    add column lease_expires_at timestamptz,
    add column reserve_id text,
    -- The token that the job was last leased with.
    add column leased_by text,
    -- The last attempt, until the next one begins; it then goes to job_attempts.
    add column worker text,
    add column reserved_at timestamptz,
    add column attempt_ends_at timestamptz,
    add column attempt_finished_at timestamptz,
    add column attempt_error text,
    add column ended_token uuid,
    add column ended_by attempt_end,
    add column result text,
    add column error text,
    add column delete_after timestamptz;

update jobs
set attempt_limit = max_attempts,
    ready = state = 'pending' and run_at <= clock_timestamp(),
    delete_after = finished_at + make_interval(secs => retention_ms / 1000.0);

alter table jobs
    add constraint leased_iff_token check ((state in ('reserved', 'running')) = (lease_token is not null)),
    add constraint leased_iff_expiry check ((lease_token is null) = (lease_expires_at is null)),
    add constraint ready_is_waiting check (not ready or state in ('pending', 'retrying')),
    add constraint blocked_is_waiting check (blocked_on is null or (state in ('pending', 'retrying') and not ready)),
    add constraint finished_iff_delete_after check ((finished_at is null) = (delete_after is null));

-- What a reserve looks through, in the order in which it gives out.
create index jobs_ready on jobs (app_id, queue, priority desc, run_at, job_id) where ready;
-- What becomes ready by the clock.
create index jobs_due on jobs (app_id, queue, run_at)
    where not ready and blocked_on is null and state in ('pending', 'retrying');
-- What becomes ready when a resource has room again.
create index jobs_blocked on jobs (app_id, blocked_on, priority desc, run_at, job_id) where blocked_on is not null;
-- What a sweep looks through for leases and timeouts that are over. Without the times, so that a heartbeat
-- changes no index.
create index jobs_leased on jobs (app_id, job_id) where lease_token is not null;
create index jobs_reserve_id on jobs (app_id, reserve_id) where reserve_id is not null;
create index jobs_delete_after on jobs (app_id, delete_after) where delete_after is not null;

create table job_attempts (
    app_id      bigint not null,
    job_id      uuid not null,
    lease_token uuid not null,
    attempt     integer not null,
    worker      text,
    reserved_at timestamptz not null,
    started_at  timestamptz,
    finished_at timestamptz not null,
    ended_by    attempt_end not null,
    error       text,
    primary key (app_id, job_id, lease_token),
    foreign key (app_id, job_id) references jobs on delete cascade
);
comment on table job_attempts is
    'Attempts before the last one, and leases that were given back (ended_by release), found by their token.';

create table resource_scopes (
    app_id   bigint not null,
    scope    text not null,
    capacity integer not null,
    primary key (app_id, scope),
    constraint capacity_positive check (capacity > 0)
);
comment on table resource_scopes is 'How many jobs with one resource key of a scope may be leased at once, where it is not 1.';

create table resource_keys (
    app_id   bigint not null,
    -- SCOPE:KEY, as the job names it.
    resource text not null,
    primary key (app_id, resource)
);
comment on table resource_keys is
    'One row for each resource key that was ever held. Who takes or gives back a hold locks it first.';

create table resource_holds (
    app_id   bigint not null,
    resource text not null,
    job_id   uuid not null,
    primary key (app_id, resource, job_id)
);
comment on table resource_holds is 'Which leased jobs hold a resource key: as many rows as jobs, never more than the capacity.';

create table paused_queues (
    app_id    bigint not null,
    queue     text not null,
    paused_at timestamptz not null,
    primary key (app_id, queue)
);

create table queue_counts (
    app_id bigint not null,
    queue  text not null,
    state  job_state not null,
    jobs   bigint not null
);
comment on table queue_counts is
    'How many jobs a queue has in each state, as changes that add up: each transaction appends its own, a sweep folds them.';
create index queue_counts_queue on queue_counts (app_id, queue, state);

insert into queue_counts (app_id, queue, state, jobs)
select app_id, queue, state, count(*) from jobs group by app_id, queue, state;
