//! A job type: what was declared, and the same once it has been checked and compiled.

use serde::{Deserialize, Serialize};

use crate::duration::Millis;
use crate::job::{FinalStates, Retry};
use crate::job_types::selector::{Input, NoKey, Selector};
use crate::settings::{self, Invalid, InvalidKind, RetryRequest};
use crate::uniqueness::decide::OnMismatch;
use crate::uniqueness::key::{Dimension, KeyText};
use crate::uniqueness::window::Window;

/// What is declared for a job name, as it was given. `None` is a member that was left out.
///
/// It is a document: the body of a request, a column and a file hold it in one and the same form, and it is given back
/// as it was put. So it is read and written here, once for all three.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_while_active: Option<ActiveDefinition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_within_window: Option<WindowDefinition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
}

/// Every dispatch has an active key, made by this expression.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ActiveDefinition {
    pub key: String,
}

/// Every dispatch has a window key, made by this expression.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct WindowDefinition {
    pub key: String,
    pub window: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_mismatch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_on: Option<Vec<String>>,
}

/// A definition that is right in every part. Only [`JobType::compile`] makes one.
#[derive(Debug)]
pub struct JobType {
    name: Box<str>,
    active: Option<Selector>,
    window: Option<DeclaredWindow>,
    definition: Definition,
    queue: Option<String>,
    priority: Option<i16>,
    retry: Retry,
    timeout: Option<Millis>,
    retention: Option<Millis>,
}

#[derive(Debug)]
struct DeclaredWindow {
    selector: Selector,
    window: Window,
    on_mismatch: Option<OnMismatch>,
    release_on: Option<FinalStates>,
}

/// The keys that a type gives one dispatch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeclaredKeys {
    pub active: Option<KeyText>,
    pub window: Option<WindowKey>,
}

/// A declared window key, and what is declared with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowKey {
    pub text: KeyText,
    pub window: Window,
    pub on_mismatch: Option<OnMismatch>,
    pub release_on: Option<FinalStates>,
}

impl JobType {
    /// Checks every member, to the same bounds as in a dispatch, and compiles the expressions.
    pub fn compile(name: &str, definition: &Definition) -> Result<JobType, Invalid> {
        let Definition {
            unique_while_active,
            unique_within_window,
            queue,
            priority,
            retry,
            timeout,
            retention,
        } = definition;
        settings::check_name("", name)?;
        if let Some(queue) = queue {
            settings::check_name("/queue", queue)?;
        }
        let active = unique_while_active
            .as_ref()
            .map(|ActiveDefinition { key }| selector_of("/unique_while_active/key", key))
            .transpose()?;
        Ok(JobType {
            name: name.into(),
            active,
            window: unique_within_window.as_ref().map(window_of).transpose()?,
            definition: definition.clone(),
            queue: queue.clone(),
            priority: priority.map(settings::priority_of).transpose()?,
            retry: match retry {
                None => Retry::DEFAULT,
                Some(retry) => settings::retry_of(retry, Retry::DEFAULT)?,
            },
            timeout: timeout.as_deref().map(settings::timeout_of).transpose()?,
            retention: retention.as_deref().map(settings::retention_of).transpose()?,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it was declared.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    pub fn queue(&self) -> Option<&str> {
        self.queue.as_deref()
    }

    pub fn priority(&self) -> Option<i16> {
        self.priority
    }

    /// The declared members, and for the rest what holds without a type.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    pub fn timeout(&self) -> Option<Millis> {
        self.timeout
    }

    pub fn retention(&self) -> Option<Millis> {
        self.retention
    }

    pub fn declares_window_key(&self) -> bool {
        self.window.is_some()
    }

    /// Evaluates the declared keys over one dispatch. A declared key is never left out.
    pub fn keys(&self, input: &Input<'_>) -> Result<DeclaredKeys, Invalid> {
        let active = self.active.as_ref();
        let active = active.map(|selector| key_of(Dimension::Active, selector, input));
        let window = self.window.as_ref().map(|declared| {
            Ok(WindowKey {
                text: key_of(Dimension::Window, &declared.selector, input)?,
                window: declared.window,
                on_mismatch: declared.on_mismatch,
                release_on: declared.release_on,
            })
        });
        Ok(DeclaredKeys {
            active: active.transpose()?,
            window: window.transpose()?,
        })
    }
}

fn selector_of(pointer: &str, text: &str) -> Result<Selector, Invalid> {
    if text.chars().any(char::is_control) {
        let detail = "an expression holds no control characters: write \\n for a line break in a string";
        return Err(Invalid::request(pointer, detail));
    }
    Selector::compile(text).map_err(|error| Invalid::new(InvalidKind::Selector, pointer, error.to_string()))
}

fn window_of(declared: &WindowDefinition) -> Result<DeclaredWindow, Invalid> {
    let WindowDefinition {
        key,
        window,
        on_mismatch,
        release_on,
    } = declared;
    let on_mismatch = on_mismatch
        .as_deref()
        .map(|text| settings::on_mismatch_of("/unique_within_window/on_mismatch", text));
    let release_on = release_on
        .as_deref()
        .map(|names| settings::release_on_of("/unique_within_window/release_on", names));
    Ok(DeclaredWindow {
        selector: selector_of("/unique_within_window/key", key)?,
        window: settings::window_of("/unique_within_window/window", window)?,
        on_mismatch: on_mismatch.transpose()?,
        release_on: release_on.transpose()?,
    })
}

/// So much of an expression is shown at most.
const EXPRESSION_CHARS: usize = 200;

fn key_of(dimension: Dimension, selector: &Selector, input: &Input<'_>) -> Result<KeyText, Invalid> {
    let kind = dimension.as_str();
    let expression = match selector.text().char_indices().nth(EXPRESSION_CHARS) {
        None => selector.text().to_owned(),
        Some((end, _)) => format!("{}…", &selector.text()[..end]),
    };
    let invalid = |kind: InvalidKind, detail: String| Err(Invalid::new(kind, selector.pointer(), detail));
    match selector.evaluate(input) {
        Ok(text) => KeyText::parse(&text).or_else(|error| {
            let detail = format!("the declared {kind} key, `{expression}`, breaks the rules of keys: {error}");
            invalid(InvalidKind::Key, detail)
        }),
        Err(NoKey::Null) => {
            let detail = format!(
                "the declared {kind} key, `{expression}`, is null here: give it a value, since every dispatch of this job \
                 type has this key"
            );
            invalid(InvalidKind::KeyRequired, detail)
        }
        Err(NoKey::Failed(why)) => {
            let detail = format!("the declared {kind} key, `{expression}`, could not be made: {why}");
            invalid(InvalidKind::SelectorFailed, detail)
        }
    }
}
