//! Evaluates the rules of a schema on an object, node by node.

use std::sync::Arc;

use kube::core::cel::cel::objects::OptionalValue;
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::value::{convert, longest};
use super::{Rule, with_functions};
use crate::fault::{self, Path};
use crate::schema::{ListType, Schema};
use crate::status::Cause;

/// Work that all rules together may do on one object: about a second on a slow machine.
const BUDGET: u64 = 10_000_000;

/// A longer message is not shown.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Says which rules the object breaks. `old` is what it replaces: transition rules compare the two, and a rule that
/// does not look at it is not held against what did not change.
pub(crate) fn validate(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    validate_at(schema, new, old, &Path::root(), true)
}

/// The same below a path. `root` says that the value is a whole object.
pub(crate) fn validate_at(
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    path: &Path<'_>,
    root: bool,
) -> Vec<Cause> {
    if !schema.ruled {
        return Vec::new();
    }
    with_functions(|functions| {
        let mut walk = Walk {
            functions,
            found: Vec::new(),
            budget: BUDGET,
            stopped: false,
        };
        walk.node(
            schema,
            At {
                new,
                old,
                same: old.map(|old| (new, old)),
                root,
            },
            path,
        );
        walk.found
    })
}

struct Walk<'f> {
    functions: &'f Context<'static>,
    found: Vec<Cause>,
    budget: u64,
    stopped: bool,
}

/// A place in the object.
#[derive(Clone, Copy)]
struct At<'v> {
    new: &'v Value,
    old: Option<&'v Value>,
    /// The nearest place on the way here that both objects have; equal means unchanged.
    same: Option<(&'v Value, &'v Value)>,
    root: bool,
}

impl<'v> At<'v> {
    fn below(self, new: &'v Value, old: Option<&'v Value>) -> Self {
        Self {
            new,
            old,
            same: old.map(|old| (new, old)).or(self.same),
            root: false,
        }
    }
}

impl Walk<'_> {
    fn node(&mut self, schema: &Schema, at: At<'_>, path: &Path<'_>) {
        if !schema.ruled || at.new.is_null() || self.stopped {
            return;
        }
        self.rules(schema, &schema.programs, at, path);
        match at.new {
            Value::Object(fields) => {
                let before = at.old.and_then(Value::as_object);
                for (name, value) in fields {
                    let old = before.and_then(|before| before.get(name));
                    if let Some(below) = schema.properties.get(name) {
                        self.node(below, at.below(value, old), &path.child(name));
                    } else if let Some(below) = &schema.additional {
                        self.node(below, at.below(value, old), &path.key(name));
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return };
                for (index, value) in list.iter().enumerate() {
                    let old = counterpart(schema, value, at.old);
                    self.node(items, at.below(value, old), &path.index(index));
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, schema: &Schema, rules: &[Arc<Rule>], at: At<'_>, path: &Path<'_>) {
        if rules.is_empty() || self.stopped {
            return;
        }
        let functions = self.functions;
        let new = convert(schema, at.new, at.root, functions);
        let old = at.old.filter(|_| rules.iter().any(|rule| rule.uses_old_self()));
        let old = old
            .filter(|old| !old.is_null())
            .map(|old| convert(schema, old, at.root, functions));
        let length = longest(at.new).max(at.old.map(longest).unwrap_or_default());
        for rule in rules {
            let mut context = functions.new_inner_scope();
            context.add_variable_from_value("self", new.clone());
            if rule.optional_old_self {
                let optional = old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                context.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
            } else if let Some(old) = &old {
                context.add_variable_from_value("oldSelf", old.clone());
            } else if rule.uses_old_self() {
                continue;
            }
            self.rule(schema, rule, &context, length, at, path);
            if self.stopped {
                return;
            }
        }
    }

    fn rule(
        &mut self,
        schema: &Schema,
        rule: &Rule,
        context: &Context<'_>,
        length: u64,
        at: At<'_>,
        path: &Path<'_>,
    ) {
        let kind = Value::String(schema.kind.word().to_owned());
        let program = match &rule.program {
            Ok(program) => program,
            Err(error) => {
                self.found.push(fault::invalid(
                    path,
                    &kind,
                    &format!("rule compile error: compilation failed: {error}"),
                ));
                return;
            }
        };
        let cost = program
            .nodes
            .saturating_mul(length.max(1).saturating_pow(program.loops));
        if cost > self.budget {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.found.push(fault::invalid(path, &kind, detail));
            self.stopped = true;
            return;
        }
        self.budget -= cost;
        match program.run(context) {
            Ok(Cel::Bool(true)) => return,
            Ok(Cel::Bool(false)) => {}
            Ok(_) => {
                let detail = format!("rule did not evaluate to a bool: {}", rule.shown());
                self.found.push(fault::invalid(path, &kind, &detail));
                return;
            }
            Err(error) if error == "no such overload" => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                    rule.shown()
                );
                self.found.push(fault::invalid(path, &kind, &detail));
                return;
            }
            Err(error) => {
                let error = error
                    .strip_prefix("No such key")
                    .map_or(error.clone(), |rest| format!("no such key{rest}"));
                let detail = format!("{error} evaluating rule: {}", rule.shown());
                self.found.push(fault::invalid(path, &kind, &detail));
                return;
            }
        }
        let unchanged = at.same.is_some_and(|(new, old)| new == old);
        if unchanged && !program.uses_old_self {
            return;
        }
        self.found.push(broken(schema, rule, context, at.new, path));
    }
}

/// The fault that a rule which is false stands for.
fn broken(schema: &Schema, rule: &Rule, context: &Context<'_>, value: &Value, path: &Path<'_>) -> Cause {
    let said = match &rule.message_program {
        Some(Ok(program)) => match program.run(context) {
            Ok(Cel::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        },
        _ => None,
    };
    let fits = |text: &String| !text.is_empty() && !text.contains('\n') && text.len() <= LONGEST_MESSAGE;
    let detail = said.filter(fits).or_else(|| rule.message.clone());
    let detail = detail.unwrap_or_else(|| format!("failed rule: {}", rule.source));
    let field = match &rule.field_path {
        None => path.to_string(),
        Some(below) => format!("{}.{}", path.bare(), below.trim_start_matches('.'))
            .trim_start_matches('.')
            .to_owned(),
    };
    let whole = matches!(
        schema.kind,
        crate::schema::Type::Object | crate::schema::Type::Array
    );
    match rule.reason.as_deref() {
        Some("FieldValueForbidden") => fault::forbidden(field, &detail),
        Some("FieldValueRequired") => fault::required(field, &detail),
        Some("FieldValueDuplicate") if whole => fault::duplicate_unshown(field),
        Some("FieldValueDuplicate") => fault::duplicate(field, value),
        _ if whole => fault::invalid_unshown(field, &detail),
        _ => fault::invalid(field, value, &detail),
    }
}

/// The element of the old list that an element of the new one continues; only keyed lists know.
pub(crate) fn counterpart<'v>(schema: &Schema, element: &Value, old: Option<&'v Value>) -> Option<&'v Value> {
    let ListType::Map(keys) = &schema.list_type else {
        return None;
    };
    let same = |other: &&Value| keys.iter().all(|key| other.get(key) == element.get(key));
    old?.as_array()?.iter().find(same)
}
