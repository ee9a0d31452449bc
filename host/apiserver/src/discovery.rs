//! What a client learns about the server: groups, versions, resources.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::builtin;
use crate::resource::Resource;

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Clients sort them; the real server lists those of custom kinds in this order.
const CUSTOM_VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

/// `/api`: the versions of the core group. `address` is where the server listens, like `127.0.0.1:6443`.
pub(crate) fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Named groups in the order in which clients should prefer them: built-in ones first, then by name.
fn groups(resources: &[Resource]) -> Vec<&str> {
    let mut names: Vec<(bool, &str)> = resources
        .iter()
        .filter(|resource| !resource.group.is_empty())
        .map(|resource| (resource.custom, resource.group.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|(_, name)| name).collect()
}

/// Versions of a group, best first: stable before beta before alpha, higher before lower.
fn versions<'r>(resources: &'r [Resource], group: &str) -> Vec<&'r str> {
    let own = resources.iter().filter(|resource| resource.group == group);
    let mut names: Vec<_> = own.map(|resource| resource.version.as_str()).collect();
    names.sort_unstable_by_key(|name| rank(name));
    names.dedup();
    names
}

/// Sorts versions as Kubernetes does: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, anything else by name.
pub(crate) fn rank(version: &str) -> (u8, std::cmp::Reverse<(u32, u32)>, &str) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        let (stage, minor) = match &rest[end..] {
            "" => (0, "0"),
            beta if beta.starts_with("beta") => (1, &beta[4..]),
            alpha if alpha.starts_with("alpha") => (2, &alpha[5..]),
            _ => return None,
        };
        Some((stage, (major, minor.parse().ok()?)))
    };
    match parse() {
        Some((stage, number)) => (stage, std::cmp::Reverse(number), ""),
        None => (3, std::cmp::Reverse((0, 0)), version),
    }
}

fn group_body(resources: &[Resource], name: &str) -> Option<Value> {
    let versions: Vec<_> = versions(resources, name)
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({"name": name, "versions": versions, "preferredVersion": preferred}))
}

/// `/apis`: all named groups.
pub(crate) fn api_groups(resources: &[Resource]) -> Value {
    let bodies: Vec<_> = groups(resources)
        .into_iter()
        .filter_map(|name| group_body(resources, name))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": bodies})
}

/// `/apis/{group}`: one group; none if nobody serves it.
pub(crate) fn group(resources: &[Resource], name: &str) -> Option<Value> {
    let mut body = group_body(resources, name)?;
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Some(body)
}

/// `/apis/{group}/{version}` and `/api/v1`: the resources of a version; none if nobody serves it.
pub(crate) fn resource_list(resources: &[Resource], group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in sorted(resources, group, version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        if !builtin::is_question(resource) {
            entry["storageVersionHash"] = storage_version_hash(resource).into();
        }
        list.push(entry);
        for name in builtin::subresources(resource) {
            let mut entry = json!({
                "name": format!("{}/{name}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": subresource_verbs(name),
            });
            match name {
                "eviction" => {
                    entry["group"] = "policy".into();
                    entry["version"] = "v1".into();
                    entry["kind"] = "Eviction".into();
                }
                "binding" => entry["kind"] = "Binding".into(),
                _ => {}
            }
            list.push(entry);
        }
    }
    if list.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

fn sorted<'r>(resources: &'r [Resource], group: &str, version: &str) -> Vec<&'r Resource> {
    let mut own: Vec<_> = resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .collect();
    own.sort_unstable_by(|a, b| a.plural.cmp(&b.plural));
    own
}

/// Namespaces go one by one: they must not be deleted as a collection. Questions are asked, and that is all.
fn verbs(resource: &Resource) -> Vec<&'static str> {
    if builtin::is_question(resource) {
        return vec!["create"];
    }
    let alone = resource.kind == "Namespace" && !resource.custom;
    let verbs = if resource.custom { CUSTOM_VERBS } else { VERBS };
    verbs
        .into_iter()
        .filter(|verb| !(alone && *verb == "deletecollection"))
        .collect()
}

/// Changes when objects of the kind are stored in another version.
fn storage_version_hash(resource: &Resource) -> String {
    let stored = format!(
        "{}/{}/{}",
        resource.group, resource.storage_version, resource.kind
    );
    BASE64.encode(&Sha256::digest(stored.as_bytes())[..8])
}

fn subresource_verbs(name: &str) -> &'static [&'static str] {
    match name {
        "eviction" | "binding" => &["create"],
        "log" => &["get"],
        _ => &["get", "patch", "update"],
    }
}

/// `/api` (`core`) or `/apis` in one answer (`apidiscovery.k8s.io/v2`).
pub(crate) fn aggregated(resources: &[Resource], core: bool) -> Value {
    let names = if core { vec![""] } else { groups(resources) };
    let items: Vec<_> = names
        .into_iter()
        .map(|name| aggregated_group(resources, name))
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_group(resources: &[Resource], group: &str) -> Value {
    let versions: Vec<_> = versions(resources, group)
        .into_iter()
        .map(|version| {
            let own: Vec<_> = sorted(resources, group, version)
                .into_iter()
                .map(aggregated_resource)
                .collect();
            json!({"version": version, "resources": own, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() {
        json!({})
    } else {
        json!({"name": group})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verbs(resource),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let below: Vec<_> = builtin::subresources(resource)
        .into_iter()
        .map(|name| {
            let kind = match name {
                "eviction" => json!({"group": "policy", "version": "v1", "kind": "Eviction"}),
                "binding" => json!({"group": "", "version": "v1", "kind": "Binding"}),
                _ => kind.clone(),
            };
            json!({"subresource": name, "responseKind": kind, "verbs": subresource_verbs(name)})
        })
        .collect();
    if !below.is_empty() {
        entry["subresources"] = Value::Array(below);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut names = [
            "foo1", "v1alpha1", "v1", "v2beta1", "v10", "v2", "v1beta2", "v11beta2",
        ];
        names.sort_unstable_by_key(|name| rank(name));
        assert_eq!(
            names,
            [
                "v10", "v2", "v1", "v11beta2", "v2beta1", "v1beta2", "v1alpha1", "foo1"
            ]
        );
    }

    #[test]
    fn subresources_are_listed() {
        let resources = builtin::resources();
        let core = resource_list(&resources, "", "v1").expect("the core");
        let names: Vec<_> = core["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        for name in [
            "nodes",
            "nodes/status",
            "pods/binding",
            "pods/eviction",
            "pods/log",
            "pods/status",
            "namespaces/status",
            "secrets",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        let certificates = resource_list(&resources, "certificates.k8s.io", "v1").expect("certificates");
        assert_eq!(
            certificates["resources"][1]["name"],
            "certificatesigningrequests/approval"
        );
        assert_eq!(resource_list(&resources, "nobody.example.com", "v1"), None);
    }

    #[test]
    fn aggregated_discovery_says_the_same_as_the_plain_one() {
        let resources = builtin::resources();
        let all = aggregated(&resources, false);
        for item in all["items"].as_array().expect("a list") {
            let name = item["metadata"]["name"].as_str().expect("a name");
            let list = resource_list(&resources, name, "v1").expect("served");
            let plain = list["resources"].as_array().expect("a list").iter();
            let plain = plain
                .filter(|one| !one["name"].as_str().is_some_and(|name| name.contains('/')))
                .count();
            assert_eq!(
                item["versions"][0]["resources"].as_array().map(Vec::len),
                Some(plain),
                "{name}"
            );
        }
        assert_eq!(
            aggregated(&resources, true)["items"][0]["versions"][0]["version"],
            "v1"
        );
        let listed = api_groups(&resources);
        assert_eq!(
            listed["groups"].as_array().map(Vec::len),
            all["items"].as_array().map(Vec::len)
        );
        assert_eq!(
            group(&resources, "coordination.k8s.io").expect("served")["preferredVersion"]["version"],
            "v1"
        );
    }
}
