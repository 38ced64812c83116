//! What an expression may be, and what it reads: the guards that CEL itself does not have.

use std::collections::BTreeMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SelectExpr, operators};

/// The most nodes of an expression. No loop is allowed, so that this bounds the steps of an evaluation.
const NODES_MAX: usize = 64;

/// What `+` is called once [`join_only`] has been there.
pub(super) const JOIN: &str = "+";

const OPERATORS: [&str; 13] = [
    operators::ADD,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::CONDITIONAL,
    operators::INDEX,
    operators::IN,
];
const FUNCTIONS: [&str; 2] = ["string", "size"];
const METHODS: [&str; 4] = ["size", "startsWith", "endsWith", "contains"];

/// A double beyond this could be compared with an integer that it does not equal.
const DOUBLE_EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What an expression may name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Name {
    Payload,
    Metadata,
    Job,
    Queue,
}

impl Name {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Name::Payload => "payload",
            Name::Metadata => "metadata",
            Name::Job => "name",
            Name::Queue => "queue",
        }
    }

    fn of(ident: &str) -> Option<Name> {
        let all = [Name::Payload, Name::Metadata, Name::Job, Name::Queue];
        all.into_iter().find(|name| name.as_str() == ident)
    }
}

/// Why an expression is no selector, and at which of its nodes.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) node: u64,
    pub(super) why: String,
}

/// Refuses what is not pure, total and cheap.
pub(super) fn check(root: &IdedExpr) -> Result<(), Refused> {
    Checker { nodes: 0 }.visit(root)
}

struct Checker {
    nodes: usize,
}

impl Checker {
    /// Goes no deeper than there may be nodes.
    fn visit(&mut self, node: &IdedExpr) -> Result<(), Refused> {
        let refuse = |why: String| Err(Refused { node: node.id, why });
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return refuse(format!(
                "it has more than {NODES_MAX} nodes: make the key in the client"
            ));
        }
        match &node.expr {
            Expr::Literal(LiteralValue::Double(value)) => {
                let value = *value.inner();
                if value.is_finite() && (value.fract() != 0.0 || value.abs() <= DOUBLE_EXACT_MAX) {
                    Ok(())
                } else {
                    refuse("a number of this size is not exact with a point or an exponent: write an integer".into())
                }
            }
            Expr::Literal(LiteralValue::Bytes(_)) => refuse("bytes have no meaning here: write a string".into()),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) if Name::of(name).is_some() => Ok(()),
            Expr::Ident(name) => refuse(format!(
                "{} is unknown: an expression may name payload, metadata, name and queue",
                shown(name)
            )),
            Expr::Select(SelectExpr { operand, .. }) => self.visit(operand),
            Expr::Call(call) => self.call(node.id, call),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.visit(element)),
            Expr::Comprehension(_) => {
                refuse("macros that loop (all, exists, exists_one, map, filter) are not allowed".into())
            }
            Expr::Map(_) | Expr::Struct(_) => refuse("maps and messages cannot be made in a key".into()),
            Expr::Unspecified => refuse("it is empty".into()),
        }
    }

    fn call(&mut self, node: u64, call: &CallExpr) -> Result<(), Refused> {
        let CallExpr {
            func_name,
            target,
            args,
        } = call;
        let function = func_name.as_str();
        let known = match target {
            Some(_) => METHODS.contains(&function),
            None => OPERATORS.contains(&function) || FUNCTIONS.contains(&function),
        };
        if !known {
            let name = function.trim_matches(['_', '@']);
            let why = format!(
                "{} is not allowed: there are string(), size(), has(), startsWith(), endsWith(), contains(), +, \
                 comparisons, in, &&, ||, ! and ?:",
                shown(name)
            );
            return Err(Refused { node, why });
        }
        if let Some(target) = target {
            self.visit(target)?;
        }
        args.iter().try_for_each(|arg| self.visit(arg))
    }
}

fn shown(name: &str) -> String {
    let short: String = name.chars().take(40).collect();
    format!("{short:?}")
}

/// Lets every `+` of a checked expression be a function of our own, which joins strings and adds whole numbers
/// exactly. CEL's would also add doubles, and round: two numbers could make one key.
pub(super) fn join_only(node: &mut IdedExpr) {
    match &mut node.expr {
        Expr::Call(call) => {
            if call.target.is_none() && call.func_name == operators::ADD {
                JOIN.clone_into(&mut call.func_name);
            }
            call.target.iter_mut().for_each(|target| join_only(target));
            call.args.iter_mut().for_each(join_only);
        }
        Expr::Select(select) => join_only(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().for_each(join_only),
        Expr::Literal(_)
        | Expr::Ident(_)
        | Expr::Comprehension(_)
        | Expr::Map(_)
        | Expr::Struct(_)
        | Expr::Unspecified => {}
    }
}

/// What is read of a value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reads {
    /// All of it. Else nothing but what is named below, and which kind of value it is.
    pub(super) whole: bool,
    pub(super) members: BTreeMap<String, Reads>,
    pub(super) elements: BTreeMap<usize, Reads>,
}

/// One step into a value, where the expression itself says which.
enum Step<'e> {
    Member(&'e str),
    Element(usize),
}

/// What a checked expression uses: of the payload the members that it reads, of the rest whether it is named.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) names: Vec<Name>,
    pub(super) payload: Reads,
}

impl Uses {
    pub(super) fn of(root: &IdedExpr) -> Uses {
        let mut uses = Uses::default();
        uses.collect(root);
        uses
    }

    pub(super) fn names(&self, name: Name) -> bool {
        self.names.contains(&name)
    }

    fn collect(&mut self, node: &IdedExpr) {
        let mut steps = Vec::new();
        match &node.expr {
            // Whether a member is there can be told without its value.
            Expr::Select(select) if select.test => {
                if into_payload(&select.operand, &mut steps) {
                    steps.push(Step::Member(&select.field));
                    self.read(&steps, false);
                } else {
                    self.collect(&select.operand);
                }
            }
            _ if into_payload(node, &mut steps) => self.read(&steps, true),
            Expr::Select(select) => self.collect(&select.operand),
            Expr::Call(call) => {
                call.target.iter().for_each(|target| self.collect(target));
                call.args.iter().for_each(|arg| self.collect(arg));
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.collect(element)),
            Expr::Ident(ident) => self.names.extend(Name::of(ident)),
            Expr::Literal(_) | Expr::Comprehension(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {}
        }
    }

    fn read(&mut self, steps: &[Step<'_>], whole: bool) {
        self.names.push(Name::Payload);
        let mut reads = &mut self.payload;
        for step in steps {
            reads = match step {
                Step::Member(name) => reads.members.entry((*name).to_owned()).or_default(),
                Step::Element(index) => reads.elements.entry(*index).or_default(),
            };
        }
        reads.whole |= whole;
    }
}

/// Whether a node is a way into the payload that needs no evaluation, such as `payload.a[0]['b']`; and the way.
fn into_payload<'e>(node: &'e IdedExpr, steps: &mut Vec<Step<'e>>) -> bool {
    match &node.expr {
        Expr::Ident(name) => name == Name::Payload.as_str(),
        Expr::Select(select) if !select.test => {
            let into = into_payload(&select.operand, steps);
            steps.push(Step::Member(&select.field));
            into
        }
        Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
            [operand, index] => {
                let step = match &index.expr {
                    Expr::Literal(LiteralValue::String(name)) => Step::Member(name.inner()),
                    Expr::Literal(LiteralValue::Int(index)) => match usize::try_from(*index.inner()) {
                        Ok(index) => Step::Element(index),
                        Err(_) => return false,
                    },
                    _ => return false,
                };
                let into = into_payload(operand, steps);
                steps.push(step);
                into
            }
            _ => false,
        },
        _ => false,
    }
}
