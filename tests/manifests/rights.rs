//! Least privilege, held against the audit log of a real API server: what a user was granted, what it used, and what differs.
//!
//! Granted is what the roles say that are bound to the user, verb by verb and resource by resource. Used is what the audit log has
//! of the user. Rights that every user of a cluster has anyway (discovery) are on paths and not on resources, so they do not count.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde_json::Value;

/// One verb on one resource in one place, as a role grants it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    /// None for all namespaces and for what has none.
    namespace: Option<String>,
    group: String,
    /// With its subresource.
    resource: String,
    verb: String,
    /// The only names that it holds for; empty for all.
    names: Vec<String>,
}

/// One kind of request, as the audit log has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
    /// Whether the authorizer let it through.
    allowed: bool,
}

/// A right that no run need use, with the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    pub(crate) verb: &'static str,
    /// As `resource.group`, or `resource` of the core group.
    pub(crate) resource: &'static str,
    pub(crate) why: &'static str,
}

/// What differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Granted and never used.
    pub(crate) unused: Vec<String>,
    /// Asked for and refused.
    pub(crate) refused: Vec<String>,
    /// Used, and allowed by something other than the granted roles.
    pub(crate) elsewhere: Vec<String>,
    /// Exceptions that were used after all, or whose right is not granted any more: they are to be struck out.
    pub(crate) stale: Vec<String>,
}

impl Difference {
    /// Whether there is none.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What the roles among these objects give a user, through their bindings.
pub(crate) fn granted(objects: &[Value], user: &str) -> Vec<Grant> {
    let mut grants = BTreeSet::new();
    for binding in objects {
        let of_namespace = match text(binding, "/kind") {
            "ClusterRoleBinding" => None,
            "RoleBinding" => Some(text(binding, "/metadata/namespace").to_owned()),
            _ => continue,
        };
        let bound = items(binding, "/subjects").any(|subject| match text(subject, "/kind") {
            "ServiceAccount" => {
                let (namespace, name) = (text(subject, "/namespace"), text(subject, "/name"));
                user == format!("system:serviceaccount:{namespace}:{name}")
            }
            "User" => user == text(subject, "/name"),
            _ => false,
        });
        if !bound {
            continue;
        }
        let (kind, name) = (text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
        let role = objects
            .iter()
            .find(|role| {
                text(role, "/kind") == kind
                    && text(role, "/metadata/name") == name
                    && (kind == "ClusterRole"
                        || Some(text(role, "/metadata/namespace")) == of_namespace.as_deref())
            })
            .unwrap_or_else(|| panic!("{kind} {name} is bound and is not there"));
        for rule in items(role, "/rules") {
            let names: Vec<String> = strings(rule, "/resourceNames");
            for group in strings(rule, "/apiGroups") {
                for resource in strings(rule, "/resources") {
                    for verb in strings(rule, "/verbs") {
                        grants.insert(Grant {
                            namespace: of_namespace.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                            names: names.clone(),
                        });
                    }
                }
            }
        }
    }
    grants.into_iter().collect()
}

/// What a user asked for, by the audit log.
pub(crate) fn used(audit_log: &Path, user: &str) -> Vec<Use> {
    let log = std::fs::read_to_string(audit_log).unwrap();
    used_in(&log, user)
}

fn used_in(log: &str, user: &str) -> Vec<Use> {
    let mut uses = BTreeSet::new();
    for line in log.lines() {
        // The last line may be half written while the server runs.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if text(&event, "/user/username") != user || event.pointer("/objectRef/resource").is_none() {
            continue;
        }
        let resource = match text(&event, "/objectRef/subresource") {
            "" => text(&event, "/objectRef/resource").to_owned(),
            subresource => format!("{}/{subresource}", text(&event, "/objectRef/resource")),
        };
        uses.insert(Use {
            namespace: text(&event, "/objectRef/namespace").to_owned(),
            group: text(&event, "/objectRef/apiGroup").to_owned(),
            resource,
            verb: text(&event, "/verb").to_owned(),
            name: text(&event, "/objectRef/name").to_owned(),
            allowed: text(&event, "/annotations/authorization.k8s.io~1decision") != "forbid",
        });
    }
    uses.into_iter().collect()
}

/// Compares what was granted with what was used.
pub(crate) fn compare(granted: &[Grant], used: &[Use], exceptions: &[Exception]) -> Difference {
    let mut difference = Difference::default();
    for grant in granted {
        let is_used = used.iter().any(|one| one.allowed && grant.covers(one));
        let is_excepted = exceptions.iter().any(|exception| exception.is_of(grant));
        if !is_used && !is_excepted {
            difference.unused.push(grant.to_string());
        }
    }
    for one in used {
        if !one.allowed {
            difference.refused.push(one.to_string());
        } else if !granted.iter().any(|grant| grant.covers(one)) {
            difference.elsewhere.push(one.to_string());
        }
    }
    for exception in exceptions {
        let grants: Vec<&Grant> = granted.iter().filter(|grant| exception.is_of(grant)).collect();
        let is_used = used
            .iter()
            .any(|one| one.allowed && grants.iter().any(|grant| grant.covers(one)));
        if grants.is_empty() || is_used {
            difference.stale.push(format!(
                "{} {} ({})",
                exception.verb, exception.resource, exception.why
            ));
        }
    }
    difference
}

impl Grant {
    /// Whether this grant is what lets a request through.
    fn covers(&self, one: &Use) -> bool {
        let place = match &self.namespace {
            None => true,
            Some(namespace) => *namespace == one.namespace,
        };
        place
            && self.group == one.group
            && self.resource == one.resource
            && self.verb == one.verb
            && (self.names.is_empty() || self.names.contains(&one.name))
    }
}

impl Exception {
    fn is_of(&self, grant: &Grant) -> bool {
        self.verb == grant.verb && self.resource == full(&grant.group, &grant.resource)
    }
}

fn full(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, full(&self.group, &self.resource))?;
        if !self.names.is_empty() {
            write!(f, " {:?}", self.names)?;
        }
        match &self.namespace {
            None => write!(f, " everywhere"),
            Some(namespace) => write!(f, " in {namespace}"),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {:?} in {:?}",
            self.verb,
            full(&self.group, &self.resource),
            self.name,
            self.namespace
        )
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn strings(value: &Value, pointer: &str) -> Vec<String> {
    items(value, pointer)
        .filter_map(|one| one.as_str().map(ToOwned::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const USER: &str = "system:serviceaccount:home:host";

    fn roles() -> Vec<Value> {
        let subject = json!([{"kind": "ServiceAccount", "name": "host", "namespace": "home"}]);
        vec![
            json!({"kind": "ClusterRole", "metadata": {"name": "host"}, "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]},
            ]}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "host"}, "subjects": subject,
                "roleRef": {"kind": "ClusterRole", "name": "host"}}),
            json!({"kind": "Role", "metadata": {"name": "host", "namespace": "home"}, "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["host"], "verbs": ["update"]},
            ]}),
            json!({"kind": "RoleBinding", "metadata": {"name": "host", "namespace": "home"}, "subjects": subject,
                "roleRef": {"kind": "Role", "name": "host"}}),
            json!({"kind": "ClusterRole", "metadata": {"name": "other"}, "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            ]}),
        ]
    }

    fn line(verb: &str, group: &str, resource: &str, namespace: &str, name: &str, decision: &str) -> String {
        json!({
            "verb": verb,
            "user": {"username": USER},
            "objectRef": {"resource": resource, "apiGroup": group, "namespace": namespace, "name": name},
            "annotations": {"authorization.k8s.io/decision": decision},
        })
        .to_string()
    }

    fn of(lines: &[String]) -> Difference {
        compare(&granted(&roles(), USER), &used_in(&lines.join("\n"), USER), &[])
    }

    fn all() -> Vec<String> {
        vec![
            line("list", "", "secrets", "", "", "allow"),
            line("update", "coordination.k8s.io", "leases", "home", "host", "allow"),
        ]
    }

    #[test]
    fn what_was_used_as_granted_differs_in_nothing() {
        let mut lines = all();
        lines.push(json!({"verb": "get", "user": {"username": USER}, "requestURI": "/apis"}).to_string());
        lines.push(line("delete", "", "nodes", "", "x", "forbid").replace(USER, "jane"));
        lines.push("{\"half".to_owned());
        assert!(of(&lines).is_none(), "{:?}", of(&lines));
    }

    #[test]
    fn what_was_not_used_is_told() {
        assert_eq!(
            of(&all()[..1]).unused,
            ["update leases.coordination.k8s.io [\"host\"] in home"]
        );
        assert_eq!(of(&all()[1..]).unused, ["list secrets everywhere"]);
    }

    #[rstest]
    #[case::verb("watch", "", "secrets", "", "")]
    #[case::group("list", "x.dev", "secrets", "", "")]
    #[case::namespace("update", "coordination.k8s.io", "leases", "other", "host")]
    #[case::name("update", "coordination.k8s.io", "leases", "home", "other")]
    fn what_was_refused_and_what_something_else_allows_is_told(
        #[case] verb: &str,
        #[case] group: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] name: &str,
    ) {
        let with = |decision: &str| {
            let mut lines = all();
            lines.push(line(verb, group, resource, namespace, name, decision));
            of(&lines)
        };
        assert_eq!(with("forbid").refused.len(), 1, "{:?}", with("forbid"));
        assert_eq!(with("allow").elsewhere.len(), 1, "{:?}", with("allow"));
    }

    #[test]
    fn an_exception_holds_as_long_as_it_is_one() {
        let never = Exception {
            verb: "list",
            resource: "secrets",
            why: "a test",
        };
        let granted = granted(&roles(), USER);
        let without = used_in(&all()[1], USER);
        assert!(compare(&granted, &without, &[never]).is_none());
        let with = used_in(&all().join("\n"), USER);
        assert_eq!(
            compare(&granted, &with, &[never]).stale,
            ["list secrets (a test)"]
        );
        let gone = Exception {
            resource: "pods",
            ..never
        };
        assert_eq!(compare(&granted, &with, &[gone]).stale, ["list pods (a test)"]);
    }
}
