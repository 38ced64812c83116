-- Applications, tokens, jobs and the keys that make them unique.
--
-- Every key and index begins with app_id, so that each table can be distributed by it.
-- Instants are written by the server from one clock_timestamp() read after the locks are held;
-- no column defaults to now().

create table applications (
    app_id      bigint generated always as identity primary key,
    application text not null,
    environment text not null,
    unique (application, environment)
);
comment on table applications is 'The namespaces that tokens act for: one row for each (application, environment).';

create table tokens (
    token_id    text primary key,
    app_id      bigint not null references applications,
    rights      text[] not null,
    secret_hash bytea not null unique,
    created_at  timestamptz not null,
    revoked_at  timestamptz,
    constraint rights_known check (rights <@ array['dispatch', 'read', 'work', 'admin'] and cardinality(rights) > 0),
    constraint hash_is_sha256 check (octet_length(secret_hash) = 32)
);
comment on table tokens is 'API tokens; of the secret only the SHA-256 is kept.';

create type job_state as enum ('pending', 'reserved', 'running', 'retrying', 'succeeded', 'failed', 'cancelled');
create type backoff_kind as enum ('fixed', 'exponential');

create table jobs (
    app_id           bigint not null,
    job_id           uuid not null,
    name             text not null,
    queue            text not null,
    priority         smallint not null,
    state            job_state not null,
    -- As posted, to the letter. Text and never jsonb, which would rewrite numbers, drop repeated
    -- members and expand 1e131071 to 131 kB.
    payload          text not null,
    metadata         jsonb,
    resource_keys    text[],
    active_key       text,
    -- Digests of the two keys that this job claimed when it was created: the way back to its rows in
    -- job_keys without an index for it. Keys that were linked later are found by job_keys_linked.
    active_digest    uuid,
    window_digest    uuid,
    parent_job_id    uuid,
    parent_attempt   integer,
    max_attempts     integer not null,
    backoff          backoff_kind not null,
    backoff_initial_ms bigint not null,
    backoff_factor   double precision not null,
    backoff_max_ms   bigint not null,
    backoff_jitter   boolean not null,
    timeout_ms       bigint,
    retention_ms     bigint not null,
    attempt          integer not null default 0,
    cancel_requested boolean not null default false,
    dispatched_at    timestamptz not null,
    run_at           timestamptz not null,
    started_at       timestamptz,
    finished_at      timestamptz,
    primary key (app_id, job_id),
    constraint finished_iff_finished_at check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint active_key_has_digest check ((active_key is null) = (active_digest is null)),
    -- sqlx cannot decode an infinite instant, and none has a meaning here.
    constraint instants_finite check (isfinite(dispatched_at) and isfinite(run_at))
);
comment on table jobs is 'One row for each job, live or finished.';

create type key_dimension as enum ('active', 'window');

create table job_keys (
    app_id        bigint not null,
    -- First 128 bits of a SHA-256 over dimension, job name, scope and key. The full key stands beside
    -- it and is compared on every read, so that a collision could never merge two keys.
    digest        uuid not null,
    dimension     key_dimension not null,
    name          text not null,
    scope         text not null,
    key           text not null,
    job_id        uuid not null,
    since         timestamptz not null,
    -- Window keys: the first instant at which the key is free. Active keys: null, the row goes when the job ends.
    expires_at    timestamptz,
    -- What a window key needs to answer after its job is gone.
    fingerprint   bytea,
    release_on    smallint not null,
    linked        boolean not null,
    job_dispatched_at timestamptz not null,
    job_active_key    text,
    primary key (app_id, digest),
    constraint window_iff_expiry check ((dimension = 'window') = (expires_at is not null)),
    constraint window_iff_fingerprint check ((dimension = 'window') = (fingerprint is not null))
);
comment on table job_keys is 'Who holds a key. The primary key is the arbiter of uniqueness; advisory locks only keep it from being hit.';
comment on column job_keys.release_on is 'Final states that free the key early: 1 succeeded, 2 failed, 4 cancelled, added up.';

-- A key that was linked to a job after the job existed cannot be reached from the job's row.
create index job_keys_linked on job_keys (app_id, job_id) where linked;
