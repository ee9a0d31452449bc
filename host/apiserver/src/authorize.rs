//! What a caller may do: fixed roles, and for nodes the rules of the real server's Node authorizer.
//!
//! RBAC objects are stored and shown, and never read here.

pub(crate) mod node;

use serde_json::Value;

use crate::authenticate::{Identity, Role};
use crate::builtin::{AUTHENTICATION, AUTHORIZATION};
use crate::status::ApiError;

/// What a request wants to do to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; the HTTP method in lower
    /// case for paths that are no resources.
    pub(crate) verb: String,
    /// API group.
    pub(crate) group: String,
    /// Plural of the kind; empty for paths that are no resources.
    pub(crate) resource: String,
    /// Subresource; empty for the object itself.
    pub(crate) subresource: String,
    /// Namespace; empty at the scope of the cluster.
    pub(crate) namespace: String,
    /// Name; empty for a create without one and for collections.
    pub(crate) name: String,
    /// The path, for paths that are no resources.
    pub(crate) path: String,
    /// The parts of the field selector that demand equality.
    pub(crate) field_selector: Vec<(String, String)>,
}

impl Attributes {
    /// The one object that is asked for: by name, or by a selector that leaves no other.
    pub(crate) fn target(&self) -> &str {
        if self.name.is_empty() {
            self.selected("metadata.name").unwrap_or_default()
        } else {
            &self.name
        }
    }

    /// What the field selector demands of a field.
    pub(crate) fn selected(&self, field: &str) -> Option<&str> {
        self.field_selector
            .iter()
            .find(|(name, _)| name == field)
            .map(|(_, value)| value.as_str())
    }

    fn is_read(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// What of the cluster is needed to decide.
pub(crate) trait Lookup {
    /// A stored object, if it exists.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Value>;
    /// All stored objects of a kind in a namespace; in all namespaces if it is empty.
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Value>;
}

/// Paths that everybody may read.
const OPEN: [&str; 5] = ["/healthz", "/readyz", "/livez", "/version", "/version/"];

/// Paths that everybody who is known may read, with all below them.
const DISCOVERY: [&str; 3] = ["/api", "/apis", "/openapi"];

/// Group and plural of what one may ask about oneself.
const QUESTIONS: [(&str, &str); 2] = [
    (AUTHENTICATION, "selfsubjectreviews"),
    (AUTHORIZATION, "selfsubjectaccessreviews"),
];

/// Group and plural of certificate requests.
const REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");

/// Decides whether a caller may do what it asks for.
pub(crate) fn authorize(identity: &Identity, wish: &Attributes, lookup: &dyn Lookup) -> Result<(), ApiError> {
    decide(identity, wish, lookup).map_err(|reason| refusal(identity, wish, &reason))
}

/// The decision; the error says more than "no" where the real server does.
pub(crate) fn decide(identity: &Identity, wish: &Attributes, lookup: &dyn Lookup) -> Result<(), String> {
    if wish.resource.is_empty() && is_open_path(identity, wish) {
        return Ok(());
    }
    match &identity.role {
        Role::Administrator | Role::Host => Ok(()),
        Role::Anonymous => Err(String::new()),
        // Everybody who is known may ask about itself.
        _ if wish.verb == "create" && QUESTIONS.contains(&(wish.group.as_str(), wish.resource.as_str())) => {
            Ok(())
        }
        Role::Guest => Err(String::new()),
        _ if wish.resource.is_empty() => Err(String::new()),
        Role::Bootstrapper => own_requests(identity, wish, lookup),
        // A node rotates its own certificate.
        Role::Node { .. } if (wish.group.as_str(), wish.resource.as_str()) == REQUESTS => {
            own_requests(identity, wish, lookup)
        }
        Role::Node { name } => node::authorize(name, wish, lookup),
    }
}

fn is_open_path(identity: &Identity, wish: &Attributes) -> bool {
    if wish.verb != "get" {
        return false;
    }
    let path = wish.path.as_str();
    let is_below = |root: &&str| {
        path.strip_prefix(*root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_known = identity.role != Role::Anonymous;
    OPEN.contains(&path) || is_known && OPEN.iter().chain(&DISCOVERY).any(is_below)
}

/// Certificate requests: anyone who joins may make one, and see those that it made itself.
fn own_requests(identity: &Identity, wish: &Attributes, lookup: &dyn Lookup) -> Result<(), String> {
    if (wish.group.as_str(), wish.resource.as_str()) != REQUESTS || !wish.subresource.is_empty() {
        return Err(String::new());
    }
    if wish.verb == "create" {
        return Ok(());
    }
    let own = lookup
        .get(REQUESTS.0, REQUESTS.1, "", wish.target())
        .is_some_and(|request| request["spec"]["username"] == identity.user.as_str());
    if wish.is_read() && !wish.target().is_empty() && own {
        return Ok(());
    }
    Err(if wish.is_read() {
        "can only read its own certificate signing requests".to_owned()
    } else {
        String::new()
    })
}

/// The refusal in the real server's words.
fn refusal(identity: &Identity, wish: &Attributes, reason: &str) -> ApiError {
    let user = &identity.user;
    let mut why = if wish.resource.is_empty() {
        format!("User {user:?} cannot {} path {:?}", wish.verb, wish.path)
    } else {
        let resource = if wish.subresource.is_empty() {
            wish.resource.clone()
        } else {
            format!("{}/{}", wish.resource, wish.subresource)
        };
        let place = if wish.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", wish.namespace)
        };
        format!(
            "User {user:?} cannot {} resource {resource:?} in API group {:?} {place}",
            wish.verb, wish.group
        )
    };
    // The real server keeps what looks like HTML out of its refusals.
    why = why
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    if wish.resource.is_empty() {
        return ApiError::new(
            http::StatusCode::FORBIDDEN,
            "Forbidden",
            format!("forbidden: {why}"),
        );
    }
    ApiError::forbidden(&wish.group, &wish.resource, &wish.name, &why)
}

#[cfg(test)]
mod tests;
