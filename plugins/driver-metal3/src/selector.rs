//! Label selectors, as Kubernetes writes them in objects.

use std::collections::BTreeMap;

use hostler_sdk::{Failure, Field, Object};

/// Which hosts a node type is made of. Everything must match; an empty selector matches every host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector(Vec<Rule>);

#[derive(Clone, Debug)]
enum Rule {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    pub(crate) fn parse(field: &Field<'_>) -> Result<Self, Failure> {
        field.only(&["matchLabels", "matchExpressions"])?;
        let labels: BTreeMap<String, String> = field.key("matchLabels").texts()?;
        let mut rules: Vec<Rule> = labels
            .into_iter()
            .map(|(key, value)| Rule::In(key, vec![value]))
            .collect();
        for expression in field.key("matchExpressions").items()? {
            rules.push(rule(&expression)?);
        }
        Ok(Self(rules))
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|rule| match rule {
            Rule::In(key, values) => object
                .label(key)
                .is_some_and(|label| values.iter().any(|value| value == label)),
            Rule::NotIn(key, values) => object
                .label(key)
                .is_none_or(|label| values.iter().all(|value| value != label)),
            Rule::Exists(key) => object.label(key).is_some(),
            Rule::DoesNotExist(key) => object.label(key).is_none(),
        })
    }
}

fn rule(field: &Field<'_>) -> Result<Rule, Failure> {
    field.only(&["key", "operator", "values"])?;
    let key = field.key("key").text()?.to_owned();
    let values = field.key("values");
    let texts: Vec<String> = values
        .items()?
        .iter()
        .map(|value| value.text().map(str::to_owned))
        .collect::<Result<_, _>>()?;
    let operator = field.key("operator");
    match (operator.text()?, texts.is_empty()) {
        ("In" | "NotIn", true) => Err(values.refuse("is empty, this operator needs values")),
        ("In", false) => Ok(Rule::In(key, texts)),
        ("NotIn", false) => Ok(Rule::NotIn(key, texts)),
        ("Exists" | "DoesNotExist", false) => Err(values.refuse("must be empty with this operator")),
        ("Exists", true) => Ok(Rule::Exists(key)),
        ("DoesNotExist", true) => Ok(Rule::DoesNotExist(key)),
        (other, _) => Err(operator.refuse(format!(
            "{other} is no operator, use In, NotIn, Exists or DoesNotExist"
        ))),
    }
}
