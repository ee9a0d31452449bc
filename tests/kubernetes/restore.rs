//! Makes a cluster what it was before its last user, so that starting one costs its seconds once: by the keys of its etcd.
//!
//! The API server sees the changes as it sees everybody's, by its watches; nothing is restarted, and no finalizer is waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{Cluster, PATIENCE};

/// Keys with their values.
pub(super) type Everything = BTreeMap<String, String>;

/// All keys of the API server begin so.
const ROOT: &str = "/registry/";
/// The first key after all of those.
const END: &str = "/registry0";
/// What the parts of the control plane keep for themselves, and make again when they miss it.
const THEIRS: [&str; 12] = [
    "apiregistration.k8s.io/",
    "configmaps/kube-",
    "flowschemas/",
    "ipaddresses/",
    "leases/kube-system/",
    "masterleases/",
    "priorityclasses/",
    "prioritylevelconfigurations/",
    "ranges/",
    "serviceaccounts/kube-",
    "servicecidrs/",
    "services/",
];
/// What a test may have changed that was there before it.
const GIVEN: [&str; 4] = [
    "apiextensions.k8s.io/",
    "clusterrolebindings/",
    "clusterroles/",
    "rolebindings/",
];
/// Operations in one transaction; etcd refuses more than 128.
const AT_ONCE: usize = 100;

impl Cluster {
    /// Waits until the controllers have made what they make of themselves, so that it belongs to what is remembered.
    pub(crate) async fn until_settled(&self, client: &Client) -> Result<()> {
        let begin = Instant::now();
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
            while maps.get_opt("kube-root-ca.crt").await?.is_none()
                || accounts.get_opt("default").await?.is_none()
            {
                if begin.elapsed() > PATIENCE {
                    bail!(
                        "kube-controller-manager made nothing in namespace {namespace}:\n{}",
                        self.log("kube-controller-manager")
                    );
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Notes what there is, for [`Cluster::restore`].
    pub(crate) async fn remember(&mut self) -> Result<()> {
        self.first = self.everything().await?;
        Ok(())
    }

    /// Takes away what was made since, and puts back what was changed or deleted.
    pub(crate) async fn restore(&self) -> Result<()> {
        let now = self.everything().await?;
        let mut steps = Vec::new();
        for key in now.keys().filter(|key| !self.first.contains_key(*key)) {
            if !begins(key, &THEIRS) {
                steps.push(json!({"requestDeleteRange": {"key": BASE64.encode(key)}}));
            }
        }
        for (key, value) in &self.first {
            let known = now.get(key);
            let changed = known.is_some_and(|now| now != value) && begins(key, &GIVEN);
            if changed || (known.is_none() && !begins(key, &THEIRS)) {
                steps.push(json!({"requestPut": {"key": BASE64.encode(key), "value": value}}));
            }
        }
        for some in steps.chunks(AT_ONCE) {
            self.ask("txn", &json!({"success": some})).await?;
        }
        Ok(())
    }

    /// Every key of the API server, its value as etcd's JSON has it: base64.
    async fn everything(&self) -> Result<Everything> {
        let answer = self
            .ask(
                "range",
                &json!({"key": BASE64.encode(ROOT), "range_end": BASE64.encode(END)}),
            )
            .await?;
        let mut all = Everything::new();
        for pair in answer["kvs"].as_array().into_iter().flatten() {
            let key = BASE64.decode(pair["key"].as_str().unwrap_or_default())?;
            all.insert(
                String::from_utf8(key).context("a key that is no text")?,
                pair["value"].as_str().unwrap_or_default().to_owned(),
            );
        }
        Ok(all)
    }

    async fn ask(&self, what: &str, question: &Value) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/v3/kv/{what}", self.store);
        let answer = reqwest::Client::new()
            .post(url)
            .body(question.to_string())
            .send()
            .await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("etcd answered {status} to a {what}: {text}");
        }
        Ok(serde_json::from_str(&text)?)
    }
}

fn begins(key: &str, with: &[&str]) -> bool {
    let rest = key.strip_prefix(ROOT).unwrap_or(key);
    with.iter().any(|one| rest.starts_with(one))
}

#[tokio::test]
async fn a_restored_cluster_is_as_it_was_and_goes_on() {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::PostParams;

    let binaries = match super::Binaries::find() {
        Ok(binaries) => binaries,
        Err(why) => return eprintln!("{why}"),
    };
    let mut cluster = Cluster::start(&binaries).await.unwrap();
    let client = cluster.client().await.unwrap();
    cluster.remember().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client, "mine");
    for round in 0..2 {
        let mut made = Namespace::default();
        made.metadata.name = Some("mine".to_owned());
        namespaces.create(&PostParams::default(), &made).await.unwrap();
        let mut made = ConfigMap::default();
        made.metadata.name = Some("held".to_owned());
        made.metadata.finalizers = Some(vec!["example.com/never".to_owned()]);
        maps.create(&PostParams::default(), &made).await.unwrap();
        cluster.restore().await.unwrap();
        assert!(
            namespaces.get_opt("mine").await.unwrap().is_none(),
            "round {round}"
        );
        assert!(maps.get_opt("held").await.unwrap().is_none(), "round {round}");
        assert!(namespaces.get_opt("default").await.unwrap().is_some());
    }
}
