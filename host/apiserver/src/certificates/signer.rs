//! Signs approved certificate requests of one logical cluster, as the real controller manager does.
//!
//! # Guarantees
//! A request that is not approved, or is denied or failed, is never signed.
//! A node's certificate says exactly `O=system:nodes` and one `CN`, whatever else the request asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{CLIENT_SIGNER, NODE_SIGNER, Request};
use crate::authenticate::{NODE_PREFIX, NODES};
use crate::clock::Clock;
use crate::tls::{Authority, BACKDATE, Wanted};

/// Life of a certificate for which no shorter one was asked.
const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// The shortest life: twice the backdating.
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);

/// Certificates that live shorter than this end as late as was asked, although they begin earlier.
const SHORT: SignedDuration = SignedDuration::from_hours(8);

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing now: not approved, not ours, or done.
    Leave,
    /// This certificate.
    Sign(String),
    /// It can never be signed, for this reason.
    Fail(String),
}

/// Decides on one request.
pub(super) fn decide(authority: &Authority, request: &CertificateSigningRequest, now: Timestamp) -> Decision {
    let spec = &request.spec;
    let status = request.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let has = |kind: &str| {
        conditions
            .iter()
            .any(|condition| condition.type_ == kind && condition.status == "True")
    };
    let is_done = status
        .and_then(|status| status.certificate.as_ref())
        .is_some_and(|bytes| !bytes.0.is_empty());
    let is_ours = [NODE_SIGNER, CLIENT_SIGNER].contains(&spec.signer_name.as_str());
    if !is_ours || is_done || !has("Approved") || has("Denied") || has("Failed") {
        return Decision::Leave;
    }
    let encoded = serde_json::to_value(&spec.request).unwrap_or_default();
    let usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    let life = spec
        .expiration_seconds
        .map(|seconds| SignedDuration::from_secs(seconds.into()));
    match certificate(authority, &encoded, &spec.signer_name, &usages, life, now) {
        Ok(certificate) => Decision::Sign(certificate),
        Err(why) => Decision::Fail(why),
    }
}

fn certificate(
    authority: &Authority,
    encoded: &Value,
    signer: &str,
    usages: &[&str],
    life: Option<SignedDuration>,
    now: Timestamp,
) -> Result<String, String> {
    let request = Request::parse(encoded)?;
    if signer == NODE_SIGNER {
        check_node(&request, usages)?;
    } else {
        check_client(&request, usages)?;
    }
    let life = life.map_or(LIFE, |life| life.clamp(SHORTEST, LIFE));
    let until = if life < SHORT {
        now + life
    } else {
        now + life - BACKDATE
    };
    let mut key_usages = Vec::new();
    if usages.contains(&"digital signature") {
        key_usages.push(KeyUsagePurpose::DigitalSignature);
    }
    if usages.contains(&"key encipherment") {
        key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    let wanted = Wanted {
        organization: request.organizations.first().cloned(),
        names: request.names.clone(),
        usages: key_usages,
        purposes: vec![ExtendedKeyUsagePurpose::ClientAuth],
        from: now - BACKDATE,
        until: until.min(authority.not_after()),
        common_name: request.common_name.clone(),
    };
    authority
        .sign(wanted, request.key())
        .map_err(|error| error.to_string())
}

fn check_node(request: &Request, usages: &[&str]) -> Result<(), String> {
    if request.organizations != [NODES] {
        return Err("subject organization is not system:nodes".to_owned());
    }
    if let Some(name) = request.names.first() {
        let kind = match name {
            SanType::DnsName(_) => "DNS",
            SanType::Rfc822Name(_) => "Email",
            SanType::IpAddress(_) => "IP",
            _ => "URI",
        };
        return Err(format!("{kind} subjectAltNames are not allowed"));
    }
    if !request.common_name.starts_with(NODE_PREFIX) {
        return Err("subject common name does not begin with system:node:".to_owned());
    }
    let asked: BTreeSet<&str> = usages.iter().copied().collect();
    let without_encipherment: BTreeSet<&str> = asked
        .iter()
        .copied()
        .filter(|usage| *usage != "key encipherment")
        .collect();
    if without_encipherment != BTreeSet::from(["client auth", "digital signature"]) {
        return Err("usages did not match [client auth digital signature key encipherment]".to_owned());
    }
    Ok(())
}

fn check_client(request: &Request, usages: &[&str]) -> Result<(), String> {
    if request.organizations.len() > 1 {
        return Err("subject with more than one organization is not signed here; ask with one".to_owned());
    }
    let odd = usages
        .iter()
        .find(|usage| !["digital signature", "key encipherment", "client auth"].contains(usage));
    if let Some(odd) = odd {
        return Err(format!("invalid usage for client certificate: {odd}"));
    }
    if !usages.contains(&"client auth") {
        return Err("missing required usage for client certificate: client auth".to_owned());
    }
    Ok(())
}

/// The request with the decision in its status; `None` when there is nothing to write.
pub(super) fn decided(
    authority: &Authority,
    request: &CertificateSigningRequest,
    now: Timestamp,
) -> Option<CertificateSigningRequest> {
    let mut decided = request.clone();
    let status = decided
        .status
        .get_or_insert_with(CertificateSigningRequestStatus::default);
    match decide(authority, request, now) {
        Decision::Leave => return None,
        Decision::Sign(certificate) => status.certificate = Some(ByteString(certificate.into_bytes())),
        Decision::Fail(why) => {
            let time = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
            status
                .conditions
                .get_or_insert_with(Vec::new)
                .push(CertificateSigningRequestCondition {
                    type_: "Failed".to_owned(),
                    status: "True".to_owned(),
                    reason: Some("SignerValidationFailure".to_owned()),
                    message: Some(why),
                    last_update_time: time.clone(),
                    last_transition_time: time,
                });
        }
    }
    Some(decided)
}

/// Signs requests until it is stopped.
pub(crate) async fn run(client: Client, authority: Arc<Authority>, clock: Clock, stop: CancellationToken) {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let mut changes = watcher(requests.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .take_until(stop.cancelled_owned())
        .boxed();
    while let Some(change) = changes.next().await {
        let request = match change {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%error, "watching certificate requests");
                continue;
            }
        };
        let Some(decided) = decided(&authority, &request, clock()) else {
            continue;
        };
        let name = decided.metadata.name.clone().unwrap_or_default();
        // Someone who was faster sends us the newer request, and we look again.
        match requests
            .replace_status(&name, &PostParams::default(), &decided)
            .await
        {
            Ok(_) => tracing::info!(name, "certificate request decided"),
            Err(error) => tracing::warn!(name, %error, "writing the decision on a certificate request"),
        }
    }
}
