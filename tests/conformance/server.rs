//! A server under test, ours or the real one: its clients, by who is asking.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::answer::{Names, fill};
use super::case::Step;
use crate::kubernetes::client_of;

/// Name that requests carry, and so the field manager of requests that name none.
const AGENT: &str = "conformance/1";

/// Clients of one server.
pub(crate) struct Server {
    kubeconfig: String,
    folder: PathBuf,
    admin: Client,
}

impl Server {
    /// A server by the kubeconfig of its administrator; the folder takes files for kubectl.
    pub(crate) async fn new(kubeconfig: String, folder: &Path) -> Result<Self> {
        let admin = client_of(&kubeconfig).await?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("kubeconfig"), &kubeconfig)?;
        Ok(Self {
            kubeconfig,
            folder: folder.to_owned(),
            admin,
        })
    }

    /// A place for the files of one case.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's kubeconfig, as a file.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// A client for someone with another proof: a certificate and its key, a token, or nothing.
    pub(crate) async fn other(&self, proof: Proof<'_>) -> Result<Client> {
        let mut read: Value = serde_saphyr::from_str(&self.kubeconfig)?;
        let user = read
            .pointer_mut("/users/0/user")
            .context("a kubeconfig has a user")?;
        *user = match proof {
            Proof::Nothing => json!({}),
            Proof::Token(token) => json!({"token": token}),
            Proof::Certificate { pem, key } => {
                json!({"client-certificate-data": BASE64.encode(pem), "client-key-data": BASE64.encode(key)})
            }
        };
        client_of(&read.to_string()).await
    }

    /// The administrator's client.
    pub(crate) fn admin(&self) -> Client {
        self.admin.clone()
    }
}

/// What someone shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof<'a> {
    /// Nothing at all.
    Nothing,
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate {
        /// The chain.
        pem: &'a [u8],
        /// Its key, as PEM.
        key: &'a str,
    },
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Raw {
    /// Status.
    pub(crate) status: StatusCode,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// Body, or the asked number of lines of it.
    pub(crate) body: Bytes,
}

/// Sends what a step says.
pub(crate) async fn send(client: &Client, step: &Step, names: &Names) -> Result<Raw> {
    let (method, path) = step.request().context("a step with a request")?;
    let mut request = Request::builder()
        .method(method)
        .uri(fill(path, names))
        .header("user-agent", AGENT);
    let accept = match step.accept.as_deref() {
        None => "application/json",
        Some("table") => "application/json;as=Table;v=v1;g=meta.k8s.io",
        Some("metadata") => "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        Some("metadatalist") => "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        Some(other) => other,
    };
    request = request.header("accept", accept);
    let media = match step.media.as_deref() {
        None => "application/json",
        Some("json") => "application/json-patch+json",
        Some("merge") => "application/merge-patch+json",
        Some("strategic") => "application/strategic-merge-patch+json",
        Some("apply") => "application/apply-patch+yaml",
        Some(other) => other,
    };
    let body = match &step.body {
        None => Vec::new(),
        Some(body) => {
            request = request.header("content-type", media);
            match body {
                Value::String(text) => fill(text, names).into_bytes(),
                value => serde_json::to_vec(&super::answer::fill_value(value, names))?,
            }
        }
    };
    let answer = client.send(request.body(Body::from(body))?).await?;
    let (head, mut body) = answer.into_parts();
    let body = match step.lines {
        Some(wanted) => {
            let mut read = Vec::new();
            while read.iter().filter(|byte| **byte == b'\n').count() < wanted {
                let Some(frame) = body.frame().await else { break };
                if let Ok(data) = frame?.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            Bytes::from(read)
        }
        None => body.collect().await?.to_bytes(),
    };
    Ok(Raw {
        status: head.status,
        headers: head.headers,
        body,
    })
}
