//! `solejob doctor`: what is wrong with a database, and what to do about it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::Error;
use crate::duration::{self, Millis};
use crate::store::{self, Found, Store};

/// What the servers themselves mend within two seconds is looked for again after so long.
const SECOND_LOOK: Duration = Duration::from_secs(3);

#[derive(clap::Args)]
pub(super) struct Doctor {
    /// PostgreSQL to examine
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// How long a transaction may be open
    #[arg(long, default_value = "5m", value_parser = span)]
    long_transaction: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn span(text: &str) -> Result<Duration, duration::ParseError> {
    duration::parse(text).map(|Millis(millis)| Duration::from_millis(millis))
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    /// It works, and may not do so for long.
    Warning,
    /// A promise is broken, or nothing works.
    Fault,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Fault => "fault",
        }
    }
}

struct Finding {
    level: Level,
    code: String,
    times: i64,
    what: String,
    examples: Vec<String>,
    advice: &'static str,
}

/// For each rule of `examine_rules.sql`: how bad it is, what it means, and what to do.
const RULES: &[(&str, Level, &str, &str)] = &[
    (
        "active_key_shared",
        Level::Fault,
        "live jobs share an active key",
        "two jobs run where one was promised: cancel all but the oldest. No server writes this: find out who else \
         writes to the tables, or whether a backup was restored in part",
    ),
    (
        "active_key_not_held",
        Level::Fault,
        "live jobs do not hold their active key",
        "the next dispatch with the key creates a second job: cancel these jobs and dispatch them again. Find out who \
         else writes to job_keys",
    ),
    (
        "active_key_left",
        Level::Fault,
        "active keys are held by jobs that are finished or gone",
        "dispatches with these keys are answered with a job that will not run: stop the servers, and delete these \
         rows of job_keys (dimension 'active', by job_id). Find out who else writes to the tables",
    ),
    (
        "hold_without_lease",
        Level::Fault,
        "resource keys are held by jobs that are not leased",
        "room is lost for other jobs: delete these rows of resource_holds by job_id; who waits gets in line within \
         a second",
    ),
    (
        "lease_without_hold",
        Level::Fault,
        "leased jobs do not hold their resource keys",
        "more jobs may run beside each other than the scope allows: cancel these with force and retry them",
    ),
    (
        "counts_differ",
        Level::Fault,
        "the counts of queues are not those of their jobs",
        "GET /v1/queues and the metrics of queues are wrong, nothing else: with the servers stopped, delete the \
         queue's rows of queue_counts and insert what select app_id, queue, state, count(*) from jobs group by 1, 2, 3 \
         gives",
    ),
    (
        "lease_over",
        Level::Fault,
        "leases or timeouts are over and nobody has ended them",
        "a server does so within 2 seconds: is one running, and connected to this database? Its log says `maintenance \
         did not succeed`, step `expire leases`, if it cannot",
    ),
    (
        "overdue",
        Level::Warning,
        "jobs have been due for more than 5 minutes and no worker has taken them",
        "start workers for the queue, or more of them; see whether those that run name this queue and these job names",
    ),
    (
        "queue_paused",
        Level::Warning,
        "jobs are due in a queue that is paused",
        "if nobody wants it to be paused: POST /v1/queues/QUEUE/resume, or solejob queues resume",
    ),
    (
        "blocked_with_room",
        Level::Fault,
        "jobs wait for a resource key that has room",
        "a server puts them in line within a second: is one running? Its log says `maintenance did not succeed`, step \
         `unblock jobs`, if it cannot",
    ),
    (
        "not_swept",
        Level::Warning,
        "finished jobs are kept although their retention was over an hour ago",
        "a server sweeps them: is one running? Its log says `maintenance did not succeed`, step `sweep finished jobs`, \
         if it cannot. After a large import it may only be behind",
    ),
    (
        "long_transaction",
        Level::Warning,
        "transactions have been open for long",
        "no dead row can be vacuumed away meanwhile, and every look at a queue slows down: end them, and have whoever \
         opened them commit",
    ),
    (
        "dead_rows",
        Level::Warning,
        "tables have many dead rows",
        "autovacuum does not keep up, or is held up by a long transaction: end that, run vacuum (analyze) on the table, \
         and see docs/database.md, When tables are vacuumed",
    ),
    (
        "autovacuum_off",
        Level::Warning,
        "autovacuum is switched off",
        "tables grow and slow down for ever: set autovacuum and track_counts to on, and alter table … reset \
         (autovacuum_enabled)",
    ),
    (
        "transaction_ids_run_out",
        Level::Warning,
        "the database is half way to the end of its transaction ids",
        "PostgreSQL stops taking writes at the end: run vacuum (freeze) in this database, after long transactions, \
         prepared transactions and replication slots that hold it back are gone",
    ),
];

impl Doctor {
    /// Exits with 0 if all is well, 1 if there are warnings alone, 2 if there are faults.
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        let findings = match self.examine().await {
            Ok(findings) => findings,
            Err(error) => vec![Finding {
                level: Level::Fault,
                code: "unusable".into(),
                times: 1,
                what: format!("the database cannot be used: {error}"),
                examples: Vec::new(),
                advice: "no server can use it either; /readyz is 503 meanwhile",
            }],
        };
        if self.json {
            print_json(&findings)?;
        } else {
            print_text(&findings)?;
        }
        Ok(match findings.iter().map(|finding| finding.level).max() {
            None => ExitCode::SUCCESS,
            Some(Level::Warning) => ExitCode::from(1),
            Some(Level::Fault) => ExitCode::from(2),
        })
    }

    async fn examine(&self) -> Result<Vec<Finding>, store::Error> {
        let limits = store::Limits::default();
        let store = Store::connect(&self.database_url, &limits).await?;
        let mut found = store.examine(self.long_transaction).await?;
        if !found.is_empty() {
            // Only what is still there: the servers mend some of it, and nothing else ends by itself.
            tokio::time::sleep(SECOND_LOOK).await;
            let before = found;
            found = store.examine(self.long_transaction).await?;
            found.retain(|now| before.iter().any(|then| then.rule == now.rule));
        }
        let settings = store.examine_settings(limits.connections_in_all()).await?;
        store.close().await;
        let settings = settings.into_iter().map(|what| Finding {
            level: Level::Warning,
            code: "settings".into(),
            times: 1,
            what,
            examples: Vec::new(),
            advice: "settings of PostgreSQL are changed with alter system set, then select pg_reload_conf() or a restart",
        });
        let mut findings = found.into_iter().map(finding).chain(settings).collect::<Vec<_>>();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        Ok(findings)
    }
}

fn finding(found: Found) -> Finding {
    let Found { rule, times, examples } = found;
    let known = RULES.iter().find(|(code, ..)| *code == rule);
    let (level, what, advice) = known.map_or(
        (Level::Fault, "a rule is broken", "report it, with this output"),
        |(_, level, what, advice)| (*level, *what, *advice),
    );
    Finding {
        level,
        code: rule,
        times,
        what: what.into(),
        examples,
        advice,
    }
}

fn print_text(findings: &[Finding]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if findings.is_empty() {
        writeln!(out, "Nothing is wrong.")?;
    }
    for finding in findings {
        writeln!(
            out,
            "{} {}: {} ({})",
            finding.level.as_str(),
            finding.code,
            finding.what,
            finding.times
        )?;
        for example in &finding.examples {
            writeln!(out, "  {example}")?;
        }
        writeln!(out, "  What to do: {}.", finding.advice)?;
    }
    Ok(())
}

fn print_json(findings: &[Finding]) -> Result<(), Error> {
    let findings = findings.iter().map(|finding| {
        serde_json::json!({
            "level": finding.level.as_str(),
            "code": finding.code,
            "times": finding.times,
            "what": finding.what,
            "examples": finding.examples,
            "advice": finding.advice,
        })
    });
    let all = serde_json::json!({"findings": findings.collect::<Vec<_>>()});
    writeln!(std::io::stdout().lock(), "{all}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::RULES;

    #[test]
    fn every_rule_of_the_statement_has_its_advice() {
        let sql = include_str!("../store/sql/examine_rules.sql");
        for (code, ..) in RULES {
            assert!(sql.contains(&format!("select '{code}'")), "{code} is never found");
        }
        let codes = sql.split("select '").skip(1).filter_map(|rest| rest.split('\'').next());
        for code in codes {
            assert!(RULES.iter().any(|(known, ..)| *known == code), "{code} has no advice");
        }
    }
}
