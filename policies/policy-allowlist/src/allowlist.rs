//! Whether a list of names allows one. Unset allows all, empty allows none, `<owner>.*` allows all of one owner; nothing else is a pattern.

use serde::Deserialize;

/// One entry.
#[derive(Deserialize)]
pub(crate) struct Allowed {
    pub(crate) name: String,
}

const ALL_OF: &str = ".*";

/// Profiles have one name each; the owner is a prefix of it.
pub(crate) fn allows_profile(list: Option<&[Allowed]>, name: &str) -> bool {
    let Some(list) = list else { return true };
    list.iter().any(|entry| match entry.name.strip_suffix(ALL_OF) {
        Some(owner) => {
            !owner.is_empty() && name.strip_prefix(owner).is_some_and(|rest| rest.starts_with('.'))
        }
        None => entry.name == name,
    })
}

/// Types are pairs. Written together they have one dot, so that provider `a.b` with type `c` is never provider `a` with type `b.c`.
pub(crate) fn allows_type(list: Option<&[Allowed]>, provider: &str, name: &str) -> bool {
    let Some(list) = list else { return true };
    list.iter()
        .filter_map(|entry| pair(&entry.name))
        .any(|(owner, kind)| owner == provider && (kind == "*" || kind == name))
}

/// Whether an entry allows any type of a provider.
pub(crate) fn names_provider(entry: &str, provider: &str) -> bool {
    pair(entry).is_some_and(|(owner, _)| owner == provider)
}

fn pair(entry: &str) -> Option<(&str, &str)> {
    entry
        .split_once('.')
        .filter(|(owner, kind)| !owner.is_empty() && !kind.is_empty() && !kind.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<Allowed> {
        names
            .iter()
            .map(|name| Allowed {
                name: (*name).to_owned(),
            })
            .collect()
    }

    #[test]
    fn unset_allows_all_and_empty_allows_none() {
        assert!(allows_profile(None, "gpu") && allows_type(None, "metal3", "gpu"));
        assert!(!allows_profile(Some(&[]), "gpu") && !allows_type(Some(&[]), "metal3", "gpu"));
    }

    #[test]
    fn only_the_literal_suffix_is_a_pattern() {
        let allowed = |entry: &str, name: &str| allows_profile(Some(&list(&[entry])), name);
        assert!(allowed("aws.*", "aws.large") && allowed("aws", "aws") && allowed("a.b.*", "a.b.c"));
        for (entry, name) in [
            ("aws.*", "awsx.large"),
            ("aws.*", "aws"),
            ("aws*", "aws.large"),
            ("*", "aws"),
            (".*", "aws.large"),
            (".*", ".x"),
            ("AWS.*", "aws.large"),
            ("aws", "Aws"),
            ("aws.l*", "aws.large"),
            ("*.large", "aws.large"),
        ] {
            assert!(!allowed(entry, name), "{entry} must not allow {name}");
        }
    }

    #[test]
    fn types_compare_as_pairs() {
        let allowed =
            |entry: &str, provider: &str, name: &str| allows_type(Some(&list(&[entry])), provider, name);
        assert!(allowed("metal3.gpu", "metal3", "gpu") && allowed("metal3.*", "metal3", "gpu"));
        for (entry, provider, name) in [
            ("a.b.c", "a.b", "c"),
            ("a.b.c", "a", "b.c"),
            ("a.b.*", "a.b", "c"),
            ("metal3.gpu", "metal", "3.gpu"),
            ("metal3.*", "metal33", "gpu"),
            ("gpu", "metal3", "gpu"),
            ("*.gpu", "metal3", "gpu"),
            ("*", "metal3", "gpu"),
            ("Metal3.gpu", "metal3", "gpu"),
            ("metal3.", "metal3", ""),
        ] {
            assert!(
                !allowed(entry, provider, name),
                "{entry} must not allow ({provider}, {name})"
            );
        }
    }
}
