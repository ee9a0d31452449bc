//! Validation rules of custom resources, written in CEL.
//!
//! Parsing and evaluation are the `cel` crate's, with the Kubernetes functions of `kube-cel`. What is ours: types of the
//! schema instead of guesses, checks before a rule is accepted, transition rules, ratcheting and a bound on the work.
//! Two macros that the crate lacks are put together from what it has: `cel.bind` and `optMap`. Comprehensions with two
//! variables and `sortBy` are refused when the definition is applied.

mod check;
mod expand;
mod value;
mod walk;

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube::core::cel::KubeCelExt;
use kube::core::cel::cel::common::ast::{Expr, IdedExpr, LiteralValue};
use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::parser::{Expression, Parser};
use kube::core::cel::cel::{Context, ExecutionError, FunctionContext, Value as Cel};
use regex::Regex;
use serde_json::Value;

use crate::patterns;

pub(crate) use check::{Problem, check};
pub(crate) use walk::{counterpart, validate, validate_at};

/// The function of rules that takes a pattern.
const MATCHES: &str = "matches";

/// A rule as it is evaluated.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The expression as written.
    pub(crate) source: String,
    message: Option<String>,
    reason: Option<String>,
    field_path: Option<String>,
    optional_old_self: bool,
    program: Result<Program, String>,
    message_program: Option<Result<Program, String>>,
}

/// A parsed expression and what its cost depends on.
#[derive(Debug)]
struct Program {
    expression: Expression,
    /// Those that it names, held so that they are not compiled at each run.
    _patterns: Vec<Arc<Regex>>,
    uses_old_self: bool,
    /// How deeply loops are nested.
    loops: u32,
    /// Number of nodes.
    nodes: u64,
}

impl Rule {
    /// Reads one element of `x-kubernetes-validations`. A rule that does not parse is kept, and fails every object.
    pub(crate) fn parse(rule: &Value) -> Self {
        let text = |name: &str| {
            rule[name]
                .as_str()
                .map(str::trim)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let source = text("rule").unwrap_or_default();
        Self {
            program: Program::parse(&source),
            message_program: text("messageExpression").map(|source| Program::parse(&source)),
            message: text("message"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: rule["optionalOldSelf"].as_bool() == Some(true),
            source,
        }
    }

    fn uses_old_self(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses_old_self)
    }

    /// How messages name the rule.
    fn shown(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.source)
    }
}

impl Program {
    fn parse(source: &str) -> Result<Self, String> {
        let parsed = catch_unwind(|| Parser::new().enable_optional_syntax(true).parse(source))
            .map_err(|_| "ERROR: <input>:1:1: Syntax error: the expression cannot be read".to_owned())?;
        let mut expression = parsed.map_err(|errors| errors.to_string())?;
        expand::macros(&mut expression);
        let uses_old_self = expression.references().has_variable("oldSelf");
        let (nodes, loops) = size(&expression);
        let mut patterns = Vec::new();
        collect_patterns(&expression, &mut patterns);
        Ok(Self {
            expression,
            _patterns: patterns,
            uses_old_self,
            loops,
            nodes,
        })
    }

    /// The value of the expression. A panic of the evaluator is an error like any other.
    fn run(&self, context: &Context<'_>) -> Result<Cel, String> {
        match catch_unwind(AssertUnwindSafe(|| Cel::resolve(&self.expression, context))) {
            Ok(result) => result.map_err(|error| match error.to_string() {
                text if text == "No such overload" => "no such overload".to_owned(),
                text => text,
            }),
            Err(_) => Err("the expression cannot be evaluated".to_owned()),
        }
    }
}

/// The patterns that stand in an expression as they are.
fn collect_patterns(expression: &IdedExpr, found: &mut Vec<Arc<Regex>>) {
    if let Expr::Call(call) = &expression.expr
        && call.func_name == MATCHES
        && let Some(Expr::Literal(LiteralValue::String(text))) = call.args.last().map(|last| &last.expr)
    {
        found.extend(patterns::compiled(text.inner()));
    }
    expand::each_child(expression, &mut |child| collect_patterns(child, found));
}

/// Whether a text matches a pattern. The crate's own compiles the pattern each time.
fn matches(
    call: &FunctionContext<'_, '_>,
    This(text): This<Arc<String>>,
    pattern: Arc<String>,
) -> Result<bool, ExecutionError> {
    match patterns::compiled(&pattern) {
        Ok(compiled) => Ok(compiled.is_match(&text)),
        Err(error) => Err(call.error(format!("'{pattern}' not a valid regex:\n{error}"))),
    }
}

/// Number of nodes and depth of nested loops.
fn size(expression: &Expression) -> (u64, u32) {
    let mut total = 1;
    let mut deepest = 0;
    expand::each_child(expression, &mut |child| {
        let (nodes, loops) = size(child);
        total += nodes;
        deepest = deepest.max(loops);
    });
    (
        total,
        deepest + u32::from(matches!(expression.expr, Expr::Comprehension(_))),
    )
}

/// Runs with the functions that rules may call.
fn with_functions<T>(run: impl FnOnce(&Context<'static>) -> T) -> T {
    thread_local! {
        static FUNCTIONS: OnceCell<Context<'static>> = const { OnceCell::new() };
    }
    FUNCTIONS.with(|functions| run(functions.get_or_init(known)))
}

/// Functions of the crates, and those of the language that they lack: `type`, whose answer is the type's name, and `dyn`.
fn known() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("type", |value: Cel| -> Result<Cel, ExecutionError> {
        let name = match value {
            Cel::Bool(_) => "bool",
            Cel::Int(_) => "int",
            Cel::UInt(_) => "uint",
            Cel::Float(_) => "double",
            Cel::String(_) => "string",
            Cel::Bytes(_) => "bytes",
            Cel::List(_) => "list",
            Cel::Map(_) => "map",
            Cel::Null => "null_type",
            Cel::Timestamp(_) => "google.protobuf.Timestamp",
            Cel::Duration(_) => "google.protobuf.Duration",
            Cel::Opaque(_) | Cel::Function(..) => "dyn",
        };
        Ok(Cel::String(Arc::new(name.to_owned())))
    });
    context.add_function(MATCHES, matches);
    context.add_function("dyn", |value: Cel| -> Result<Cel, ExecutionError> { Ok(value) });
    for name in TYPES {
        context.add_variable_from_value(name, Cel::String(Arc::new(name.to_owned())));
    }
    context
}

/// Names of types, which a rule may compare with.
const TYPES: [&str; 9] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
];

/// A property's name as expressions write it; none where they cannot.
fn escaped(name: &str) -> Option<String> {
    const RESERVED: [&str; 18] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
    ];
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(word)
        && !name.contains("__")
    {
        return Some(name.to_owned());
    }
    let first = name.chars().next()?;
    if first.is_ascii_digit() || !name.chars().all(|c| word(c) || matches!(c, '.' | '-' | '/')) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__").replace('.', "__dot__");
    Some(escaped.replace('-', "__dash__").replace('/', "__slash__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("plain", Some("plain"))]
    #[case("namespace", Some("__namespace__"))]
    #[case("x-prop", Some("x__dash__prop"))]
    #[case("a.b/c", Some("a__dot__b__slash__c"))]
    #[case("redact__d", Some("redact__underscores__d"))]
    #[case("1st", None)]
    #[case("a b", None)]
    fn names_are_escaped_as_the_reference_says(#[case] name: &str, #[case] expected: Option<&str>) {
        assert_eq!(escaped(name).as_deref(), expected);
    }

    #[test]
    fn loops_and_nodes_are_counted() {
        let flat = Program::parse("self.a.all(x, x > 0)").expect("parses");
        let nested = Program::parse("self.a.all(x, self.b.exists(y, y == x))").expect("parses");
        assert_eq!((flat.loops, nested.loops), (1, 2));
        assert!(nested.nodes > flat.nodes);
    }

    #[test]
    fn a_syntax_error_is_told_with_its_place() {
        let error = Program::parse("self.a >").expect_err("does not parse");
        assert!(error.starts_with("ERROR: <input>:1:"), "{error}");
    }

    fn holds(schema: &Value, value: &Value, rule: &str) -> Result<bool, String> {
        let mut schema = schema.clone();
        schema["x-kubernetes-validations"] = serde_json::json!([{"rule": rule, "message": "broken"}]);
        let schema = crate::schema::Schema::parse(&schema);
        let problems = check(&schema, false, &schema.rules[0], &schema.programs[0], 1, true);
        if !problems.is_empty() {
            return Err(format!("{problems:?}"));
        }
        let causes = validate_at(&schema, value, None, &crate::fault::Path::root(), false);
        match causes.as_slice() {
            [] => Ok(true),
            [cause] if cause.message.ends_with(": broken") && !cause.message.contains("evaluating") => {
                Ok(false)
            }
            causes => Err(format!("{causes:?}")),
        }
    }

    #[rstest::rstest]
    #[case("self.ratio > 0 && self.ratio <= 1.0")]
    #[case("self.ratio == 1.0")]
    #[case("self.count == 3 && self.count != 4")]
    #[case("self.count in [1, 2, 3]")]
    #[case("self.when < timestamp('2027-01-01T00:00:00Z')")]
    #[case("self.lasts == duration('1h30m')")]
    #[case("self.lasts.getSeconds() == 5400")]
    #[case("size(self.tags) == 2 && self.tags.size() == 2")]
    #[case("self.tags.exists(t, t.startsWith('a')) && self.tags.exists_one(t, t == 'ab')")]
    #[case("self.tags.filter(t, t.contains('b')).map(t, t.upperAscii()) == ['AB']")]
    #[case("self.labels.all(k, k.matches('^[a-z/.]+$') && self.labels[k] != '')")]
    #[case("'a.b/c' in self.labels && self.labels['a.b/c'] == 'x'")]
    #[case("!has(self.absent) && !has(self.empty)")]
    #[case("has(self.inner.deep) ? self.inner.deep == 'd' : false")]
    #[case("self.?absent.orValue('none') == 'none'")]
    #[case("self.?inner.?deep.orValue('none') == 'd'")]
    #[case("type(self.port) == int && (type(self.port) == string || self.port == 80)")]
    #[case("self.x__dash__y == 'z' && self.__namespace__ == 'n'")]
    #[case("cel.bind(s, size(self.tags), s > 1 && s < 3)")]
    #[case("self.tags.join(',') == 'ab,c' && 'ab,c'.split(',') == self.tags")]
    #[case("quantity('1Gi').compareTo(quantity('1024Mi')) == 0")]
    #[case("isURL('https://example.com') && ip('10.0.0.1').family() == 4")]
    #[case("cidr('10.0.0.0/8').containsIP('10.1.2.3')")]
    #[case("string(self.count) + '!' == '3!' && int('4') == 4")]
    #[case("self.count > 2 || self.absent == 'never looked at'")]
    #[case("self.items.all(i, self.items.exists_one(j, i.name == j.name))")]
    #[case("self.data == b'hi'")]
    #[case("self.inner == {'deep': 'd'}")]
    #[case("self.tags + ['d'] == ['ab', 'c', 'd']")]
    #[case("'%s-%d'.format(['a', 1]) == 'a-1'")]
    fn rules_see_what_the_schema_declares(#[case] rule: &str) {
        let text = serde_json::json!({"type": "string", "maxLength": 32});
        let schema = serde_json::json!({"type": "object", "properties": {
            "ratio": {"type": "number"}, "count": {"type": "integer"}, "absent": text, "x-y": text, "namespace": text,
            "empty": {"type": "string", "nullable": true},
            "when": {"type": "string", "format": "date-time"}, "lasts": {"type": "string", "format": "duration"},
            "data": {"type": "string", "format": "byte"}, "port": {"x-kubernetes-int-or-string": true},
            "tags": {"type": "array", "maxItems": 9, "items": text},
            "labels": {"type": "object", "maxProperties": 9, "additionalProperties": text},
            "inner": {"type": "object", "properties": {"deep": text}},
            "items": {"type": "array", "maxItems": 9, "items": {"type": "object", "properties": {"name": text}}},
        }});
        let value = serde_json::json!({
            "ratio": 1, "count": 3, "x-y": "z", "namespace": "n", "empty": null, "port": 80, "data": "aGk=",
            "when": "2026-06-01T10:00:00Z", "lasts": "1h30m", "tags": ["ab", "c"], "labels": {"a.b/c": "x"},
            "inner": {"deep": "d"}, "items": [{"name": "a"}, {"name": "b"}],
        });
        assert_eq!(holds(&schema, &value, rule), Ok(true));
    }

    #[test]
    fn a_rule_that_cannot_be_evaluated_fails_the_object() {
        let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let error = holds(&schema, &serde_json::json!({}), "self.a == 'x'").expect_err("no such key");
        assert!(
            error.contains("no such key: a evaluating rule: broken"),
            "{error}"
        );
    }
}
