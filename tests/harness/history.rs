//! Every version of hosts and claims there ever was, and what must hold of each: one machine a claim, one claim a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use hostler_api as api;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use super::{World, eventually};

/// The loan on a host, if it is lent: to whom, and what is said to have stood in each place.
type Loan = Option<(String, Vec<(String, Option<Value>)>)>;

#[derive(Default)]
struct Seen {
    /// Loans that stand, by the host's uid.
    standing: BTreeMap<String, String>,
    /// The last version of each host.
    versions: BTreeMap<String, String>,
    /// Loans that ever stood: uid of the host, uid of the claim.
    loans: BTreeSet<(String, String)>,
    /// Claims that ever were: uid and name.
    claims: BTreeMap<String, String>,
    /// Machines that claims name, by the claim's uid.
    named: BTreeMap<String, String>,
    /// Machines that two claims named at a time.
    shared: Vec<String>,
    /// What must not be.
    wrong: Vec<String>,
    lists: usize,
}

/// Watches as long as it is kept.
pub(crate) struct History {
    seen: Arc<Mutex<Seen>>,
    _hosts: AbortOnDropHandle<()>,
    _claims: AbortOnDropHandle<()>,
}

impl History {
    /// Begins to watch; before anything is lent.
    pub(crate) fn of(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let hosts = Api::<DynamicObject>::all_with(client.clone(), &hostler_lab::crds::bare_metal_hosts());
        let hosts = kube::runtime::watcher(hosts, watcher::Config::default()).default_backoff();
        let claims = Api::<api::NodeClaim>::all(client.clone());
        let claims = kube::runtime::watcher(claims, watcher::Config::default()).default_backoff();
        let (of_hosts, of_claims) = (seen.clone(), seen.clone());
        let hosts = tokio::spawn(hosts.for_each(move |event| {
            of_hosts.lock().unwrap().host(event);
            std::future::ready(())
        }));
        let claims = tokio::spawn(claims.for_each(move |event| {
            of_claims.lock().unwrap().claim(event);
            std::future::ready(())
        }));
        Self {
            seen,
            _hosts: AbortOnDropHandle::new(hosts),
            _claims: AbortOnDropHandle::new(claims),
        }
    }

    /// Everything up to now was seen, and nothing of it was wrong.
    pub(crate) async fn is_clean(&self, world: &World) {
        eventually("the history is complete", || async {
            let now = world
                .hosts()
                .list(&ListParams::default())
                .await
                .map_err(|error| error.to_string())?;
            let seen = self.seen.lock().unwrap();
            let missing = now.iter().find(|host| {
                seen.versions.get(&host.uid().unwrap_or_default()) != host.resource_version().as_ref()
            });
            missing.map_or(Ok(()), |host| {
                Err(format!("{} at {:?}", host.name_any(), host.resource_version()))
            })
        })
        .await;
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.wrong, [""; 0]);
        assert_eq!(seen.lists, 1, "a broken watch saw only a part");
    }

    /// No two claims ever named one machine.
    pub(crate) fn names_are_exclusive(&self) {
        assert_eq!(self.seen.lock().unwrap().shared, [""; 0]);
    }

    /// Names of all claims that ever were, one for each uid.
    pub(crate) fn claims(&self) -> Vec<String> {
        self.seen.lock().unwrap().claims.values().cloned().collect()
    }

    /// uids of the claims that a host (by uid) was ever lent to.
    pub(crate) fn borrowers(&self, host: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.loans
            .iter()
            .filter(|(lent, _)| lent == host)
            .map(|(_, claim)| claim.clone())
            .collect()
    }
}

impl Seen {
    fn host(&mut self, event: Result<Event<DynamicObject>, watcher::Error>) {
        match event {
            Ok(Event::Init) => self.lists += 1,
            Ok(Event::InitApply(host) | Event::Apply(host)) => self.version(&host),
            Ok(Event::Delete(host)) => {
                self.standing.remove(&host.uid().unwrap_or_default());
            }
            Ok(Event::InitDone) => {}
            Err(error) => self.wrong.push(format!("the watch of hosts broke: {error}")),
        }
    }

    fn version(&mut self, host: &DynamicObject) {
        let (name, uid) = (host.name_any(), host.uid().unwrap_or_default());
        self.versions
            .insert(uid.clone(), host.resource_version().unwrap_or_default());
        let loan = match loan_of(host) {
            Ok(loan) => loan,
            Err(why) => return self.wrong.push(format!("{name}: {why}")),
        };
        let Some((claim, stood)) = loan else {
            self.standing.remove(&uid);
            return;
        };
        for (place, was) in stood {
            // Hosts of these worlds are registered empty: whatever is said to have stood here would be our own.
            let is_empty = was
                .as_ref()
                .is_none_or(|was| was.is_null() || *was == Value::Bool(false));
            if place.starts_with("/spec/") && !is_empty {
                self.wrong
                    .push(format!("{name}: {was:?} is recorded as what stood at {place}"));
            }
        }
        self.loans.insert((uid.clone(), claim.clone()));
        for (other, holder) in &self.standing {
            if *holder == claim && *other != uid {
                self.wrong.push(format!(
                    "claim {claim} holds {name} and the host with uid {other}"
                ));
            }
        }
        let before = self.standing.insert(uid, claim.clone());
        if let Some(before) = before.filter(|before| *before != claim) {
            self.wrong.push(format!(
                "{name} went from claim {before} to {claim} without being free"
            ));
        }
    }

    fn claim(&mut self, event: Result<Event<api::NodeClaim>, watcher::Error>) {
        match event {
            Ok(Event::InitApply(claim) | Event::Apply(claim)) => {
                let uid = claim.uid().unwrap_or_default();
                self.claims.insert(uid.clone(), claim.name_any());
                let machine = claim.status.and_then(|status| status.machine?.uid);
                let Some(machine) = machine else {
                    self.named.remove(&uid);
                    return;
                };
                if let Some((other, _)) = self
                    .named
                    .iter()
                    .find(|(other, named)| **other != uid && **named == machine)
                {
                    self.shared
                        .push(format!("claims {other} and {uid} both name {machine}"));
                }
                self.named.insert(uid, machine);
            }
            Ok(Event::Delete(claim)) => {
                self.named.remove(&claim.uid().unwrap_or_default());
            }
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => self.wrong.push(format!("the watch of claims broke: {error}")),
        }
    }
}

fn loan_of(host: &DynamicObject) -> Result<Loan, String> {
    let Some(text) = host.annotations().get(api::names::LOAN) else {
        return Ok(None);
    };
    let record: Value =
        serde_json::from_str(text).map_err(|error| format!("a loan that cannot be read: {error}"))?;
    let claim = record["claim"]["uid"]
        .as_str()
        .filter(|uid| !uid.is_empty())
        .ok_or("a loan to nobody")?;
    let places = record["places"].as_array().into_iter().flatten();
    let stood = places
        .filter(|place| place["by"] == "provision")
        .map(|place| {
            (
                place["path"].as_str().unwrap_or_default().to_owned(),
                place.get("was").cloned(),
            )
        })
        .collect();
    Ok(Some((claim.to_owned(), stood)))
}
