//! Drivers: turn a claim into a machine, and the machine back into nothing. `wit/v0.1/driver.wit` is the reference.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Failure, Object, ObjectRef, Reason};

/// A driver: five pure functions.
pub trait Driver {
    /// Checks a provider and says what it offers.
    fn describe(provider: &Object) -> Result<Description, Failure>;

    /// One observed object → a machine that the scheduler may promise; none if it is not this provider's.
    fn machine_of(provider: &Object, seen: &Object, related: &[Object]) -> Result<Option<Machine>, Failure>;

    /// Name and place, before anything is written.
    fn prepare(order: &Order, seen: &[Object]) -> Result<Preparation, Failure>;

    /// What must be true for this order now, and how far it is.
    fn provision(order: &Order, seen: &[Object]) -> Result<Plan, Failure>;

    /// The way back: what must be true so that the machine becomes as it was.
    fn release(order: &Order, seen: &[Object]) -> Result<Plan, Failure>;
}

/// What the driver means to do with objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Look at them.
    Read,
    /// Look, and borrow fields of the machine of an order.
    BorrowFields,
    /// Look; create, change and delete its own.
    Manage,
}

/// What a kind is to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Each object is a machine, or none of this provider's.
    Machine,
    /// Seen beside the machine object of the same name and namespace.
    Related,
    /// Made by `provision`.
    Product,
}

/// A kind that the driver uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindUse {
    /// For example `metal3.io/v1alpha1`.
    pub api_version: String,
    /// For example `BareMetalHost`.
    pub kind: String,
    /// The namespace that the provider's spec names.
    pub namespace: String,
    /// What is done with them.
    pub access: Access,
    /// What they are.
    pub role: Role,
    /// A label selector as `kubectl -l` takes it; empty for all.
    pub selector: String,
}

/// How many nodes of a type there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Capacity {
    /// As many as there are machines of this type.
    Machines,
    /// A fixed number.
    AtMost(u32),
    /// No limit.
    Unlimited,
}

/// One type of node that a provider offers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeType {
    /// A DNS label, unique in the provider.
    pub name: String,
    /// How many there can be.
    pub capacity: Capacity,
    /// `displayName`, `resources`, `overhead`, `cost`, `properties`, `metadata`.
    pub json: Value,
}

/// What a provider offers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// JSON Schema of the provider's own part of the spec.
    pub config_schema: Value,
    /// The cluster by the name in the provider's spec; none for the platform's own.
    pub cluster: Option<String>,
    /// The kinds that the driver uses.
    pub uses: Vec<KindUse>,
    /// The types on offer.
    pub node_types: Vec<NodeType>,
    /// Property keys that the driver understands in claims and pools.
    pub properties: Vec<String>,
}

/// Whether a machine may be promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Availability {
    /// May be promised.
    Free,
    /// In use by somebody else.
    Held(Reason),
    /// Will be free by itself.
    Preparing(Reason),
    /// Needs a person.
    Broken(Reason),
}

/// A machine as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Names of the node types that it can serve.
    pub node_types: Vec<String>,
    /// Whether it may be promised, leaving aside any hold of the host's own.
    pub availability: Availability,
    /// `resources` and `properties`.
    pub json: Value,
}

/// The merged properties of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(Vec<(String, String)>);

impl Properties {
    /// The value of a property; the last one, if it is named twice.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

impl From<Vec<(String, String)>> for Properties {
    fn from(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Pairs(Vec<(String, String)>),
            Mapping(std::collections::BTreeMap<String, String>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::Pairs(pairs) => Self(pairs),
            Written::Mapping(map) => Self(map.into_iter().collect()),
        })
    }
}

/// A claim that the scheduler has placed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    /// The NodeClaim.
    pub claim: Object,
    /// The NodeProvider as it was when the order was placed.
    pub provider: Object,
    /// The short name of the type.
    pub node_type: String,
    /// The machine, where the type is made of machines.
    #[serde(default)]
    pub machine: Option<ObjectRef>,
    /// The OSImage that the claim names.
    #[serde(default)]
    pub os_image: Option<Object>,
    /// The NodeEnvironment that the claim names.
    #[serde(default)]
    pub environment: Option<Object>,
    /// Everything merged, the later one wins.
    #[serde(default)]
    pub properties: Properties,
    /// Where the boot data is, once written.
    #[serde(default)]
    pub boot_secret: Option<ObjectRef>,
    /// What the last answer for this order left.
    #[serde(default)]
    pub memo: String,
}

impl Order {
    /// The machine of this order as it was just seen; none if it no longer exists.
    pub fn machine_in<'a>(&self, seen: &'a [Object]) -> Option<&'a Object> {
        let machine = self.machine.as_ref()?;
        seen.iter().find(|object| machine.is(object))
    }
}

/// Name and place of a machine that is about to be ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preparation {
    /// The name under which the machine's Node will appear.
    pub node_name: String,
    /// Where the host puts the boot Secret.
    pub boot_namespace: String,
    /// Network data in the form that the machine reads.
    pub network_data: Option<String>,
}

/// Changes to an object that somebody else made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loan {
    /// The machine of the order.
    pub target: ObjectRef,
    /// A JSON merge patch.
    pub patch: Value,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// One CamelCase word.
    pub step: String,
    /// One sentence.
    pub message: String,
    /// Ask again after so many seconds even if nothing changed.
    pub recheck: Option<u32>,
}

/// What a finished machine is called, and where it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// For the Node's `spec.providerID`.
    pub provider_id: Option<String>,
    /// Best first, without a prefix length.
    pub addresses: Vec<String>,
}

/// How far an order is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Somebody else has to move.
    Working(Progress),
    /// The machine runs what it was given.
    Ready(Identity),
    /// Nothing is left outside.
    Gone,
    /// The claim is to be replaced.
    Lost(Reason),
}

impl Outcome {
    /// Somebody else has to move, and a change of theirs will be seen.
    pub fn working(step: &str, message: impl Into<String>) -> Self {
        Self::Working(Progress {
            step: step.to_owned(),
            message: message.into(),
            recheck: None,
        })
    }
}

/// What must be true outside, now: the whole of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Every object of its own that must exist.
    pub owned: Vec<Value>,
    /// Every loan that must stand.
    pub loans: Vec<Loan>,
    /// Objects to see next time.
    pub wants: Vec<ObjectRef>,
    /// What this order is told the next time.
    pub memo: String,
    /// How far the order is.
    pub outcome: Outcome,
}

impl Plan {
    /// Nothing outside, and this outcome.
    pub fn new(outcome: Outcome) -> Self {
        Self {
            owned: Vec::new(),
            loans: Vec::new(),
            wants: Vec::new(),
            memo: String::new(),
            outcome,
        }
    }

    /// The same plan with these changes to an object that somebody else made.
    #[must_use]
    pub fn borrowing(mut self, target: ObjectRef, patch: Value) -> Self {
        self.loans.push(Loan { target, patch });
        self
    }

    /// The same plan with an object of its own.
    #[must_use]
    pub fn owning(mut self, object: Value) -> Self {
        self.owned.push(object);
        self
    }
}
