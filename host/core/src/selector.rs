//! Whether a node type is what a claim or pool requires.
//!
//! A property may hold several values (`a,b`) or any (`*`). Requirements on one key are judged together: the type fits when at
//! least one of its values satisfies all of them.

use std::collections::BTreeMap;
use std::fmt;

use hostler_api::node_type::Requirement;
use hostler_api::{NodeType, names};

use crate::values::syntax;

/// Property that holds the full name of a node type.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Property that holds the operating system.
pub const OS: &str = "kubernetes.io/os";
/// Property that holds the zone; `global` unless the type says otherwise.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Property that holds how machines are paid for.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";

/// Properties that every type has by itself; a driver may not set them. (The zone has a default that it may.)
pub const BUILT_IN: [&str; 4] = [names::PROPERTY_NODE_TYPE, INSTANCE_TYPE, OS, CAPACITY_TYPE];

/// What is known of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeFacts {
    /// `<provider>.<type>`
    pub full_name: String,
    /// Name in the provider.
    pub short_name: String,
    /// Its own properties.
    pub properties: BTreeMap<String, String>,
}

impl From<&NodeType> for TypeFacts {
    fn from(object: &NodeType) -> Self {
        let full_name = object.metadata.name.clone().unwrap_or_default();
        let prefix = format!("{}.", object.spec.provider_ref);
        let short_name = full_name.strip_prefix(&prefix).unwrap_or(&full_name).to_owned();
        Self {
            full_name,
            short_name,
            properties: object.spec.properties.clone(),
        }
    }
}

impl TypeFacts {
    /// The property's text; built-in ones first.
    #[must_use]
    pub fn property(&self, key: &str) -> Option<&str> {
        match key {
            names::PROPERTY_NODE_TYPE | INSTANCE_TYPE => Some(&self.full_name),
            OS => Some("linux"),
            CAPACITY_TYPE => Some("on-demand"),
            ZONE => Some(self.properties.get(ZONE).map_or("global", String::as_str)),
            _ => self.properties.get(key).map(String::as_str),
        }
    }
}

/// The first requirement that a type does not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{type_name} has {}, {requirement} is required", .has.as_ref().map_or_else(|| format!("no {}", .requirement.0.key), |has| format!("{}={has}", .requirement.0.key)))]
pub struct Mismatch {
    /// Full name of the type.
    pub type_name: String,
    /// What was required.
    pub requirement: Shown,
    /// What the type has.
    pub has: Option<String>,
}

/// A requirement as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(pub Requirement);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement {
            key,
            operator,
            values,
        } = &self.0;
        if values.is_empty() {
            write!(f, "{key} {operator}")
        } else {
            write!(f, "{key} {operator} [{}]", values.join(", "))
        }
    }
}

/// What an operator asks of one value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Operator {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "In" => Some(Self::In),
            "NotIn" => Some(Self::NotIn),
            "Exists" => Some(Self::Exists),
            "DoesNotExist" | "NotExists" => Some(Self::DoesNotExist),
            "Gt" => Some(Self::Gt),
            "Lt" => Some(Self::Lt),
            _ => None,
        }
    }
}

/// What is wrong with a requirement: the field, and what would mend it.
#[must_use]
pub fn problem(requirement: &Requirement) -> Option<(&'static str, String)> {
    if let Err(message) = syntax::key(&requirement.key) {
        return Some(("key", message));
    }
    let Some(operator) = Operator::parse(&requirement.operator) else {
        let message = format!(
            "{:?} is no operator; use In, NotIn, Exists, DoesNotExist, Gt or Lt",
            requirement.operator
        );
        return Some(("operator", message));
    };
    let values = &requirement.values;
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => Some((
            "values",
            format!("are missing; {} compares with at least one", requirement.operator),
        )),
        Operator::In | Operator::NotIn => values
            .iter()
            .find_map(|value| Some(("values", syntax::label_value(value).err()?))),
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => Some((
            "values",
            format!("say nothing to {}; remove them", requirement.operator),
        )),
        Operator::Exists | Operator::DoesNotExist => None,
        Operator::Gt | Operator::Lt => match values.as_slice() {
            [one] if one.parse::<i64>().is_ok() => None,
            _ => Some((
                "values",
                format!("must be one whole number for {}", requirement.operator),
            )),
        },
    }
}

/// Whether the type meets all requirements.
///
/// # Errors
/// The first that it does not meet.
pub fn matches(requirements: &[Requirement], facts: &TypeFacts) -> Result<(), Mismatch> {
    for (index, requirement) in requirements.iter().enumerate() {
        let earlier = requirements[..index]
            .iter()
            .any(|other| other.key == requirement.key);
        if earlier {
            continue;
        }
        let same: Vec<&Requirement> = requirements
            .iter()
            .filter(|other| other.key == requirement.key)
            .collect();
        if let Some(failed) = first_unmet(&same, facts) {
            return Err(Mismatch {
                type_name: facts.full_name.clone(),
                requirement: Shown(failed.clone()),
                has: facts.property(&requirement.key).map(ToOwned::to_owned),
            });
        }
    }
    Ok(())
}

/// Whether the requirements choose a type by its name. (A type with GPUs is not used without that or a wish for GPUs.)
#[must_use]
pub fn selects_by_name(requirements: &[Requirement]) -> bool {
    requirements.iter().any(|requirement| {
        matches!(
            requirement.key.as_str(),
            names::PROPERTY_NODE_TYPE | INSTANCE_TYPE
        ) && Operator::parse(&requirement.operator) == Some(Operator::In)
    })
}

fn first_unmet<'a>(same: &[&'a Requirement], facts: &TypeFacts) -> Option<&'a Requirement> {
    let key = &same.first()?.key;
    let Some(has) = facts.property(key) else {
        return same.iter().copied().find(|requirement| {
            !matches!(
                Operator::parse(&requirement.operator),
                Some(Operator::NotIn | Operator::DoesNotExist)
            )
        });
    };
    // Both spellings of a type's name are one value.
    let spelt = |value: &str| {
        if key == names::PROPERTY_NODE_TYPE && value == facts.short_name {
            facts.full_name.clone()
        } else {
            value.to_owned()
        }
    };
    let mut candidates: Vec<String> = if has == "*" {
        let named = same
            .iter()
            .find(|requirement| Operator::parse(&requirement.operator) == Some(Operator::In));
        match named {
            Some(requirement) => requirement.values.iter().map(|value| spelt(value)).collect(),
            // Any value will do: only a demand that there be none can fail.
            None => {
                return same.iter().copied().find(|requirement| {
                    matches!(
                        Operator::parse(&requirement.operator),
                        Some(Operator::DoesNotExist) | None
                    )
                });
            }
        }
    } else {
        has.split(',').map(|value| value.trim().to_owned()).collect()
    };
    for requirement in same.iter().copied() {
        candidates.retain(|value| allows(requirement, value, &spelt));
        if candidates.is_empty() {
            return Some(requirement);
        }
    }
    None
}

fn allows(requirement: &Requirement, value: &str, spelt: &impl Fn(&str) -> String) -> bool {
    let listed = || requirement.values.iter().any(|wanted| spelt(wanted) == value);
    let bound = || {
        Some((
            value.parse::<i64>().ok()?,
            requirement.values.first()?.parse::<i64>().ok()?,
        ))
    };
    match Operator::parse(&requirement.operator) {
        Some(Operator::In) => listed(),
        Some(Operator::NotIn) => !listed(),
        Some(Operator::Exists) => true,
        Some(Operator::DoesNotExist) | None => false,
        Some(Operator::Gt) => bound().is_some_and(|(value, bound)| value > bound),
        Some(Operator::Lt) => bound().is_some_and(|(value, bound)| value < bound),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn facts() -> TypeFacts {
        TypeFacts {
            full_name: "metal3.gpu-server".into(),
            short_name: "gpu-server".into(),
            properties: [("rack", "r1,r2"), ("any", "*"), ("cores", "64")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        }
    }

    fn need(key: &str, operator: &str, values: &[&str]) -> Requirement {
        Requirement {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    #[rstest]
    #[case::the_short_name("vcluster.com/node-type", "In", &["gpu-server"], true)]
    #[case::the_full_name("vcluster.com/node-type", "In", &["metal3.gpu-server"], true)]
    #[case::another_name("vcluster.com/node-type", "In", &["cpu-server"], false)]
    #[case::not_by_the_short_name("vcluster.com/node-type", "NotIn", &["gpu-server"], false)]
    #[case::not_by_the_full_name("vcluster.com/node-type", "NotIn", &["metal3.gpu-server"], false)]
    #[case::no_operator_is_in("vcluster.com/node-type", "", &["gpu-server"], true)]
    #[case::the_instance_type_is_the_full_name("node.kubernetes.io/instance-type", "In", &["gpu-server"], false)]
    #[case::linux("kubernetes.io/os", "In", &["linux"], true)]
    #[case::the_zone_has_a_default("topology.kubernetes.io/zone", "In", &["global"], true)]
    #[case::no_spot("karpenter.sh/capacity-type", "In", &["spot"], false)]
    #[case::one_of_several("rack", "In", &["r2"], true)]
    #[case::none_of_several("rack", "In", &["r3"], false)]
    #[case::another_of_several_is_left("rack", "NotIn", &["r1"], true)]
    #[case::no_other_is_left("rack", "NotIn", &["r1", "r2"], false)]
    #[case::any("any", "In", &["x"], true)]
    #[case::any_other("any", "NotIn", &["x"], true)]
    #[case::any_exists("any", "Exists", &[], true)]
    #[case::any_is_not_absent("any", "DoesNotExist", &[], false)]
    #[case::absent_is_not_in("gone", "NotIn", &["x"], true)]
    #[case::absent("gone", "NotExists", &[], true)]
    #[case::absent_does_not_exist("gone", "Exists", &[], false)]
    #[case::more("cores", "Gt", &["63"], true)]
    #[case::not_more("cores", "Gt", &["64"], false)]
    #[case::less("cores", "Lt", &["65"], true)]
    #[case::no_number("rack", "Lt", &["65"], false)]
    #[case::an_unknown_operator_never_matches("rack", "Like", &["r1"], false)]
    fn one_requirement(
        #[case] key: &str,
        #[case] operator: &str,
        #[case] values: &[&str],
        #[case] fits: bool,
    ) {
        assert_eq!(matches(&[need(key, operator, values)], &facts()).is_ok(), fits);
    }

    #[test]
    fn requirements_on_one_key_are_judged_together() {
        let both = [need("rack", "In", &["r1"]), need("rack", "NotIn", &["r1"])];
        let mismatch = matches(&both, &facts()).unwrap_err();
        assert_eq!(
            mismatch.to_string(),
            "metal3.gpu-server has rack=r1,r2, rack NotIn [r1] is required"
        );
    }

    #[rstest]
    #[case(need("a", "In", &[]), Some("values"))]
    #[case(need("a", "Exists", &["x"]), Some("values"))]
    #[case(need("a", "Gt", &["x"]), Some("values"))]
    #[case(need("a", "Gt", &["1", "2"]), Some("values"))]
    #[case(need("a", "Like", &["1"]), Some("operator"))]
    #[case(need("a b", "In", &["1"]), Some("key"))]
    #[case(need("a", "NotExists", &[]), None)]
    #[case(need("a", "Lt", &["-3"]), None)]
    fn problems_name_the_field(#[case] requirement: Requirement, #[case] field: Option<&str>) {
        assert_eq!(problem(&requirement).map(|(field, _)| field), field);
    }

    proptest! {
        #[test]
        fn in_and_not_in_of_a_single_value_are_opposites(value in "[a-c]", wanted in "[a-c]") {
            let facts = TypeFacts { properties: [("k".to_owned(), value)].into(), ..facts() };
            let yes = matches(&[need("k", "In", &[&wanted])], &facts).is_ok();
            let no = matches(&[need("k", "NotIn", &[&wanted])], &facts).is_ok();
            prop_assert_ne!(yes, no);
        }

        #[test]
        fn more_requirements_never_match_more(keys in proptest::collection::vec(("[rg][a-d]?", "[a-c]"), 0..4)) {
            let all: Vec<Requirement> = keys.iter().map(|(key, value)| need(key, "In", &[value])).collect();
            if matches(&all, &facts()).is_ok() {
                for cut in 0..all.len() {
                    prop_assert!(matches(&all[..cut], &facts()).is_ok());
                }
            }
        }
    }
}
