//! The pools of `privateNodes.autoNodes`.

use std::collections::{BTreeMap, BTreeSet};

use hostler_api::node_type::Requirement;
use hostler_api::shape::{MOST_LABELS, MOST_PROPERTIES, MOST_REQUIREMENTS, MOST_TAINTS, MOST_VALUES};
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::shape::{joined, keyed, list, text};
use super::{Grace, Problem, syntax};
use crate::{protected, selector};

/// Most nodes of one pool. A rack row has hundreds; four more digits are a slip of the keyboard.
pub const MAX_QUANTITY: i64 = 10_000;
/// Most pools of one tenant.
const MAX_POOLS: usize = 500;

/// One pool as the tenant wishes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Where it stands in the values, for messages.
    pub path: String,
    /// Name; unique in the tenant.
    pub name: String,
    /// Name of the NodeProvider.
    pub provider: String,
    /// How its size is found.
    pub kind: Kind,
    /// What its node type must be.
    pub requirements: Vec<Requirement>,
    /// Labels of its nodes.
    pub node_labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    pub taints: Vec<Taint>,
    /// Properties of the entry, and over them those of the pool.
    pub properties: BTreeMap<String, String>,
    /// Where each property was written, for messages.
    pub property_paths: BTreeMap<String, String>,
    /// Name of the NodeProfile.
    pub profile: Option<String>,
    /// How long pods may take to leave, as written.
    pub termination_grace_period: Option<String>,
}

/// How the size of a pool is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fixed number of nodes.
    Static {
        /// The number.
        quantity: i64,
    },
    /// By demand; not served yet.
    Dynamic,
}

/// Reads all pools of a `privateNodes` section whose shape was checked.
pub(super) fn read(section: &Value, problems: &mut Vec<Problem>) -> Vec<Pool> {
    let mut pools = Vec::new();
    let mut providers = BTreeSet::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for (index, entry) in list(section, "autoNodes").iter().enumerate() {
        let path = format!("privateNodes.autoNodes[{index}]");
        let provider = text(entry, "provider").unwrap_or_default();
        if provider.is_empty() {
            problems.push(Problem::new(
                joined(&path, "provider"),
                "is missing; name a NodeProvider",
            ));
        } else if let Err(message) = syntax::label_name(provider) {
            problems.push(Problem::new(joined(&path, "provider"), message));
        } else if !providers.insert(provider) {
            let message = format!("{provider:?} stands in an earlier entry; put all its pools into that one");
            problems.push(Problem::new(joined(&path, "provider"), message));
        }
        let shared = properties(entry, &path, problems);
        for key in ["static", "dynamic"] {
            for (index, written) in list(entry, key).iter().enumerate() {
                let path = format!("{path}.{key}[{index}]");
                let pool = pool(written, path, provider, key == "static", &shared, problems);
                if !pool.name.is_empty()
                    && let Some(first) = names.insert(pool.name.clone(), pool.path.clone())
                {
                    let message = format!(
                        "{:?} is the name of {first} too; pool names are unique in a tenant",
                        pool.name
                    );
                    problems.push(Problem::new(joined(&pool.path, "name"), message));
                }
                pools.push(pool);
            }
        }
    }
    if pools.len() > MAX_POOLS {
        let message = format!("{} pools are too many; at most {MAX_POOLS}", pools.len());
        problems.push(Problem::new("privateNodes.autoNodes", message));
    }
    pools
}

/// Property → (value, path).
type Properties = BTreeMap<String, (String, String)>;

fn pool(
    written: &Value,
    path: String,
    provider: &str,
    fixed: bool,
    shared: &Properties,
    problems: &mut Vec<Problem>,
) -> Pool {
    let name = text(written, "name").unwrap_or_default().to_owned();
    if name.is_empty() {
        problems.push(Problem::new(
            joined(&path, "name"),
            "is missing; give the pool a name",
        ));
    } else if let Err(message) = syntax::label_value(&name) {
        problems.push(Problem::new(joined(&path, "name"), message));
    }
    let kind = if fixed {
        Kind::Static {
            quantity: quantity(written, &path, problems),
        }
    } else {
        Kind::Dynamic
    };
    let mut merged = shared.clone();
    merged.extend(properties(written, &path, problems));
    let profile = text(written, "profile").map(ToOwned::to_owned);
    if let Some(profile) = &profile
        && let Err(message) = syntax::subdomain(profile)
    {
        problems.push(Problem::new(joined(&path, "profile"), message));
    }
    let grace = text(written, "terminationGracePeriod").map(ToOwned::to_owned);
    if let Some(Err(message)) = grace.as_deref().map(Grace::parse) {
        problems.push(Problem::new(joined(&path, "terminationGracePeriod"), message));
    }
    let selector = joined(&path, "nodeTypeSelector");
    bounded(
        list(written, "nodeTypeSelector").len(),
        MOST_REQUIREMENTS,
        &selector,
        problems,
    );
    let requirements = list(written, "nodeTypeSelector")
        .iter()
        .enumerate()
        .filter_map(|(index, term)| requirement(term, &format!("{path}.nodeTypeSelector[{index}]"), problems))
        .collect();
    Pool {
        name,
        provider: provider.to_owned(),
        kind,
        requirements,
        node_labels: labels(written, &path, problems),
        taints: taints(written, &path, problems),
        property_paths: merged
            .iter()
            .map(|(key, (_, path))| (key.clone(), path.clone()))
            .collect(),
        properties: merged.into_iter().map(|(key, (value, _))| (key, value)).collect(),
        profile,
        termination_grace_period: grace,
        path,
    }
}

fn quantity(written: &Value, path: &str, problems: &mut Vec<Problem>) -> i64 {
    let place = joined(path, "quantity");
    let Some(value) = written.get("quantity").filter(|value| !value.is_null()) else {
        problems.push(Problem::new(
            place,
            "is missing; set how many nodes the pool has, 0 for none",
        ));
        return 0;
    };
    match value.as_i64() {
        Some(quantity @ 0..=MAX_QUANTITY) => quantity,
        Some(quantity) if quantity < 0 => {
            problems.push(Problem::new(
                place,
                format!("{quantity} is negative; set 0 or more"),
            ));
            0
        }
        _ => {
            problems.push(Problem::new(
                place,
                format!("{value} is too many; a pool has at most {MAX_QUANTITY} nodes"),
            ));
            0
        }
    }
}

/// What is made of a pool must be accepted by the definition of a claim.
fn bounded(count: usize, most: usize, path: &str, problems: &mut Vec<Problem>) {
    if count > most {
        problems.push(Problem::new(
            path,
            format!("{count} entries are too many; at most {most}"),
        ));
    }
}

fn properties(written: &Value, path: &str, problems: &mut Vec<Problem>) -> Properties {
    let path = joined(path, "properties");
    // Those of the entry and of the pool come together in one claim.
    bounded(
        texts(written, "properties").count(),
        MOST_PROPERTIES / 2,
        &path,
        problems,
    );
    texts(written, "properties")
        .map(|(key, value)| {
            let place = keyed(&path, key);
            match syntax::key(key) {
                Err(message) => problems.push(Problem::new(place.clone(), message)),
                Ok(()) => problems.extend(protected::property(key).map(|why| why.at(&place))),
            }
            (key.to_owned(), (value.to_owned(), place))
        })
        .collect()
}

fn labels(written: &Value, path: &str, problems: &mut Vec<Problem>) -> BTreeMap<String, String> {
    let path = joined(path, "nodeLabels");
    bounded(texts(written, "nodeLabels").count(), MOST_LABELS, &path, problems);
    texts(written, "nodeLabels")
        .map(|(key, value)| {
            let place = keyed(&path, key);
            problems.extend(protected::label_problem(&place, key, value));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

fn taints(written: &Value, path: &str, problems: &mut Vec<Problem>) -> Vec<Taint> {
    let taints: Vec<Taint> = list(written, "taints")
        .iter()
        .map(|taint| Taint {
            key: text(taint, "key").unwrap_or_default().to_owned(),
            value: text(taint, "value").map(ToOwned::to_owned),
            effect: text(taint, "effect").unwrap_or_default().to_owned(),
            time_added: None,
        })
        .collect();
    let path = joined(path, "taints");
    bounded(taints.len(), MOST_TAINTS, &path, problems);
    problems.extend(protected::taint_problems(&path, &taints));
    taints
}

fn requirement(term: &Value, path: &str, problems: &mut Vec<Problem>) -> Option<Requirement> {
    let Some(key) = text(term, "property") else {
        problems.push(Problem::new(
            joined(path, "property"),
            "is missing; name the property to select by",
        ));
        return None;
    };
    let many: Vec<String> = list(term, "values")
        .iter()
        .filter_map(Value::as_str)
        .map(ToOwned::to_owned)
        .collect();
    let one = term.get("value").and_then(Value::as_str);
    bounded(many.len(), MOST_VALUES, &joined(path, "values"), problems);
    if one.is_some() && !many.is_empty() {
        problems.push(Problem::new(
            joined(path, "value"),
            "and values exclude each other; keep one of them",
        ));
        return None;
    }
    let values = one.map_or(many, |one| vec![one.to_owned()]);
    let operator = text(term, "operator").unwrap_or("In").to_owned();
    let requirement = Requirement {
        key: key.to_owned(),
        operator,
        values,
    };
    match selector::problem(&requirement) {
        Some((field, message)) => {
            let field = if field == "key" { "property" } else { field };
            problems.push(Problem::new(joined(path, field), message));
            None
        }
        None => Some(requirement),
    }
}

fn texts<'a>(written: &'a Value, key: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    written
        .get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| value.as_str().map(|value| (key.as_str(), value)))
}
