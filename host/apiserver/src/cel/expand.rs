//! Macros that the `cel` crate does not know, rewritten into expressions that it does.

use kube::core::cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators,
};

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn call(name: &str, target: Option<IdedExpr>, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: target.map(Box::new),
        args,
    }))
}

fn ident(name: &str) -> IdedExpr {
    node(Expr::Ident(name.to_owned()))
}

/// `name` stands for `init` in `body`: a loop over nothing whose result is the body.
fn bind(name: &str, init: IdedExpr, body: IdedExpr) -> IdedExpr {
    node(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: node(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.to_owned(),
        accu_init: init,
        loop_cond: node(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: ident(name),
        result: body,
    })))
}

/// Rewrites `cel.bind(v, x, e)`, `o.optMap(v, e)` and `o.optFlatMap(v, e)` everywhere.
pub(super) fn macros(expression: &mut IdedExpr) {
    each_child_mut(expression, &mut macros);
    let Expr::Call(found) = &mut expression.expr else {
        return;
    };
    if found.func_name == operators::OPT_SELECT {
        // The crate's own answer to `self.?absent` is an error; that to `self[?'absent']` is right.
        operators::OPT_INDEX.clone_into(&mut found.func_name);
        return;
    }
    let variable = match found.args.first().map(|arg| &arg.expr) {
        Some(Expr::Ident(name)) => name.clone(),
        _ => return,
    };
    let Some(target) = found.target.as_deref() else {
        return;
    };
    let replacement = match (found.func_name.as_str(), found.args.as_slice()) {
        ("bind", [_, init, body]) if matches!(&target.expr, Expr::Ident(name) if name == "cel") => {
            bind(&variable, init.clone(), body.clone())
        }
        ("optMap", [_, body]) => {
            let mapped = bind(
                &variable,
                call("value", Some(target.clone()), Vec::new()),
                body.clone(),
            );
            optional(target, call("of", Some(ident("optional")), vec![mapped]))
        }
        ("optFlatMap", [_, body]) => optional(
            target,
            bind(
                &variable,
                call("value", Some(target.clone()), Vec::new()),
                body.clone(),
            ),
        ),
        _ => return,
    };
    *expression = replacement;
}

/// `present` if the target has a value, else nothing. The target is worked out twice: the `cel` crate loses the wrapping
/// of an optional that it keeps in a variable of its own.
fn optional(target: &IdedExpr, present: IdedExpr) -> IdedExpr {
    let has = call("hasValue", Some(target.clone()), Vec::new());
    let none = call("none", Some(ident("optional")), Vec::new());
    call("_?_:_", None, vec![has, present, none])
}

/// Visits the nodes directly below.
pub(super) fn each_child(expression: &IdedExpr, visit: &mut dyn FnMut(&IdedExpr)) {
    match &expression.expr {
        Expr::Call(call) => {
            call.target.iter().for_each(|target| visit(target));
            call.args.iter().for_each(visit);
        }
        Expr::Comprehension(found) => {
            for child in [
                &found.iter_range,
                &found.accu_init,
                &found.loop_cond,
                &found.loop_step,
                &found.result,
            ] {
                visit(child);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(visit),
        Expr::Map(map) => {
            for entry in &map.entries {
                match &entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        visit(&entry.key);
                        visit(&entry.value);
                    }
                    EntryExpr::StructField(field) => visit(&field.value),
                }
            }
        }
        Expr::Select(select) => visit(&select.operand),
        Expr::Struct(_) | Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

fn each_child_mut(expression: &mut IdedExpr, visit: &mut dyn FnMut(&mut IdedExpr)) {
    match &mut expression.expr {
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| visit(target));
            call.args.iter_mut().for_each(visit);
        }
        Expr::Comprehension(found) => {
            let found = found.as_mut();
            for child in [
                &mut found.iter_range,
                &mut found.accu_init,
                &mut found.loop_cond,
                &mut found.loop_step,
                &mut found.result,
            ] {
                visit(child);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(visit),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                match &mut entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        visit(&mut entry.key);
                        visit(&mut entry.value);
                    }
                    EntryExpr::StructField(field) => visit(&mut field.value),
                }
            }
        }
        Expr::Select(select) => visit(&mut select.operand),
        Expr::Struct(_) | Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}
