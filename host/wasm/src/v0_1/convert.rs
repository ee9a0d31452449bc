//! From the seams to the guest, with everything that is not for its eyes left out; and back, checked.

use std::sync::Arc;

use hostler_core::seams::{
    Access, Availability, Candidate, Capacity, Description, Failure, KindUse, Loan, Machine, MachineIdentity,
    NodeTypeOffer, Object, ObjectRef, Order, Outcome, Plan, Preparation, Progress, Reason, Request,
    Resolution, Role, Subject, Verdict,
};

use super::answer::{self, Checked, breach, each, named, plain};
use super::bindings::driver::exports::hostler::plugin::driver as wit;
use super::bindings::policy::exports::hostler::plugin::policy as wit_policy;
use super::bindings::resolver::exports::hostler::plugin::resolver as wit_resolver;
use super::bindings::types;
use super::view::{is_secret_key, view};
use crate::text;

/// Longest `memo`.
const MEMO: usize = 16 << 10;
/// Longest network data that a driver may make; it must fit into a Secret with the user data.
const NETWORK_DATA: usize = 256 << 10;
/// Longest name of an object, and of most else.
const NAME: usize = 253;
/// Longest `apiVersion`: group, slash, version.
const API_VERSION: usize = 317;

pub(crate) fn object(object: &Object) -> types::Object {
    types::Object {
        api_version: object.api_version.clone(),
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        uid: object.uid.clone(),
        json: view(&object.json).to_string(),
    }
}

pub(crate) fn objects(list: &[Object]) -> Vec<types::Object> {
    list.iter().map(object).collect()
}

pub(crate) fn order(order: &Order) -> wit::Order {
    let told = |(key, value): (&String, &String)| (!is_secret_key(key)).then(|| (key.clone(), value.clone()));
    wit::Order {
        claim: object(&order.claim),
        provider: object(&order.provider),
        node_type: order.node_type.clone(),
        machine: order.machine.as_ref().map(reference),
        os_image: order.os_image.as_ref().map(object),
        environment: order.environment.as_ref().map(object),
        properties: order.properties.iter().filter_map(told).collect(),
        boot_secret: order.boot_secret.as_ref().map(reference),
        memo: order.memo.clone(),
    }
}

fn reference(target: &ObjectRef) -> types::ObjectRef {
    types::ObjectRef {
        api_version: target.api_version.clone(),
        kind: target.kind.clone(),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
    }
}

pub(crate) fn subject(subject: &Subject) -> wit_resolver::Subject {
    wit_resolver::Subject {
        tenant: object(&subject.tenant),
        project: object(&subject.project),
        enrollment: object(&subject.enrollment),
        claim: subject.claim.as_ref().map(object),
    }
}

pub(crate) fn candidates(list: &[Candidate]) -> Vec<wit_resolver::Candidate> {
    let one = |candidate: &Candidate| wit_resolver::Candidate {
        source: candidate.source.clone(),
        profile: candidate.profile.clone(),
        exists: candidate.exists,
    };
    list.iter().map(one).collect()
}

pub(crate) fn request(request: &Request) -> wit_policy::Request {
    wit_policy::Request {
        kind: request.kind.clone(),
        json: view(&request.json).to_string(),
    }
}

pub(crate) fn reason(reason: types::Reason) -> Reason {
    Reason {
        code: text::code(&reason.code),
        message: text::message(&reason.message),
        remedy: reason
            .remedy
            .map(|remedy| text::message(&remedy))
            .filter(|remedy| !remedy.is_empty()),
    }
}

pub(crate) fn failure(failure: types::Failure) -> Failure {
    match failure {
        types::Failure::Refused(why) => Failure::Refused(reason(why)),
        types::Failure::Exhausted(why) => Failure::Exhausted(reason(why)),
        types::Failure::Broken(why) | types::Failure::Other(why) => Failure::Broken(reason(why)),
    }
}

pub(crate) fn description(answer: wit::Description) -> Checked<Description> {
    Ok(Description {
        config_schema: answer::object_or_empty("config-schema", &answer.config_schema)?,
        cluster: answer
            .cluster
            .map(|cluster| named("cluster", cluster, NAME))
            .transpose()?,
        uses: each("uses", answer.uses, kind_use)?,
        node_types: each("node-types", answer.node_types, node_type)?,
        properties: each("properties", answer.properties, |at, key| named(at, key, NAME))?,
    })
}

fn kind_use(at: &str, kind: wit::KindUse) -> Checked<KindUse> {
    Ok(KindUse {
        api_version: named(&format!("{at}.api-version"), kind.api_version, API_VERSION)?,
        kind: named(&format!("{at}.kind"), kind.kind, 63)?,
        namespace: plain(&format!("{at}.namespace"), kind.namespace, NAME)?,
        access: match kind.access {
            wit::Access::Read => Access::Read,
            wit::Access::BorrowFields => Access::BorrowFields,
            wit::Access::Manage => Access::Manage,
        },
        role: match kind.role {
            wit::Role::Machine => Role::Machine,
            wit::Role::Related => Role::Related,
            wit::Role::Product => Role::Product,
        },
        selector: plain(&format!("{at}.selector"), kind.selector, 4 << 10)?,
    })
}

fn node_type(at: &str, offer: wit::NodeType) -> Checked<NodeTypeOffer> {
    Ok(NodeTypeOffer {
        name: named(&format!("{at}.name"), offer.name, 63)?,
        capacity: match offer.capacity {
            wit::Capacity::Machines => Capacity::Machines,
            wit::Capacity::AtMost(seats) => Capacity::AtMost(seats),
            wit::Capacity::Unlimited => Capacity::Unlimited,
        },
        json: answer::object_or_empty(&format!("{at}.json"), &offer.json)?,
    })
}

pub(crate) fn machine(answer: Option<wit::Machine>) -> Checked<Option<Machine>> {
    let Some(machine) = answer else { return Ok(None) };
    Ok(Some(Machine {
        node_types: each("node-types", machine.node_types, |at, name| named(at, name, 63))?,
        availability: match machine.availability {
            wit::Availability::Free => Availability::Free,
            wit::Availability::Held(why) => Availability::Held(reason(why)),
            wit::Availability::Preparing(why) => Availability::Preparing(reason(why)),
            wit::Availability::Broken(why) => Availability::Broken(reason(why)),
        },
        json: answer::object_or_empty("json", &machine.json)?,
    }))
}

pub(crate) fn preparation(answer: wit::Preparation) -> Checked<Preparation> {
    if answer
        .network_data
        .as_ref()
        .is_some_and(|data| data.len() > NETWORK_DATA)
    {
        return breach("network-data", format!("has more than {NETWORK_DATA} bytes"));
    }
    Ok(Preparation {
        node_name: named("node-name", answer.node_name, NAME)?,
        boot_namespace: named("boot-namespace", answer.boot_namespace, NAME)?,
        network_data: answer.network_data,
    })
}

pub(crate) fn plan(answer: wit::Plan) -> Checked<Plan> {
    if answer.memo.len() > MEMO {
        return breach(
            "memo",
            format!("has {} bytes, at most {MEMO} are kept", answer.memo.len()),
        );
    }
    Ok(Plan {
        owned: each("owned", answer.owned, |at, object| answer::object(at, &object))?,
        loans: each("loans", answer.loans, loan)?,
        wants: each("wants", answer.wants, reference_from)?,
        memo: answer.memo,
        outcome: outcome(answer.outcome)?,
    })
}

fn loan(at: &str, loan: wit::Loan) -> Checked<Loan> {
    Ok(Loan {
        target: reference_from(&format!("{at}.target"), loan.target)?,
        patch: answer::object(&format!("{at}.patch"), &loan.patch)?,
    })
}

fn reference_from(at: &str, target: types::ObjectRef) -> Checked<ObjectRef> {
    Ok(ObjectRef {
        api_version: named(&format!("{at}.api-version"), target.api_version, API_VERSION)?,
        kind: named(&format!("{at}.kind"), target.kind, 63)?,
        namespace: target
            .namespace
            .map(|ns| named(&format!("{at}.namespace"), ns, NAME))
            .transpose()?,
        name: named(&format!("{at}.name"), target.name, NAME)?,
    })
}

fn outcome(answer: wit::Outcome) -> Checked<Outcome> {
    Ok(match answer {
        wit::Outcome::Working(progress) => Outcome::Working(Progress {
            step: text::code(&progress.step),
            message: text::message(&progress.message),
            recheck: progress.recheck,
        }),
        wit::Outcome::Ready(identity) => Outcome::Ready(MachineIdentity {
            provider_id: identity
                .provider_id
                .map(|id| named("provider-id", id, 1 << 10))
                .transpose()?,
            addresses: each("addresses", identity.addresses, |at, address| {
                named(at, address, NAME)
            })?,
        }),
        wit::Outcome::Gone => Outcome::Gone,
        wit::Outcome::Lost(why) => Outcome::Lost(reason(why)),
    })
}

pub(crate) fn resolution(answer: wit_resolver::Resolution, candidates: usize) -> Checked<Resolution> {
    let chosen = match answer.chosen.map(|index| index as usize) {
        Some(index) if index >= candidates => {
            return breach("chosen", format!("is {index}, there are {candidates} candidates"));
        }
        chosen => chosen,
    };
    Ok(Resolution {
        chosen,
        why: text::message(&answer.why),
    })
}

pub(crate) fn interests(answer: Vec<wit_policy::Interest>) -> Checked<Vec<(String, Vec<String>)>> {
    each("interests", answer, |at, interest| {
        let kind = named(&format!("{at}.kind"), interest.kind, 63)?;
        let wants = each(&format!("{at}.wants"), interest.wants, |at, want| {
            named(at, want, 63)
        })?;
        Ok((kind, wants))
    })
}

pub(crate) fn verdict(answer: wit_policy::Verdict, policy: &str) -> Checked<Verdict> {
    let mut reasons = each("reasons", answer.reasons, |_, why| Ok(reason(why)))?;
    if !answer.allowed && reasons.is_empty() {
        let why = Reason::new(
            "DeniedByPolicy",
            format!("policy {policy} denied this and gave no reason"),
        );
        reasons.push(why.remedy("ask whoever looks after this policy"));
    }
    Ok(Verdict {
        allowed: answer.allowed,
        reasons,
        valid_for: answer.valid_for,
    })
}

/// Bytes of an answer: what it says, and a pointer's worth for each thing it says it in.
pub(crate) trait Weigh {
    fn weight(&self) -> usize;
}

impl Weigh for String {
    fn weight(&self) -> usize {
        self.len()
    }
}

impl Weigh for u32 {
    fn weight(&self) -> usize {
        4
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weight(&self) -> usize {
        self.as_ref().map_or(1, |value| 1 + value.weight())
    }
}

impl<T: Weigh> Weigh for Vec<T> {
    fn weight(&self) -> usize {
        self.iter().map(|item| 8 + item.weight()).sum()
    }
}

impl<T: Weigh, E: Weigh> Weigh for Result<T, E> {
    fn weight(&self) -> usize {
        1 + match self {
            Ok(value) => value.weight(),
            Err(error) => error.weight(),
        }
    }
}

impl Weigh for types::Reason {
    fn weight(&self) -> usize {
        self.code.weight() + self.message.weight() + self.remedy.weight()
    }
}

impl Weigh for types::Failure {
    fn weight(&self) -> usize {
        match self {
            Self::Refused(why) | Self::Exhausted(why) | Self::Broken(why) | Self::Other(why) => why.weight(),
        }
    }
}

impl Weigh for types::ObjectRef {
    fn weight(&self) -> usize {
        self.api_version.weight() + self.kind.weight() + self.namespace.weight() + self.name.weight()
    }
}

impl Weigh for wit::Description {
    fn weight(&self) -> usize {
        self.config_schema.weight()
            + self.cluster.weight()
            + self.uses.weight()
            + self.node_types.weight()
            + self.properties.weight()
    }
}

impl Weigh for wit::KindUse {
    fn weight(&self) -> usize {
        self.api_version.weight() + self.kind.weight() + self.namespace.weight() + self.selector.weight()
    }
}

impl Weigh for wit::NodeType {
    fn weight(&self) -> usize {
        self.name.weight() + self.json.weight()
    }
}

impl Weigh for wit::Machine {
    fn weight(&self) -> usize {
        let why = match &self.availability {
            wit::Availability::Free => 0,
            wit::Availability::Held(why)
            | wit::Availability::Preparing(why)
            | wit::Availability::Broken(why) => why.weight(),
        };
        self.node_types.weight() + why + self.json.weight()
    }
}

impl Weigh for wit::Preparation {
    fn weight(&self) -> usize {
        self.node_name.weight() + self.boot_namespace.weight() + self.network_data.weight()
    }
}

impl Weigh for wit::Plan {
    fn weight(&self) -> usize {
        let outcome = match &self.outcome {
            wit::Outcome::Working(progress) => progress.step.weight() + progress.message.weight(),
            wit::Outcome::Ready(identity) => identity.provider_id.weight() + identity.addresses.weight(),
            wit::Outcome::Gone => 0,
            wit::Outcome::Lost(why) => why.weight(),
        };
        self.owned.weight() + self.loans.weight() + self.wants.weight() + self.memo.weight() + outcome
    }
}

impl Weigh for wit::Loan {
    fn weight(&self) -> usize {
        self.target.weight() + self.patch.weight()
    }
}

impl Weigh for wit_resolver::Resolution {
    fn weight(&self) -> usize {
        self.chosen.weight() + self.why.weight()
    }
}

impl Weigh for wit_policy::Interest {
    fn weight(&self) -> usize {
        self.kind.weight() + self.wants.weight()
    }
}

impl Weigh for wit_policy::Verdict {
    fn weight(&self) -> usize {
        1 + self.reasons.weight() + self.valid_for.weight()
    }
}

/// An object that stands for one in a trial call.
pub(crate) fn stand_in(kind: &str) -> Object {
    let json = serde_json::json!({
        "apiVersion": "management.loft.sh/v1", "kind": kind,
        "metadata": { "name": "trial", "namespace": "trial", "uid": "" }, "spec": {},
    });
    Object {
        api_version: "management.loft.sh/v1".to_owned(),
        kind: kind.to_owned(),
        namespace: Some("trial".to_owned()),
        name: "trial".to_owned(),
        uid: String::new(),
        json: Arc::new(json),
    }
}
