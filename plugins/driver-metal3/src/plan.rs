//! What must be true on the host of an order: taken, installed, running; and on the way back, clean.
//!
//! The marks of a taken host are its consumerRef and its userData. A host that carries neither is not ours to touch, whatever the order
//! says; a host that carries either is ours until Metal3 has cleaned it.

use hostler_sdk::driver::{Availability, Identity, Order, Outcome, Plan, Preparation};
use hostler_sdk::{Failure, Object, Reason};
use serde_json::{Value, json};

use crate::availability::availability;
use crate::bmh::{Host, NODE_CLAIM, State};
use crate::config::Config;
use crate::describe::SERVER_NAME;
use crate::{image, network};

/// Metal3 tries again by itself; after so many failures another machine is the better try.
const ENOUGH_FAILURES: i64 = 3;
/// The memo of an order whose machine has run: from then on an empty machine means a lost one.
const HAS_RUN: &str = "has-run";

pub(crate) fn prepare(order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
    let host = order
        .machine_in(seen)
        .map(Host::of)
        .ok_or_else(|| Failure::exhausted("MachineLost", "the host that was chosen no longer exists"))?;
    if let Some(pinned) = order
        .properties
        .get(SERVER_NAME)
        .filter(|name| *name != host.object.name)
    {
        let message = format!("{} was chosen, but the claim is pinned to {pinned}", host.title());
        return Err(Failure::exhausted("WrongServer", message));
    }
    image::of(order)?;
    let network = network::document(&host, &order.properties).map_err(Failure::Refused)?;
    Ok(Preparation {
        node_name: host.object.name.clone(),
        boot_namespace: host.namespace().to_owned(),
        network_data: Some(network.to_string()),
    })
}

pub(crate) fn provision(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
    let Some(host) = order.machine_in(seen).map(Host::of) else {
        return Ok(Plan::new(lost(
            "MachineLost",
            "the host of this claim no longer exists".to_owned(),
        )));
    };
    let secret = order.boot_secret.as_ref().ok_or_else(|| {
        Failure::broken(
            "NoBootData",
            format!("{} has nothing to boot with yet", host.title()),
        )
    })?;
    let image = image::of(order)?;
    if !is_held(&host, order) {
        // Not taken yet, so it must still be free: a host that became somebody's, or broke, since it was promised is left alone. One that
        // ran and bears no mark of ours at all was taken over.
        match availability(&Config::of(&order.provider)?, &host) {
            Availability::Free if order.memo.is_empty() => {}
            Availability::Free => {
                return Ok(Plan::new(lost(
                    "MachineWiped",
                    format!("{} was emptied and freed by somebody else", host.title()),
                )));
            }
            Availability::Held(reason) | Availability::Preparing(reason) | Availability::Broken(reason) => {
                return Ok(Plan::new(Outcome::Lost(Reason {
                    code: "MachineTaken".to_owned(),
                    ..reason
                })));
            }
        }
    }
    let boot = json!({"name": secret.name, "namespace": secret.namespace});
    let patch = json!({
        "metadata": {"labels": {NODE_CLAIM: label(&order.claim.name)}},
        "spec": {
            "consumerRef": consumer(order),
            "image": image,
            "userData": boot,
            "networkData": boot,
            "online": true,
        },
    });
    let outcome = progress(order, &host, &image);
    let has_run = matches!(outcome, Outcome::Ready(_)) || order.memo == HAS_RUN;
    let mut plan = Plan::new(outcome).borrowing(host.object.reference(), patch);
    plan.memo = if has_run { HAS_RUN } else { "" }.to_owned();
    Ok(plan)
}

/// How far a host is that we have asked, or are about to ask, to run `image`.
fn progress(order: &Order, host: &Host<'_>, image: &Value) -> Outcome {
    let title = host.title();
    let has_run = order.memo == HAS_RUN;
    if host.is_being_deleted() {
        return lost("MachineLost", format!("{title} is being deleted"));
    }
    if host.state() == State::ExternallyProvisioned
        || host.object.at("/spec/externallyProvisioned") == Some(&json!(true))
    {
        return lost(
            "MachineTaken",
            format!("{title} was declared externally provisioned"),
        );
    }
    let installed = host.text("/status/provisioning/image/url");
    let is_installed = installed.is_some() && installed == image["url"].as_str();
    let is_ordered = is_ordered(host, image);
    match host.state() {
        // Before anything that keeps Metal3 busy: a machine that runs goes on running while its BMC is away or Metal3 is paused.
        State::Provisioned if is_installed && is_ordered && host.is_powered_on() && host.is_online() => {
            return Outcome::Ready(Identity {
                provider_id: Some(format!(
                    "metal3://{}/{}/{}",
                    host.namespace(),
                    host.object.name,
                    host.object.uid
                )),
                addresses: network::address(host).into_iter().collect(),
            });
        }
        State::Provisioned if !is_installed && is_ordered && host.is_observed() => {
            return lost(
                "ImageReplaced",
                format!(
                    "{title} was given another image, {}",
                    installed.unwrap_or("unknown")
                ),
            );
        }
        // Metal3 empties a host that has run only when somebody took or changed its image: the node is gone.
        State::Deprovisioning | State::Provisioning | State::Preparing | State::Available if has_run => {
            return lost(
                "MachineWiped",
                format!("{title} was emptied after it had been handed over"),
            );
        }
        _ => {}
    }
    if let Some(reason) = standing_still(host) {
        return working(reason);
    }
    if let Some((kind, message)) = host.error() {
        let text = format!("{title} has a {kind}: {message}");
        // A machine that has run is never given up for an error: it may well be running still.
        let given_up = !has_run && host.failed_provisionings() >= ENOUGH_FAILURES;
        return if given_up {
            lost("ProvisioningFailed", text)
        } else {
            Outcome::working("HostError", text)
        };
    }
    match host.state() {
        State::Available if host.operational() == Some("delayed") => Outcome::working(
            "Delayed",
            format!("{title} waits, Metal3 is installing as many hosts as it may"),
        ),
        State::Available if host.is_loaded() => {
            Outcome::working("Taken", format!("{title} is taken, Metal3 has yet to start"))
        }
        State::Available => Outcome::working("Taking", format!("{title} is being taken")),
        State::Provisioning => {
            Outcome::working("Provisioning", format!("the image is being written to {title}"))
        }
        State::Provisioned if !is_installed => {
            Outcome::working("Unobserved", format!("Metal3 has yet to look at {title}"))
        }
        State::Provisioned if !is_ordered => Outcome::working(
            "ImageChanged",
            format!("the image of {title} was changed by somebody else, it is put back"),
        ),
        State::Provisioned => match host.kept_off_by() {
            Some(key) => Outcome::working("KeptOff", format!("{title} is kept off by its annotation {key}")),
            None => Outcome::working(
                "PoweringOn",
                format!("{title} has its image and is being powered on"),
            ),
        },
        State::Deprovisioning => {
            Outcome::working("Retrying", format!("{title} is emptied before the next try"))
        }
        _ => Outcome::working("Waiting", format!("{title} is {}", host.state_word())),
    }
}

pub(crate) fn release(order: &Order, seen: &[Object]) -> Plan {
    let gone = || Plan::new(Outcome::Gone);
    let Some(host) = order.machine_in(seen).map(Host::of) else {
        return gone();
    };
    // Metal3 cleans a host that is being deleted by itself, and a newcomer of its name is another machine.
    if host.is_being_deleted() || !is_held(&host, order) {
        return gone();
    }
    let boot_data = ["/spec/userData", "/spec/networkData", "/spec/metaData"];
    if host.is_clean() && boot_data.iter().all(|place| host.set(place).is_none()) {
        return gone();
    }
    let mut patch = json!({
        "metadata": {"labels": {NODE_CLAIM: label(&order.claim.name)}},
        "spec": {
            "image": null,
            "customDeploy": null,
            "userData": null,
            "networkData": null,
            "metaData": null,
            "online": false,
        },
    });
    // Stays until the host is clean: whoever looks must see that it is not free. Another's reference says so, too, and is theirs.
    if host.set("/spec/consumerRef").is_none() || is_consumed(&host, order) {
        patch["spec"]["consumerRef"] = consumer(order);
    }
    Plan::new(way_back(&host)).borrowing(host.object.reference(), patch)
}

fn way_back(host: &Host<'_>) -> Outcome {
    let title = host.title();
    if let Some(reason) = standing_still(host) {
        return working(reason);
    }
    if let Some((kind, message)) = host.error() {
        return Outcome::working(
            "HostError",
            format!("{title} cannot be cleaned, it has a {kind}: {message}"),
        );
    }
    match host.state() {
        State::Deprovisioning => Outcome::working("Cleaning", format!("{title} is being cleaned")),
        State::Available if !host.is_loaded() && host.is_observed() && !host.is_settled() => {
            Outcome::working(
                "PoweringOff",
                format!("{title} is clean and is being powered off"),
            )
        }
        _ => Outcome::working(
            "Releasing",
            format!(
                "{title} is {}, Metal3 has yet to start cleaning",
                host.state_word()
            ),
        ),
    }
}

/// What keeps Metal3 from doing anything at all.
fn standing_still(host: &Host<'_>) -> Option<Reason> {
    let title = host.title();
    if host.is_paused() {
        Some(Reason::new(
            "Paused",
            format!("{title} is paused, remove its annotation baremetalhost.metal3.io/paused"),
        ))
    } else if host.is_detached() {
        Some(Reason::new(
            "Detached",
            format!("{title} is detached, remove its annotation baremetalhost.metal3.io/detached"),
        ))
    } else {
        None
    }
}

fn consumer(order: &Order) -> Value {
    let claim = &order.claim;
    json!({"apiVersion": claim.api_version, "kind": claim.kind, "name": claim.name, "namespace": claim.namespace})
}

/// Taken for this order: by its marks, or by the record of the loan, which outlives marks that somebody took off by hand.
fn is_held(host: &Host<'_>, order: &Order) -> bool {
    let secret = order.boot_secret.as_ref().map(|secret| secret.name.as_str());
    let boots = secret.is_some() && host.text("/spec/userData/name") == secret;
    let uid = &order.claim.uid;
    let record = host.object.annotation("hostler.dev/loan");
    is_consumed(host, order)
        || boots
        || !uid.is_empty() && record.is_some_and(|record| record.contains(uid.as_str()))
}

fn is_consumed(host: &Host<'_>, order: &Order) -> bool {
    let claim = &order.claim;
    host.text("/spec/consumerRef/name") == Some(&claim.name)
        && host.text("/spec/consumerRef/namespace") == claim.namespace.as_deref()
        && host.text("/spec/consumerRef/kind") == Some(&claim.kind)
}

/// The host was told to run `image`. What a server filled in beside it does not matter.
fn is_ordered(host: &Host<'_>, image: &Value) -> bool {
    let ordered = image.as_object().into_iter().flatten();
    let spec = host.set("/spec/image");
    ordered
        .into_iter()
        .all(|(key, value)| spec.and_then(|spec| spec.get(key)) == Some(value))
}

/// Claims may have longer names than labels have values.
fn label(name: &str) -> &str {
    let end = name.len().min(63);
    name.get(..end)
        .unwrap_or_default()
        .trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
}

fn lost(code: &str, message: String) -> Outcome {
    Outcome::Lost(Reason::new(code, message))
}

fn working(reason: Reason) -> Outcome {
    Outcome::working(&reason.code, reason.message)
}
