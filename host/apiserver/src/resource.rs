//! What the server knows of a kind that it serves: built in, or from a CustomResourceDefinition.

use std::sync::Arc;

use crate::schema::Schema;

/// One served version of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    /// API group; empty for core.
    pub(crate) group: String,
    /// Version, like `v1`.
    pub(crate) version: String,
    /// Version that is stored; the versions of a CRD differ by name only (no conversion webhooks).
    pub(crate) storage_version: String,
    /// Kind, like `NodeClaim`.
    pub(crate) kind: String,
    /// Kind of a list, like `NodeClaimList`.
    pub(crate) list_kind: String,
    /// Plural, lower case: the word in the path.
    pub(crate) plural: String,
    /// Singular, lower case.
    pub(crate) singular: String,
    /// Short names, like `bmh`.
    pub(crate) short_names: Vec<String>,
    /// Categories, like `all`.
    pub(crate) categories: Vec<String>,
    /// Whether objects live in a namespace.
    pub(crate) namespaced: bool,
    /// Whether `status` is a subresource: writes elsewhere leave it alone, and it alone is written there.
    pub(crate) has_status: bool,
    /// Whether `metadata.generation` counts changes outside metadata and status.
    pub(crate) counts_generation: bool,
    /// Printer columns beyond NAME (and NAMESPACE, which kubectl adds), in order.
    pub(crate) columns: Vec<Column>,
    /// JSON paths (`.spec.nodeName`) usable in field selectors beyond `metadata.name` and `metadata.namespace`.
    pub(crate) selectable: Vec<String>,
    /// Schema of the whole object.
    pub(crate) schema: Arc<Schema>,
    /// What clients of a version that goes are warned with.
    pub(crate) deprecation: Option<String>,
    /// Revision of the definition that says all this: objects that are older may lack its defaults. Zero for built-in kinds.
    pub(crate) since: u64,
    /// Whether it comes from a CRD (then `schema` is enforced structurally and CEL rules apply).
    pub(crate) custom: bool,
}

/// One column of `kubectl get`.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Heading as in the definition; kubectl prints it in capitals.
    pub(crate) name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub(crate) kind: String,
    /// Format, like `name`; usually empty.
    pub(crate) format: String,
    /// Description.
    pub(crate) description: String,
    /// 0 is always shown, higher only with `-o wide`.
    pub(crate) priority: i32,
    /// Where the cell comes from.
    pub(crate) source: Source,
}

/// Where a column's cells come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A simple JSON path below the object, like `.status.phase` (custom kinds).
    Path(String),
    /// A function of the object (built-in kinds).
    Computed(fn(&serde_json::Value) -> serde_json::Value),
}
