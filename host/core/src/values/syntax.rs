//! How Kubernetes spells names, labels, taints and addresses.

/// Longest name part of a key, and longest label value.
const MAX_PART: usize = 63;
/// Longest DNS subdomain.
const MAX_SUBDOMAIN: usize = 253;

fn edges_are_alphanumeric(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// A key like `name` or `prefix/name`.
pub(crate) fn key(text: &str) -> Result<(), String> {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let name_fits = name.len() <= MAX_PART
        && edges_are_alphanumeric(name)
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if name_fits && prefix.is_none_or(|prefix| subdomain(prefix).is_ok()) {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no valid key; write it like name or example.com/name"
        ))
    }
}

/// A label value: empty, or at most 63 letters, digits, `-`, `_`, `.`.
pub(crate) fn label_value(text: &str) -> Result<(), String> {
    let fits = text.is_empty()
        || (text.len() <= MAX_PART
            && edges_are_alphanumeric(text)
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    if fits {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no label value; at most {MAX_PART} letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        ))
    }
}

/// A DNS label: what providers and node types are named.
pub(crate) fn label_name(text: &str) -> Result<(), String> {
    let fits = text.len() <= MAX_PART
        && edges_are_alphanumeric(text)
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if fits {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no name; lower-case letters, digits and '-', without dots"
        ))
    }
}

/// A DNS subdomain: what most objects are named.
pub(crate) fn subdomain(text: &str) -> Result<(), String> {
    if text.len() <= MAX_SUBDOMAIN && text.split('.').all(|part| label_name(part).is_ok()) {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no name; lower-case letters, digits, '-' and '.'"
        ))
    }
}

/// The effect of a taint.
pub(crate) fn effect(text: &str) -> Result<(), String> {
    match text {
        "NoSchedule" | "PreferNoSchedule" | "NoExecute" => Ok(()),
        _ => Err(format!(
            "{text:?} is no effect; use NoSchedule, PreferNoSchedule or NoExecute"
        )),
    }
}

/// `host:port` with a name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn host_port(text: &str) -> Result<(), String> {
    let refused = || format!("{text:?} is no address; write it like 192.168.100.2:8443");
    let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
    let port_fits =
        port.parse::<u16>().is_ok_and(|number| number > 0) && port.chars().all(|c| c.is_ascii_digit());
    let host_fits = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None if host.chars().all(|c| c.is_ascii_digit() || c == '.') => {
            host.parse::<std::net::Ipv4Addr>().is_ok()
        }
        None => subdomain(&host.to_lowercase()).is_ok(),
    };
    if port_fits && host_fits {
        Ok(())
    } else {
        Err(refused())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("workload", true)]
    #[case("run.ai/simulated-gpu-node-pool", true)]
    #[case("a/b/c", false)]
    #[case("/b", false)]
    #[case("A.example/b", false)]
    #[case("-a", false)]
    #[case("", false)]
    fn keys(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(key(text).is_ok(), fits, "{text}");
    }

    #[rstest]
    #[case("192.168.100.2:8443", true)]
    #[case("api.example.com:443", true)]
    #[case("[::1]:6443", true)]
    #[case("192.168.100.2", false)]
    #[case("192.168.100.2:0", false)]
    #[case("192.168.100.256:8443", false)]
    #[case("https://a:443", false)]
    #[case("a:+443", false)]
    #[case(":443", false)]
    fn addresses(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(host_port(text).is_ok(), fits, "{text}");
    }
}
