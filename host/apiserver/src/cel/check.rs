//! Looks at a rule before it is accepted: does it parse, does it name what exists, do its types fit, is it affordable.
//!
//! The `cel` crate has no type checker. This one knows the types that the schema declares and stays silent where it
//! does not know, so that it never refuses what Kubernetes accepts for a type's sake.

mod kind;

use std::sync::LazyLock;

use kube::core::cel::cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

use kind::{Kind, alike};

use super::{Program, Rule, escaped};
use crate::schema::{Schema, Type};

/// The most that a rule may cost, in the units of Kubernetes.
const LIMIT: u64 = 10_000_000;

/// Functions of the language, of its extensions and of Kubernetes that the evaluator has.
const FUNCTIONS: &str = " add asApproximateFloat asInteger base64.decode base64.encode bytes charAt cidr compareTo \
    contains containsCIDR containsIP distinct double duration endsWith family find findAll first flatten format \
    format.byte format.date format.datetime format.dns1035Label format.dns1035LabelPrefix format.dns1123Label \
    format.dns1123LabelPrefix format.dns1123Subdomain format.dns1123SubdomainPrefix format.labelValue format.named \
    format.qualifiedName format.uri format.uuid getDate getDayOfMonth getDayOfWeek getDayOfYear getEscapedPath \
    getFullYear getHost getHostname getHours getMilliseconds getMinutes getMonth getPort getQuery getScheme getSeconds \
    hasValue indexOf int ip ip.isCanonical isCIDR isGlobalUnicast isGreaterThan isIP isInteger isLessThan \
    isLinkLocalMulticast isLinkLocalUnicast isLoopback isQuantity isSemver isSorted isURL isUnspecified join \
    jsonpatch.escapeKey last lastIndexOf lists.range lowerAscii major masked matches math.abs math.bitAnd math.bitNot \
    math.bitOr math.bitShiftLeft math.bitShiftRight math.bitXor math.ceil math.floor math.greatest math.isFinite \
    math.isInf math.isNaN math.least math.round math.sign math.sqrt math.trunc max min minor optional.none optional.of \
    optional.ofNonZeroValue or orValue patch prefixLength quantity replace reverse semver sets.contains \
    sets.equivalent sets.intersects sign size slice sort split startsWith string strings.quote sub substring sum \
    timestamp trim type dyn uint upperAscii url validate value ";

/// Those that answer yes or no.
const PREDICATES: &str = " _==_ _!=_ _<_ _<=_ _>_ _>=_ _&&_ _||_ !_ @in @not_strictly_false contains endsWith \
    startsWith matches hasValue isCIDR isGlobalUnicast isGreaterThan isIP isInteger isLessThan isLinkLocalMulticast \
    isLinkLocalUnicast isLoopback isQuantity isSemver isSorted isURL isUnspecified containsCIDR containsIP ";

/// Those whose work grows with the string they read.
const READERS: &str = " contains endsWith startsWith matches find findAll indexOf lastIndexOf lowerAscii upperAscii \
    replace split substring trim charAt ";

/// Of metadata, rules see the name alone.
static META: LazyLock<Schema> = LazyLock::new(|| {
    let name = serde_json::json!({"type": "string", "maxLength": 253});
    Schema::parse(&serde_json::json!({"type": "object", "properties": {"name": name, "generateName": name}}))
});

fn listed(list: &str, name: &str) -> bool {
    !name.is_empty() && list.contains(&format!(" {name} "))
}

/// What a rule may not be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The rule itself, with the compiler's message.
    Rule(String),
    /// The message expression.
    MessageExpression(String),
    /// Too expensive: by how much.
    Cost(String),
    /// `oldSelf` where old and new cannot be told which belongs to which.
    OldSelf,
    /// `optionalOldSelf` without `oldSelf`.
    OptionalOldSelf,
}

/// Checks a rule of a node, as written and as parsed. `times` is how often the node can occur in an object,
/// `correlatable` whether old and new values at this node can be matched.
pub(crate) fn check(
    schema: &Schema,
    root: bool,
    rule: &Value,
    parsed: &Rule,
    times: u64,
    correlatable: bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    match &parsed.program {
        Err(error) => problems.push(Problem::Rule(format!("compilation failed: {error}"))),
        Ok(program) => {
            let (kind, cost, errors) = look(program, &parsed.source, schema, root, parsed.optional_old_self);
            if !errors.is_empty() {
                problems.push(Problem::Rule(format!(
                    "compilation failed: {}",
                    errors.join("\n")
                )));
            } else if !matches!(kind, Kind::Bool | Kind::Dyn) {
                problems.push(Problem::Rule("cel expression must evaluate to a bool".into()));
            } else if cost.saturating_mul(times) > LIMIT {
                problems.push(Problem::Cost(over_budget(cost.saturating_mul(times))));
            }
            if program.uses_old_self && !correlatable {
                problems.push(Problem::OldSelf);
            }
            if !program.uses_old_self && rule.get("optionalOldSelf").is_some_and(|flag| !flag.is_null()) {
                problems.push(Problem::OptionalOldSelf);
            }
        }
    }
    let source = rule["messageExpression"].as_str().unwrap_or_default();
    match &parsed.message_program {
        None => {}
        Some(Err(error)) => {
            problems.push(Problem::MessageExpression(format!(
                "messageExpression compilation failed: {error}"
            )));
        }
        Some(Ok(program)) => {
            let (kind, _, errors) = look(program, source, schema, root, parsed.optional_old_self);
            if !errors.is_empty() {
                let error = format!("messageExpression compilation failed: {}", errors.join("\n"));
                problems.push(Problem::MessageExpression(error));
            } else if !matches!(kind, Kind::Text(_) | Kind::Dyn) {
                problems.push(Problem::MessageExpression(
                    "messageExpression must evaluate to a string".into(),
                ));
            }
        }
    }
    problems
}

fn over_budget(cost: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a factor for people")]
    let factor = cost as f64 / LIMIT as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "estimated rule cost exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, \
         maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

fn look<'s>(
    program: &Program,
    source: &str,
    schema: &'s Schema,
    root: bool,
    optional: bool,
) -> (Kind<'s>, u64, Vec<String>) {
    let own = Kind::of(schema, root);
    let old = if optional { Kind::Dyn } else { own.clone() };
    let mut look = Look {
        source,
        errors: Vec::new(),
        scope: vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)],
    };
    let (kind, cost) = look.visit(&program.expression);
    (kind, cost, look.errors)
}

struct Look<'s, 'r> {
    source: &'r str,
    errors: Vec<String>,
    scope: Vec<(String, Kind<'s>)>,
}

impl<'s> Look<'s, '_> {
    fn visit(&mut self, expression: &IdedExpr) -> (Kind<'s>, u64) {
        match &expression.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => (Kind::Bool, 0),
            Expr::Literal(LiteralValue::String(text)) => (Kind::Text(text.inner().len() as u64), 0),
            Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)) => {
                (Kind::Number, 0)
            }
            Expr::Literal(_) => (Kind::Dyn, 0),
            Expr::Ident(name) => (self.named(name), 1),
            Expr::Select(select) => {
                let (operand, cost) = self.visit(&select.operand);
                (self.select(operand, &select.field, select.test), cost + 1)
            }
            Expr::List(list) => {
                let kinds: Vec<_> = list.elements.iter().map(|element| self.visit(element)).collect();
                (
                    Kind::List(None, kinds.len() as u64),
                    10 + kinds.iter().map(|(_, cost)| cost).sum::<u64>(),
                )
            }
            Expr::Comprehension(found) => self.repeat(found),
            Expr::Call(call) => {
                let target = call.target.as_deref();
                self.call(&call.func_name, target, &call.args)
            }
            Expr::Struct(_) | Expr::Unspecified => {
                self.error("", "messages cannot be made in a rule".to_owned());
                (Kind::Dyn, 1)
            }
            Expr::Map(_) => {
                let mut total = 30;
                super::expand::each_child(expression, &mut |child| total += self.visit(child).1);
                (Kind::Map(None, 16), total)
            }
        }
    }

    fn error(&mut self, near: &str, message: String) {
        let column = self.source.find(near).unwrap_or_default();
        let line = self.source[..column].matches('\n').count() + 1;
        let column = column - self.source[..column].rfind('\n').map_or(0, |at| at + 1);
        let shown = self.source.lines().nth(line - 1).unwrap_or_default();
        let mark = ".".repeat(column);
        self.errors.push(format!(
            "ERROR: <input>:{line}:{}: {message}\n | {shown}\n | {mark}^",
            column + 1
        ));
    }

    fn named(&mut self, name: &str) -> Kind<'s> {
        if let Some((_, kind)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return kind.clone();
        }
        if !super::TYPES.contains(&name) {
            self.error(
                name,
                format!("undeclared reference to '{name}' (in container '')"),
            );
        }
        Kind::Dyn
    }

    fn select(&mut self, operand: Kind<'s>, field: &str, test: bool) -> Kind<'s> {
        let found = match operand {
            Kind::Object(_, true) if matches!(field, "apiVersion" | "kind") => Kind::Text(253),
            Kind::Object(_, true) if field == "metadata" => Kind::Object(&META, false),
            Kind::Object(schema, _) => {
                let known = |name: &&String| escaped(name).as_deref() == Some(field);
                match schema.properties.iter().find(|(name, _)| known(name)) {
                    Some((_, below)) if below.kind == Type::Any && !below.int_or_string => {
                        self.error(&format!(".{field}"), format!("undefined field '{field}'"));
                        Kind::Dyn
                    }
                    Some((_, below)) => Kind::of(below, false),
                    None => {
                        self.error(&format!(".{field}"), format!("undefined field '{field}'"));
                        Kind::Dyn
                    }
                }
            }
            Kind::Map(values, _) => Kind::or_dyn(values),
            Kind::Dyn => Kind::Dyn,
            other => {
                let message = format!("type '{}' does not support field selection", other.name());
                self.error(&format!(".{field}"), message);
                Kind::Dyn
            }
        };
        if test { Kind::Bool } else { found }
    }

    fn repeat(&mut self, found: &ComprehensionExpr) -> (Kind<'s>, u64) {
        let (range, range_cost) = self.visit(&found.iter_range);
        let (accumulated, start_cost) = self.visit(&found.accu_init);
        let element = match &range {
            Kind::List(items, _) => Kind::or_dyn(*items),
            Kind::Map(..) => Kind::Text(253),
            _ => Kind::Dyn,
        };
        let times = range.length();
        let before = self.scope.len();
        self.scope.push((found.accu_var.clone(), accumulated));
        self.scope.push((found.iter_var.clone(), element));
        let step = self.visit(&found.loop_step).1 + self.visit(&found.loop_cond).1;
        let (result, result_cost) = self.visit(&found.result);
        self.scope.truncate(before);
        let cost = range_cost + start_cost + result_cost;
        (result, cost.saturating_add(times.saturating_mul(step)))
    }

    fn call(&mut self, name: &str, target: Option<&IdedExpr>, args: &[IdedExpr]) -> (Kind<'s>, u64) {
        let mut cost = 1_u64;
        let mut known =
            listed(FUNCTIONS, name) || !name.starts_with(|first: char| first.is_ascii_alphabetic());
        let mut on = None;
        match target.map(|target| &target.expr) {
            Some(Expr::Ident(space)) if !self.scope.iter().any(|(variable, _)| variable == space) => {
                known = listed(FUNCTIONS, &format!("{space}.{name}"));
                if !known {
                    self.error(
                        space,
                        format!("undeclared reference to '{space}' (in container '')"),
                    );
                    known = true;
                }
            }
            Some(_) => {
                let (kind, more) = target.map(|target| self.visit(target)).unwrap_or((Kind::Dyn, 0));
                cost = cost.saturating_add(more);
                on = Some(kind);
            }
            None => {}
        }
        if !known {
            self.error(
                name,
                format!("undeclared reference to '{name}' (in container '')"),
            );
        }
        let mut kinds = Vec::with_capacity(args.len());
        for arg in args {
            let (kind, more) = self.visit(arg);
            cost = cost.saturating_add(more);
            kinds.push(kind);
        }
        if listed(READERS, name)
            && let Some(Kind::Text(length)) = &on
        {
            cost = cost.saturating_add(length / 10);
        }
        self.operands(name, &kinds);
        let kind = match (name, kinds.as_slice()) {
            (name, _) if listed(PREDICATES, name) => Kind::Bool,
            ("size" | "int" | "-_" | "indexOf" | "lastIndexOf", _) => Kind::Number,
            ("string", _) => Kind::Text(64),
            ("_[_]", [Kind::List(items, _), _]) => Kind::or_dyn(*items),
            ("_[_]", [Kind::Map(values, _), _]) => Kind::or_dyn(*values),
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [Kind::Number, _] | [_, Kind::Number]) => Kind::Number,
            ("_+_", [Kind::Text(a), Kind::Text(b)]) => Kind::Text(a.saturating_add(*b)),
            ("_+_", [Kind::List(a, m), Kind::List(_, n)]) => Kind::List(*a, m.saturating_add(*n)),
            ("_?_:_", [_, yes, no]) if yes.name() == no.name() => yes.clone(),
            _ => Kind::Dyn,
        };
        (kind, cost)
    }

    /// An operator between types of different families has no meaning.
    fn operands(&mut self, name: &str, kinds: &[Kind<'s>]) {
        const SAME: &str = " _==_ _!=_ _<_ _<=_ _>_ _>=_ _+_ _-_ _*_ _/_ _%_ ";
        let bad = match (name, kinds) {
            (name, [Kind::Dyn, _] | [_, Kind::Dyn]) if listed(SAME, name) => false,
            (name, [a, b]) if listed(SAME, name) => a.name() != b.name() && !alike(a, b),
            ("_&&_" | "_||_", [a, b]) => [a, b].iter().any(|kind| !matches!(kind, Kind::Bool | Kind::Dyn)),
            ("!_", [a]) => !matches!(a, Kind::Bool | Kind::Dyn),
            _ => false,
        };
        if bad {
            let types: Vec<_> = kinds.iter().map(Kind::name).collect();
            let sign = name.trim_matches('_');
            let message = format!(
                "found no matching overload for '{name}' applied to '({})'",
                types.join(", ")
            );
            self.error(sign, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Schema, root: bool, rule: &Value, times: u64, correlatable: bool) -> Vec<Problem> {
        super::check(schema, root, rule, &Rule::parse(rule), times, correlatable)
    }

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "count": {"type": "integer"}, "name": {"type": "string", "maxLength": 64}, "x-y": {"type": "boolean"},
            "tags": {"type": "array", "maxItems": 8, "items": {"type": "string", "maxLength": 16}},
            "open": {"type": "array", "items": {"type": "string"}},
            "any": {"x-kubernetes-int-or-string": true},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}))
    }

    #[rstest::rstest]
    #[case("self.count > 0")]
    #[case("has(self.name) && self.name.startsWith('a')")]
    #[case("self.tags.all(t, t.matches('^a'))")]
    #[case("self.x__dash__y")]
    #[case("self.any == 1 || self.any == '1'")]
    #[case("'a' in self.labels ? self.labels['a'] == 'b' : true")]
    #[case("cel.bind(n, self.count, n > 1 && n < 3)")]
    #[case("self.metadata.name == 'x'")]
    #[case("type(self.any) == int ? self.any > 1 : self.any == 'x'")]
    #[case("math.greatest(self.count, 3) == 3")]
    #[case("self.count == oldSelf.count")]
    #[case("quantity('1Gi').isGreaterThan(quantity('1Mi'))")]
    #[case("self.tags.map(t, t + 'x').exists(t, t == 'ax')")]
    fn a_good_rule_is_accepted(#[case] rule: &str) {
        assert_eq!(check(&schema(), true, &json!({"rule": rule}), 1, true), []);
    }

    #[rstest::rstest]
    #[case("self.missing > 0", "undefined field 'missing'")]
    #[case("self.count >", "Syntax error")]
    #[case("other.count > 1", "undeclared reference to 'other'")]
    #[case(
        "self.count > 'a'",
        "found no matching overload for '_>_' applied to '(int, string)'"
    )]
    #[case("self.name.first.x", "type 'string' does not support field selection")]
    #[case("self.count", "must evaluate to a bool")]
    #[case("has(self.metadata.labels)", "undefined field 'labels'")]
    #[case("self.tags.sortBy(t, t) == []", "undeclared reference to")]
    #[case("self.tags.transformList(i, t, t) == []", "undeclared reference to")]
    #[case("self.name && true", "found no matching overload for '_&&_'")]
    fn a_bad_rule_is_told_why(#[case] rule: &str, #[case] why: &str) {
        let problems = check(&schema(), true, &json!({"rule": rule}), 1, true);
        assert!(
            matches!(&problems[..], [Problem::Rule(text)] if text.contains(why)),
            "{problems:?}"
        );
    }

    #[test]
    fn a_loop_in_a_loop_over_unbounded_lists_is_too_expensive() {
        let rule = json!({"rule": "self.open.all(a, self.open.exists_one(b, a == b))"});
        assert!(matches!(
            &check(&schema(), true, &rule, 1, true)[..],
            [Problem::Cost(_)]
        ));
        let rule = json!({"rule": "self.tags.all(a, self.tags.exists_one(b, a == b))"});
        assert_eq!(check(&schema(), true, &rule, 1, true), []);
    }

    #[test]
    fn old_self_needs_a_place_that_can_be_matched() {
        let rule = json!({"rule": "self.count >= oldSelf.count"});
        assert_eq!(check(&schema(), true, &rule, 1, false), [Problem::OldSelf]);
        let rule = json!({"rule": "self.count > 0", "optionalOldSelf": true});
        assert_eq!(check(&schema(), true, &rule, 1, true), [Problem::OptionalOldSelf]);
    }

    #[test]
    fn a_message_expression_makes_text() {
        let rule = json!({"rule": "self.count > 0", "messageExpression": "self.count"});
        assert!(matches!(
            &check(&schema(), true, &rule, 1, true)[..],
            [Problem::MessageExpression(_)]
        ));
        let rule = json!({"rule": "self.count > 0", "messageExpression": "'is ' + string(self.count)"});
        assert_eq!(check(&schema(), true, &rule, 1, true), []);
    }
}
