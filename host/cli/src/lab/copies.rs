//! Plugins in the data directory are copies: made again when their source changed, unless somebody edited the copy.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

/// Brings the copies up to date; returns notes for the person who started the lab.
///
/// # Errors
/// A source directory that does not exist while there are no copies either.
pub(super) fn refresh(source: &Path, target: &Path, record: &Path) -> anyhow::Result<Vec<String>> {
    let mut known: BTreeMap<String, String> = std::fs::read_to_string(record)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let entries = match std::fs::read_dir(source) {
        Ok(entries) => entries,
        // A lab that was started before has its copies.
        Err(_) if !known.is_empty() && target.is_dir() => {
            return Ok(vec![format!(
                "plugin directory {} is not there; using the copies in {}",
                source.display(),
                target.display()
            )]);
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "plugin directory {} cannot be read; build ours with `make plugins`, or name another with --plugins",
                    source.display()
                )
            });
        }
    };
    std::fs::create_dir_all(target).with_context(|| format!("{} cannot be made", target.display()))?;
    let mut notes = Vec::new();
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_plugin_file(path))
        .collect();
    files.sort();
    for file in files {
        let Some(name) = file
            .file_name()
            .and_then(|name| name.to_str())
            .map(ToOwned::to_owned)
        else {
            continue;
        };
        let bytes = std::fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
        let digest = digest_of(&bytes);
        let copy = target.join(&name);
        let copied = known.get(&name);
        if copied == Some(&digest) {
            continue;
        }
        let now = std::fs::read(&copy).ok().map(|bytes| digest_of(&bytes));
        let untouched = match (copied, &now) {
            (None, None) => true,
            (Some(copied), Some(now)) => copied == now,
            (None, Some(now)) => *now == digest,
            (Some(_), None) => false,
        };
        if !untouched {
            notes.push(format!(
                "{} was edited or removed here and is left as it is",
                copy.display()
            ));
            continue;
        }
        let next = target.join(format!(".{name}.new"));
        std::fs::write(&next, &bytes)
            .and_then(|()| std::fs::rename(&next, &copy))
            .with_context(|| format!("{} cannot be written", copy.display()))?;
        known.insert(name, digest);
    }
    crate::control_plane::write_private(record, &serde_json::to_string_pretty(&known)?)?;
    Ok(notes)
}

fn is_plugin_file(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|end| end == "wasm" || end == "toml")
}

fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("source")).unwrap();
            Self(folder)
        }
        fn write(&self, path: &str, text: &str) {
            std::fs::write(self.0.path().join(path), text).unwrap();
        }
        fn read(&self, path: &str) -> String {
            std::fs::read_to_string(self.0.path().join(path)).unwrap()
        }
        fn refresh(&self) -> anyhow::Result<Vec<String>> {
            let at = |name: &str| self.0.path().join(name);
            refresh(&at("source"), &at("target"), &at("record.json"))
        }
    }

    #[test]
    fn a_changed_source_is_copied_again_unless_the_copy_was_edited() {
        let folder = Folder::new();
        folder.write("source/a.wasm", "one");
        folder.write("source/README", "not a plugin");
        assert!(folder.refresh().unwrap().is_empty());
        assert_eq!(folder.read("target/a.wasm"), "one");
        folder.write("source/a.wasm", "two");
        folder.refresh().unwrap();
        assert_eq!(folder.read("target/a.wasm"), "two");
        folder.write("target/a.wasm", "mine");
        folder.write("source/a.wasm", "three");
        assert_eq!(folder.refresh().unwrap().len(), 1);
        assert_eq!(folder.read("target/a.wasm"), "mine");
    }

    #[test]
    fn an_edited_copy_stays_while_its_source_does_not_change() {
        let folder = Folder::new();
        folder.write("source/a.wasm", "one");
        folder.refresh().unwrap();
        folder.write("target/a.wasm", "mine");
        folder.refresh().unwrap();
        assert_eq!(folder.read("target/a.wasm"), "mine");
    }

    #[test]
    fn a_missing_source_is_an_error_that_says_what_to_do() {
        let folder = Folder::new();
        std::fs::remove_dir(folder.0.path().join("source")).unwrap();
        assert!(format!("{:#}", folder.refresh().unwrap_err()).contains("make plugins"));
    }
}
