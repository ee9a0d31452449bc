//! What stands in the data fields of a kubeconfig: certificates, a key, a token.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::invalid;
use crate::seams::Reason;

/// Most certificates of one field.
const MAX_CERTIFICATES: usize = 32;
/// Longest token. One of a service account has about a thousand letters.
const MAX_TOKEN: usize = 16 << 10;
/// Letters in a line of PEM.
const LINE: usize = 64;
const KEYS: [&str; 3] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];

/// The certificates of a field, in DER.
pub(super) fn certificates(data: &str, path: &str) -> Result<Vec<Vec<u8>>, Reason> {
    let wrong = || {
        invalid(format!(
            "{path} is no certificate; write base64 of PEM with certificates only"
        ))
    };
    let mut found = Vec::new();
    for block in blocks(data).ok_or_else(wrong)? {
        let whole = X509Certificate::from_der(&block.contents).is_ok_and(|(rest, _)| rest.is_empty());
        if block.label != "CERTIFICATE" || !whole || found.len() == MAX_CERTIFICATES {
            return Err(wrong());
        }
        found.push(block.contents);
    }
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// The key of a field, in PEM.
pub(super) fn key(data: &str, path: &str) -> Result<String, Reason> {
    let wrong = || {
        invalid(format!(
            "{path} is no key; write base64 of PEM with one unencrypted key"
        ))
    };
    let mut found = None;
    for block in blocks(data).ok_or_else(wrong)? {
        match block.label.as_str() {
            // OpenSSL writes it before a key.
            "EC PARAMETERS" => {}
            label if found.is_none() && KEYS.contains(&label) => {
                found = Some(armoured(label, &block.contents));
            }
            _ => return Err(wrong()),
        }
    }
    found.ok_or_else(wrong)
}

/// A token that fits into a header.
pub(super) fn token(text: &str, path: &str) -> Result<String, Reason> {
    if text.len() <= MAX_TOKEN && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(invalid(format!(
            "{path} is no token; write one line of letters without blanks"
        )))
    }
}

/// When the first certificate of a chain ends.
pub(super) fn ends(chain: &[Vec<u8>]) -> Option<Timestamp> {
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    Timestamp::from_second(leaf.validity().not_after.timestamp()).ok()
}

/// Certificates in PEM.
pub(super) fn pem(certificates: &[Vec<u8>]) -> String {
    certificates
        .iter()
        .map(|der| armoured("CERTIFICATE", der))
        .collect()
}

fn armoured(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = next;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn blocks(data: &str) -> Option<Vec<Pem>> {
    // A long value may be broken into lines.
    let encoded: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let text = STANDARD.decode(encoded).ok()?;
    Pem::iter_from_buffer(&text).collect::<Result<_, _>>().ok()
}
