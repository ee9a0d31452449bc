//! The bootstrap token of a claim: one for its whole life, which ends with the join.

use hostler_api::claim::FrozenOrder;
use hostler_api::names;
use hostler_core::boot::Token;
use hostler_core::order;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use rand::Rng;
use serde_json::json;

use super::Turn;
use super::admit::secret;
use crate::control_plane::TenantApi;
use crate::error::{Error, Result};
use crate::patch::{self, Created};

/// Where Kubernetes keeps bootstrap tokens.
const TOKENS: &str = "kube-system";
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
const TOKEN_GROUPS: &str = "system:bootstrappers:kubeadm:default-node-token";

impl Turn<'_> {
    /// Takes the token away; true once it is gone. A tenant that is not there has none.
    pub(super) async fn remove_token(&self, frozen: &FrozenOrder) -> Result<bool> {
        let (Some(tenant), Some(name)) = (self.tenant(frozen), frozen.token.as_deref()) else {
            return Ok(true);
        };
        let tokens: Api<Secret> = Api::namespaced(tenant.client.clone(), TOKENS);
        match self.secret(&tokens, name).await? {
            Some(found) if self.is_ours(&found) => {
                patch::delete(&tokens, name, &found.uid().unwrap_or_default()).await
            }
            Some(_) | None => Ok(true),
        }
    }

    /// Moves the token's end forward while the machine is still on its way; false if there is no token any more.
    pub(super) async fn keep_token(&self, frozen: &FrozenOrder, tenant: &TenantApi) -> Result<bool> {
        let Some(name) = frozen.token.as_deref() else {
            return Ok(true);
        };
        let tokens: Api<Secret> = Api::namespaced(tenant.client.clone(), TOKENS);
        let Some(found) = self
            .secret(&tokens, name)
            .await?
            .filter(|found| self.is_ours(found))
        else {
            return Ok(false);
        };
        let ends = found.data.as_ref().and_then(|data| data.get("expiration"));
        let ends = ends
            .and_then(|text| std::str::from_utf8(&text.0).ok())
            .and_then(|text| text.parse::<Timestamp>().ok());
        let now = self.ctx.clock.now();
        let half =
            SignedDuration::try_from(self.ctx.settings.token_lifetime / 2).unwrap_or(SignedDuration::MAX);
        if ends.is_none_or(|ends| ends.duration_since(now) < half) {
            let version = found.resource_version().unwrap_or_default();
            let change = json!({ "data": { "expiration": ByteString(self.token_end().into_bytes()) } });
            patch::update(&tokens, name, &version, change).await?;
        }
        Ok(true)
    }

    /// The token, made now or found again.
    pub(super) async fn ensure_token(&self, frozen: &FrozenOrder, tenant: &TenantApi) -> Result<Token> {
        let Some(name) = frozen.token.as_deref() else {
            return Err(Error::Bug(format!(
                "the order of NodeClaim {} names no token",
                self.name()
            )));
        };
        let tokens: Api<Secret> = Api::namespaced(tenant.client.clone(), TOKENS);
        let id = order::token_id(self.uid());
        if let Some(found) = self.secret(&tokens, name).await? {
            if !self.is_ours(&found) {
                return Err(self.not_ours(TOKENS, name));
            }
            let secret = found.data.as_ref().and_then(|data| data.get("token-secret"));
            let secret = secret.and_then(|text| String::from_utf8(text.0.clone()).ok());
            let secret = secret.ok_or_else(|| {
                Error::Refused(format!("Secret {TOKENS}/{name} has no token-secret; delete it"))
            })?;
            return Ok(Token { id, secret });
        }
        let token = Token {
            id,
            secret: random(16),
        };
        match patch::create(&tokens, &self.token_secret(name, &token)).await? {
            Created::New(_) => Ok(token),
            Created::Exists => Err(Error::Busy(format!("Secret {TOKENS}/{name} appeared meanwhile"))),
        }
    }

    fn token_secret(&self, name: &str, token: &Token) -> Secret {
        let mut labels = self.labels();
        for (key, value) in [
            (names::TOKEN, "true".to_owned()),
            (names::TOKEN_NODE_TYPE, "worker".to_owned()),
            (names::TOKEN_CLAIM_NAME, self.name()),
            (names::TOKEN_CLAIM_NAMESPACE, self.namespace()),
        ] {
            labels.insert(key.to_owned(), value);
        }
        if let Some(profile) = &self.claim.spec.profile_ref {
            labels.insert(names::NODE_PROFILE.to_owned(), profile.clone());
        }
        let data = [
            ("token-id", token.id.clone()),
            ("token-secret", token.secret.clone()),
            ("usage-bootstrap-authentication", "true".to_owned()),
            ("usage-bootstrap-signing", "true".to_owned()),
            ("auth-extra-groups", TOKEN_GROUPS.to_owned()),
            (
                "description",
                format!("joins the node of NodeClaim {}", self.name()),
            ),
            ("expiration", self.token_end()),
        ];
        secret(name, TOKENS, labels, Some(TOKEN_TYPE), data)
    }

    fn token_end(&self) -> String {
        let lifetime =
            SignedDuration::try_from(self.ctx.settings.token_lifetime).unwrap_or(SignedDuration::MAX);
        let end = self
            .ctx
            .clock
            .now()
            .saturating_add(lifetime)
            .unwrap_or(Timestamp::MAX);
        end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// Letters and digits that a bootstrap token may have.
fn random(length: usize) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut source = rand::rng();
    (0..length)
        .map(|_| char::from(LETTERS[usize::from(source.random::<u8>() & 31)]))
        .collect()
}
