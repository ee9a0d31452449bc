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

use kube::core::cel::KubeCelExt;
use kube::core::cel::cel::common::ast::Expr;
use kube::core::cel::cel::parser::{Expression, Parser};
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

pub(crate) use check::{Problem, check};
pub(crate) use walk::{counterpart, validate};

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
    uses_old_self: bool,
    /// How deeply loops are nested.
    loops: u32,
    /// Number of nodes.
    nodes: u64,
}

impl Rule {
    /// Reads one element of `x-kubernetes-validations`. A rule that does not parse is kept, and fails every object.
    pub(crate) fn parse(rule: &Value) -> Self {
        let text = |name: &str| rule[name].as_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
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
        Ok(Self { expression, uses_old_self, loops, nodes })
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

/// Number of nodes and depth of nested loops.
fn size(expression: &Expression) -> (u64, u32) {
    let mut total = 1;
    let mut deepest = 0;
    expand::each_child(expression, &mut |child| {
        let (nodes, loops) = size(child);
        total += nodes;
        deepest = deepest.max(loops);
    });
    (total, deepest + u32::from(matches!(expression.expr, Expr::Comprehension(_))))
}

/// Runs with the functions that rules may call.
fn with_functions<T>(run: impl FnOnce(&Context<'static>) -> T) -> T {
    thread_local! {
        static FUNCTIONS: OnceCell<Context<'static>> = const { OnceCell::new() };
    }
    FUNCTIONS.with(|functions| run(functions.get_or_init(|| Context::default().with_all())))
}

/// A property's name as expressions write it; none where they cannot.
fn escaped(name: &str) -> Option<String> {
    const RESERVED: [&str; 18] = [
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import",
        "let", "loop", "package", "namespace", "return",
    ];
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(word) && !name.contains("__") {
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
}
