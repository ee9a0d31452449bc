//! The seams: what the controllers ask of a plugin, in words that neither side's machinery shows through.
//!
//! Each trait has two kinds of implementor: a WebAssembly component (`hostler-wasm`) and, in tests, a small native one.
//! The shapes mirror `wit/v0.1`; its comments are the reference. JSON crosses as `serde_json::Value` here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::grant::Grant;

/// Why something is so: one text for a condition, an event and a log line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reason {
    /// One CamelCase word.
    pub code: String,
    /// One sentence for a person; at most 256 characters, no control characters.
    pub message: String,
    /// What that person can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The user must change something first; not retried before they do.
    #[error("{}", .0.text())]
    Refused(Reason),
    /// Nothing is wrong, but not now.
    #[error("{}", .0.text())]
    Exhausted(Reason),
    /// The world failed, or the plugin answered in a class that this host does not know; retried with growing delay.
    #[error("{}", .0.text())]
    Broken(Reason),
    /// The plugin itself failed: a trap, a limit, an answer that breaks the contract. Counted against it.
    #[error("{}", .0.text())]
    Faulty(Reason),
    /// No component that serves this call is loaded (`DriverMissing`, `PolicyMissing`, `ResolverMissing`).
    #[error("{}", .0.text())]
    Missing(Reason),
}

impl Reason {
    /// A reason without remedy.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            remedy: None,
        }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Message and remedy in one line.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.remedy {
            Some(remedy) => format!("{}; {remedy}", self.message),
            None => self.message.clone(),
        }
    }
}

impl Failure {
    /// The reason inside.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        match self {
            Self::Refused(r) | Self::Exhausted(r) | Self::Broken(r) | Self::Faulty(r) | Self::Missing(r) => r,
        }
    }
}

/// A Kubernetes object as a plugin sees it: without managed fields, last-applied annotation and Secret data.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// `metadata.namespace`
    pub namespace: Option<String>,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// The object.
    pub json: Arc<Value>,
}

/// Points at one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// `metadata.namespace`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// `metadata.name`
    pub name: String,
}

/// What a driver may do with a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Read.
    Read,
    /// Read, and borrow fields of objects that somebody else made.
    BorrowFields,
    /// Read, create, change and delete objects of its own.
    Manage,
}

/// What a kind is to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Each object is a machine, or none of this provider's.
    Machine,
    /// Handed over beside the machine of the same name and namespace.
    Related,
    /// Made by `provision`.
    Product,
}

/// A kind that a driver uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindUse {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// The namespace that the provider's spec names.
    pub namespace: String,
    /// What is asked for.
    pub access: Access,
    /// What the kind is.
    pub role: Role,
    /// Label selector that narrows what is read; empty for all.
    pub selector: String,
}

/// How many machines of a type there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// As many as there are machines.
    Machines,
    /// A number of seats.
    AtMost(u32),
    /// No bound.
    Unlimited,
}

/// A node type that a provider offers.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTypeOffer {
    /// A DNS label, unique in the provider.
    pub name: String,
    /// How many.
    pub capacity: Capacity,
    /// The rest of a NodeType's spec: displayName, resources, overhead, cost, properties, metadata.
    pub json: Value,
}

/// What a driver says of a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// JSON Schema of the provider's own part of the spec.
    pub config_schema: Value,
    /// Cluster that its objects live in; none for the platform's own.
    pub cluster: Option<String>,
    /// Kinds used.
    pub uses: Vec<KindUse>,
    /// Types offered.
    pub node_types: Vec<NodeTypeOffer>,
    /// Property keys understood in claims and pools.
    pub properties: Vec<String>,
}

/// Whether a machine can be promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Now.
    Free,
    /// Held by something that is not ours.
    Held(Reason),
    /// Will be free by itself.
    Preparing(Reason),
    /// Needs a person.
    Broken(Reason),
}

/// One machine that the scheduler may promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Names (short) of the node types that it can serve.
    pub node_types: Vec<String>,
    /// What it is, leaving aside any hold of the host's own.
    pub availability: Availability,
    /// `resources` and `properties`.
    pub json: Value,
}

/// A claim that the scheduler has placed, with everything that its driver needs; frozen at the first write outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The NodeClaim.
    pub claim: Object,
    /// The NodeProvider as it was.
    pub provider: Object,
    /// Short name of the node type.
    pub node_type: String,
    /// The machine, where the type is made of machines.
    pub machine: Option<ObjectRef>,
    /// The OSImage as it was.
    pub os_image: Option<Object>,
    /// The NodeEnvironment as it was.
    pub environment: Option<Object>,
    /// Provider, node type, environment, claim: merged, the later one wins.
    pub properties: BTreeMap<String, String>,
    /// Where the boot data is, once written.
    pub boot_secret: Option<ObjectRef>,
    /// What the last answer left.
    pub memo: String,
}

/// What must be known before anything is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// Name of the Node to come.
    pub node_name: String,
    /// Namespace of the boot Secret.
    pub boot_namespace: String,
    /// Network data, if the driver makes it.
    pub network_data: Option<String>,
}

/// Changes to an object that somebody else made.
#[derive(Clone, Debug, PartialEq)]
pub struct Loan {
    /// The object.
    pub target: ObjectRef,
    /// JSON merge patch.
    pub patch: Value,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// One CamelCase word.
    pub step: String,
    /// One sentence.
    pub message: String,
    /// Ask again after so many seconds even if nothing changed.
    pub recheck: Option<u32>,
}

/// What a machine is known by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineIdentity {
    /// `spec.providerID` of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// IP addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// Where an order stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Under way.
    Working(Progress),
    /// The machine runs what it was given.
    Ready(MachineIdentity),
    /// Nothing is left outside.
    Gone,
    /// This order can never become, or stay, ready.
    Lost(Reason),
}

/// A driver's answer: everything that must stand now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Objects of its own.
    pub owned: Vec<Value>,
    /// Loans.
    pub loans: Vec<Loan>,
    /// Objects to see next time.
    pub wants: Vec<ObjectRef>,
    /// For the next call.
    pub memo: String,
    /// Where the order stands.
    pub outcome: Outcome,
}

/// A provider driver of one exact component.
#[async_trait]
pub trait Driver: Send + Sync {
    /// `sha256:<hex>` of the component.
    fn digest(&self) -> &str;
    /// What the operator lets this driver do.
    fn grant(&self) -> Arc<Grant>;
    /// See `wit`: `describe`.
    async fn describe(&self, provider: &Object) -> Result<Description, Failure>;
    /// See `wit`: `machine-of`.
    async fn machine_of(
        &self,
        provider: &Object,
        seen: &Object,
        related: &[Object],
    ) -> Result<Option<Machine>, Failure>;
    /// See `wit`: `prepare`.
    async fn prepare(&self, order: &Order, seen: &[Object]) -> Result<Preparation, Failure>;
    /// See `wit`: `provision`.
    async fn provision(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure>;
    /// See `wit`: `release`.
    async fn release(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure>;
}

/// A profile that a node might get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// `explicit`, `tenant-default`, `project-default`.
    pub source: String,
    /// Name of the NodeProfile.
    pub profile: String,
    /// Whether it exists now.
    pub exists: bool,
}

/// What is known of a node whose profile is to be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// VirtualClusterInstance.
    pub tenant: Object,
    /// Project.
    pub project: Object,
    /// Enrollment; before one exists, the object as it will be created.
    pub enrollment: Object,
    /// NodeClaim; none for a node joined by hand.
    pub claim: Option<Object>,
}

/// The resolver's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Index into the candidates.
    pub chosen: Option<usize>,
    /// Why this one.
    pub why: String,
}

/// Chooses the one NodeProfile of a node.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// See `wit`: `resolve`.
    async fn resolve(&self, subject: &Subject, candidates: &[Candidate]) -> Result<Resolution, Failure>;
}

/// Something that is about to happen and wants judging.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// `profile-assignment`, `claim`, `type-choice`, `pool-change`, `plugin-grant`.
    pub kind: String,
    /// The facts.
    pub json: Value,
}

/// What one policy says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Yes or no.
    pub allowed: bool,
    /// For a no: why. For a yes: warnings.
    pub reasons: Vec<Reason>,
    /// Seconds after which to ask again.
    pub valid_for: Option<u32>,
}

/// One loaded policy with its settings.
#[async_trait]
pub trait Policy: Send + Sync {
    /// Name of the component, like `policy-allowlist`.
    fn name(&self) -> &str;
    /// Kinds of request that it judges, as it said at load, each with the facts that it wants (`now`, `usage`).
    fn interests(&self) -> &[(String, Vec<String>)];
    /// See `wit`: `review`. A failure is a denial; `verdict::combine` makes it one.
    async fn review(&self, request: &Request) -> Result<Verdict, Failure>;
}

/// How one component stands; the source of a `Plugin` object.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginState {
    /// Name: the file without `.wasm`.
    pub name: String,
    /// Digest of what serves now, if anything does.
    pub serving: Option<String>,
    /// Digest of the file in the directory, if there is one.
    pub on_disk: Option<String>,
    /// World and version, like `machine-driver@0.1.0`.
    pub world: Option<String>,
    /// Size of the component, in bytes.
    pub size: Option<u64>,
    /// The operator's grant, as it would be written in `NAME.toml`.
    pub grant: Value,
    /// Whether the newest file is the one that serves.
    pub healthy: bool,
    /// Why it is not: class as code (`InvalidComponent`, `UnknownWorld`, `GrantInvalid`, `CompileTimeout`, …).
    pub error: Option<Reason>,
    /// Traps and limit hits since start.
    pub faults: u64,
}

/// The components that are loaded: what the controllers look plugins up in.
#[async_trait]
pub trait Plugins: Send + Sync {
    /// The driver of this name (`driver-metal3`); with a digest, exactly that one, also when a newer one serves.
    ///
    /// # Errors
    /// `Failure::Missing` (`DriverMissing`) where there is none.
    fn driver(&self, name: &str, digest: Option<&str>) -> Result<Arc<dyn Driver>, Failure>;

    /// The one resolver that the configuration names.
    ///
    /// # Errors
    /// `Failure::Missing` (`ResolverMissing`) where it is not loaded.
    fn resolver(&self) -> Result<Arc<dyn Resolver>, Failure>;

    /// All required policies, in name order.
    ///
    /// # Errors
    /// `Failure::Missing` (`PolicyMissing`) naming the first that is not loaded: then everything is denied.
    fn policies(&self) -> Result<Vec<Arc<dyn Policy>>, Failure>;

    /// State of every component, in name order.
    fn states(&self) -> Vec<PluginState>;

    /// Grows with each change of `states` or of what serves.
    fn generation(&self) -> u64;

    /// Returns once `generation` is no longer `seen`, with the new one.
    async fn changed(&self, seen: u64) -> u64;

    /// Says which digests live orders name; the bytes of others may be dropped.
    fn retain(&self, digests: &BTreeSet<String>);
}
