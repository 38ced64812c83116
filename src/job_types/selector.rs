//! Selectors: the expressions in CEL by which a job type makes keys. The one user of the `cel` crate.
//!
//! CEL has no budget of time, steps or memory and rounds numbers that do not fit. Here an expression is compiled
//! once, when its type is declared; what is not pure, total and cheap is refused then ([`walk`]); and it sees
//! nothing but the members that it reads, with numbers exactly or not at all ([`values`]).

mod values;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::SourceInfo;
use cel::common::functions::Function;
use cel::common::types::{CelInt, CelMap, CelMapKey, CelString, CelUInt, INT_TYPE, STRING_TYPE, Type, UINT_TYPE};
use cel::common::value::CowVal;
use cel::{Context, Env, ExecutionError, IdedExpr, ParseErrors, Value};

use self::values::{Boxed, cut};
use self::walk::{JOIN, Name, Uses};

/// The longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 2_048;

/// How deep the grammar may nest. The parser recurses, and 64 nodes have no use for more.
const DEPTH_MAX: u16 = 32;

/// Bytes of stack for the parser: twice what it was seen to use at that depth without optimisation.
const PARSER_STACK: usize = 16 << 20;

/// So much of a cause is given at most: it can hold values of the payload.
const CAUSE_CHARS: usize = 100;

/// What is said instead of a panic.
const PANICKED: &str = "it cannot be evaluated over this dispatch";

/// An expression, compiled.
pub struct Selector {
    text: Box<str>,
    expression: IdedExpr,
    uses: Uses,
}

/// Why a text is no selector.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSelector(String);

/// Why a selector gave no key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoKey {
    /// It gave null.
    Null,
    /// It gave something else than a string, or ended in this error.
    Failed(String),
}

/// What a selector is evaluated over.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// JSON text that has passed [`crate::json::check`].
    pub payload: &'a str,
    pub metadata: &'a [(String, String)],
    pub name: &'a str,
    pub queue: &'a str,
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selector").field(&self.text).finish()
    }
}

/// CEL's standard library without its optional values, and our `+`.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib().with_optional_support(false);
    let mut overload = |id: &str, kind: fn() -> Type, function: Function| {
        // No two of these have one id or one signature.
        let _never_taken = env.add_overload(JOIN, id, vec![kind(), kind()], function);
    };
    overload("join_strings", || STRING_TYPE, join);
    overload("add_ints", || INT_TYPE, add_ints);
    overload("add_uints", || UINT_TYPE, add_uints);
    Arc::new(env)
});

fn join<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut joined = String::new();
    for arg in &args {
        if let Some(part) = arg.downcast_ref::<CelString<'_>>() {
            joined.push_str(part.inner());
        }
    }
    Ok(CowVal::owned(CelString::from(joined)))
}

fn add_ints<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut sum = Some(0_i64);
    for arg in &args {
        let term = arg.downcast_ref::<CelInt>().map(|term| *term.inner());
        sum = sum.zip(term).and_then(|(sum, term)| sum.checked_add(term));
    }
    sum.map(|sum| CowVal::owned(CelInt::from(sum))).ok_or_else(too_large)
}

fn add_uints<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut sum = Some(0_u64);
    for arg in &args {
        let term = arg.downcast_ref::<CelUInt>().map(|term| *term.inner());
        sum = sum.zip(term).and_then(|(sum, term)| sum.checked_add(term));
    }
    sum.map(|sum| CowVal::owned(CelUInt::from(sum))).ok_or_else(too_large)
}

fn too_large() -> ExecutionError {
    ExecutionError::function_error(JOIN, "the sum is outside of 64 bits")
}

impl Selector {
    pub fn compile(text: &str) -> Result<Selector, InvalidSelector> {
        if text.len() > EXPRESSION_BYTES_MAX {
            let detail = format!(
                "an expression has at most {EXPRESSION_BYTES_MAX} bytes and this one has {}",
                text.len()
            );
            return Err(InvalidSelector(detail));
        }
        // In a thread of its own, for the stack: the parser recurses through a dozen calls for each bracket, and a
        // server's tasks have 2 MiB. A panic ends that thread alone: the parser is not ours, and no text that a
        // client sends may end a task.
        let parsed = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(PARSER_STACK);
            thread.spawn_scoped(scope, || parse(text)).map(|thread| thread.join())
        });
        let (expression, uses) = match parsed {
            Ok(Ok(parsed)) => parsed?,
            Ok(Err(_)) | Err(_) => return Err(InvalidSelector("the expression cannot be compiled".into())),
        };
        Ok(Selector {
            text: text.into(),
            expression,
            uses,
        })
    }

    /// As it was declared.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The member of a dispatch on which the key depends first of all.
    pub fn pointer(&self) -> &'static str {
        if self.uses.names(Name::Payload) {
            "/payload"
        } else if self.uses.names(Name::Metadata) {
            "/metadata"
        } else {
            ""
        }
    }

    /// The text of the key that a dispatch gets, which may still break the rules of keys.
    pub fn evaluate(&self, input: &Input<'_>) -> Result<String, NoKey> {
        let context = self.context(input).map_err(NoKey::Failed)?;
        // A last resort, as above: none of the payloads and expressions that were tried gave a panic.
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let value = Value::resolve_val(&self.expression, &context).map_err(|error| cause(&error))?;
            match value.downcast_ref::<CelString<'_>>() {
                Some(text) => Ok(Some(text.inner().to_owned())),
                None if value.get_type().name() == "null_type" => Ok(None),
                None => {
                    let kind = value.get_type().name();
                    Err(format!(
                        "it gives a value of the type {kind}, and a key is a string: see string()"
                    ))
                }
            }
        }));
        match evaluated {
            Ok(Ok(Some(text))) => Ok(text),
            Ok(Ok(None)) => Err(NoKey::Null),
            Ok(Err(error)) => Err(NoKey::Failed(error)),
            Err(_panic) => Err(NoKey::Failed(PANICKED.into())),
        }
    }

    fn context<'a>(&self, input: &Input<'a>) -> Result<Context<'a, 'a>, String> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        let mut bind = |name: Name, value: Boxed<'a>| context.add_variable_as_val(name.as_str(), value);
        if self.uses.names(Name::Payload) {
            bind(Name::Payload, values::read(input.payload, &self.uses.payload)?);
        }
        if self.uses.names(Name::Metadata) {
            let member = |(name, value): &'a (String, String)| {
                let value: Boxed<'a> = Box::new(CelString::from(value.as_str()));
                (CelMapKey::String(CelString::from(name.as_str())), value)
            };
            let members: std::collections::HashMap<_, _> = input.metadata.iter().map(member).collect();
            bind(Name::Metadata, Box::new(CelMap::from(members)));
        }
        if self.uses.names(Name::Job) {
            bind(Name::Job, Box::new(CelString::from(input.name)));
        }
        if self.uses.names(Name::Queue) {
            bind(Name::Queue, Box::new(CelString::from(input.queue)));
        }
        Ok(context)
    }
}

fn parse(text: &str) -> Result<(IdedExpr, Uses), InvalidSelector> {
    let parser = ENVIRONMENT.parser().max_recursion_depth(DEPTH_MAX);
    let (mut expression, source) = parser
        .parse_with_source_info(text)
        .map_err(|errors| not_compiled(text, &errors))?;
    walk::check(&expression).map_err(|refused| {
        let place = position(text, &source, refused.node);
        InvalidSelector(format!("the expression is refused{place}: {}", refused.why))
    })?;
    let uses = Uses::of(&expression);
    walk::join_only(&mut expression);
    Ok((expression, uses))
}

/// The first thing that the parser did not understand, and where.
fn not_compiled(text: &str, errors: &ParseErrors) -> InvalidSelector {
    let detail = match errors.errors.first() {
        Some(error) if error.msg.contains("Recursion limit") => {
            format!("the expression nests too deep: at most {DEPTH_MAX} levels")
        }
        Some(error) => {
            let (line, column) = error.pos;
            let what = error.msg.lines().next().unwrap_or_default();
            format!(
                "the expression does not compile, line {line}, column {column}: {}",
                cut(what, 2 * CAUSE_CHARS)
            )
        }
        None => "the expression does not compile".into(),
    };
    if text.trim().is_empty() {
        return InvalidSelector("the expression is empty: leave the key out, or say how it is made".into());
    }
    InvalidSelector(detail)
}

/// ` at line L, column C` of a node.
fn position(text: &str, source: &SourceInfo, node: u64) -> String {
    let Some((start, _)) = source.offset_for(node) else {
        return String::new();
    };
    let (mut line, mut column) = (1, 1);
    for c in text.chars().take(start as usize) {
        if c == '\n' {
            (line, column) = (line + 1, 1);
        } else {
            column += 1;
        }
    }
    format!(" at line {line}, column {column}")
}

/// An error of an evaluation, in few words: it can hold any value of the payload, at any length.
fn cause(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(member) => format!("there is no member {:?}", cut(member, CAUSE_CHARS / 2)),
        ExecutionError::NoSuchOverload(overload) => {
            let operator = overload.function().trim_matches(['_', '@']);
            let types = cut(&overload.argument_types().join(", "), CAUSE_CHARS);
            format!("{operator} does not take ({types})")
        }
        error => {
            let mut short = Short(String::new(), CAUSE_CHARS);
            // It ends the formatting by an error once there is enough.
            let _cut_off = write!(short, "{error}");
            short.0
        }
    }
}

/// Takes so many characters and then no more.
struct Short(String, usize);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.1 == 0 {
                self.0.push('…');
                return Err(fmt::Error);
            }
            self.1 -= 1;
            self.0.push(c);
        }
        Ok(())
    }
}
