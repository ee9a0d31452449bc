//! What cloud-init makes of user data, as far as joining a cluster goes: files, a host name, and commands.
//!
//! Only `#cloud-config` is read. Anything that cloud-init would not understand is an error here, because a server that boots
//! with half of its configuration is the hardest to find.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// What a server does at its first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloudConfig {
    /// Its host name, if one was given.
    pub(crate) hostname: Option<String>,
    /// Contents of files, by path.
    pub(crate) files: BTreeMap<String, String>,
    /// Commands, each split into words.
    pub(crate) commands: Vec<Vec<String>>,
}

/// Why user data cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloudInitError {
    #[error("user data does not begin with the line #cloud-config")]
    Header,
    #[error("user data is no YAML that cloud-init understands: {0}")]
    Yaml(Box<serde_saphyr::Error>),
    #[error("write_files entry {path:?} has the encoding {encoding:?}; only plain text and base64 are read")]
    Encoding { path: String, encoding: String },
    #[error("write_files entry {path:?} is not the base64 of a text")]
    Base64 { path: String },
    #[error("write_files has an entry without an absolute path ({0:?})")]
    Path(String),
    #[error("hostname {0:?} is no host name")]
    Hostname(String),
}

#[derive(Deserialize)]
struct Wire {
    hostname: Option<String>,
    fqdn: Option<String>,
    #[serde(default)]
    write_files: Vec<WireFile>,
    #[serde(default)]
    runcmd: Vec<WireCommand>,
}

#[derive(Deserialize)]
struct WireFile {
    path: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    append: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireCommand {
    Shell(String),
    Words(Vec<String>),
}

/// Reads user data.
pub(crate) fn parse(user_data: &str) -> Result<CloudConfig, CloudInitError> {
    if user_data.lines().next().map(str::trim_end) != Some("#cloud-config") {
        return Err(CloudInitError::Header);
    }
    let wire: Wire =
        serde_saphyr::from_str(user_data).map_err(|error| CloudInitError::Yaml(Box::new(error)))?;
    let hostname = wire.hostname.or(wire
        .fqdn
        .map(|fqdn| fqdn.split('.').next().unwrap_or_default().to_owned()));
    if let Some(name) = hostname.as_ref().filter(|name| !is_hostname(name)) {
        return Err(CloudInitError::Hostname(name.clone()));
    }
    let mut files = BTreeMap::new();
    for file in wire.write_files {
        let (path, content, append) = (file.path.clone(), decoded(&file)?, file.append);
        if !path.starts_with('/') {
            return Err(CloudInitError::Path(path));
        }
        let kept: &mut String = files.entry(path).or_default();
        if !append {
            kept.clear();
        }
        kept.push_str(&content);
    }
    let commands = wire.runcmd.into_iter().flat_map(|command| match command {
        WireCommand::Words(words) => vec![words],
        WireCommand::Shell(line) => shell(&line),
    });
    Ok(CloudConfig {
        hostname,
        files,
        commands: commands.collect(),
    })
}

impl CloudConfig {
    /// Whether one of the commands starts the kubelet.
    pub(crate) fn starts_kubelet(&self) -> bool {
        self.commands.iter().any(|words| {
            let words: Vec<&str> = words
                .iter()
                .map(String::as_str)
                .filter(|word| *word != "sudo")
                .collect();
            let [program, rest @ ..] = words.as_slice() else {
                return false;
            };
            let unit = rest
                .iter()
                .any(|word| matches!(*word, "kubelet" | "kubelet.service"));
            let verb = rest
                .iter()
                .find(|word| !word.starts_with('-'))
                .copied()
                .unwrap_or_default();
            let starts = match verb {
                "start" | "restart" | "reload-or-restart" => true,
                "enable" => rest.contains(&"--now"),
                _ => false,
            };
            matches!(*program, "systemctl" | "/bin/systemctl" | "/usr/bin/systemctl") && unit && starts
        })
    }
}

fn decoded(file: &WireFile) -> Result<String, CloudInitError> {
    let path = file.path.clone();
    match file.encoding.as_deref() {
        None | Some("" | "text/plain") => Ok(file.content.clone()),
        Some("b64" | "base64") => {
            let compact: String = file.content.split_whitespace().collect();
            let bytes = STANDARD
                .decode(compact)
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            bytes.ok_or(CloudInitError::Base64 { path })
        }
        Some(other) => Err(CloudInitError::Encoding {
            path,
            encoding: other.to_owned(),
        }),
    }
}

/// The simple commands of a shell line. Quotes are not looked at: nobody quotes what starts a kubelet.
fn shell(line: &str) -> Vec<Vec<String>> {
    line.split(['\n', ';', '&', '|'])
        .map(|command| command.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| !words.is_empty())
        .collect()
}

fn is_hostname(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn files_host_name_and_commands_are_read() {
        let config = parse(
            "#cloud-config\nhostname: bare-metal-2\nwrite_files:\n- path: /a\n  content: |\n    one\n    two\n\
             - path: /b\n  encoding: b64\n  content: aGVs\n- path: /b\n  encoding: base64\n  append: true\n  content: bG8=\n\
             runcmd:\n- [systemctl, daemon-reload]\n- mkdir -p /x && systemctl enable --now kubelet\n",
        )
        .unwrap();
        assert_eq!(config.hostname.as_deref(), Some("bare-metal-2"));
        assert_eq!(config.files["/a"], "one\ntwo\n");
        assert_eq!(config.files["/b"], "hello");
        assert_eq!(config.commands.len(), 3);
        assert!(config.starts_kubelet());
    }

    #[rstest]
    #[case::enabled_at_once("systemctl enable --now kubelet", true)]
    #[case::started("sudo systemctl start kubelet.service", true)]
    #[case::only_enabled("systemctl enable kubelet", false)]
    #[case::stopped("systemctl stop kubelet", false)]
    #[case::another_unit("systemctl enable --now containerd", false)]
    #[case::another_program("echo systemctl start kubelet", false)]
    fn a_command_starts_the_kubelet(#[case] command: &str, #[case] starts: bool) {
        let config = parse(&format!("#cloud-config\nruncmd:\n- {command}\n")).unwrap();
        assert_eq!(config.starts_kubelet(), starts);
    }

    #[rstest]
    #[case::of_a_script("#!/bin/sh\nkubeadm join\n", "does not begin with the line #cloud-config")]
    #[case::of_nothing("", "does not begin with the line #cloud-config")]
    #[case::of_broken_yaml("#cloud-config\nwrite_files: [\n", "no YAML that cloud-init understands")]
    #[case::of_a_wrong_shape("#cloud-config\nwrite_files: none\n", "no YAML that cloud-init understands")]
    #[case::of_a_zipped_file("#cloud-config\nwrite_files: [{path: /a, encoding: gz}]\n", "encoding \"gz\"")]
    #[case::of_bad_base64(
        "#cloud-config\nwrite_files: [{path: /a, encoding: b64, content: '%'}]\n",
        "base64 of a text"
    )]
    #[case::of_a_relative_path("#cloud-config\nwrite_files: [{path: a}]\n", "without an absolute path")]
    #[case::of_a_bad_host_name("#cloud-config\nhostname: Bad_Name\n", "is no host name")]
    fn nothing_is_made(#[case] user_data: &str, #[case] why: &str) {
        let error = parse(user_data).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
