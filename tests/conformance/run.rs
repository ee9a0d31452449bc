//! Runs a case on a server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Client;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::answer::{Answer, Names, fill, fill_value, mask, mask_output};
use super::case::{Case, Join, Step};
use super::server::{Proof, Raw, Server, send};

/// How long a step may take to hold.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A case on a server, with what earlier steps gave.
struct Run<'a> {
    server: &'a Server,
    case: &'a Case,
    kubectl: Option<PathBuf>,
    names: Names,
    joined: BTreeMap<String, Client>,
}

/// The answers to the steps that are compared, by their number.
pub(crate) async fn run(
    server: &Server,
    case: &Case,
    kubectl: Option<PathBuf>,
) -> Result<Vec<(usize, Answer)>> {
    let namespace = &case.namespace;
    let names = [
        ("ns", namespace.clone()),
        (
            "csr",
            request(
                &format!("system:node:{namespace}"),
                Some("system:nodes"),
                &KeyPair::generate()?,
            )?,
        ),
        ("core", format!("/api/v1/namespaces/{namespace}")),
        (
            "crds",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
        ),
    ];
    let names: Names = names
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let mut run = Run {
        server,
        case,
        kubectl,
        names,
        joined: BTreeMap::new(),
    };
    run.make_namespace().await?;
    let mut answers = Vec::new();
    for (step, number) in case.steps.iter().zip(1..) {
        let answer = tokio::time::timeout(PATIENCE, run.step(step))
            .await
            .map_err(|_| anyhow::anyhow!("no answer in {PATIENCE:?}"))
            .and_then(|answer| answer)
            .with_context(|| format!("{}: {}: step {number}", case.file, case.name))?;
        if let Some(answer) = answer {
            answers.push((number, answer));
        }
    }
    Ok(answers)
}

impl Run<'_> {
    async fn make_namespace(&mut self) -> Result<()> {
        let step = Step {
            post: Some("/api/v1/namespaces".to_owned()),
            body: Some(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "$ns"}})),
            ..Step::default()
        };
        let raw = send(&self.client("").await?, &step, &self.names).await?;
        ensure!(
            raw.status.is_success(),
            "namespace of the case: {}",
            String::from_utf8_lossy(&raw.body)
        );
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<Option<Answer>> {
        if let Some(join) = &step.join {
            self.join(join).await?;
            return Ok(None);
        }
        if let Some(definition) = &step.define {
            self.define(definition).await?;
            return Ok(None);
        }
        if let Some(words) = &step.kubectl {
            return self.kubectl(step, words).await;
        }
        let client = self.client(&step.actor).await?;
        let raw = match &step.until {
            Some(until) => self.poll(&client, step, until).await?,
            None => send(&client, step, &self.names).await?,
        };
        let value = body_of(&raw, step);
        for (name, place) in &step.keep {
            let text = match value.pointer(place) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => bail!("nothing at {place} to keep: {value}"),
            };
            self.names.insert(name.clone(), text);
        }
        let answer = self.answer(step, &raw, &value);
        if step.quiet {
            self.demand(step, &answer)?;
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// What is compared of an answer.
    fn answer(&self, step: &Step, raw: &Raw, value: &Value) -> Answer {
        let header = |name: &str| {
            let values = raw
                .headers
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok());
            Value::from(values.map(str::to_owned).collect::<Vec<_>>())
        };
        let mut shown = json!({
            "status": raw.status.as_u16(),
            "warnings": header("warning"),
            "type": header("content-type"),
            "body": mask(value, &self.names),
        });
        if !step.only.is_empty() {
            let kept: Value = step
                .only
                .iter()
                .map(|place| {
                    (
                        place.clone(),
                        shown["body"].pointer(place).cloned().unwrap_or_default(),
                    )
                })
                .collect::<serde_json::Map<_, _>>()
                .into();
            shown["body"] = kept;
        }
        for place in &step.ignore {
            if let Some(value) = shown["body"].pointer_mut(place) {
                *value = "(ignored)".into();
            }
        }
        Answer {
            expected: step.answer,
            status: raw.status.as_u16(),
            shown,
        }
    }

    /// What later steps build on must be as the case says.
    fn demand(&self, step: &Step, answer: &Answer) -> Result<()> {
        let Answer { status, shown, .. } = answer;
        match step.answer.filter(|expected| expected != status) {
            Some(expected) => bail!("answered {status} and not {expected}: {shown}"),
            None => Ok(()),
        }
    }

    async fn poll(&self, client: &Client, step: &Step, until: &BTreeMap<String, Value>) -> Result<Raw> {
        let begin = Instant::now();
        loop {
            let raw = send(client, step, &self.names).await?;
            let value = body_of(&raw, step);
            let is_status = step.answer.is_none_or(|status| status == raw.status.as_u16());
            let holds = |(place, wanted): (&String, &Value)| {
                *value.pointer(place).unwrap_or(&Value::Null) == fill_value(wanted, &self.names)
            };
            if is_status && until.iter().all(holds) {
                return Ok(raw);
            }
            if begin.elapsed() > PATIENCE / 2 {
                bail!("still {} after {:?}: {value}", raw.status, PATIENCE / 2);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn client(&self, actor: &str) -> Result<Client> {
        if actor.is_empty() {
            return Ok(self.server.admin());
        }
        if let Some(client) = self.joined.get(actor) {
            return Ok(client.clone());
        }
        if actor == "nobody" {
            return self.server.other(Proof::Nothing).await;
        }
        if let Some(token) = actor.strip_prefix("token ") {
            return self.server.other(Proof::Token(&fill(token, &self.names))).await;
        }
        bail!("no step of the case let {actor:?} join")
    }

    /// Gets a client certificate as anyone would: asks for it, has it approved, and waits for the signer.
    async fn join(&mut self, join: &Join) -> Result<()> {
        let user = fill(&join.user, &self.names);
        let key = KeyPair::generate()?;
        let request = request(&user, join.group.as_deref(), &key)?;
        let is_node = user.starts_with("system:node:");
        let signer = if is_node {
            "kubernetes.io/kube-apiserver-client-kubelet"
        } else {
            "kubernetes.io/kube-apiserver-client"
        };
        let admin = self.client("").await?;
        let name = format!("join-{}-{}", self.case.namespace, join.actor);
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}");
        let step = Step {
            post: Some("/apis/certificates.k8s.io/v1/certificatesigningrequests".to_owned()),
            body: Some(json!({
                "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
                "spec": {"request": request, "signerName": signer, "usages": ["digital signature", "client auth"]},
            })),
            ..Step::default()
        };
        let raw = send(&admin, &step, &self.names).await?;
        ensure!(
            raw.status.is_success(),
            "request for a certificate: {}",
            String::from_utf8_lossy(&raw.body)
        );
        let approved = json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "joins"}]);
        let step = Step {
            patch: Some(format!("{path}/approval")),
            media: Some("merge".to_owned()),
            body: Some(json!({"status": {"conditions": approved}})),
            ..Step::default()
        };
        let raw = send(&admin, &step, &self.names).await?;
        ensure!(
            raw.status.is_success(),
            "approval: {}",
            String::from_utf8_lossy(&raw.body)
        );
        let step = Step {
            get: Some(path),
            ..Step::default()
        };
        let begin = Instant::now();
        let pem = loop {
            let value = body_of(&send(&admin, &step, &self.names).await?, &step);
            if let Some(coded) = value["status"]["certificate"].as_str() {
                break BASE64.decode(coded)?;
            }
            ensure!(
                begin.elapsed() < PATIENCE / 2,
                "no certificate was signed: {value}"
            );
            tokio::time::sleep(PAUSE).await;
        };
        let client = self
            .server
            .other(Proof::Certificate {
                pem: &pem,
                key: &key.serialize_pem(),
            })
            .await?;
        self.joined.insert(join.actor.clone(), client);
        Ok(())
    }

    async fn define(&self, definition: &Value) -> Result<()> {
        let admin = self.client("").await?;
        let definition = fill_value(definition, &self.names);
        let step = Step {
            post: Some("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned()),
            body: Some(definition.clone()),
            ..Step::default()
        };
        let raw = send(&admin, &step, &self.names).await?;
        ensure!(
            raw.status.is_success(),
            "definition: {}",
            String::from_utf8_lossy(&raw.body)
        );
        let text = |place: &str| {
            definition
                .pointer(place)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (group, plural) = (text("/spec/group"), text("/spec/names/plural"));
        let versions = definition["spec"]["versions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let served = versions.iter().filter(|version| version["served"] == true);
        for version in served.filter_map(|version| version["name"].as_str()) {
            let step = Step {
                get: Some(format!("/apis/{group}/{version}/{plural}")),
                answer: Some(200),
                ..Step::default()
            };
            self.poll(&admin, &step, &BTreeMap::new()).await?;
        }
        Ok(())
    }

    async fn kubectl(&self, step: &Step, words: &str) -> Result<Option<Answer>> {
        let program = self.kubectl.as_ref().context("a kubectl to run")?;
        let mut command = tokio::process::Command::new(program);
        command
            .args(split(&fill(words, &self.names)))
            .env("KUBECONFIG", self.server.kubeconfig())
            .env("HOME", self.server.folder())
            .env(
                "KUBE_EDITOR",
                std::env::var("KUBE_EDITOR").unwrap_or_else(|_| "sed -i s/before/after/".to_owned()),
            )
            .env_remove("KUBECTL_EXTERNAL_DIFF")
            .current_dir(self.server.folder())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let input = match &step.body {
            Some(Value::String(text)) => fill(text, &self.names),
            Some(value) => fill_value(value, &self.names).to_string(),
            None => String::new(),
        };
        let mut child = command.spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // A command that reads nothing may be gone already.
            drop(tokio::io::AsyncWriteExt::write_all(&mut pipe, input.as_bytes()).await);
        }
        let output = child.wait_with_output().await?;
        let code = u16::try_from(output.status.code().unwrap_or(-1)).unwrap_or(u16::MAX);
        let text = |bytes: &[u8]| mask_output(&String::from_utf8_lossy(bytes), &self.names);
        let shown = json!({"status": code, "out": text(&output.stdout), "err": text(&output.stderr)});
        let answer = Answer {
            expected: step.answer,
            status: code,
            shown,
        };
        if step.quiet {
            self.demand(step, &answer)?;
            return Ok(None);
        }
        Ok(Some(answer))
    }
}

/// A request for a certificate, as objects carry it.
fn request(user: &str, group: Option<&str>, key: &KeyPair) -> Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    Ok(BASE64.encode(params.serialize_request(key)?.pem()?))
}

/// The body as JSON; lines as an array; what is no JSON as text.
fn body_of(raw: &Raw, step: &Step) -> Value {
    let text = String::from_utf8_lossy(&raw.body);
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    match step.lines {
        Some(wanted) => text.lines().take(wanted).map(parse).collect(),
        None => parse(&text),
    }
}

/// Splits a command line at blanks that are not within single quotes.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted, mut is_open) = (Vec::new(), String::new(), false, false);
    for letter in line.chars() {
        match letter {
            '\'' => (is_quoted, is_open) = (!is_quoted, true),
            ' ' if !is_quoted => {
                if is_open {
                    words.push(std::mem::take(&mut word));
                }
                is_open = false;
            }
            _ => {
                word.push(letter);
                is_open = true;
            }
        }
    }
    if is_open {
        words.push(word);
    }
    words
}

#[test]
fn a_command_line_is_split_like_a_shell_would() {
    assert_eq!(
        split("get  cm -o 'jsonpath={.a b}' ''"),
        ["get", "cm", "-o", "jsonpath={.a b}", ""]
    );
}
