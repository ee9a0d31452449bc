//! From a path and a method to what is wanted: cluster, resource, object, verb.

use http::{Method, Uri};

use crate::query::Query;
use crate::status::ApiError;

/// What a path means before any registry is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/healthz`, `/readyz`, `/livez` and what is below them.
    Health,
    /// `/version`
    Version,
    /// `/api`
    Core,
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/api/v1`, `/apis/<group>/<version>`
    Resources { group: String, version: String },
    /// `/openapi/v2`
    OldSchemas,
    /// `/openapi/v3`
    Schemas,
    /// `/openapi/v3/api/v1`, `/openapi/v3/apis/<group>/<version>`
    Schema { group: String, version: String },
    /// Objects.
    Objects(Target),
    /// Nothing that we know.
    Unknown,
}

/// The objects that a path means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Group.
    pub(crate) group: String,
    /// Version.
    pub(crate) version: String,
    /// Namespace; empty for none.
    pub(crate) namespace: String,
    /// Plural.
    pub(crate) plural: String,
    /// Name; empty for the collection.
    pub(crate) name: String,
    /// Subresource; empty for the object itself.
    pub(crate) subresource: String,
}

/// Splits the cluster off a path: `/clusters/<name>/…`, or none.
pub(crate) fn split_cluster(path: &str) -> (Option<&str>, &str) {
    let Some(rest) = path.strip_prefix("/clusters/") else {
        return (None, path);
    };
    match rest.find('/') {
        Some(at) => (Some(&rest[..at]), &rest[at..]),
        None => (Some(rest), "/"),
    }
}

/// Reads a path, without the cluster.
pub(crate) fn parse(path: &str) -> Route {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let words: Vec<&str> = parts.iter().map(String::as_str).collect();
    let gv = |group: &str, version: &str| (group.to_owned(), version.to_owned());
    match words.as_slice() {
        ["healthz" | "readyz" | "livez", ..] => Route::Health,
        ["version"] => Route::Version,
        ["api"] => Route::Core,
        ["apis"] => Route::Groups,
        ["api", version] => {
            let (group, version) = gv("", version);
            Route::Resources { group, version }
        }
        ["apis", group] => Route::Group((*group).to_owned()),
        ["apis", group, version] => {
            let (group, version) = gv(group, version);
            Route::Resources { group, version }
        }
        ["openapi", "v2"] => Route::OldSchemas,
        ["openapi", "v3"] => Route::Schemas,
        ["openapi", "v3", "api", version] => {
            let (group, version) = gv("", version);
            Route::Schema { group, version }
        }
        ["openapi", "v3", "apis", group, version] => {
            let (group, version) = gv(group, version);
            Route::Schema { group, version }
        }
        ["api", version, rest @ ..] => objects("", version, rest),
        ["apis", group, version, rest @ ..] => objects(group, version, rest),
        _ => Route::Unknown,
    }
}

fn objects(group: &str, version: &str, rest: &[&str]) -> Route {
    let mut target = Target {
        group: group.to_owned(),
        version: version.to_owned(),
        ..Target::default()
    };
    let rest = match rest {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => rest,
        ["namespaces", namespace, below @ ..] => {
            (*namespace).clone_into(&mut target.namespace);
            below
        }
        _ => rest,
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Route::Unknown,
    };
    if plural.is_empty() {
        return Route::Unknown;
    }
    target.plural = plural.to_owned();
    target.name = name.to_owned();
    target.subresource = subresource.to_owned();
    Route::Objects(target)
}

/// What is to be done, in the words of the authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// The verb of a method on a target.
    pub(crate) fn of(method: &Method, target: &Target, query: &Query) -> Result<Self, ApiError> {
        let named = !target.name.is_empty();
        match (method.as_str(), named) {
            ("GET", true) => Ok(Self::Get),
            ("GET", false) if query.watch => Ok(Self::Watch),
            ("GET", false) => Ok(Self::List),
            ("POST", false) => Ok(Self::Create),
            ("POST", true) if !target.subresource.is_empty() => Ok(Self::Create),
            ("PUT", true) => Ok(Self::Update),
            ("PATCH", true) => Ok(Self::Patch),
            ("DELETE", true) => Ok(Self::Delete),
            ("DELETE", false) => Ok(Self::DeleteCollection),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// The path of a URI; of one without any, the root.
pub(crate) fn path(uri: &Uri) -> &str {
    match uri.path() {
        "" => "/",
        path => path,
    }
}

/// Undoes `%41` in a part of a path; what is no such code stays.
fn decode(part: &str) -> String {
    if !part.contains('%') {
        return part.to_owned();
    }
    let bytes = part.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 3)
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(namespace: &str, plural: &str, name: &str, subresource: &str) -> Route {
        Route::Objects(Target {
            group: String::new(),
            version: "v1".to_owned(),
            namespace: namespace.to_owned(),
            plural: plural.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
        })
    }

    #[test]
    fn a_path_names_a_cluster_or_none() {
        assert_eq!(split_cluster("/clusters/a/api/v1"), (Some("a"), "/api/v1"));
        assert_eq!(split_cluster("/clusters/a"), (Some("a"), "/"));
        assert_eq!(split_cluster("/api"), (None, "/api"));
    }

    #[test]
    fn a_path_names_objects() {
        let cases = [
            ("/api/v1/nodes", target("", "nodes", "", "")),
            ("/api/v1/nodes/a", target("", "nodes", "a", "")),
            ("/api/v1/nodes/a/status", target("", "nodes", "a", "status")),
            ("/api/v1/namespaces", target("", "namespaces", "", "")),
            ("/api/v1/namespaces/a", target("", "namespaces", "a", "")),
            (
                "/api/v1/namespaces/a/status",
                target("", "namespaces", "a", "status"),
            ),
            (
                "/api/v1/namespaces/a/finalize",
                target("", "namespaces", "a", "finalize"),
            ),
            ("/api/v1/namespaces/a/pods", target("a", "pods", "", "")),
            ("/api/v1/namespaces/a/pods/b%3Ac", target("a", "pods", "b:c", "")),
            (
                "/api/v1/namespaces/a/pods/b/eviction",
                target("a", "pods", "b", "eviction"),
            ),
            ("/api/v1/namespaces/a/pods/b/c/d", Route::Unknown),
            ("/", Route::Unknown),
        ];
        for (path, expected) in cases {
            assert_eq!(parse(path), expected, "{path}");
        }
    }
}
