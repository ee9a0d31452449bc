//! Who may do what, and how a refusal reads.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// A cluster with two pods, two nodes and the certificate requests of two callers.
struct Cluster;

impl Lookup for Cluster {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.list(group, resource, namespace)
            .into_iter()
            .find(|object| object["metadata"]["name"] == name)
    }

    fn list(&self, _group: &str, resource: &str, _namespace: &str) -> Vec<Value> {
        match resource {
            "pods" => vec![
                json!({"metadata": {"name": "mine"}, "spec": {
                    "nodeName": "a", "serviceAccountName": "runner",
                    "imagePullSecrets": [{"name": "pull"}],
                    "volumes": [{"secret": {"secretName": "volume"}},
                        {"projected": {"sources": [{"configMap": {"name": "projected"}}, {"secret": {"name": "ps"}}]}}],
                    "containers": [{"envFrom": [{"secretRef": {"name": "from"}}]}],
                    "initContainers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "key"}}}]}]}}),
                json!({"metadata": {"name": "other"}, "spec": {
                    "nodeName": "b", "volumes": [{"secret": {"secretName": "foreign"}}]}}),
            ],
            "certificatesigningrequests" => vec![
                json!({"metadata": {"name": "mine"}, "spec": {"username": "system:bootstrap:abcdef"}}),
                json!({"metadata": {"name": "rotation"}, "spec": {"username": "system:node:a"}}),
                json!({"metadata": {"name": "other"}, "spec": {"username": "system:bootstrap:ffffff"}}),
            ],
            _ => Vec::new(),
        }
    }
}

/// `verb resource[.group][/subresource] [namespace/]name [field=value]`
fn wish(text: &str) -> Attributes {
    let mut words = text.split(' ');
    let mut wish = Attributes {
        verb: words.next().unwrap().into(),
        ..Attributes::default()
    };
    let what = words.next().unwrap();
    if what.starts_with('/') {
        return Attributes {
            path: what.into(),
            ..wish
        };
    }
    let (what, subresource) = what.split_once('/').unwrap_or((what, ""));
    let (resource, group) = what.split_once('.').unwrap_or((what, ""));
    (wish.resource, wish.group, wish.subresource) = (resource.into(), group.into(), subresource.into());
    for word in words {
        if let Some((field, value)) = word.split_once('=') {
            wish.field_selector.push((field.into(), value.into()));
        } else if let Some((namespace, name)) = word.split_once('/') {
            (wish.namespace, wish.name) = (namespace.into(), name.into());
        } else {
            wish.name = word.into();
        }
    }
    wish
}

fn node() -> Identity {
    Identity::known("system:node:a", vec!["system:nodes".into()])
}

fn bootstrapper() -> Identity {
    Identity::known("system:bootstrap:abcdef", vec!["system:bootstrappers".into()])
}

#[rstest]
#[case("get nodes a")]
#[case("list nodes metadata.name=a")]
#[case("watch nodes metadata.name=a")]
#[case("create nodes")]
#[case("patch nodes a")]
#[case("patch nodes/status a")]
#[case("get leases.coordination.k8s.io kube-node-lease/a")]
#[case("create leases.coordination.k8s.io kube-node-lease/")]
#[case("update leases.coordination.k8s.io kube-node-lease/a")]
#[case("create events default/")]
#[case("patch events.events.k8s.io default/x")]
#[case("list pods spec.nodeName=a")]
#[case("get pods default/mine")]
#[case("patch pods/status default/mine")]
#[case("delete pods default/mine")]
#[case("get secrets default/pull")]
#[case("get secrets default/volume")]
#[case("get secrets default/ps")]
#[case("watch secrets default/ metadata.name=from")]
#[case("get configmaps default/projected")]
#[case("get configmaps default/key")]
#[case("get serviceaccounts default/runner")]
#[case("create certificatesigningrequests.certificates.k8s.io")]
#[case("get certificatesigningrequests.certificates.k8s.io rotation")]
#[case("get /apis/apps/v1")]
#[case("get /openapi/v3")]
fn a_node_may_do_what_it_needs(#[case] text: &str) {
    assert_eq!(authorize(&node(), &wish(text), &Cluster), Ok(()));
}

#[rstest]
#[case("get nodes b", "node 'a' cannot read 'b', only its own Node object")]
#[case("list nodes", "node 'a' cannot read all nodes, only its own Node object")]
#[case("delete nodes a", "")]
#[case("deletecollection nodes", "")]
#[case("get nodes/proxy a", "")]
#[case(
    "get leases.coordination.k8s.io kube-node-lease/b",
    "can only access node lease with the same name as the requesting node"
)]
#[case(
    "get leases.coordination.k8s.io default/a",
    "can only access leases in the \"kube-node-lease\" system namespace"
)]
#[case(
    "list leases.coordination.k8s.io kube-node-lease/",
    "can only get, create, update, patch, or delete a node lease"
)]
#[case("list pods", "can only list/watch pods with spec.nodeName field selector")]
#[case(
    "list pods spec.nodeName=b",
    "can only list/watch pods with spec.nodeName field selector"
)]
#[case(
    "get pods default/other",
    "no relationship found between node 'a' and this object"
)]
#[case("patch pods default/mine", "")]
#[case(
    "get secrets default/foreign",
    "no relationship found between node 'a' and this object"
)]
#[case("list secrets default/", "No Object name found")]
#[case("list secrets", "can only read namespaced object of this type")]
#[case("patch secrets default/pull", "can only read resources of this type")]
#[case(
    "get configmaps default/pull",
    "no relationship found between node 'a' and this object"
)]
#[case(
    "create serviceaccounts/token default/runner",
    "can only create tokens for individual service accounts"
)]
#[case(
    "get certificatesigningrequests.certificates.k8s.io mine",
    "can only read its own certificate signing requests"
)]
#[case(
    "list certificatesigningrequests.certificates.k8s.io",
    "can only read its own certificate signing requests"
)]
#[case("patch certificatesigningrequests.certificates.k8s.io/approval rotation", "")]
#[case("get namespaces default", "")]
#[case("create clusterrolebindings.rbac.authorization.k8s.io", "")]
#[case("get /metrics", "")]
#[case("post /api", "")]
fn a_node_may_not_do_more(#[case] text: &str, #[case] reason: &str) {
    let error = authorize(&node(), &wish(text), &Cluster).unwrap_err();
    assert_eq!(error.code.as_u16(), 403);
    if reason.is_empty() {
        assert!(!error.message.contains(": can"), "{}", error.message);
    } else {
        assert!(
            error.message.ends_with(&format!(": {reason}")),
            "{}",
            error.message
        );
    }
}

#[rstest]
#[case("create certificatesigningrequests.certificates.k8s.io", true)]
#[case("get certificatesigningrequests.certificates.k8s.io mine", true)]
#[case(
    "list certificatesigningrequests.certificates.k8s.io metadata.name=mine",
    true
)]
#[case(
    "watch certificatesigningrequests.certificates.k8s.io metadata.name=mine",
    true
)]
#[case("get /api", true)]
#[case("get /apis/certificates.k8s.io/v1", true)]
#[case("get certificatesigningrequests.certificates.k8s.io other", false)]
#[case("get certificatesigningrequests.certificates.k8s.io none", false)]
#[case("list certificatesigningrequests.certificates.k8s.io", false)]
#[case(
    "list certificatesigningrequests.certificates.k8s.io metadata.name=other",
    false
)]
#[case("delete certificatesigningrequests.certificates.k8s.io mine", false)]
#[case("patch certificatesigningrequests.certificates.k8s.io mine", false)]
#[case("update certificatesigningrequests.certificates.k8s.io/approval mine", false)]
#[case("update certificatesigningrequests.certificates.k8s.io/status mine", false)]
#[case("get configmaps kube-public/cluster-info", false)]
#[case("get nodes a", false)]
#[case("create nodes", false)]
#[case("get secrets kube-system/bootstrap-token-abcdef", false)]
fn a_bootstrapper_may_only_make_and_read_its_own_requests(#[case] text: &str, #[case] allowed: bool) {
    assert_eq!(authorize(&bootstrapper(), &wish(text), &Cluster).is_ok(), allowed);
}

#[rstest]
#[case("get /healthz", true)]
#[case("get /readyz", true)]
#[case("get /livez", true)]
#[case("get /version", true)]
#[case("get /healthz/etcd", false)]
#[case("get /api", false)]
#[case("post /version", false)]
#[case("get /versions", false)]
#[case("list nodes", false)]
fn the_unknown_see_only_that_the_server_lives(#[case] text: &str, #[case] allowed: bool) {
    assert_eq!(
        authorize(&Identity::anonymous(), &wish(text), &Cluster).is_ok(),
        allowed
    );
    let guest = Identity::known("someone", vec!["staff".into()]);
    let known = allowed || text.starts_with("get /api") || text.starts_with("get /healthz/");
    assert_eq!(authorize(&guest, &wish(text), &Cluster).is_ok(), known);
}

#[test]
fn administrators_and_hosts_may_do_everything() {
    for identity in [Identity::administrator(), Identity::host("loops")] {
        for text in [
            "delete nodes a",
            "deletecollection secrets kube-system/",
            "get /metrics",
            "get /api",
        ] {
            assert_eq!(authorize(&identity, &wish(text), &Cluster), Ok(()));
        }
    }
}

#[rstest]
#[case(
    "get secrets kube-system/x",
    "secrets \"x\" is forbidden: User \"someone\" cannot get resource \"secrets\" in API group \"\" in the namespace \"kube-system\""
)]
#[case(
    "update nodes/status x",
    "nodes \"x\" is forbidden: User \"someone\" cannot update resource \"nodes/status\" in API group \"\" at the cluster scope"
)]
#[case(
    "list leases.coordination.k8s.io",
    "leases.coordination.k8s.io is forbidden: User \"someone\" cannot list resource \"leases\" in API group \"coordination.k8s.io\" at the cluster scope"
)]
#[case("get /metrics", "forbidden: User \"someone\" cannot get path \"/metrics\"")]
fn a_refusal_reads_as_the_real_servers(#[case] text: &str, #[case] message: &str) {
    let error = authorize(&Identity::known("someone", Vec::new()), &wish(text), &Cluster).unwrap_err();
    assert_eq!(error.message, message);
    assert_eq!((error.code.as_u16(), error.reason), (403, "Forbidden"));
}
