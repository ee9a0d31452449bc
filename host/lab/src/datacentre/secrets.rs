//! The BMC Secrets: those with Metal3's label from a watch, any other one by asking for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

use super::Key;
use crate::bmh::{self, ENVIRONMENT, ENVIRONMENT_LABEL, Host, SECRET_FINALIZER};

/// What is known of them.
pub(super) struct Secrets {
    client: Client,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    labelled: HashMap<Key, Secret>,
    listed: Option<HashSet<Key>>,
}

impl Secrets {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    pub(super) fn list_begins(&self) {
        self.lock().listed = Some(HashSet::new());
    }

    /// Takes a Secret in; names it when that was news.
    pub(super) fn seen(&self, secret: Secret) -> Option<Key> {
        let mut known = self.lock();
        let key = key(&secret);
        if let Some(listed) = &mut known.listed {
            listed.insert(key.clone());
        }
        if known
            .labelled
            .get(&key)
            .is_some_and(|before| !is_newer(&secret.metadata, &before.metadata))
        {
            return None;
        }
        known.labelled.insert(key.clone(), secret);
        Some(key)
    }

    pub(super) fn gone(&self, secret: &Secret) -> Option<Key> {
        let key = key(secret);
        self.lock().labelled.remove(&key).map(|_| key)
    }

    /// Forgets what a complete list did not have, and names it.
    pub(super) fn list_ends(&self) -> Vec<Key> {
        let mut known = self.lock();
        let listed = known.listed.take().unwrap_or_default();
        let gone: Vec<Key> = known
            .labelled
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        for key in &gone {
            known.labelled.remove(key);
        }
        gone
    }

    /// The BMC Secret of a host.
    pub(super) async fn of(&self, host: &Host) -> Result<Option<Secret>, kube::Error> {
        let name = host.credentials_name();
        if name.is_empty() {
            return Ok(None);
        }
        let key = (host.namespace().to_owned(), name.to_owned());
        let labelled = self.lock().labelled.get(&key).cloned();
        match labelled {
            Some(secret) => Ok(Some(secret)),
            None => self.api(&key.0).get_opt(name).await,
        }
    }

    /// Puts Metal3's label, this host as an owner, and the finalizer on a BMC Secret.
    pub(super) async fn claim(&self, host: &Host, mut secret: Secret) -> Result<(), kube::Error> {
        secret
            .labels_mut()
            .insert(ENVIRONMENT_LABEL.to_owned(), ENVIRONMENT.to_owned());
        let uid = host.meta.uid.clone().unwrap_or_default();
        let owners = secret.metadata.owner_references.get_or_insert_default();
        owners.retain(|owner| owner.uid != uid);
        owners.push(OwnerReference {
            api_version: "metal3.io/v1alpha1".to_owned(),
            kind: "BareMetalHost".to_owned(),
            name: host.name().to_owned(),
            uid,
            ..OwnerReference::default()
        });
        // A Secret that is being deleted takes no new finalizer.
        if secret.metadata.deletion_timestamp.is_none() && !held(&secret) {
            secret.finalizers_mut().push(SECRET_FINALIZER.to_owned());
        }
        self.replace(&secret).await
    }

    /// Takes the finalizer off.
    pub(super) async fn release(&self, mut secret: Secret) -> Result<(), kube::Error> {
        secret.finalizers_mut().retain(|one| one != SECRET_FINALIZER);
        self.replace(&secret).await
    }

    async fn replace(&self, secret: &Secret) -> Result<(), kube::Error> {
        let api = self.api(secret.metadata.namespace.as_deref().unwrap_or_default());
        let replaced = api
            .replace(&secret.name_any(), &PostParams::default(), secret)
            .await?;
        self.seen(replaced);
        Ok(())
    }

    fn api(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the pure machine needs to know of a Secret.
pub(super) fn digest(secret: &Secret, host: &Host) -> bmh::Secret {
    let has = |key: &str| {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .is_some_and(|value| !value.0.is_empty())
    };
    let owner = secret
        .owner_references()
        .iter()
        .find(|owner| Some(&owner.uid) == host.meta.uid.as_ref());
    let labelled = secret.labels().contains_key(ENVIRONMENT_LABEL);
    bmh::Secret {
        version: secret.resource_version().unwrap_or_default(),
        username: has("username"),
        password: has("password"),
        owned: labelled && owner.is_some_and(|owner| owner.controller != Some(true)),
        held: held(secret),
        going: secret.metadata.deletion_timestamp.is_some(),
    }
}

fn held(secret: &Secret) -> bool {
    secret.finalizers().iter().any(|one| one == SECRET_FINALIZER)
}

/// Whether one version of an object is newer than another. Versions are numbers that grow; one that is none counts as newer.
pub(super) fn is_newer(one: &kube::core::ObjectMeta, other: &kube::core::ObjectMeta) -> bool {
    let number = |meta: &kube::core::ObjectMeta| meta.resource_version.as_deref()?.parse::<u64>().ok();
    match (number(one), number(other)) {
        (Some(newer), Some(older)) if one.uid == other.uid => newer > older,
        _ => true,
    }
}

fn key(secret: &Secret) -> Key {
    (secret.namespace().unwrap_or_default(), secret.name_any())
}
