//! The options of a trigger, and the dispatch that they ask for.

use std::fmt;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::dispatch::WindowRequest;
use crate::dispatch::prepare::{Request, instant_of};
use crate::http::Members;
use crate::http::object::object;
use crate::json::pointer;
use crate::settings::RetryRequest;
use crate::trigger_dev::payload;
use crate::trigger_dev::refusal::Refusal;

/// A tag is a metadata member of this name, with the value [`TAG_VALUE`].
pub(super) const TAG_PREFIX: &str = "tag:";
pub(super) const TAG_VALUE: &str = "true";

/// The metadata member that names the batch of a run.
pub(super) const BATCH_MEMBER: &str = "trigger.batch";

/// As many as Trigger.dev takes.
const TAGS_MAX: usize = 10;

/// The options of one trigger or item. Those that are only there to be refused or ignored are kept unread.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Options {
    #[serde(default, deserialize_with = "object")]
    queue: Option<QueueOption>,
    delay: Option<String>,
    idempotency_key: Option<String>,
    #[serde(rename = "idempotencyKeyTTL")]
    idempotency_key_ttl: Option<String>,
    max_attempts: Option<i64>,
    max_duration: Option<f64>,
    metadata: Option<Members>,
    pub(super) payload_type: Option<String>,
    tags: Option<Tags>,
    priority: Option<f64>,
    parent_run_id: Option<String>,

    // Refused, unless they ask for nothing.
    resume_parent_on_completion: Option<bool>,
    test: Option<bool>,
    gates: Option<Box<RawValue>>,
    concurrency: Option<Box<RawValue>>,
    concurrency_key: Option<Box<RawValue>>,
    ttl: Option<Box<RawValue>>,
    debounce: Option<Box<RawValue>>,
    dependent_attempt: Option<Box<RawValue>>,
    parent_attempt: Option<Box<RawValue>>,
    dependent_batch: Option<Box<RawValue>>,
    parent_batch: Option<Box<RawValue>>,
    bulk_action_id: Option<Box<RawValue>>,

    // Ignored, as `docs/coming-from-trigger-dev.md` says.
    #[serde(rename = "idempotencyKeyOptions")]
    _idempotency_key_options: Option<Box<RawValue>>,
    #[serde(rename = "lockToVersion")]
    _lock_to_version: Option<Box<RawValue>>,
    #[serde(rename = "externalDeploymentId")]
    _external_deployment_id: Option<Box<RawValue>>,
    #[serde(rename = "machine")]
    _machine: Option<Box<RawValue>>,
    #[serde(rename = "region")]
    _region: Option<Box<RawValue>>,
    #[serde(rename = "metadataType")]
    _metadata_type: Option<Box<RawValue>>,
    #[serde(rename = "payloadSize")]
    _payload_size: Option<Box<RawValue>>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct QueueOption {
    name: String,
    concurrency_limit: Option<Box<RawValue>>,
}

/// What a replay has otherwise than the run that it is made of.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ReplayBody {
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    payload_type: Option<String>,
    metadata: Option<Members>,
    tags: Option<Tags>,
    queue: Option<String>,
    delay: Option<String>,
    idempotency_key: Option<String>,
    #[serde(rename = "idempotencyKeyTTL")]
    idempotency_key_ttl: Option<String>,
    max_attempts: Option<i64>,
    max_duration: Option<f64>,
    priority: Option<f64>,
    // Refused.
    concurrency_key: Option<Box<RawValue>>,
    ttl: Option<Box<RawValue>>,
    // Ignored.
    #[serde(rename = "machine")]
    _machine: Option<Box<RawValue>>,
    #[serde(rename = "version")]
    _version: Option<Box<RawValue>>,
    #[serde(rename = "region")]
    _region: Option<Box<RawValue>>,
}

impl ReplayBody {
    pub(super) fn has_key(&self) -> bool {
        self.idempotency_key.is_some()
    }

    /// Puts what is given in the place of what the run has.
    pub(super) fn apply(self, request: &mut Request, otherwise: Option<String>) -> Result<(), Refusal> {
        if let Some(payload) = payload::read(self.payload.as_deref(), self.payload_type.as_deref())? {
            request.payload = Some(payload);
        }
        let options = Options {
            queue: self.queue.map(|name| QueueOption {
                name,
                concurrency_limit: None,
            }),
            delay: self.delay,
            idempotency_key: self.idempotency_key,
            idempotency_key_ttl: self.idempotency_key_ttl,
            max_attempts: self.max_attempts,
            max_duration: self.max_duration,
            metadata: self.metadata,
            tags: self.tags,
            priority: self.priority,
            concurrency_key: self.concurrency_key,
            ttl: self.ttl,
            ..Options::default()
        };
        options.apply(request, otherwise)
    }
}

/// One tag, or a list of them.
#[derive(Debug)]
pub(super) struct Tags(Vec<String>);

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tags, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Tags;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tag or a list of tags")
            }

            fn visit_str<E>(self, tag: &str) -> Result<Tags, E> {
                Ok(Tags(vec![tag.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tags, A::Error> {
                let mut tags = Vec::new();
                while let Some(tag) = seq.next_element()? {
                    tags.push(tag);
                }
                Ok(Tags(tags))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

impl Options {
    /// The first option that has no counterpart here, and what to do instead.
    fn refused(&self) -> Option<(&'static str, &'static str)> {
        const ENGINE: &str = "this server runs no parent on: end the parent, or wait for the run with runs.poll";
        let concurrency_limit = self.queue.as_ref().and_then(|queue| queue.concurrency_limit.as_ref());
        let given = [
            (
                self.resume_parent_on_completion == Some(true),
                "resumeParentOnCompletion",
                ENGINE,
            ),
            (
                self.test == Some(true),
                "test",
                "there are no test runs: use a token of another environment",
            ),
            (
                concurrency_limit.is_some(),
                "queue/concurrencyLimit",
                "a queue has no limit of its own: use resource keys, or fewer workers",
            ),
            (
                self.gates.is_some(),
                "gates",
                "use resource keys: POST /v1/jobs takes resource_keys",
            ),
            (
                self.concurrency.is_some(),
                "concurrency",
                "use resource keys: POST /v1/jobs takes resource_keys",
            ),
            (
                self.concurrency_key.is_some(),
                "concurrencyKey",
                "use resource keys: POST /v1/jobs takes resource_keys",
            ),
            (
                self.ttl.is_some(),
                "ttl",
                "a run that waits does not expire: cancel it when it is not wanted any more",
            ),
            (
                self.debounce.is_some(),
                "debounce",
                "use an active key: declare unique_while_active for the task, and the first run of a burst stands for all",
            ),
            (self.dependent_attempt.is_some(), "dependentAttempt", ENGINE),
            (self.parent_attempt.is_some(), "parentAttempt", ENGINE),
            (self.dependent_batch.is_some(), "dependentBatch", ENGINE),
            (self.parent_batch.is_some(), "parentBatch", ENGINE),
            (
                self.bulk_action_id.is_some(),
                "bulkActionId",
                "there are no bulk actions",
            ),
        ];
        given
            .into_iter()
            .find_map(|(given, option, instead)| given.then_some((option, instead)))
    }

    /// The dispatch that a trigger asks for. `otherwise` is the key of one that has none of its own.
    pub(super) fn request(
        self,
        task: String,
        payload: Option<Arc<str>>,
        otherwise: Option<String>,
    ) -> Result<Request, Refusal> {
        let mut request = Request {
            name: task,
            payload,
            parent: self.parent_run_id.clone().map(|run| (run, None)),
            ..Request::default()
        };
        self.apply(&mut request, otherwise)?;
        Ok(request)
    }

    /// Puts what is given in the place of what is there.
    pub(super) fn apply(self, request: &mut Request, otherwise: Option<String>) -> Result<(), Refusal> {
        if let Some((option, instead)) = self.refused() {
            let detail = format!("the option {} is not supported: {instead}", option.replace('/', "."));
            return Err(Refusal::at(&format!("/options/{option}"), detail));
        }
        if let Some(queue) = self.queue {
            request.queue = Some(queue.name);
        }
        if let Some(delay) = self.delay {
            // Dates come as JSON writes them.
            match instant_of(&delay) {
                Some(_) => request.run_at = Some(delay),
                None => request.delay = Some(delay),
            }
        }
        if let Some(priority) = self.priority {
            request.priority = Some(whole(priority).ok_or_else(|| {
                let detail = "a priority is a whole number here, and orders the runs of a queue: higher first";
                Refusal::at("/options/priority", detail)
            })?);
        }
        if let Some(attempts) = self.max_attempts {
            request.retry = RetryRequest {
                max_attempts: Some(attempts),
                ..std::mem::take(&mut request.retry)
            };
        }
        if let Some(seconds) = self.max_duration {
            let millis = whole((seconds * 1_000.0).round()).filter(|millis| *millis >= 1);
            let invalid = || {
                Refusal::at(
                    "/options/maxDuration",
                    "maxDuration is a number of seconds, from 0.001 on",
                )
            };
            request.timeout = Some(format!("{}ms", millis.ok_or_else(invalid)?));
        }
        if let Some(metadata) = self.metadata {
            let metadata = metadata.into_pairs();
            if let Some((name, _)) = metadata.iter().find(|(name, _)| is_reserved(name)) {
                let detail =
                    format!("a metadata key that begins with {TAG_PREFIX} or trigger. stands for something else");
                let mut at = "/options/metadata".to_owned();
                pointer::push(&mut at, name);
                return Err(Refusal::at(&at, detail));
            }
            request.metadata.retain(|(name, _)| is_reserved(name));
            request.metadata.extend(metadata);
        }
        if let Some(Tags(mut tags)) = self.tags {
            tags.sort_unstable();
            tags.dedup();
            if tags.len() > TAGS_MAX {
                let detail = format!("a run has at most {TAGS_MAX} tags, not {}", tags.len());
                return Err(Refusal::at("/options/tags", detail));
            }
            request.metadata.retain(|(name, _)| !name.starts_with(TAG_PREFIX));
            let member = |tag: String| (format!("{TAG_PREFIX}{tag}"), TAG_VALUE.to_owned());
            request.metadata.extend(tags.into_iter().map(member));
        }
        request.window = WindowRequest {
            // The SDK has put run and attempt into the key already.
            scope: self.idempotency_key.is_some().then(|| "global".into()),
            // It says nothing of the key that a request has for want of another.
            ttl: self.idempotency_key_ttl.filter(|_| self.idempotency_key.is_some()),
            idempotency_key: self.idempotency_key,
            otherwise,
            ..WindowRequest::default()
        };
        // The same key is the same run, whatever else is asked for.
        request.on_mismatch = Some("reuse".into());
        Ok(())
    }
}

fn is_reserved(metadata: &str) -> bool {
    metadata.starts_with(TAG_PREFIX) || metadata.starts_with("trigger.")
}

/// A number without a fraction that is far from where doubles end to be exact.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
}
