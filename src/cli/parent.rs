//! Which job asks: `solejob work` tells its command, so that a dispatch inside of it knows its parent.

use serde::Serialize;

use crate::cli::Error;

/// What `solejob work` gives to its commands, and what a dispatch reads.
pub(super) const JOB_ID: &str = "SOLEJOB_JOB_ID";
pub(super) const ATTEMPT: &str = "SOLEJOB_ATTEMPT";

/// The parent of what is dispatched.
#[derive(clap::Args)]
pub(super) struct ParentArgs {
    /// The job that asks for this one [default: under `solejob work`, the job that it runs, with its attempt]
    #[arg(long, value_name = "ID", conflicts_with = "no_parent")]
    parent_job: Option<String>,
    /// Its attempt
    #[arg(long, value_name = "N", requires = "parent_job", conflicts_with = "no_parent")]
    parent_attempt: Option<i64>,
    /// No job asks for this one, under `solejob work` either
    #[arg(long)]
    no_parent: bool,
}

#[derive(Clone, Serialize, Debug)]
pub(super) struct Parent {
    job_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i64>,
    #[serde(skip)]
    from_env: bool,
}

impl ParentArgs {
    pub(super) fn parent(self) -> Result<Option<Parent>, Error> {
        let ParentArgs {
            parent_job,
            parent_attempt,
            no_parent,
        } = self;
        if let Some(job_id) = parent_job {
            return Ok(Some(Parent {
                job_id,
                attempt: parent_attempt,
                from_env: false,
            }));
        }
        // A variable that is set to nothing means none.
        #[expect(
            clippy::disallowed_methods,
            reason = "as clap's `env` of the flags, the attempt of the job around would go with another parent that is named"
        )]
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(job_id) = variable(JOB_ID).filter(|_| !no_parent) else {
            return Ok(None);
        };
        let attempt = variable(ATTEMPT).map(|text| text.parse()).transpose();
        let attempt = attempt.map_err(|_| {
            let detail =
                format!("{ATTEMPT} is no number: `solejob work` sets it; --no-parent dispatches without a parent");
            Error::Usage(detail)
        })?;
        Ok(Some(Parent {
            job_id,
            attempt,
            from_env: true,
        }))
    }
}

impl Parent {
    pub(super) fn job_id(&self) -> &str {
        &self.job_id
    }

    pub(super) fn attempt(&self) -> Option<i64> {
        self.attempt
    }

    /// Where a parent came from that the server does not know, if nobody has named it.
    pub(super) fn explain(&self, code: &str) -> Option<String> {
        let unknown = self.from_env && code == "idempotency_scope_invalid";
        unknown.then(|| {
            let job_id = &self.job_id;
            format!("the parent {job_id} comes from {JOB_ID}; --no-parent dispatches without one")
        })
    }
}
