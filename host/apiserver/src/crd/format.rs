//! Formats of strings that a schema may ask for. An unknown format asks for nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine as _;
use regex::Regex;

fn pattern(text: &'static str) -> Regex {
    Regex::new(text).expect("a constant pattern compiles")
}

static UUID: LazyLock<Regex> =
    LazyLock::new(|| pattern("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static MAC: LazyLock<Regex> =
    LazyLock::new(|| pattern("(?i)^[0-9a-f]{2}([:-][0-9a-f]{2}){5}([:-][0-9a-f]{2}){0,14}$"));
static EMAIL: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[^@\s<>]+@[^@\s<>]+$"));
static HOSTNAME: LazyLock<Regex> =
    LazyLock::new(|| pattern("(?i)^[a-z0-9_]([a-z0-9_-]{0,62})(\\.[a-z0-9_]([a-z0-9_-]{0,62}))*\\.?$"));
static URI: LazyLock<Regex> = LazyLock::new(|| pattern(r"^([A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*)$"));
static DURATION: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        "^[+-]?(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+) ?(ns|us|µs|μs|ms|s|m|h|d|w|nanos?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?) ?)+$",
    )
});
static DATE_TIME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:?\d{2})?$"));
static LABEL: LazyLock<Regex> = LazyLock::new(|| pattern("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
static DOTTED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"));

/// Whether text has a format.
pub(super) fn fits(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => {
            DATE_TIME.is_match(text) && text[..10].parse::<jiff::civil::Date>().is_ok()
        }
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => DURATION.is_match(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => {
            text.split_once('/')
                .is_some_and(|(address, bits)| match (address.parse(), bits.parse::<u8>()) {
                    (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
                    (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
                    _ => false,
                })
        }
        "mac" => MAC.is_match(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => UUID.is_match(text),
        "email" => EMAIL.is_match(text),
        "hostname" => text.len() <= 255 && HOSTNAME.is_match(text),
        "uri" => URI.is_match(text),
        "k8s-short-name" => text.len() <= 63 && LABEL.is_match(text),
        "k8s-long-name" => text.len() <= 253 && DOTTED.is_match(text),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[rstest::rstest]
    #[case("date-time", "2026-11-29T19:00:00Z", true)]
    #[case("date-time", "2026-11-29T19:00:00.123456+02:00", true)]
    #[case("date-time", "2026-13-29T19:00:00Z", false)]
    #[case("date-time", "yesterday", false)]
    #[case("date", "2026-02-30", false)]
    #[case("duration", "1h30m", true)]
    #[case("duration", "22 ns", true)]
    #[case("duration", "soon", false)]
    #[case("byte", "aGk=", true)]
    #[case("byte", "%", false)]
    #[case("cidr", "10.0.0.0/33", false)]
    #[case("ipv4", "10.0.0.1", true)]
    #[case("mac", "52:54:00:ab:cd:ef", true)]
    #[case("uuid", "00000000-0000-0000-0000-000000000000", true)]
    #[case("uri", "https://example.com/a", true)]
    #[case("uri", "no uri", false)]
    #[case("nobody-knows", "anything", true)]
    fn formats_are_checked(#[case] format: &str, #[case] text: &str, #[case] good: bool) {
        assert_eq!(fits(format, text), good);
    }
}
