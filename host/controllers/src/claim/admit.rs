//! Lets a machine into its tenant before it exists there: the node's name, the token, and the boot data that carries it.

use std::collections::BTreeMap;

use hostler_api as api;
use hostler_api::claim::FrozenOrder;
use hostler_api::enrollment::NamedUid;
use hostler_api::names;
use hostler_core::boot::{self, Boot, Token};
use hostler_core::order;
use hostler_core::seams::Reason;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use super::{POLL, Turn};
use crate::control_plane::TenantApi;
use crate::error::{Error, Result};
use crate::patch::{self, Created};

impl Turn<'_> {
    /// Reserves the node's name and says by which token it will come.
    pub(super) async fn reserve(&mut self) -> Result<Action> {
        let frozen = self.frozen()?;
        self.confirm().await?;
        let node_name = self.status.node_name.clone().unwrap_or_default();
        let tenant = self.claim.spec.vcluster_ref.clone().unwrap_or_default();
        let enrollments = self.enrollments();
        let wanted = self.new_enrollment(&frozen, &tenant, &node_name);
        let name = wanted.name_any();
        let made = match patch::create(&enrollments, &wanted).await? {
            Created::New(made) => made,
            Created::Exists => {
                patch::within(format!("reading Enrollment {name}"), enrollments.get(&name)).await?
            }
        };
        let ours = made
            .spec
            .claim
            .as_ref()
            .is_some_and(|claim| claim.uid == self.uid());
        if !ours || made.meta().deletion_timestamp.is_some() {
            // The cache will show it, and the next turn decides.
            return Ok(Action::requeue(POLL));
        }
        let token = order::token_id(self.uid());
        let known = made.status.as_ref().and_then(|status| status.token_id.as_ref());
        if known != Some(&token) {
            let version = made.resource_version().unwrap_or_default();
            let status = json!({ "tokenId": token });
            let noted = patch::update_status(&enrollments, &name, &version, &status).await?;
            self.ctx.stores.enrollments.wrote(&noted);
        }
        // The enrollment's own event brings the next turn.
        Ok(Action::requeue(POLL * 5))
    }

    /// Makes the token and the boot Secret, and records the Secret's uid.
    pub(super) async fn admit(&mut self) -> Result<Action> {
        let frozen = self.frozen()?;
        let Some(tenant) = self.tenant(&frozen) else {
            let reason = Reason::new(
                "TenantOffline",
                "the tenant's API is not there yet; machines are ordered once they can join it",
            );
            self.provisioned_not_yet(&reason);
            return Ok(Action::requeue(POLL));
        };
        self.confirm().await?;
        let Some(boot_ref) = frozen.boot_secret.clone() else {
            return Err(Error::Bug(format!(
                "the order of NodeClaim {} names no boot Secret",
                self.name()
            )));
        };
        let namespace = boot_ref.object.namespace.clone().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(self.ctx.client.clone(), &namespace);
        let existing = self.secret(&secrets, &boot_ref.object.name).await?;
        let uid = match existing {
            Some(found) if self.is_ours(&found) => found.uid(),
            Some(_) => return Err(self.not_ours(&namespace, &boot_ref.object.name)),
            None => {
                let token = self.ensure_token(&frozen, &tenant).await?;
                let secret = self
                    .boot_secret(&frozen, &tenant, token, &namespace, &boot_ref.object.name)
                    .await?;
                match patch::create(&secrets, &secret).await? {
                    Created::New(made) => made.uid(),
                    // Whose it is, the next turn's read says: a host that led until now may have made it for this very claim.
                    Created::Exists => {
                        let name = &boot_ref.object.name;
                        return Err(Error::Busy(format!(
                            "Secret {namespace}/{name} appeared meanwhile"
                        )));
                    }
                }
            }
        };
        if let Some(boot) = self
            .status
            .order
            .as_mut()
            .and_then(|order| order.boot_secret.as_mut())
        {
            boot.uid = uid;
        }
        self.provisioned_not_yet(&Reason::new(
            "Ordering",
            "the boot data is written; the machine is ordered",
        ));
        Ok(Action::await_change())
    }

    /// Removes what `reserve` and `admit` made, boot data first; true once all of it is gone.
    pub(super) async fn remove_boot_data(&self, frozen: &FrozenOrder) -> Result<bool> {
        let mut gone = true;
        for secret in self.labelled_secrets(&self.ctx.client).await? {
            let secrets: Api<Secret> =
                Api::namespaced(self.ctx.client.clone(), &secret.namespace().unwrap_or_default());
            gone &= patch::delete(&secrets, &secret.name_any(), &secret.uid().unwrap_or_default()).await?;
        }
        match self.remove_token(frozen).await {
            Ok(removed) => gone &= removed,
            // Without its enrollment the token opens nothing, and it ends by itself: a dead tenant holds nobody up.
            Err(error) => tracing::debug!(claim = self.name(), error = %error, "a token is left to its end"),
        }
        let tenant = self.claim.spec.vcluster_ref.clone().unwrap_or_default();
        if let Some(node) = &self.status.node_name {
            let name = order::enrollment_name(&tenant, node);
            let enrollments = self.enrollments();
            let found =
                patch::within(format!("reading Enrollment {name}"), enrollments.get_opt(&name)).await?;
            let ours = found.filter(|one| {
                one.spec
                    .claim
                    .as_ref()
                    .is_some_and(|claim| claim.uid == self.uid())
            });
            if let Some(ours) = ours {
                gone &= patch::delete(&enrollments, &name, &ours.uid().unwrap_or_default()).await?;
            }
        }
        Ok(gone)
    }

    pub(super) async fn labelled_secrets(&self, client: &Client) -> Result<Vec<Secret>> {
        let all: Api<Secret> = Api::all(client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", names::CLAIM_UID, self.uid()));
        Ok(
            patch::within("listing Secrets of a claim".to_owned(), all.list(&ours))
                .await?
                .items,
        )
    }

    fn enrollments(&self) -> Api<api::Enrollment> {
        Api::namespaced(self.ctx.client.clone(), &self.namespace())
    }

    fn new_enrollment(&self, frozen: &FrozenOrder, tenant: &str, node_name: &str) -> api::Enrollment {
        let spec = api::EnrollmentSpec {
            tenant: NamedUid {
                name: tenant.to_owned(),
                uid: frozen.tenant_uid.clone().unwrap_or_default(),
            },
            node_name: node_name.to_owned(),
            claim: Some(NamedUid {
                name: self.name(),
                uid: self.uid().to_owned(),
            }),
        };
        let mut enrollment = api::Enrollment::new(&order::enrollment_name(tenant, node_name), spec);
        enrollment.metadata.namespace = Some(self.namespace());
        enrollment.metadata.labels = Some(self.labels());
        enrollment
    }

    pub(super) async fn secret(&self, secrets: &Api<Secret>, name: &str) -> Result<Option<Secret>> {
        patch::within(format!("reading Secret {name}"), secrets.get_opt(name)).await
    }

    async fn boot_secret(
        &self,
        frozen: &FrozenOrder,
        tenant: &TenantApi,
        token: Token,
        namespace: &str,
        name: &str,
    ) -> Result<Secret> {
        let driver = self.driver(frozen)?;
        let ordered = order::order(&self.claim, frozen);
        let shown = self.show(frozen, &ordered, false).await?;
        let preparation = driver.prepare(&ordered, &shown.objects()).await?;
        // As ordered: a later edit of the claim is drift and does not reach this machine.
        let spec: api::NodeClaimSpec =
            serde_json::from_value(frozen.claim.clone()).unwrap_or_else(|_| self.claim.spec.clone());
        let profile = self.profile(&spec);
        let boot = Boot {
            node_name: self.status.node_name.clone().unwrap_or_default(),
            server: tenant.join_server.clone(),
            ca_pem: tenant.ca_pem.clone(),
            token,
            ssh_keys: self.ssh_keys(frozen)?,
            labels: self.node_labels(&spec),
            taints: taints(&spec, profile.as_ref()),
            provider_id: None,
            kubelet_args: spec.kubelet_args,
        };
        let user_data = boot::user_data(&boot).map_err(|error| Error::Refused(error.to_string()))?;
        let mut data = vec![(boot::USER_DATA, user_data)];
        data.extend(preparation.network_data.map(|text| (boot::NETWORK_DATA, text)));
        Ok(secret(name, namespace, self.labels(), None, data))
    }

    /// The profile that the node will have, as far as it is known: its taints stand from the first moment.
    fn profile(&self, spec: &api::NodeClaimSpec) -> Option<api::NodeProfileSpec> {
        let chosen = self.status.profile.clone().and_then(|choice| choice.name);
        let remembered = || self.enrollment()?.status.as_ref()?.profile.as_ref()?.name.clone();
        let name = chosen.or_else(remembered).or_else(|| spec.profile_ref.clone())?;
        Some(self.ctx.stores.profiles.get(None, &name)?.spec.clone())
    }

    fn node_labels(&self, spec: &api::NodeClaimSpec) -> BTreeMap<String, String> {
        let mut labels = spec.node_labels.clone();
        if let Some(pool) = self.claim.labels().get(names::POOL) {
            labels.insert(names::POOL.to_owned(), pool.clone());
        }
        if let Some(profile) = &spec.profile_ref {
            labels.insert(names::NODE_PROFILE.to_owned(), profile.clone());
        }
        labels
    }

    fn ssh_keys(&self, frozen: &FrozenOrder) -> Result<Vec<String>> {
        let listed = frozen
            .properties
            .get(names::PROPERTY_SSH_KEYS)
            .map(String::as_str)
            .unwrap_or_default();
        let names = listed.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let key = self.ctx.stores.ssh_keys.get(None, name);
                let key = key.ok_or_else(|| {
                    Error::Refused(format!(
                        "SSHKey {name} does not exist; create it, or leave it out"
                    ))
                })?;
                Ok(key.spec.public_key.trim().to_owned())
            })
            .collect()
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::CLAIM_UID, self.uid()),
            (names::CLAIM_NAME, self.holder.claim.name.as_str()),
            (names::INSTALLATION, self.holder.installation.as_str()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    pub(super) fn is_ours(&self, secret: &Secret) -> bool {
        secret.labels().get(names::CLAIM_UID).map(String::as_str) == Some(self.uid())
    }

    pub(super) fn not_ours(&self, namespace: &str, name: &str) -> Error {
        Error::Refused(format!(
            "Secret {namespace}/{name} exists already and was not made for NodeClaim {}; remove it",
            self.name()
        ))
    }
}

/// Taints from the first moment: the claim's and the profile's, so that there is no time without them.
fn taints(spec: &api::NodeClaimSpec, profile: Option<&api::NodeProfileSpec>) -> Vec<Taint> {
    let of_profile = profile
        .into_iter()
        .flat_map(|profile| profile.taints.iter().chain(&profile.startup_taints));
    spec.taints
        .iter()
        .chain(&spec.startup_taints)
        .chain(of_profile)
        .cloned()
        .collect()
}

pub(super) fn secret<'k>(
    name: &str,
    namespace: &str,
    labels: BTreeMap<String, String>,
    kind: Option<&str>,
    data: impl IntoIterator<Item = (&'k str, String)>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        type_: kind.map(ToOwned::to_owned),
        data: Some(
            data.into_iter()
                .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}
