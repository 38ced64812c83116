//! `solejob dispatch`: asks for one job, or for those of a file.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::cli::Error;
use crate::cli::import::Import;
use crate::cli::jobs::WAIT_MAX;
use crate::cli::parent::{Parent, ParentArgs};
use crate::cli::remote::{EXIT_CODES, JobRow, Output, Remote, WAITING, pair, print, span, tell};
use crate::client::{self, Client, Document, Repeat, printable};
use crate::json;

/// A window that ends sooner could be over before the last repeat of a request.
const REPEATS_TAKE: Duration = Duration::from_secs(300);

const EXAMPLES: &str = "Examples:
  solejob dispatch place-order --payload '{\"order\": 42}' --active-key order:42
  solejob dispatch nightly --window-key 2027-01-01 --window 7d
  solejob dispatch charge --idempotency-key order-42
  generate-report | solejob dispatch mail-report --payload -
  solejob dispatch --from jobs.ndjson --idempotency-key import-7";

#[derive(clap::Args)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct Dispatch {
    #[command(flatten)]
    remote: Remote,
    /// Print the server's receipt to the letter; with --from a line {"line": N, "receipt" or "error": …} for each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    single: Single,
    /// How long the window keys are held, such as 24h or 7d
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
    #[command(flatten)]
    idempotency: Idempotency,
    #[command(flatten)]
    parent: ParentArgs,
    #[command(flatten)]
    import: ImportArgs,
}

/// The spelling `idempotency_key` of a window key.
#[derive(clap::Args)]
pub(super) struct Idempotency {
    /// Reuse the job of an earlier dispatch with this key; it is freed when that job fails. With --from line N gets the
    /// key KEY/N, unless it has a key of its own: the whole file is then safe to send again
    #[arg(long, value_name = "KEY", conflicts_with_all = ["window_key", "window", "window_key_prefix"])]
    pub(super) idempotency_key: Option<String>,
    /// How long the idempotency key is held [default: the window of the job type, else 30d]
    #[arg(long, value_name = "DURATION", requires = "idempotency_key")]
    pub(super) idempotency_key_ttl: Option<String>,
    /// Within what the idempotency key is held: run, attempt or global [default: run with a parent, else global]
    #[arg(long, value_name = "SCOPE", requires = "idempotency_key")]
    pub(super) scope: Option<String>,
}

#[derive(clap::Args)]
#[group(id = "single", multiple = true)]
struct Single {
    /// The job's name
    #[arg(required_unless_present = "from")]
    name: Option<String>,
    /// The payload, as JSON; - reads it from standard input. It reaches the worker to the letter
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file that holds the payload; - is standard input
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// The queue [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// Higher first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// How long to wait before the job may start
    #[arg(long, value_name = "DURATION", conflicts_with = "run_at")]
    delay: Option<String>,
    /// When the job may start (RFC 3339)
    #[arg(long, value_name = "TIME")]
    run_at: Option<String>,
    /// Reuse the job that is queued or running under this key, if there is one
    #[arg(long, value_name = "KEY")]
    active_key: Option<String>,
    /// Reuse the job of an earlier dispatch with this key, as long as its window lasts
    #[arg(long, value_name = "KEY", requires = "window")]
    window_key: Option<String>,
    /// What to do when a different request holds the window key or idempotency key: conflict or reuse
    #[arg(long, value_name = "WHAT")]
    on_mismatch: Option<String>,
    /// A final state of the job that frees the window key or idempotency key early, may be given several times; or none
    #[arg(long, value_name = "STATE")]
    release_on: Vec<String>,
    /// A SCOPE:KEY that only so many jobs may have at once; may be given several times
    #[arg(long = "resource-key", value_name = "SCOPE:KEY")]
    resource_keys: Vec<String>,
    /// A text to find the job by; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// How long an attempt may run
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// How long the job is kept after it has finished
    #[arg(long, value_name = "DURATION")]
    retention: Option<String>,
    /// How often the job is tried at most
    #[arg(long, value_name = "N")]
    retry_max_attempts: Option<i64>,
    /// How the waits between attempts grow: fixed or exponential
    #[arg(long, value_name = "HOW")]
    retry_backoff: Option<String>,
    /// The first wait
    #[arg(long, value_name = "DURATION")]
    retry_initial: Option<String>,
    /// By how much each wait is longer than the one before
    #[arg(long, value_name = "N")]
    retry_factor: Option<f64>,
    /// The longest wait
    #[arg(long, value_name = "DURATION")]
    retry_max: Option<String>,
    /// Whether waits are spread at random
    #[arg(long, value_name = "BOOL")]
    retry_jitter: Option<bool>,
    /// Say what the dispatch would do now, and do nothing
    #[arg(long)]
    preview: bool,
    /// Wait until the job has finished, 60s at most, and show how it ended; `solejob jobs wait` waits longer
    #[arg(long, value_name = "DURATION", value_parser = short_wait, conflicts_with = "preview")]
    wait: Option<Duration>,
}

#[derive(clap::Args)]
struct ImportArgs {
    /// Dispatch the lines of a file, each a dispatch as JSON; - is standard input. Lines that are invalid are named, and
    /// the others stored
    #[arg(long, value_name = "FILE", conflicts_with = "single")]
    from: Option<PathBuf>,
    /// Go on with the other lines after one that is in conflict
    #[arg(long, requires = "from")]
    continue_on_conflict: bool,
    /// Give line N the window key PREFIX/N, unless it has a key of its own: then the whole file is safe to send again
    #[arg(long, value_name = "PREFIX", requires = "from", requires = "window")]
    window_key_prefix: Option<String>,
    /// Dispatches sent at once
    #[arg(long, value_name = "N", requires = "from", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch_size: u16,
}

fn short_wait(text: &str) -> Result<Duration, String> {
    let wait = span(text).map_err(|error| error.to_string())?;
    if wait > WAIT_MAX || wait.subsec_nanos() != 0 {
        return Err("whole seconds, 60s at most: `solejob jobs wait` waits longer".into());
    }
    Ok(wait)
}

/// The body of a dispatch, as the server takes it.
#[derive(Serialize)]
struct Body {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<String>,
    #[serde(skip_serializing_if = "Uniqueness::is_empty")]
    uniqueness: Uniqueness,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key_ttl: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key_scope: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resource_keys: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_object")]
    metadata: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
    #[serde(skip_serializing_if = "Retry::is_empty")]
    retry: Retry,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<String>,
}

#[derive(Serialize, PartialEq, Default)]
struct Uniqueness {
    #[serde(skip_serializing_if = "Option::is_none")]
    active_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_mismatch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_on: Option<Vec<String>>,
}

#[derive(Serialize, PartialEq, Default)]
struct Retry {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<bool>,
}

impl Uniqueness {
    fn is_empty(&self) -> bool {
        *self == Uniqueness::default()
    }
}

impl Retry {
    fn is_empty(&self) -> bool {
        *self == Retry::default()
    }
}

fn as_object<S: Serializer>(members: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(members.iter().map(|(name, value)| (name, value)))
}

/// Whether a dispatch with these keys is safe to send twice: only if the key surely still holds the first by then.
pub(super) fn repeat(window_key: bool, window: Option<&str>, released_early: bool) -> Repeat {
    let outlasts = window
        .and_then(|window| span(window).ok())
        .is_some_and(|window| window >= REPEATS_TAKE);
    match window_key && outlasts && !released_early {
        true => Repeat::Safe,
        false => Repeat::IfNothingDone,
    }
}

/// The same of an idempotency key. It outlasts every repeat unless it has a shorter time to live, and is freed by a job
/// that fails unless it says otherwise.
pub(super) fn repeat_by_idempotency_key(ttl: Option<&str>, released_early: bool) -> Repeat {
    match ttl {
        None if !released_early => Repeat::Safe,
        ttl => repeat(true, ttl, released_early),
    }
}

/// What makes the lines of a file safe to send again: each gets the key PREFIX/N.
pub(super) enum Keys {
    Window {
        prefix: String,
        window: String,
    },
    Idempotency {
        prefix: String,
        ttl: Option<String>,
        scope: Option<String>,
    },
}

impl Keys {
    fn of(window: Option<(String, String)>, idempotency: Idempotency) -> Option<Keys> {
        let Idempotency {
            idempotency_key,
            idempotency_key_ttl: ttl,
            scope,
        } = idempotency;
        match (window, idempotency_key) {
            (Some((prefix, window)), _) => Some(Keys::Window { prefix, window }),
            (None, Some(prefix)) => Some(Keys::Idempotency { prefix, ttl, scope }),
            (None, None) => None,
        }
    }
}

impl Dispatch {
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        let Dispatch {
            remote,
            json,
            single,
            window,
            idempotency,
            parent,
            import,
        } = self;
        let ImportArgs {
            from,
            continue_on_conflict,
            window_key_prefix,
            batch_size,
        } = import;
        let client = remote.client()?;
        let parent = parent.parent()?;
        match from {
            None => {
                let output = Output { json };
                single.run(&client, &output, window, idempotency, parent).await
            }
            Some(from) => {
                let import = Import {
                    client,
                    json,
                    continue_on_conflict,
                    keys: Keys::of(window_key_prefix.zip(window), idempotency),
                    parent,
                    batch_size: batch_size.into(),
                };
                import.run(&from).await
            }
        }
    }
}

impl Single {
    async fn run(
        self,
        client: &Client,
        output: &Output,
        window: Option<String>,
        idempotency: Idempotency,
        parent: Option<Parent>,
    ) -> Result<ExitCode, Error> {
        let (preview, wait) = (self.preview, self.wait);
        let body = self.body(window, idempotency, parent.clone())?;
        let repeat = body.repeat();
        let body = serde_json::to_string(&body).map_err(|error| Error::Usage(error.to_string()))?;
        let explained = |answer: Result<Document, client::Error>| {
            answer.inspect_err(|error| {
                let hint = error.code().and_then(|code| parent.as_ref()?.explain(code));
                hint.iter().for_each(|hint| tell(hint));
            })
        };
        if preview {
            let answer = explained(client.preview(&body).await);
            output.show(answer, |document| receipt(document, "would be "))?;
            return Ok(ExitCode::SUCCESS);
        }
        let answer = explained(client.dispatch(&body, wait, repeat).await);
        let job = answer.as_ref().ok().and_then(|document| document.read::<Waited>().ok());
        output.show(answer, |document| receipt(document, ""))?;
        match (wait, job) {
            (None, _) => Ok(ExitCode::SUCCESS),
            (Some(_), Some(Waited { job })) => Ok(job.code().into()),
            (Some(_), None) => Ok(WAITING.into()),
        }
    }

    fn body(self, window: Option<String>, idempotency: Idempotency, parent: Option<Parent>) -> Result<Body, Error> {
        let Single {
            name,
            payload,
            payload_file,
            queue,
            priority,
            delay,
            run_at,
            active_key,
            window_key,
            on_mismatch,
            release_on,
            resource_keys,
            metadata,
            timeout,
            retention,
            retry_max_attempts,
            retry_backoff,
            retry_initial,
            retry_factor,
            retry_max,
            retry_jitter,
            preview: _,
            wait: _,
        } = self;
        let Idempotency {
            idempotency_key,
            idempotency_key_ttl,
            scope,
        } = idempotency;
        let of_a_key = [
            ("--on-mismatch", on_mismatch.is_some()),
            ("--release-on", !release_on.is_empty()),
        ];
        if let Some((flag, _)) = of_a_key.iter().find(|(_, given)| *given)
            && window_key.is_none()
            && idempotency_key.is_none()
        {
            let detail = format!("{flag} says what a key does: give --window-key or --idempotency-key with it");
            return Err(Error::Usage(detail));
        }
        Ok(Body {
            name: name.unwrap_or_default(),
            payload: payload_of(payload, payload_file)?,
            queue,
            priority,
            delay,
            run_at,
            uniqueness: Uniqueness {
                active_key,
                window_key,
                window,
                on_mismatch,
                release_on: release_on_of(release_on)?,
            },
            idempotency_key,
            idempotency_key_ttl,
            idempotency_key_scope: scope,
            resource_keys,
            metadata,
            parent,
            retry: Retry {
                max_attempts: retry_max_attempts,
                backoff: retry_backoff,
                initial: retry_initial,
                factor: retry_factor,
                max: retry_max,
                jitter: retry_jitter,
            },
            timeout,
            retention,
        })
    }
}

/// The final states that free the key; an empty list where it says `none`.
fn release_on_of(states: Vec<String>) -> Result<Option<Vec<String>>, Error> {
    if !states.iter().any(|state| state == "none") {
        return Ok((!states.is_empty()).then_some(states));
    }
    if states.len() > 1 {
        return Err(Error::Usage(
            "--release-on none stands alone: no end frees the key".into(),
        ));
    }
    Ok(Some(Vec::new()))
}

impl Body {
    /// Whether it is safe to send twice.
    fn repeat(&self) -> Repeat {
        let Uniqueness {
            window_key,
            window,
            release_on,
            ..
        } = &self.uniqueness;
        let released = |unless_given| release_on.as_ref().map_or(unless_given, |states| !states.is_empty());
        match &self.idempotency_key {
            Some(_) => repeat_by_idempotency_key(self.idempotency_key_ttl.as_deref(), released(true)),
            None => repeat(window_key.is_some(), window.as_deref(), released(false)),
        }
    }
}

fn payload_of(text: Option<String>, file: Option<PathBuf>) -> Result<Option<Box<RawValue>>, Error> {
    let mut bytes = Vec::new();
    match (text, file) {
        (None, None) => return Ok(None),
        (Some(text), _) if text != "-" => bytes = text.into(),
        (None, Some(file)) if file.as_os_str() != "-" => {
            bytes = std::fs::read(&file).map_err(|error| Error::Usage(format!("{}: {error}", file.display())))?;
        }
        _ => {
            std::io::stdin().lock().read_to_end(&mut bytes)?;
        }
    }
    let no_json = |fault: &str| Error::Usage(format!("the payload is not JSON that can be kept: {fault}"));
    let text = json::check(&bytes, json::MAX_DEPTH).map_err(|fault| no_json(&fault.to_string()))?;
    let payload = RawValue::from_string(text.trim().into()).map_err(|error| no_json(&error.to_string()))?;
    Ok(Some(payload))
}

#[derive(Deserialize)]
struct Waited {
    job: JobRow,
}

#[derive(Deserialize)]
struct Receipt {
    job_id: Option<String>,
    name: String,
    disposition: String,
    duplicate_match: Option<String>,
    state: Option<String>,
    #[serde(default)]
    drift: Vec<String>,
    job: Option<Ended>,
}

#[derive(Deserialize)]
struct Ended {
    state: String,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

fn receipt(document: &Document, verb: &str) -> Result<(), Error> {
    let Receipt {
        job_id,
        name,
        disposition,
        duplicate_match,
        state,
        drift,
        job,
    } = document.read()?;
    let by = match duplicate_match.as_deref() {
        None => String::new(),
        Some("both") => ", found by both keys".into(),
        Some(key) => format!(", found by its {key} key"),
    };
    let job_id = job_id.map_or(String::new(), |id| format!(" {id}"));
    let state = state.unwrap_or("no longer stored".into());
    print(&printable(&format!("{verb}{disposition}{job_id} {name} ({state}{by})")))?;
    if !drift.is_empty() {
        print(&format!("its settings differ from these: {}", drift.join(", ")))?;
    }
    if let Some(Ended { state, result, error }) = job {
        let ended = result
            .or(error)
            .map_or(String::new(), |value| format!(": {}", value.get()));
        print(&printable(&format!("{state}{ended}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_window_makes_a_dispatch_safe_to_repeat() {
        assert_eq!(repeat(true, Some("7d"), false), Repeat::Safe);
        for (key, window, released) in [
            (false, Some("7d"), false),
            (true, None, false),
            (true, Some("1s"), false),
            (true, Some("rubbish"), false),
            (true, Some("7d"), true),
        ] {
            assert_eq!(repeat(key, window, released), Repeat::IfNothingDone);
        }
    }

    #[test]
    fn payloads_stay_to_the_letter() {
        let text = " {\"n\": 9007199254740993, \"z\": 1.0, \"e\": 1e400, \"nul\": \"\\u0000\"}\n";
        let payload = payload_of(Some(text.into()), None).unwrap().unwrap();
        assert_eq!(payload.get(), text.trim());
        for wrong in ["hello", "{\"a\": 1, \"a\": 2}", "1 2", ""] {
            assert!(
                matches!(payload_of(Some(wrong.into()), None), Err(Error::Usage(_))),
                "{wrong}"
            );
        }
    }
}
