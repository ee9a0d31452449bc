//! What a driver's answer may touch: grant ∩ what `describe` asked ∩ the namespaces that the provider names, and of machines
//! only the order's own.
//!
//! # Guarantees
//! One thing out of scope rejects the whole answer: a judged plan is all or nothing, and the judging itself writes nothing.

mod asked;
mod secrets;
#[cfg(test)]
mod tests;
mod workload;

use hostler_api::names::{CLAIM_NAME, CLAIM_UID, INSTALLATION};
use serde_json::{Map, Value, json};

use crate::grant::{Grant, KindGrant, is_never_granted};
use crate::loan::{Holder, Phase, is_protected, leaves};
use crate::seams::{Access, KindUse, ObjectRef, Order, Outcome, Plan};
use crate::view;

pub use asked::{asked, is_granted};

/// Most bytes that a driver may leave for its next call: they live in the claim's status.
pub const LONGEST_MEMO: usize = 16 << 10;

/// Reason of every refusal here.
pub const CODE: &str = "DriverOutOfScope";

/// What an answer is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// What the operator lets the component do.
    pub grant: &'a Grant,
    /// What `describe` said that it uses, as frozen with the order.
    pub uses: &'a [KindUse],
    /// The order.
    pub order: &'a Order,
    /// uid of the order's machine.
    pub machine_uid: Option<&'a str>,
    /// Who borrows and owns.
    pub holder: &'a Holder,
    /// Which call was answered.
    pub phase: Phase,
}

/// The first thing in an answer that is out of scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver's answer was rejected as a whole: {item}: {why}")]
pub struct OutOfScope {
    /// What it is.
    pub item: String,
    /// Why it is not allowed, and what would allow it, if anything.
    pub why: String,
}

/// Checks a whole answer; `seen` are the live objects that it was made from.
///
/// # Errors
/// The first item out of scope, by name.
pub fn judge(plan: &Plan, scope: &Scope<'_>, seen: &[&Value]) -> Result<(), OutOfScope> {
    if plan.memo.len() > LONGEST_MEMO {
        return Err(out(
            "memo",
            format!("has {} bytes; at most {LONGEST_MEMO} are kept", plan.memo.len()),
        ));
    }
    scope.outcome(&plan.outcome)?;
    for loan in &plan.loans {
        scope.loan(&loan.target, &loan.patch, seen)?;
    }
    let made: Vec<ObjectRef> = plan.owned.iter().filter_map(view::reference).collect();
    for (index, owned) in plan.owned.iter().enumerate() {
        let reference = view::reference(owned).filter(|reference| !reference.name.is_empty());
        let reference = reference.ok_or_else(|| {
            out(
                &format!("owned[{index}]"),
                "has no apiVersion, kind or metadata.name",
            )
        })?;
        if made.iter().filter(|other| **other == reference).count() > 1 {
            return Err(out(&name(&reference), "is listed twice"));
        }
        scope.owned(owned, &reference, &made)?;
    }
    for want in &plan.wants {
        scope.granted(want, Access::Read)?;
    }
    Ok(())
}

/// An owned object as the host writes it: with the claim's labels, and the ServiceAccount of the grant where it runs something.
#[must_use]
pub fn stamped(owned: &Value, grant: &Grant, holder: &Holder) -> Value {
    let mut object = owned.clone();
    let account = view::reference(owned).and_then(|reference| {
        let namespace = reference.namespace.unwrap_or_default();
        grant
            .of(&reference.api_version, &reference.kind, &namespace)?
            .service_account
            .clone()
    });
    if let Some(account) = account {
        workload::run_as(&mut object, &account);
    }
    if let Some(map) = object.as_object_mut() {
        map.shift_remove("status");
    }
    let labels = [
        (CLAIM_UID, holder.claim.uid.as_str()),
        (CLAIM_NAME, holder.claim.name.as_str()),
        (INSTALLATION, holder.installation.as_str()),
    ];
    let metadata = object
        .as_object_mut()
        .and_then(|map| map.get_mut("metadata"))
        .and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        let map = metadata
            .entry("labels")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Some(map) = map.as_object_mut() {
            map.extend(
                labels
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), json!(value))),
            );
        }
    }
    object
}

/// Whether the provider's own part of the spec names this namespace: another one is nothing that the operator pointed the driver at.
#[must_use]
pub fn provider_names(provider: &Value, namespace: &str) -> bool {
    fn says(value: &Value, text: &str) -> bool {
        match value {
            Value::String(found) => found == text,
            Value::Array(list) => list.iter().any(|value| says(value, text)),
            Value::Object(map) => map.values().any(|value| says(value, text)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    provider
        .get("spec")
        .and_then(Value::as_object)
        .is_some_and(|spec| {
            spec.iter().any(|(key, value)| {
                !matches!(key.as_str(), "displayName" | "properties") && says(value, namespace)
            })
        })
}

impl Scope<'_> {
    fn outcome(&self, outcome: &Outcome) -> Result<(), OutOfScope> {
        let (word, only) = match outcome {
            Outcome::Working(_) => return Ok(()),
            Outcome::Ready(_) => ("ready", Phase::Provision),
            Outcome::Lost(_) => ("lost", Phase::Provision),
            Outcome::Gone => ("gone", Phase::Release),
        };
        if only == self.phase {
            return Ok(());
        }
        let call = if self.phase == Phase::Provision {
            "provision"
        } else {
            "release"
        };
        Err(out("outcome", format!("{word:?} is no answer to {call}")))
    }

    fn loan(&self, target: &ObjectRef, patch: &Value, seen: &[&Value]) -> Result<(), OutOfScope> {
        let item = format!("loan on {}", name(target));
        if self.order.machine.as_ref() != Some(target) {
            return Err(out(&item, "is not the machine of this order"));
        }
        let granted = self.granted(target, Access::BorrowFields)?;
        let live = seen
            .iter()
            .find(|object| view::reference(object).as_ref() == Some(target));
        let uid = live
            .and_then(|object| object.pointer("/metadata/uid"))
            .and_then(Value::as_str);
        if uid.is_none() || uid != self.machine_uid {
            return Err(out(&item, "is no longer the object that the claim was bound to"));
        }
        for (place, _) in leaves(live.unwrap_or(&&Value::Null), patch) {
            if is_protected(&place) {
                return Err(out(&item, format!("{place} can never be borrowed")));
            }
            if !granted.lends(&place.to_string()) {
                return Err(out(
                    &item,
                    format!("{place} is not granted; list it in `places` of the operator's file"),
                ));
            }
        }
        secrets::references(patch, &mut |secret| {
            self.boot_secret(&item, secret, target.namespace.as_deref(), &[])
        })
    }

    fn owned(&self, owned: &Value, reference: &ObjectRef, made: &[ObjectRef]) -> Result<(), OutOfScope> {
        let item = name(reference);
        let granted = self.granted(reference, Access::Manage)?;
        if !is_dns_name(&reference.name) {
            return Err(out(&item, "has a name that is no DNS name"));
        }
        let metadata = owned.get("metadata").and_then(Value::as_object);
        for key in metadata.into_iter().flat_map(Map::keys) {
            if !matches!(key.as_str(), "name" | "namespace" | "labels" | "annotations") {
                return Err(out(
                    &item,
                    format!("sets metadata.{key}, which is the host's or the API server's"),
                ));
            }
        }
        let label = |key: &str| owned.get("metadata")?.get("labels")?.get(key)?.as_str();
        if label(CLAIM_UID).is_some_and(|uid| uid != self.holder.claim.uid) {
            return Err(out(&item, "carries the uid of another claim"));
        }
        if reference.kind == "Secret"
            && owned
                .get("type")
                .and_then(Value::as_str)
                .is_some_and(|kind| kind != "Opaque")
        {
            return Err(out(
                &item,
                "is a Secret of a type that other parts of Kubernetes act on; only Opaque ones can be owned",
            ));
        }
        if workload::runs(owned) {
            let bound = granted
                .namespaces
                .iter()
                .any(|one| Some(one.as_str()) == reference.namespace.as_deref());
            if !bound || granted.service_account.is_none() {
                return Err(out(
                    &item,
                    "runs something; name its namespace and a serviceAccount in the operator's file",
                ));
            }
        }
        secrets::references(owned, &mut |secret| {
            self.boot_secret(&item, secret, reference.namespace.as_deref(), made)
        })
    }

    /// The grant of an object, if all three sides agree.
    fn granted(&self, object: &ObjectRef, access: Access) -> Result<&KindGrant, OutOfScope> {
        let item = name(object);
        if is_never_granted(&object.api_version, &object.kind) {
            return Err(out(&item, "is of a kind that no driver may touch"));
        }
        let namespace = object.namespace.as_deref().unwrap_or_default();
        if namespace.is_empty() {
            return Err(out(&item, "has no namespace"));
        }
        let asked = self.uses.iter().any(|used| {
            used.api_version == object.api_version
                && used.kind == object.kind
                && used.namespace == namespace
                && allows(used.access, access)
        });
        if !asked {
            return Err(out(
                &item,
                format!(
                    "was not asked for ({}) when the provider was described",
                    word(access)
                ),
            ));
        }
        if !provider_names(&self.order.provider.json, namespace) {
            return Err(out(
                &item,
                format!(
                    "is in namespace {namespace}, which provider {} does not name",
                    self.order.provider.name
                ),
            ));
        }
        let granted = self.grant.of(&object.api_version, &object.kind, namespace);
        granted
            .filter(|granted| allows(granted.access, access))
            .ok_or_else(|| {
                out(
                    &item,
                    format!(
                        "is not granted; add the kind with access = {:?} to the operator's file",
                        word(access)
                    ),
                )
            })
    }

    /// A Secret that an object points at must be the order's boot Secret, or one that the same answer makes.
    fn boot_secret(
        &self,
        item: &str,
        secret: secrets::Reference<'_>,
        home: Option<&str>,
        made: &[ObjectRef],
    ) -> Result<(), OutOfScope> {
        let namespace = secret.namespace.or(home);
        let is_boot = self.order.boot_secret.as_ref().is_some_and(|boot| {
            secret.name.is_none_or(|name| name == boot.name) && namespace == boot.namespace.as_deref()
        });
        let is_made = made.iter().any(|object| {
            object.kind == "Secret"
                && secret.name == Some(object.name.as_str())
                && namespace == object.namespace.as_deref()
        });
        if is_boot || is_made {
            return Ok(());
        }
        Err(out(
            item,
            format!("{} points at a Secret that is not this order's", secret.path),
        ))
    }
}

fn allows(has: Access, needs: Access) -> bool {
    match needs {
        Access::Read => true,
        Access::BorrowFields | Access::Manage => has == needs,
    }
}

fn word(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::BorrowFields => "borrow-fields",
        Access::Manage => "manage",
    }
}

fn name(object: &ObjectRef) -> String {
    match &object.namespace {
        Some(namespace) => format!("{} {namespace}/{}", object.kind, object.name),
        None => format!("{} {}", object.kind, object.name),
    }
}

fn out(item: &str, why: impl Into<String>) -> OutOfScope {
    OutOfScope {
        item: item.to_owned(),
        why: why.into(),
    }
}

/// A DNS subdomain, as Kubernetes names most objects.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}
