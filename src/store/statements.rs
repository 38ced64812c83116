//! Every statement, by name. Each begins with a comment that says its name, so that it is recognised in
//! `pg_stat_activity` and in the database's log; a test prepares all of them.

macro_rules! statements {
    ($($(#[doc = $doc:literal])* $name:ident = $file:literal;)*) => {
        $($(#[doc = $doc])* pub(super) const $name: &str = include_str!(concat!("sql/", $file));)*

        /// Name and text of every statement.
        pub const STATEMENTS: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    CLOCK = "clock.sql";
    LOCK_KEYS = "lock_keys.sql";
    LOOK_UP = "look_up.sql";
    HOLD_LINKED = "hold_linked.sql";
    WRITE = "write.sql";
    TAKE_OVER = "take_over.sql";
    SETTLE = "settle.sql";
    SETTLE_ALONE = "settle_alone.sql";
    FULL_JOBS = "full_jobs.sql";
    LIST = "list.sql";
    ATTEMPTS = "attempts.sql";
    LEASED_BY = "leased_by.sql";
    JOB_STATES = "job_states.sql";
    DELETE_JOB = "delete_job.sql";
    LOCK_LIVES = "lock_lives.sql";
    WRITE_LIVES = "write_lives.sql";
    PAST_ENDS = "past_ends.sql";
    COUNT_QUEUES = "count_queues.sql";
    PROMOTE_DUE = "promote_due.sql";
    LEFT = "left.sql";
    RESERVE = "reserve.sql";
    PICK = "pick.sql";
    LEASE_JOBS = "lease_jobs.sql";
    RESERVED_BEFORE = "reserved_before.sql";
    RENEW_LEASES = "renew_leases.sql";
    ADD_RESOURCES = "add_resources.sql";
    LOCK_RESOURCES = "lock_resources.sql";
    LOCK_FREE_RESOURCES = "lock_free_resources.sql";
    RESOURCE_ROOM = "resource_room.sql";
    HOLD_RESOURCES = "hold_resources.sql";
    FREE_RESOURCES = "free_resources.sql";
    BLOCK_JOBS = "block_jobs.sql";
    UNBLOCK = "unblock.sql";
    UNBLOCK_MISSED = "unblock_missed.sql";
    EXPIRED_LEASES = "expired_leases.sql";
    SWEEP_JOBS = "sweep_jobs.sql";
    SWEEP_KEYS = "sweep_keys.sql";
    SWEEP_RESOURCES = "sweep_resources.sql";
    FOLD_COUNTS = "fold_counts.sql";
    EXAMINE_RULES = "examine_rules.sql";
    QUEUES = "queues.sql";
    NAMESPACES = "namespaces.sql";
    PAUSE_QUEUE = "pause_queue.sql";
    RESUME_QUEUE = "resume_queue.sql";
    CLAIM_AGAIN = "claim_again.sql";
    SET_SCOPE = "set_scope.sql";
    SCOPES = "scopes.sql";
    DELETE_SCOPE = "delete_scope.sql";
    RESET_KEY = "reset_key.sql";
    JOB_TYPES = "job_types.sql";
    TYPES_VERSIONS = "types_versions.sql";
    SAVE_JOB_TYPES = "save_job_types.sql";
    DELETE_JOB_TYPE = "delete_job_type.sql";
    CALLER = "caller.sql";
    ADD_APPLICATION = "add_application.sql";
    ADD_TOKEN = "add_token.sql";
    SET_BOOTSTRAP_TOKEN = "set_bootstrap_token.sql";
    TOKENS = "tokens.sql";
    REVOKE_TOKEN = "revoke_token.sql";
}
