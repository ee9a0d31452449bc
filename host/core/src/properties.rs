//! Properties that tenants may set, and the objects that properties name.

use std::collections::{BTreeMap, BTreeSet};

use hostler_api::{NodeProvider, names};

use crate::values::Problem;

/// Code of a refusal.
pub const CODE: &str = "PropertyNotAllowed";

/// Keys that pools and claims of this provider may set.
#[must_use]
pub fn allowed(provider: &NodeProvider) -> BTreeSet<String> {
    let listed = provider
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(names::TENANT_PROPERTIES));
    names::TENANT_KEYS
        .iter()
        .map(|key| (*key).to_owned())
        .chain(
            listed
                .into_iter()
                .flat_map(|text| values(text))
                .map(ToOwned::to_owned),
        )
        .collect()
}

/// A refusal for each key that may not be set. `path` says where a key was written.
pub fn refused<'a>(
    keys: impl Iterator<Item = &'a String>,
    provider: &NodeProvider,
    path: impl Fn(&str) -> String,
) -> Vec<Problem> {
    let allowed = allowed(provider);
    let name = provider.metadata.name.as_deref().unwrap_or_default();
    keys.filter(|key| !allowed.contains(*key))
        .map(|key| Problem {
            path: path(key),
            code: CODE,
            message: format!(
                "{key} may not be set by tenants of provider {name}; remove it, or have the operator list it in the provider's annotation {}",
                names::TENANT_PROPERTIES
            ),
        })
        .collect()
}

/// The values of a property that may hold several.
pub fn values(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|value| !value.is_empty())
}

/// Properties in layers; the later one wins. (Provider, node type, environment, claim.)
#[must_use]
pub fn merged(layers: &[&BTreeMap<String, String>]) -> BTreeMap<String, String> {
    layers
        .iter()
        .flat_map(|layer| layer.iter())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use hostler_api::NodeProviderSpec;

    use super::*;

    fn provider(listed: Option<&str>) -> NodeProvider {
        let mut provider = NodeProvider::new("metal3", NodeProviderSpec::default());
        provider.metadata.annotations =
            listed.map(|text| [(names::TENANT_PROPERTIES.to_owned(), text.to_owned())].into());
        provider
    }

    #[test]
    fn only_built_in_and_listed_keys_may_be_set() {
        let keys: Vec<String> = [
            "vcluster.com/os-image",
            "metal3.vcluster.com/image-url",
            "vcluster.com/network-environment",
        ]
        .map(ToOwned::to_owned)
        .into();
        let path = |key: &str| format!("spec.properties[{key:?}]");
        let refused_keys = |listed| -> Vec<String> {
            refused(keys.iter(), &provider(listed), path)
                .into_iter()
                .map(|problem| problem.path)
                .collect()
        };
        assert_eq!(
            refused_keys(None),
            [
                "spec.properties[\"metal3.vcluster.com/image-url\"]",
                "spec.properties[\"vcluster.com/network-environment\"]"
            ]
        );
        assert_eq!(
            refused_keys(Some("a, vcluster.com/network-environment ,")),
            ["spec.properties[\"metal3.vcluster.com/image-url\"]"]
        );
    }

    #[test]
    fn the_later_layer_wins() {
        let layer = |value: &str| BTreeMap::from([("k".to_owned(), value.to_owned())]);
        assert_eq!(
            merged(&[&layer("provider"), &layer("type"), &layer("claim")])["k"],
            "claim"
        );
        assert_eq!(values("a, b,,c").collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
