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
    LOCK_KEYS = "lock_keys.sql";
    LOOK_UP = "look_up.sql";
    HOLD_LINKED = "hold_linked.sql";
    WRITE = "write.sql";
    TAKE_OVER = "take_over.sql";
    SETTLE = "settle.sql";
    JOB = "job.sql";
    JOB_WINDOW_KEYS = "job_window_keys.sql";
    LIST = "list.sql";
    LOCK_JOB = "lock_job.sql";
    CANCEL = "cancel.sql";
    REQUEST_CANCEL = "request_cancel.sql";
    RELEASE_KEYS = "release_keys.sql";
    DELETE_JOB = "delete_job.sql";
    RESET_KEY = "reset_key.sql";
    CALLER = "caller.sql";
    ADD_APPLICATION = "add_application.sql";
    ADD_TOKEN = "add_token.sql";
    SET_BOOTSTRAP_TOKEN = "set_bootstrap_token.sql";
    TOKENS = "tokens.sql";
    REVOKE_TOKEN = "revoke_token.sql";
}
