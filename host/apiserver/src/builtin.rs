//! The kinds that the server has from the start: what the core of Kubernetes is to us, and no more.

mod columns;
mod event;
mod overlay;
mod pod;
mod prepare;
mod rules;
mod schemas;
pub(crate) mod service;

use std::sync::Arc;

use serde_json::Value;

use crate::resource::{Column, Resource};
use crate::schema::Schema;

pub(crate) use columns::human_duration;
pub(crate) use prepare::{finish, gate, prepare};
pub(crate) use rules::validate;
pub(crate) use schemas::component;

/// Description of `metadata.creationTimestamp`, as column headings carry it.
pub(crate) const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was \
    created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set \
    this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. \
    More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Description of `apiVersion`.
pub(crate) const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. \
    Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More \
    info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";

/// Description of `kind`.
pub(crate) const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may \
    infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// Group of the newer shape of events, which is another view of the core ones.
pub(crate) const EVENTS: &str = "events.k8s.io";

/// Group of the question who one is.
pub(crate) const AUTHENTICATION: &str = "authentication.k8s.io";

/// Group of the question what one may.
pub(crate) const AUTHORIZATION: &str = "authorization.k8s.io";

/// Whether objects of a resource are questions: answered when they are sent, and never kept.
pub(crate) fn is_question(resource: &Resource) -> bool {
    !resource.custom && matches!(resource.group.as_str(), AUTHENTICATION | AUTHORIZATION)
}

/// The schema of `metadata`.
pub(crate) fn object_meta() -> Arc<Schema> {
    schemas::shared("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap_or_default()
}

/// Group under which objects of a resource are stored: its own, but for the two shapes of events, which share one.
pub(crate) fn storage_group(resource: &Resource) -> &str {
    if resource.group == EVENTS && !resource.custom {
        ""
    } else {
        &resource.group
    }
}

/// The object as it is stored, from the shape of a resource.
pub(crate) fn to_storage(resource: &Resource, object: &mut Value) {
    if resource.group == EVENTS && !resource.custom {
        event::to_core(object);
    }
}

/// The object in the shape of a resource, from what is stored.
pub(crate) fn from_storage(resource: &Resource, object: &mut Value) {
    if resource.group == EVENTS && !resource.custom {
        event::from_core(object);
    }
}

/// Names of the subresources, as discovery lists them.
pub(crate) fn subresources(resource: &Resource) -> Vec<&'static str> {
    let mut names = Vec::new();
    match (resource.custom, resource.kind.as_str()) {
        (false, "Pod") => names.extend(["binding", "eviction", "log"]),
        (false, "CertificateSigningRequest") => names.push("approval"),
        _ => {}
    }
    if resource.has_status {
        names.push("status");
    }
    names
}

/// All built-in resources.
pub(crate) fn resources() -> Vec<Resource> {
    KINDS.iter().map(Kind::resource).collect()
}

/// A row of the table of kinds.
struct Kind {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    status: bool,
    generation: bool,
    selectable: &'static [&'static str],
    component: &'static str,
    columns: fn() -> Vec<Column>,
}

/// What most kinds are.
const PLAIN: Kind = Kind {
    group: "",
    kind: "",
    plural: "",
    short: &[],
    categories: &[],
    namespaced: true,
    status: false,
    generation: false,
    selectable: &[],
    component: "",
    columns: columns::named,
};

const INVOLVED: &[&str] = &[
    ".involvedObject.kind",
    ".involvedObject.namespace",
    ".involvedObject.name",
    ".involvedObject.uid",
    ".involvedObject.apiVersion",
    ".involvedObject.resourceVersion",
    ".involvedObject.fieldPath",
    ".reason",
    ".reportingComponent",
    ".type",
];

const REGARDING: &[&str] = &[
    ".regarding.kind",
    ".regarding.namespace",
    ".regarding.name",
    ".regarding.uid",
    ".regarding.apiVersion",
    ".regarding.resourceVersion",
    ".regarding.fieldPath",
    ".reason",
    ".reportingController",
    ".type",
];

const RBAC: Kind = Kind {
    group: "rbac.authorization.k8s.io",
    ..PLAIN
};

const KINDS: [Kind; 19] = [
    Kind {
        kind: "Namespace",
        plural: "namespaces",
        short: &["ns"],
        namespaced: false,
        status: true,
        selectable: &[".status.phase"],
        component: "io.k8s.api.core.v1.Namespace",
        columns: columns::namespace,
        ..PLAIN
    },
    Kind {
        kind: "Node",
        plural: "nodes",
        short: &["no"],
        namespaced: false,
        status: true,
        selectable: &[".spec.unschedulable"],
        component: "io.k8s.api.core.v1.Node",
        columns: columns::node,
        ..PLAIN
    },
    Kind {
        kind: "Pod",
        plural: "pods",
        short: &["po"],
        categories: &["all"],
        status: true,
        generation: true,
        selectable: &[
            ".spec.nodeName",
            ".spec.restartPolicy",
            ".spec.schedulerName",
            ".spec.serviceAccountName",
            ".spec.hostNetwork",
            ".status.phase",
            ".status.podIP",
            ".status.nominatedNodeName",
        ],
        component: "io.k8s.api.core.v1.Pod",
        columns: pod::columns,
        ..PLAIN
    },
    Kind {
        kind: "PodTemplate",
        plural: "podtemplates",
        generation: true,
        component: "io.k8s.api.core.v1.PodTemplate",
        columns: service::template_columns,
        ..PLAIN
    },
    Kind {
        kind: "Service",
        plural: "services",
        short: &["svc"],
        categories: &["all"],
        status: true,
        selectable: &[".spec.clusterIP", ".spec.type"],
        component: "io.k8s.api.core.v1.Service",
        columns: service::columns,
        ..PLAIN
    },
    Kind {
        kind: "Secret",
        plural: "secrets",
        selectable: &[".type"],
        component: "io.k8s.api.core.v1.Secret",
        columns: columns::secret,
        ..PLAIN
    },
    Kind {
        kind: "ConfigMap",
        plural: "configmaps",
        short: &["cm"],
        component: "io.k8s.api.core.v1.ConfigMap",
        columns: columns::config_map,
        ..PLAIN
    },
    Kind {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        short: &["sa"],
        component: "io.k8s.api.core.v1.ServiceAccount",
        columns: columns::aged,
        ..PLAIN
    },
    Kind {
        kind: "Event",
        plural: "events",
        short: &["ev"],
        selectable: INVOLVED,
        component: "io.k8s.api.core.v1.Event",
        columns: event::columns,
        ..PLAIN
    },
    Kind {
        group: EVENTS,
        kind: "Event",
        plural: "events",
        short: &["ev"],
        selectable: REGARDING,
        component: "io.k8s.api.events.v1.Event",
        columns: event::columns,
        ..PLAIN
    },
    Kind {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        component: "io.k8s.api.coordination.v1.Lease",
        columns: columns::lease,
        ..PLAIN
    },
    Kind {
        group: AUTHENTICATION,
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        namespaced: false,
        component: "io.k8s.api.authentication.v1.SelfSubjectReview",
        ..PLAIN
    },
    Kind {
        group: AUTHORIZATION,
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        namespaced: false,
        component: "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        ..PLAIN
    },
    Kind {
        group: "certificates.k8s.io",
        kind: "CertificateSigningRequest",
        plural: "certificatesigningrequests",
        short: &["csr"],
        namespaced: false,
        status: true,
        selectable: &[".spec.signerName"],
        component: "io.k8s.api.certificates.v1.CertificateSigningRequest",
        columns: columns::signing_request,
        ..PLAIN
    },
    Kind {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        short: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        generation: true,
        component: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        ..PLAIN
    },
    Kind {
        kind: "Role",
        plural: "roles",
        component: "io.k8s.api.rbac.v1.Role",
        ..RBAC
    },
    Kind {
        kind: "RoleBinding",
        plural: "rolebindings",
        component: "io.k8s.api.rbac.v1.RoleBinding",
        columns: columns::role_binding,
        ..RBAC
    },
    Kind {
        kind: "ClusterRole",
        plural: "clusterroles",
        namespaced: false,
        component: "io.k8s.api.rbac.v1.ClusterRole",
        ..RBAC
    },
    Kind {
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        namespaced: false,
        component: "io.k8s.api.rbac.v1.ClusterRoleBinding",
        columns: columns::role_binding,
        ..RBAC
    },
];

impl Kind {
    fn resource(&self) -> Resource {
        let owned = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        Resource {
            group: self.group.into(),
            version: "v1".into(),
            storage_version: "v1".into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase(),
            short_names: owned(self.short),
            categories: owned(self.categories),
            namespaced: self.namespaced,
            has_status: self.status,
            counts_generation: self.generation,
            columns: (self.columns)(),
            selectable: owned(self.selectable),
            schema: schemas::shared(self.component).unwrap_or_default(),
            deprecation: None,
            since: 0,
            custom: false,
        }
    }
}

#[cfg(test)]
mod tests;
