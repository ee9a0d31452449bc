//! What a case is: requests in order, as the files in `cases/` hold them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// Requests in order, in a namespace of their own (`$ns`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// A sentence.
    pub(crate) name: String,
    /// What is sent.
    pub(crate) steps: Vec<Step>,
    /// File it is from.
    #[serde(skip)]
    pub(crate) file: String,
    /// Its namespace: the file and a number.
    #[serde(skip)]
    pub(crate) namespace: String,
}

/// One request, and what is known of its answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Step {
    /// Path to read.
    pub(crate) get: Option<String>,
    /// Path to post to.
    pub(crate) post: Option<String>,
    /// Path to replace at.
    pub(crate) put: Option<String>,
    /// Path to patch at.
    pub(crate) patch: Option<String>,
    /// Path to delete.
    pub(crate) delete: Option<String>,
    /// Words for kubectl.
    pub(crate) kubectl: Option<String>,
    /// A user whose certificate is asked for by a request that is approved: `name` of the user, `group`, `as` what.
    pub(crate) join: Option<Join>,
    /// A CustomResourceDefinition that is created and waited for.
    pub(crate) define: Option<Value>,
    /// Who asks; the administrator by default.
    #[serde(rename = "as")]
    pub(crate) actor: String,
    /// What is sent; a text goes as it is.
    pub(crate) body: Option<Value>,
    /// The kind of patch, or a media type.
    #[serde(rename = "type")]
    pub(crate) media: Option<String>,
    /// What is accepted: `table`, `metadata` or a media type.
    pub(crate) accept: Option<String>,
    /// Status of the answer; for kubectl its exit code.
    pub(crate) answer: Option<u16>,
    /// Read again until these places of the answer hold these values.
    pub(crate) until: Option<BTreeMap<String, Value>>,
    /// Read this many lines, and compare each.
    pub(crate) lines: Option<usize>,
    /// Places to keep for later steps, by name.
    pub(crate) keep: BTreeMap<String, String>,
    /// Places that are compared; all by default.
    pub(crate) only: Vec<String>,
    /// Places that are not compared.
    pub(crate) ignore: Vec<String>,
    /// Only the status is looked at.
    pub(crate) quiet: bool,
}

/// A user with a certificate of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Join {
    /// Common name.
    pub(crate) user: String,
    /// Organization.
    pub(crate) group: Option<String>,
    /// How later steps name it.
    #[serde(rename = "as")]
    pub(crate) actor: String,
}

impl Step {
    /// Method and path.
    pub(crate) fn request(&self) -> Option<(&'static str, &str)> {
        [
            ("GET", &self.get),
            ("POST", &self.post),
            ("PUT", &self.put),
            ("PATCH", &self.patch),
            ("DELETE", &self.delete),
        ]
        .into_iter()
        .find_map(|(method, path)| Some((method, path.as_deref()?)))
    }

    fn check(&self) -> Result<()> {
        let forms = usize::from(self.request().is_some())
            + usize::from(self.kubectl.is_some())
            + usize::from(self.join.is_some())
            + usize::from(self.define.is_some());
        ensure!(
            forms == 1,
            "a step is one of get, post, put, patch, delete, kubectl, join and define"
        );
        let is_helper = self.join.is_some() || self.define.is_some();
        ensure!(
            is_helper || self.answer.is_some(),
            "a step says what it answers, or nothing is tested without the real server"
        );
        Ok(())
    }
}

/// All cases of the folder.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Case>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut cases: Vec<Case> = Vec::new();
    for path in files {
        let file = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&path)?;
        // `y` is a letter.
        let options = serde_saphyr::options! { strict_booleans: true };
        let read: Vec<Case> = serde_saphyr::from_str_with_options(&text, options)
            .with_context(|| format!("cases of {file}"))?;
        for (number, mut case) in read.into_iter().enumerate() {
            for (step, at) in case.steps.iter().zip(1..) {
                step.check()
                    .with_context(|| format!("{file}: {}: step {at}", case.name))?;
            }
            if cases
                .iter()
                .any(|other| other.file == file && other.name == case.name)
            {
                bail!("{file} has two cases named {}", case.name);
            }
            case.namespace = format!("{file}-{:02}", number + 1);
            case.file.clone_from(&file);
            cases.push(case);
        }
    }
    Ok(cases)
}
