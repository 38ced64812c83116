-- What a token may carry beyond its rights. Servers of the version before do not look at these columns: until the last of
-- them is replaced, a token with an end or a list of queues is taken there as if it had neither.

alter table tokens add column name text;
alter table tokens add column queues text[];
alter table tokens add column expires_at timestamptz;
comment on column tokens.queues is 'Where the token may reserve jobs, or null for every queue.';
