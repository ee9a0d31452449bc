//! Who owns which field of an object: `metadata.managedFields`.
//!
//! Every write goes through [`update`] or, for server-side apply, [`crate::apply::apply`].
//!
//! # Guarantees
//! A write that changes nothing leaves the entries as they were, times included.
//! An object whose owner threw the entries away (`managedFields: [{}]`) is not tracked again before its next apply.

pub(crate) mod comparison;
pub(crate) mod field_set;
pub(crate) mod merging;
pub(crate) mod structure;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use self::comparison::Comparison;
use self::field_set::{Element, FieldSet, Malformed};
use self::structure::{Node, metadata, metadata_mut};
use crate::resource::Resource;

/// More managers than this that update (not apply) are put together, the oldest first.
const MAX_UPDATERS: usize = 10;

/// Name of the entry in which the oldest updates are put together.
const ANCIENT: &str = "ancient-changes";

/// Fields that the server sets or that identify the object: nobody owns them.
static SERVER_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    let mut set = FieldSet::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert_member(Element::field(name));
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[Element::field("metadata"), Element::field(name)]);
    }
    set
});

/// How an owner came to own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// Server-side apply.
    Apply,
    /// Create, update or another patch.
    Update,
}

impl Operation {
    const fn word(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What one owner owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Name of the owner.
    pub(crate) manager: String,
    /// How it came to own.
    pub(crate) operation: Operation,
    /// Version in which it wrote.
    pub(crate) api_version: String,
    /// Last change, as in the object.
    pub(crate) time: Option<String>,
    /// Subresource through which it wrote; empty for the object itself.
    pub(crate) subresource: String,
    /// The fields.
    pub(crate) fields: FieldSet,
}

impl Entry {
    /// An owner of nothing yet.
    pub(crate) fn new(
        resource: &Resource,
        manager: &str,
        operation: Operation,
        subresource: Option<&str>,
    ) -> Self {
        Self {
            manager: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            operation,
            api_version: api_version(resource),
            time: None,
            subresource: subresource.unwrap_or_default().to_owned(),
            fields: FieldSet::default(),
        }
    }

    /// Whether both stand for one owner. An applier is one owner in all versions.
    pub(crate) fn is_same_owner(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn decode(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let operation = match entry["operation"].as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let fields = match &entry["fieldsV1"] {
            Value::Null => Ok(FieldSet::default()),
            stored => FieldSet::decode(stored),
        };
        Some(Self {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            time: entry["time"].as_str().map(ToOwned::to_owned),
            subresource: text("subresource"),
            fields: fields
                .map_err(|error: Malformed| tracing::debug!(%error, "unreadable managed fields"))
                .ok()?,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        put("manager", json!(self.manager));
        put("operation", json!(self.operation.word()));
        put("apiVersion", json!(self.api_version));
        if let Some(time) = &self.time {
            put("time", json!(time));
        }
        put("fieldsType", json!("FieldsV1"));
        put("fieldsV1", self.fields.encode());
        if !self.subresource.is_empty() {
            put("subresource", json!(self.subresource));
        }
        Value::Object(entry)
    }

    fn seconds(&self) -> i64 {
        let time = self
            .time
            .as_deref()
            .and_then(|time| time.parse::<jiff::Timestamp>().ok());
        time.map_or(0, jiff::Timestamp::as_second)
    }
}

/// `v1` or `group/version` of a kind.
pub(crate) fn api_version(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.version.clone()
    } else {
        format!("{}/{}", resource.group, resource.version)
    }
}

/// The owners of an object; nobody where the list cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners(pub(crate) Vec<Entry>);

impl Owners {
    /// The owners that an object names.
    pub(crate) fn of(object: &Value) -> Self {
        let entries = object["metadata"]["managedFields"].as_array();
        let owners: Option<Vec<Entry>> = entries.into_iter().flatten().map(Entry::decode).collect();
        Self(owners.unwrap_or_default())
    }

    /// What this owner has.
    pub(crate) fn find(&self, owner: &Entry) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.is_same_owner(owner))
    }

    /// Puts an owner's entry in the place of the one it had; an owner of nothing is left out.
    pub(crate) fn put(&mut self, entry: Entry) {
        self.0.retain(|other| !other.is_same_owner(&entry));
        if !entry.fields.is_empty() {
            self.0.push(entry);
        }
    }

    /// Everyone but one loses the fields that were changed and those that are gone.
    pub(crate) fn lose(&mut self, changes: &Comparison, except: Option<&Entry>) {
        let changed = changes.modified.union(&changes.added).union(&changes.removed);
        for entry in &mut self.0 {
            if except.is_none_or(|owner| !entry.is_same_owner(owner)) {
                entry.fields = entry.fields.difference(&changed);
            }
        }
        self.0.retain(|entry| !entry.fields.is_empty());
    }

    /// Writes the owners into an object, in the order in which the real server stores them.
    pub(crate) fn store(mut self, object: &mut Value) {
        self.0.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.operation, entry.seconds());
            let names = |entry: &Entry| {
                (
                    entry.manager.clone(),
                    entry.api_version.clone(),
                    entry.subresource.clone(),
                )
            };
            key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
        });
        let Some(metadata) = metadata_mut(object) else {
            return;
        };
        if self.0.is_empty() {
            metadata.remove("managedFields");
        } else {
            let entries = self.0.iter().map(Entry::encode).collect();
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }

    /// Puts the oldest updaters of each version together until there are few enough.
    fn cap(&mut self) {
        let mut updaters: Vec<Entry> = self
            .0
            .iter()
            .filter(|entry| entry.operation == Operation::Update)
            .cloned()
            .collect();
        let mut count = updaters.len();
        updaters.sort_by(|a, b| {
            (a.seconds(), &a.manager, &a.subresource).cmp(&(b.seconds(), &b.manager, &b.subresource))
        });
        let mut oldest: Vec<Entry> = Vec::new();
        for updater in updaters {
            if count <= MAX_UPDATERS {
                break;
            }
            let Some(first) = oldest
                .iter()
                .find(|first| first.api_version == updater.api_version)
            else {
                oldest.push(updater);
                continue;
            };
            let mut bucket = Entry {
                manager: ANCIENT.to_owned(),
                subresource: String::new(),
                ..updater.clone()
            };
            if let Some(known) = self.find(&bucket) {
                bucket.fields = bucket.fields.union(&known.fields);
            } else {
                bucket.fields = bucket.fields.union(&first.fields);
                let first = first.clone();
                self.0.retain(|entry| !entry.is_same_owner(&first));
            }
            self.0.retain(|entry| !entry.is_same_owner(&updater));
            self.put(bucket);
            count -= 1;
        }
    }
}

/// The fields of a set that a write through this door can change.
pub(crate) fn reachable(resource: &Resource, subresource: Option<&str>, set: FieldSet) -> FieldSet {
    let tree = |names: &[&str]| {
        let mut trees = FieldSet::default();
        names
            .iter()
            .for_each(|name| trees.insert_member(Element::field(name)));
        trees
    };
    match subresource {
        None if resource.has_status => set.without_trees(&tree(&["status"])),
        None => set,
        Some("status") if resource.custom => set.only(&Element::field("status")),
        Some(_) => set.without_trees(&tree(&["spec"])),
    }
}

/// Takes out what nobody owns.
pub(crate) fn without_server_owned(set: &FieldSet) -> FieldSet {
    set.difference(&SERVER_OWNED)
}

/// Takes the entries out of an object, to compare the rest.
pub(crate) fn strip(object: &Value) -> Value {
    let mut bare = object.clone();
    if let Some(Value::Object(metadata)) = bare.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    bare
}

/// Whether a client asked to forget who owns what: `[]` or `[{}]`.
fn is_reset(object: &Value) -> bool {
    match object["metadata"]["managedFields"].as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// Records who owns what after a create (without `old`), an update or a patch other than apply.
///
/// `now` is the time of the write in the form in which objects carry it.
pub(crate) fn update(
    resource: &Resource,
    old: Option<&Value>,
    new: &mut Value,
    manager: &str,
    subresource: Option<&str>,
    now: &str,
) {
    // The real server keeps no owners of requests for certificates.
    if !resource.custom && resource.kind == "CertificateSigningRequest" {
        if let Some(metadata) = metadata_mut(new) {
            metadata.remove("managedFields");
        }
        return;
    }
    let owners = if subresource.is_none() && is_reset(new) {
        Owners::default()
    } else {
        let sent = Owners::of(new);
        // A client that knows nothing of the entries must not lose them, and one that writes through a subresource
        // may not change them.
        if subresource.is_some() || sent.0.is_empty() {
            old.map(Owners::of).unwrap_or_default()
        } else {
            sent
        }
    };
    let tracked = !owners.0.is_empty() || old.is_none();
    let owners = if tracked {
        record(
            resource,
            old,
            new,
            owners,
            Entry::new(resource, manager, Operation::Update, subresource),
            now,
        )
    } else {
        owners
    };
    owners.store(new);
}

/// The owners after one of them changed an object.
pub(crate) fn record(
    resource: &Resource,
    old: Option<&Value>,
    new: &Value,
    mut owners: Owners,
    mut owner: Entry,
    now: &str,
) -> Owners {
    let node = Node::root(&resource.schema);
    let subresource = (!owner.subresource.is_empty()).then_some(owner.subresource.as_str());
    let nothing = json!({});
    let mut before = old.map_or_else(|| nothing.clone(), strip);
    lay_out(resource, new, &mut before);
    let changes =
        Comparison::of(node, &before, &strip(new)).filtered(|set| reachable(resource, subresource, set));
    owners.lose(&changes, None);
    let taken = without_server_owned(&changes.modified.union(&changes.added));
    if !taken.is_empty() {
        let had = owners
            .find(&owner)
            .map(|entry| entry.fields.clone())
            .unwrap_or_default();
        owner.fields = had.union(&taken);
        owner.time = Some(now.to_owned());
        owners.put(owner);
    }
    owners.cap();
    owners
}

/// The real server's own kinds have some parts even when nothing is in them, like spec and status, so nobody adds them as such.
fn lay_out(resource: &Resource, after: &Value, before: &mut Value) {
    let Some(before) = before.as_object_mut().filter(|_| !resource.custom) else {
        return;
    };
    for name in ["spec", "status"] {
        if after[name].is_object() && resource.schema.here().properties.contains_key(name) {
            before.entry(name).or_insert_with(|| json!({}));
        }
    }
    if resource.kind == "PodTemplate" {
        let nothing = json!({"metadata": {}, "spec": {"containers": []}});
        before.entry("template").or_insert(nothing);
        return;
    }
    let (parts, nothing): (&[&str], Value) = match resource.kind.as_str() {
        "Event" if resource.group.is_empty() => (&["source"], json!({})),
        "Event" => (&["deprecatedSource"], json!({})),
        "CustomResourceDefinition" => (&["spec", "names"], json!({})),
        "Pod" => (&["spec", "containers"], json!([])),
        _ => return,
    };
    let (last, above) = parts.split_last().unwrap_or((&"", &[]));
    let place = above.iter().try_fold(before, |at, name| {
        at.get_mut(*name).and_then(Value::as_object_mut)
    });
    if let Some(place) = place {
        place.entry(*last).or_insert(nothing);
    }
}

/// `namespace/name; /v1, Kind=Node`, as errors name an object here.
pub(crate) fn described(resource: &Resource, object: &Value) -> String {
    format!(
        "{}/{}; {}/{}, Kind={}",
        metadata(object, "namespace"),
        metadata(object, "name"),
        resource.group,
        resource.version,
        resource.kind
    )
}

#[cfg(test)]
pub(crate) mod tests;
