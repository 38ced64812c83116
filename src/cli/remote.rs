//! What the commands that call a server share: which server, how they print, how they exit.

use std::io::{self, Write as _};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::Error;
use crate::client::{self, Client, Document, Settings, printable};
use crate::duration::{self, Millis};

pub(super) const FAILED: u8 = 1;
pub(super) const USAGE: u8 = 2;
pub(super) const CONFLICT: u8 = 3;
pub(super) const NOT_FOUND: u8 = 4;
pub(super) const UNAVAILABLE: u8 = 5;
pub(super) const FORBIDDEN: u8 = 6;
pub(super) const WAITING: u8 = 7;

pub(super) const EXIT_CODES: &str = "Exit codes:
  0  done; of a dispatch: stored, or reused
  1  failed; where a job was waited for: it failed or was cancelled
  2  wrong usage, or the server calls the request invalid
  3  a conflict: a key leads to another request or job, or the job's state does not allow it
  4  not found: there is no such job, or nobody holds the key
  5  the server is away or overloaded; the message says if it may have been done all the same
  6  the token is missing, not valid, or lacks the right
  7  the time to wait is over, and the job has not finished";

/// Which server to call.
#[derive(clap::Args)]
pub(super) struct Remote {
    /// Where the server is
    #[arg(long, env = "SOLEJOB_URL", default_value = "http://127.0.0.1:8080")]
    pub(super) url: String,
    /// The token to call with. Better given in the environment, where other users do not see it
    #[arg(long, env = "SOLEJOB_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// How long a request is tried again when the server is away or overloaded, and only if nothing can be done twice
    #[arg(long, env = "SOLEJOB_RETRY_FOR", default_value = "10s", value_parser = span)]
    pub(super) retry_for: Duration,
}

/// How the answer is printed.
#[derive(clap::Args)]
pub(super) struct Output {
    /// Print what the server answered, to the letter
    #[arg(long)]
    pub(super) json: bool,
}

impl Remote {
    pub(super) fn client(&self) -> Result<Client, Error> {
        let Remote { url, token, retry_for } = self;
        // A variable that is set to nothing means none.
        let token = token.clone().filter(|token| !token.is_empty());
        Ok(Client::new(Settings {
            url: url.clone(),
            token,
            retry_for: *retry_for,
        })?)
    }
}

impl Output {
    /// Prints an answer as it came, or as `human` does; a problem as it came, too.
    pub(super) fn show<T>(
        &self,
        answer: Result<Document, client::Error>,
        human: impl FnOnce(&Document) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Ok(document) if self.json => print(document.0.trim_end()).map(|()| None),
            Ok(document) => human(&document).map(Some),
            Err(error) => {
                if let client::Error::Problem(problem) = &error
                    && self.json
                {
                    print(problem.text.trim_end())?;
                }
                Err(error.into())
            }
        }
    }
}

/// Writes a line to standard output.
pub(super) fn print(line: &str) -> Result<(), Error> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}

/// Writes a line to standard error. Who does not want to hear it is not told.
pub(super) fn tell(line: &str) {
    let _unheard = writeln!(io::stderr().lock(), "{line}");
}

pub(super) fn exit_code(error: &client::Error) -> u8 {
    match error {
        client::Error::Problem(problem) => match problem.status {
            400 | 405 | 413 | 415 | 422 => USAGE,
            401 | 403 => FORBIDDEN,
            404 => NOT_FOUND,
            409 => CONFLICT,
            429 | 502..=504 => UNAVAILABLE,
            _ => FAILED,
        },
        client::Error::Unreachable { .. } | client::Error::Lost(_) => UNAVAILABLE,
        client::Error::Strange(_) => FAILED,
        client::Error::Settings(_) => USAGE,
    }
}

/// The members of a job that decide and are shown.
#[derive(Deserialize)]
pub(super) struct JobRow {
    pub(super) job_id: String,
    pub(super) name: String,
    pub(super) queue: String,
    pub(super) state: String,
    pub(super) priority: i64,
    pub(super) attempt: i64,
    pub(super) max_attempts: i64,
    pub(super) dispatched_at: String,
    #[serde(default)]
    pub(super) cancel_requested: bool,
}

impl JobRow {
    pub(super) fn has_finished(&self) -> bool {
        self.state
            .parse::<crate::job::State>()
            .is_ok_and(|state| !state.is_live())
    }

    /// The exit code of a command that waited for it.
    pub(super) fn code(&self) -> u8 {
        match self.state.as_str() {
            "succeeded" => 0,
            "failed" | "cancelled" => FAILED,
            _ => WAITING,
        }
    }
}

/// A duration flag that this program itself uses.
pub(super) fn span(text: &str) -> Result<Duration, duration::ParseError> {
    duration::parse(text).map(|Millis(millis)| Duration::from_millis(millis))
}

/// A `NAME=VALUE` flag, split at the first `=`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// Rows under a head, each column as wide as it needs. Later pages stand under the same head.
pub(super) struct Table<'a> {
    head: &'a [&'a str],
    widths: Vec<usize>,
}

impl<'a> Table<'a> {
    pub(super) fn new(head: &'a [&'a str]) -> Table<'a> {
        let widths = Vec::new();
        Table { head, widths }
    }

    /// The lines of a page; the first begins with the head.
    pub(super) fn page(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        let mut lines: Vec<Vec<String>> = Vec::new();
        if self.widths.is_empty() {
            self.widths = vec![0; self.head.len()];
            lines.push(self.head.iter().map(|cell| (*cell).into()).collect());
        }
        lines.extend(rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()));
        for line in &lines {
            for (width, cell) in self.widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().zip(&self.widths);
            let padded: Vec<_> = padded.map(|(cell, width)| format!("{cell:<width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        lines.iter().map(line).collect()
    }

    pub(super) fn print(&mut self, rows: &[Vec<String>]) -> Result<(), Error> {
        self.page(rows).iter().try_for_each(|line| print(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_they_need() {
        let rows = [
            vec!["a".into(), "longer".into(), "x".into()],
            vec!["éé\u{1b}".into(), String::new(), String::new()],
        ];
        let mut table = Table::new(&["ID", "NAME", "STATE"]);
        assert_eq!(
            table.page(&rows),
            ["ID        NAME    STATE", "a         longer  x", "éé\\u{1b}"]
        );
        assert_eq!(table.page(&[vec!["b".into(), "c".into()]]), ["b         c"]);
    }

    #[test]
    fn pairs_are_split_once() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(pair("a").is_err());
    }
}
