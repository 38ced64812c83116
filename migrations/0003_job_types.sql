-- What is declared for a job name: keys that every dispatch of it has, and defaults.

alter table applications
    -- Goes up with every change of the application's job types. A dispatch transaction compares it with the version
    -- that its dispatches were prepared by.
    add column types_version bigint not null default 0;

create table job_types (
    app_id     bigint not null references applications,
    name       text not null,
    -- JSON, in the members of `PUT /v1/job-types/{name}`, those that were given.
    definition text not null,
    updated_at timestamptz not null,
    primary key (app_id, name),
    constraint updated_finite check (isfinite(updated_at))
);
comment on table job_types is 'One row for each job name that something is declared for.';
