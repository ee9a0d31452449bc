//! What the real server's admission plugins do that matters here: NodeRestriction, TaintNodesByCondition and
//! CertificateSubjectRestriction.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::authenticate::{ADMINISTRATORS, CONTROLLERS, Identity, NODE_PREFIX, Role};
use crate::authorize::{Attributes, node::LEASES};
use crate::certificates::{self, Request};
use crate::status::ApiError;

/// Marks a pod that a node itself keeps.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels below `kubernetes.io` and `k8s.io` that a node may set on itself.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Label prefixes that a node may use on itself, with all that end in `.` and one of them.
const OWN_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Label prefix by which a cluster tells nodes apart: no node may use it on itself.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// Completes an object before it is created.
pub(crate) fn mutate(wish: &Attributes, object: &mut Value) {
    if wish.group.is_empty() && wish.resource == "nodes" && wish.subresource.is_empty() {
        // Until its first report, nothing is to run on a node.
        let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        let Some(object) = object.as_object_mut() else {
            return;
        };
        let spec = object.entry("spec").or_insert_with(|| Value::Object(Map::new()));
        let Some(spec) = spec.as_object_mut() else { return };
        let taints = spec.entry("taints").or_insert_with(|| Value::Array(Vec::new()));
        if taints.is_null() {
            *taints = Value::Array(Vec::new());
        }
        let Some(taints) = taints.as_array_mut() else {
            return;
        };
        if !taints
            .iter()
            .any(|known| known["key"] == taint["key"] && known["effect"] == taint["effect"])
        {
            taints.push(taint);
        }
    }
}

/// Decides by what an object is to become: a create has no `old`, a delete no `new`.
pub(crate) fn admit(
    identity: &Identity,
    wish: &Attributes,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<(), ApiError> {
    let write = Write { wish, old, new };
    let verdict = write.check_subject().and_then(|()| match &identity.role {
        Role::Node { name } => write.restrict(name),
        Role::Administrator | Role::Host | Role::Bootstrapper | Role::Guest | Role::Anonymous => Ok(()),
    });
    verdict.map_err(|why| {
        let name = write.name();
        ApiError::forbidden(
            &wish.group,
            &wish.resource,
            if name.is_empty() { "Unknown" } else { name },
            &why,
        )
    })
}

type Verdict = Result<(), String>;

struct Write<'a> {
    wish: &'a Attributes,
    old: Option<&'a Value>,
    new: Option<&'a Value>,
}

impl Write<'_> {
    fn name(&self) -> &str {
        let of = |object: Option<&'_ Value>, key: &str| {
            object
                .and_then(|object| object["metadata"][key].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        if !self.wish.name.is_empty() {
            return &self.wish.name;
        }
        let new = self.new.or(self.old);
        if of(new, "name").is_empty() {
            text(new, "generateName")
        } else {
            text(new, "name")
        }
    }

    /// Nobody gets the certificate of an administrator by way of a request.
    fn check_subject(&self) -> Verdict {
        let (Some(new), None) = (self.new, self.old) else {
            return Ok(());
        };
        if !self.is_request() || new["spec"]["signerName"] != certificates::CLIENT_SIGNER {
            return Ok(());
        }
        let Ok(request) = Request::parse(&new["spec"]["request"]) else {
            return Ok(());
        };
        match request
            .organizations
            .iter()
            .find(|group| [ADMINISTRATORS, CONTROLLERS].contains(&group.as_str()))
        {
            Some(group) => Err(format!(
                "use of {} signer with {group} group is not allowed",
                certificates::CLIENT_SIGNER
            )),
            None => Ok(()),
        }
    }

    fn is_request(&self) -> bool {
        self.wish.group == "certificates.k8s.io"
            && self.wish.resource == "certificatesigningrequests"
            && self.wish.subresource.is_empty()
    }

    fn restrict(&self, node: &str) -> Verdict {
        match (self.wish.group.as_str(), self.wish.resource.as_str()) {
            ("", "nodes") => self.own_node(node),
            ("", "pods") => match self.wish.subresource.as_str() {
                "" => self.own_pod(node),
                "status" => self.own_pod_status(node),
                "eviction" => self.own_pod_eviction(node),
                other => Err(format!(
                    "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
                )),
            },
            ("coordination.k8s.io", "leases") => self.own_lease(node),
            ("certificates.k8s.io", "certificatesigningrequests") => self.own_request(node),
            _ => Ok(()),
        }
    }

    fn own_node(&self, node: &str) -> Verdict {
        if self.name() != node {
            return Err(format!(
                "node {node:?} is not allowed to modify node {:?}",
                self.name()
            ));
        }
        let Some(new) = self.new else { return Ok(()) };
        let source = &new["spec"]["configSource"];
        let Some(old) = self.old else {
            if !source.is_null() {
                return Err(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            let forbidden = forbidden_labels(new, &Value::Null);
            if !forbidden.is_empty() {
                return Err(format!(
                    "node {node:?} is not allowed to set the following labels: {forbidden}"
                ));
            }
            return Ok(());
        };
        if !source.is_null() && *source != old["spec"]["configSource"] {
            return Err(format!(
                "node {node:?} is not allowed to update configSource to a new non-nil configSource"
            ));
        }
        if !is_same_list(&new["spec"]["taints"], &old["spec"]["taints"]) {
            return Err(format!("node {node:?} is not allowed to modify taints"));
        }
        if !is_same_list(
            &new["metadata"]["ownerReferences"],
            &old["metadata"]["ownerReferences"],
        ) {
            return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
        }
        let forbidden = forbidden_labels(new, old);
        if !forbidden.is_empty() {
            return Err(format!("is not allowed to modify labels: {forbidden}"));
        }
        Ok(())
    }

    fn own_pod(&self, node: &str) -> Verdict {
        match (self.old, self.new) {
            (None, Some(pod)) if pod["metadata"]["annotations"][MIRROR].is_null() => Err(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            )),
            // The real server would check owner, uid and references; nothing here ever runs such a pod.
            (None, Some(_)) => Err(format!(
                "node {node:?} can not create pods: mirror pods are not kept here"
            )),
            (Some(pod), None) if pod["spec"]["nodeName"] == node => Ok(()),
            (Some(_), None) => Err(format!(
                "node {node:?} can only delete pods with spec.nodeName set to itself"
            )),
            _ => Err(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
        }
    }

    fn own_pod_status(&self, node: &str) -> Verdict {
        let (Some(old), Some(new)) = (self.old, self.new) else {
            return Err("unexpected operation \"CREATE\"".to_owned());
        };
        if old["spec"]["nodeName"] != node {
            return Err(format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            ));
        }
        if !changed_labels(new, old).is_empty() {
            return Err(format!("node {node:?} cannot update labels through pod status"));
        }
        Ok(())
    }

    fn own_pod_eviction(&self, node: &str) -> Verdict {
        if self.old.is_some_and(|pod| pod["spec"]["nodeName"] == node) {
            return Ok(());
        }
        Err(format!(
            "node {node} can only evict pods with spec.nodeName set to itself"
        ))
    }

    fn own_lease(&self, node: &str) -> Verdict {
        if self.wish.namespace != LEASES {
            return Err(format!(
                "can only access leases in the {LEASES:?} system namespace"
            ));
        }
        if self.name() != node {
            return Err("can only access node lease with the same name as the requesting node".to_owned());
        }
        Ok(())
    }

    fn own_request(&self, node: &str) -> Verdict {
        let (Some(new), None) = (self.new, self.old) else {
            return Ok(());
        };
        if ![certificates::NODE_SIGNER, certificates::SERVING_SIGNER]
            .contains(&text_at(&new["spec"], "signerName"))
        {
            return Ok(());
        }
        let request =
            Request::parse(&new["spec"]["request"]).map_err(|why| format!("unable to parse csr: {why}"))?;
        if request.common_name.strip_prefix(NODE_PREFIX) != Some(node) {
            return Err(format!("can only create a node CSR with CN={NODE_PREFIX}{node}"));
        }
        Ok(())
    }
}

fn text<'a>(object: Option<&'a Value>, key: &str) -> &'a str {
    object.map_or("", |object| text_at(&object["metadata"], key))
}

fn text_at<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// An absent list is an empty one.
fn is_same_list(a: &Value, b: &Value) -> bool {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    items(a) == items(b)
}

/// Keys of labels that were added, changed or removed.
fn changed_labels(new: &Value, old: &Value) -> BTreeSet<String> {
    let labels = |object: &Value| {
        object["metadata"]["labels"]
            .as_object()
            .cloned()
            .unwrap_or_default()
    };
    let (new, old) = (labels(new), labels(old));
    new.keys()
        .chain(old.keys())
        .filter(|key| new.get(*key) != old.get(*key))
        .cloned()
        .collect()
}

/// Changed labels that a node may not change, as a list for people.
fn forbidden_labels(new: &Value, old: &Value) -> String {
    let forbidden: Vec<String> = changed_labels(new, old)
        .into_iter()
        .filter(|key| !is_own_label(key))
        .collect();
    forbidden.join(", ")
}

/// Whether a node may set this label on itself.
fn is_own_label(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let is_or_ends =
        |with: &str| prefix == with || prefix.strip_suffix(with).is_some_and(|rest| rest.ends_with('.'));
    if is_or_ends(RESTRICTED) {
        return false;
    }
    let kubernetes = is_or_ends("kubernetes.io") || is_or_ends("k8s.io");
    !kubernetes || OWN_LABELS.contains(&key) || OWN_PREFIXES.into_iter().any(is_or_ends)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn node() -> Identity {
        Identity::known("system:node:a", vec!["system:nodes".into()])
    }

    fn on(group: &str, resource: &str, subresource: &str, namespace: &str, name: &str) -> Attributes {
        Attributes {
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    fn own(labels: Value, taints: Value) -> Value {
        json!({"metadata": {"name": "a", "labels": labels}, "spec": {"taints": taints}})
    }

    fn refused(verdict: Result<(), ApiError>) -> String {
        let error = verdict.unwrap_err();
        assert_eq!(error.code.as_u16(), 403);
        error.message
    }

    #[rstest]
    #[case("kubernetes.io/hostname", true)]
    #[case("node.kubernetes.io/instance-type", true)]
    #[case("topology.kubernetes.io/zone", true)]
    #[case("kubelet.kubernetes.io/x", true)]
    #[case("a.node.kubernetes.io/x", true)]
    #[case("example.com/x", true)]
    #[case("plain", true)]
    #[case("notkubernetes.io/x", true)]
    #[case("kubernetes.io/x", false)]
    #[case("k8s.io/x", false)]
    #[case("a.k8s.io/x", false)]
    #[case("node-role.kubernetes.io/control-plane", false)]
    #[case("node-restriction.kubernetes.io/x", false)]
    #[case("a.node-restriction.kubernetes.io/x", false)]
    fn a_node_labels_itself_within_limits(#[case] key: &str, #[case] allowed: bool) {
        let wish = on("", "nodes", "", "", "a");
        let with = own(json!({key: "1"}), json!([]));
        let other = own(json!({key: "2"}), json!([]));
        let without = own(json!({}), json!([]));
        let verdicts = [
            admit(&node(), &wish, None, Some(&with)),
            admit(&node(), &wish, Some(&without), Some(&with)),
            admit(&node(), &wish, Some(&with), Some(&other)),
            admit(&node(), &wish, Some(&with), Some(&without)),
            admit(
                &node(),
                &on("", "nodes", "status", "", "a"),
                Some(&with),
                Some(&without),
            ),
        ];
        assert!(
            verdicts.iter().all(|verdict| verdict.is_ok() == allowed),
            "{verdicts:?}"
        );
        // What stands unchanged is nobody's business.
        assert_eq!(admit(&node(), &wish, Some(&with), Some(&with)), Ok(()));
    }

    #[test]
    fn a_refused_label_is_told_as_on_the_real_server() {
        let wish = on("", "nodes", "", "", "a");
        let bad = own(
            json!({"k8s.io/b": "1", "kubernetes.io/a": "1", "fine": "1"}),
            json!([]),
        );
        assert_eq!(
            refused(admit(&node(), &wish, None, Some(&bad))),
            "nodes \"a\" is forbidden: node \"a\" is not allowed to set the following labels: k8s.io/b, kubernetes.io/a"
        );
        let plain = own(json!({}), json!([]));
        assert_eq!(
            refused(admit(&node(), &wish, Some(&plain), Some(&bad))),
            "nodes \"a\" is forbidden: is not allowed to modify labels: k8s.io/b, kubernetes.io/a"
        );
    }

    #[test]
    fn a_node_chooses_its_taints_at_create_and_never_again() {
        let wish = on("", "nodes", "", "", "a");
        let tainted = own(json!({}), json!([{"key": "x", "effect": "NoSchedule"}]));
        let clean = own(json!({}), Value::Null);
        assert_eq!(admit(&node(), &wish, None, Some(&tainted)), Ok(()));
        assert_eq!(
            refused(admit(&node(), &wish, Some(&tainted), Some(&clean))),
            "nodes \"a\" is forbidden: node \"a\" is not allowed to modify taints"
        );
        assert_eq!(
            admit(&node(), &wish, Some(&clean), Some(&own(json!({}), json!([])))),
            Ok(())
        );
        let mut owned = clean.clone();
        owned["metadata"]["ownerReferences"] = json!([{"uid": "1"}]);
        assert!(
            refused(admit(&node(), &wish, Some(&clean), Some(&owned))).ends_with("modify ownerReferences")
        );
    }

    #[test]
    fn a_node_touches_no_other_node_lease_or_pod() {
        let other = json!({"metadata": {"name": "b"}});
        for wish in [on("", "nodes", "", "", ""), on("", "nodes", "status", "", "b")] {
            assert_eq!(
                refused(admit(&node(), &wish, None, Some(&other))),
                "nodes \"b\" is forbidden: node \"a\" is not allowed to modify node \"b\""
            );
        }
        let lease = on("coordination.k8s.io", "leases", "", LEASES, "");
        assert_eq!(
            refused(admit(&node(), &lease, None, Some(&other))),
            "leases.coordination.k8s.io \"b\" is forbidden: can only access node lease with the same name as the requesting node"
        );
        let mine = json!({"metadata": {"name": "a"}});
        assert_eq!(admit(&node(), &lease, None, Some(&mine)), Ok(()));
        assert!(
            admit(
                &node(),
                &on("coordination.k8s.io", "leases", "", "default", "a"),
                None,
                Some(&mine)
            )
            .is_err()
        );

        let pod = |node: &str| json!({"metadata": {"name": "p"}, "spec": {"nodeName": node}});
        let pods = on("", "pods", "", "default", "p");
        let status = on("", "pods", "status", "default", "p");
        assert_eq!(admit(&node(), &pods, Some(&pod("a")), None), Ok(()));
        assert!(admit(&node(), &pods, Some(&pod("b")), None).is_err());
        assert!(admit(&node(), &pods, None, Some(&pod("a"))).is_err());
        assert!(admit(&node(), &pods, Some(&pod("a")), Some(&pod("a"))).is_err());
        assert_eq!(admit(&node(), &status, Some(&pod("a")), Some(&pod("a"))), Ok(()));
        assert!(admit(&node(), &status, Some(&pod("b")), Some(&pod("b"))).is_err());
        let mut labelled = pod("a");
        labelled["metadata"]["labels"] = json!({"x": "y"});
        assert!(admit(&node(), &status, Some(&pod("a")), Some(&labelled)).is_err());
    }

    #[test]
    fn a_node_asks_for_a_certificate_only_for_itself() {
        let wish = on("certificates.k8s.io", "certificatesigningrequests", "", "", "");
        let request = |name: &str, signer: &str| {
            let request = certificates::tests::pem_request(name, &["system:nodes"], &[]);
            json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": request}})
        };
        let own = request("system:node:a", certificates::NODE_SIGNER);
        assert_eq!(admit(&node(), &wish, None, Some(&own)), Ok(()));
        let neighbour = request("system:node:b", certificates::NODE_SIGNER);
        assert!(
            refused(admit(&node(), &wish, None, Some(&neighbour)))
                .ends_with("can only create a node CSR with CN=system:node:a")
        );
    }

    #[test]
    fn nobody_asks_for_the_certificate_of_an_administrator() {
        let wish = on("certificates.k8s.io", "certificatesigningrequests", "", "", "r");
        for group in [ADMINISTRATORS, CONTROLLERS] {
            let request = certificates::tests::pem_request("me", &["staff", group], &[]);
            let object = json!({"spec": {"signerName": certificates::CLIENT_SIGNER, "request": request}});
            let message = refused(admit(&Identity::administrator(), &wish, None, Some(&object)));
            assert!(
                message.ends_with(&format!("signer with {group} group is not allowed")),
                "{message}"
            );
        }
    }

    #[test]
    fn a_new_node_is_not_ready() {
        let wish = on("", "nodes", "", "", "a");
        for mut fresh in [json!({"metadata": {"name": "a"}}), own(json!({}), Value::Null)] {
            mutate(&wish, &mut fresh);
            mutate(&wish, &mut fresh);
            assert_eq!(
                fresh["spec"]["taints"],
                json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
            );
        }
        let mut pod = json!({});
        mutate(&on("", "pods", "", "default", ""), &mut pod);
        assert_eq!(pod, json!({}));
    }
}
