//! Orders: what a driver is given, frozen before the first write outside, and what has drifted from it since.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use hostler_api::claim::{FrozenOrder, OwnedRef, Ref};
use hostler_api::{NodeClaim, NodeEnvironment, NodeProvider, NodeType, OSImage, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::digest;
use crate::hidden;
use crate::loan::{ClaimId, Holder};
use crate::seams::{KindUse, Object, ObjectRef, Order, Preparation};
use crate::view;

/// Fields of a claim's spec that reach the node or say nothing about it: changing them is no drift.
const LIVE_FIELDS: [&str; 7] = [
    "displayName",
    "owner",
    "access",
    "typeRef",
    "profileRef",
    "terminationGracePeriod",
    "power",
];

/// What an order is made of, as it stands now.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The claim.
    pub claim: &'a NodeClaim,
    /// Its provider.
    pub provider: &'a NodeProvider,
    /// The type that the scheduler chose.
    pub node_type: &'a NodeType,
    /// The environment that the properties, or the claim, name.
    pub environment: Option<&'a NodeEnvironment>,
    /// The image that the properties name.
    pub os_image: Option<&'a OSImage>,
    /// Name of the driver component.
    pub component: &'a str,
    /// Digest of the component that serves.
    pub digest: &'a str,
    /// What the driver said that it uses.
    pub uses: &'a [KindUse],
    /// uid of the tenant.
    pub tenant_uid: &'a str,
}

/// Digest of what was judged when a claim was placed: its spec, less the type, which the place names. As `sha256:<hex>`.
#[must_use]
pub fn spec_digest(claim: &NodeClaim) -> String {
    let spec = hostler_api::NodeClaimSpec {
        type_ref: None,
        ..claim.spec.clone()
    };
    digest::of(json(&spec).to_string().as_bytes())
}

/// Objects that an order names in its properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// An OSImage.
    pub os_image: Option<String>,
    /// A NodeEnvironment in the claim's namespace.
    pub environment: Option<String>,
    /// SSHKeys.
    pub ssh_keys: Vec<String>,
}

/// What provider, type and claim name together.
#[must_use]
pub fn named(claim: &NodeClaim, provider: &NodeProvider, node_type: &NodeType) -> Named {
    let own = own_properties(claim, provider);
    let find = |key: &str| {
        let layers = [&own, &node_type.spec.properties, &provider.spec.properties];
        layers
            .into_iter()
            .find_map(|layer| layer.get(key))
            .filter(|value| !value.is_empty())
            .cloned()
    };
    let keys = find(names::PROPERTY_SSH_KEYS).unwrap_or_default();
    Named {
        os_image: find(names::PROPERTY_OS_IMAGE),
        environment: find(names::PROPERTY_ENVIRONMENT).or_else(|| claim.spec.environment_ref.clone()),
        ssh_keys: keys
            .split(',')
            .map(str::trim)
            .filter(|key| !key.is_empty())
            .map(ToOwned::to_owned)
            .collect(),
    }
}

impl Inputs<'_> {
    /// Provider, type, environment, image, claim: merged, the later one wins. Of the claim's keys only those that its author may set.
    #[must_use]
    pub fn properties(&self) -> BTreeMap<String, String> {
        let none = BTreeMap::new();
        let own = own_properties(self.claim, self.provider);
        let layers = [
            &self.provider.spec.properties,
            &self.node_type.spec.properties,
            self.environment
                .map_or(&none, |environment| &environment.spec.properties),
            self.os_image.map_or(&none, |image| &image.spec.properties),
            &own,
        ];
        layers
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// The inputs, frozen. The boot Secret follows once its namespace is known: `prepared`.
    #[must_use]
    pub fn freeze(&self, now: Timestamp) -> FrozenOrder {
        FrozenOrder {
            claim: json(&self.claim.spec),
            component: self.component.to_owned(),
            digest: self.digest.to_owned(),
            // The claim is the tenants' to read.
            provider: hidden::unnamed(&stated(self.provider)),
            node_type: short_name(self.node_type, self.provider),
            uses: self.uses.iter().map(json).collect(),
            os_image: self.os_image.map(stated),
            environment: self.environment.map(stated),
            properties: self.properties(),
            boot_secret: None,
            token: None,
            tenant_uid: Some(self.tenant_uid.to_owned()),
            wants: Vec::new(),
            frozen: Time(now),
        }
    }

    /// What the frozen order would be different in, if it were placed now; in words, most general first.
    #[must_use]
    pub fn drifted_from(&self, frozen: &FrozenOrder) -> Vec<String> {
        let mut differs = Vec::new();
        if frozen.component != self.component || frozen.digest != self.digest {
            differs.push("the driver".to_owned());
        }
        let kept = |provider: &Value| of_type(provider, &frozen.node_type);
        if kept(&frozen.provider) != kept(&hidden::unnamed(&stated(self.provider))) {
            differs.push(format!(
                "provider {}",
                self.provider.metadata.name.as_deref().unwrap_or_default()
            ));
        }
        if short_name(self.node_type, self.provider) != frozen.node_type {
            differs.push("the node type".to_owned());
        }
        for (what, then, now) in [
            ("the OS image", &frozen.os_image, self.os_image.map(stated)),
            (
                "the environment",
                &frozen.environment,
                self.environment.map(stated),
            ),
        ] {
            if essence(then.as_ref()) != essence(now.as_ref()) {
                differs.push(what.to_owned());
            }
        }
        let now = self.properties();
        let keys: BTreeSet<&String> = frozen.properties.keys().chain(now.keys()).collect();
        let changed = keys
            .into_iter()
            .filter(|key| frozen.properties.get(*key) != now.get(*key));
        differs.extend(changed.map(|key| format!("property {key}")));
        let spec = json(&self.claim.spec);
        let fields: BTreeSet<&String> = [&frozen.claim, &spec]
            .into_iter()
            .filter_map(Value::as_object)
            .flat_map(serde_json::Map::keys)
            .collect();
        let fields = fields
            .into_iter()
            .filter(|field| !LIVE_FIELDS.contains(&field.as_str()) && *field != "properties");
        differs.extend(
            fields
                .filter(|field| frozen.claim.get(*field) != spec.get(*field))
                .map(|field| format!("spec.{field}")),
        );
        differs
    }
}

/// The order as a driver gets it, from what the claim recorded. Nothing in it is read anew but the metadata of the claim.
#[must_use]
pub fn order(claim: &NodeClaim, frozen: &FrozenOrder) -> Order {
    let status = claim.status.as_ref();
    let mut shown = json(claim);
    if let Some(map) = shown.as_object_mut() {
        map.shift_remove("status");
        map.insert("spec".to_owned(), frozen.claim.clone());
    }
    let boot = frozen.boot_secret.as_ref().filter(|boot| boot.uid.is_some());
    Order {
        claim: with_kind(view::object(&shown), "NodeClaim"),
        provider: with_kind(view::object(&frozen.provider), "NodeProvider"),
        node_type: frozen.node_type.clone(),
        machine: status
            .and_then(|status| status.machine.as_ref()?.object.as_ref())
            .map(object_ref),
        os_image: frozen
            .os_image
            .as_ref()
            .map(|image| with_kind(view::object(image), "OSImage")),
        environment: frozen
            .environment
            .as_ref()
            .map(|one| with_kind(view::object(one), "NodeEnvironment")),
        properties: frozen.properties.clone(),
        boot_secret: boot.map(|boot| object_ref(&boot.object)),
        memo: status.and_then(|status| status.memo.clone()).unwrap_or_default(),
    }
}

/// The kinds that the driver said it uses, as frozen. One that this version cannot read is left out: nothing is allowed by it.
#[must_use]
pub fn uses(frozen: &FrozenOrder) -> Vec<KindUse> {
    frozen
        .uses
        .iter()
        .filter_map(|used| serde_json::from_value(used.clone()).ok())
        .collect()
}

/// Completes a frozen order with the names of what is made before the machine is taken; all follow from the claim's uid.
pub fn prepared(frozen: &mut FrozenOrder, preparation: &Preparation, claim_uid: &str) {
    frozen.boot_secret = Some(OwnedRef {
        object: Ref {
            api_version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            namespace: Some(preparation.boot_namespace.clone()),
            name: format!("hostler-{claim_uid}"),
        },
        uid: None,
    });
    frozen.token = Some(format!("bootstrap-token-{}", token_id(claim_uid)));
}

/// Public half of a claim's bootstrap token: it follows from the claim's uid, so that a crash makes no second token.
#[must_use]
pub fn token_id(claim_uid: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha256::digest(format!("token of claim {claim_uid}").as_bytes());
    hash.iter()
        .take(6)
        .map(|byte| char::from(LETTERS[usize::from(byte & 31)]))
        .collect()
}

/// Name of the Enrollment that reserves a node name in a tenant.
#[must_use]
pub fn enrollment_name(tenant: &str, node: &str) -> String {
    format!("{tenant}.{node}")
}

/// Who a claim's loans and objects belong to.
#[must_use]
pub fn holder(claim: &NodeClaim, installation: &str) -> Holder {
    let metadata = &claim.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let claim = ClaimId {
        namespace: text(&metadata.namespace),
        name: text(&metadata.name),
        uid: text(&metadata.uid),
    };
    Holder {
        installation: installation.to_owned(),
        claim,
    }
}

/// A stored reference, as the seams have it.
#[must_use]
pub fn object_ref(stored: &Ref) -> ObjectRef {
    ObjectRef {
        api_version: stored.api_version.clone(),
        kind: stored.kind.clone(),
        namespace: stored.namespace.clone(),
        name: stored.name.clone(),
    }
}

/// Whether a stored reference is one to this object.
#[must_use]
pub fn is_ref_to(stored: &Ref, object: &ObjectRef) -> bool {
    stored.name == object.name
        && stored.namespace == object.namespace
        && stored.kind == object.kind
        && stored.api_version == object.api_version
}

/// A reference as it is stored.
#[must_use]
pub fn stored_ref(object: &ObjectRef) -> Ref {
    Ref {
        api_version: object.api_version.clone(),
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    }
}

fn own_properties(claim: &NodeClaim, provider: &NodeProvider) -> BTreeMap<String, String> {
    let listed = provider
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(names::TENANT_PROPERTIES));
    let listed: BTreeSet<&str> = listed
        .map(String::as_str)
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .collect();
    let may = |key: &str| names::TENANT_KEYS.contains(&key) || listed.contains(key);
    claim
        .spec
        .properties
        .iter()
        .filter(|(key, _)| may(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn short_name(node_type: &NodeType, provider: &NodeProvider) -> String {
    let full = node_type.metadata.name.as_deref().unwrap_or_default();
    let provider = provider.metadata.name.as_deref().unwrap_or_default();
    full.strip_prefix(provider)
        .and_then(|rest| rest.strip_prefix('.'))
        .unwrap_or(full)
        .to_owned()
}

/// A provider as far as orders of one type depend on it: the other types of its list may come and go.
fn of_type(provider: &Value, short: &str) -> Value {
    let mut spec = provider.get("spec").cloned().unwrap_or_default();
    if let Some(map) = spec.as_object_mut() {
        map.shift_remove("displayName");
        map.shift_remove("properties"); // Compared as merged.
        for config in map.values_mut().filter_map(Value::as_object_mut) {
            if let Some(types) = config.get_mut("nodeTypes").and_then(Value::as_array_mut) {
                types.retain(|one| one.get("name").is_none_or(|name| name == short));
            }
        }
    }
    spec
}

/// Name and spec, less the properties, which are compared as merged.
fn essence(object: Option<&Value>) -> Option<(Value, Value)> {
    let object = object?;
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    if let Some(map) = spec.as_object_mut() {
        for key in ["properties", "displayName", "description", "owner", "access"] {
            map.shift_remove(key);
        }
    }
    Some((
        object.pointer("/metadata/name").cloned().unwrap_or_default(),
        spec,
    ))
}

/// An object without its status and its bookkeeping.
fn stated(object: &impl Serialize) -> Value {
    (*view::without_status(&json(object)).json).clone()
}

fn with_kind(mut object: Object, kind: &str) -> Object {
    // An object that came over a typed watch may have lost its type: a list does not repeat it for each item.
    if object.kind.is_empty() {
        object.api_version = "management.loft.sh/v1".to_owned();
        object.kind = kind.to_owned();
    }
    object
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("API types always have a JSON form")
}
