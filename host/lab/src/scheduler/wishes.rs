//! Where a pod wants to be, and where it can stand to be: node selectors, node affinity, taints.
//!
//! Terms are read as the real scheduler reads them (`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`): terms are
//! alternatives, what stands in one must all hold, an empty term or one that cannot be read holds nowhere.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

/// The one field of nodes that can be asked for.
const NAME_FIELD: &str = "metadata.name";

/// Whether a pod's node selector and required node affinity hold on a node.
pub(crate) fn wants(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    selected && required(pod).is_none_or(|terms| terms.iter().any(|term| holds(term, node)))
}

fn required(pod: &Pod) -> Option<&[NodeSelectorTerm]> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let selector = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    Some(&selector.node_selector_terms)
}

/// The only nodes that come into question because every term names some. `None` when all do.
pub(crate) fn named(pod: &Pod) -> Option<BTreeSet<String>> {
    let terms = required(pod).filter(|terms| !terms.is_empty())?;
    let mut all = BTreeSet::new();
    for term in terms {
        let by_name = term.match_fields.iter().flatten();
        let mut lists = by_name
            .filter(|one| one.key == NAME_FIELD && one.operator == "In")
            .map(|one| one.values.iter().flatten().cloned().collect::<BTreeSet<_>>());
        let first = lists.next()?;
        all.extend(lists.fold(first, |known, list| &known & &list));
    }
    Some(all)
}

/// How much a pod would like to be on a node: the weights of the terms that hold there.
pub(crate) fn liking(pod: &Pod, node: &Node) -> i64 {
    let affinity = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let preferred = affinity.and_then(|affinity| {
        affinity
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    preferred
        .into_iter()
        .flatten()
        .filter(|term| holds(&term.preference, node))
        .map(|term| i64::from(term.weight))
        .sum()
}

fn holds(term: &NodeSelectorTerm, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let expressions: Vec<_> = term.match_expressions.iter().flatten().collect();
    let fields: Vec<_> = term.match_fields.iter().flatten().collect();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|one| label_holds(one, labels.get(&one.key).map(String::as_str)).unwrap_or(false))
        && fields.iter().all(|one| field_holds(one, name).unwrap_or(false))
}

/// `None` when the requirement cannot be read.
fn label_holds(one: &NodeSelectorRequirement, label: Option<&str>) -> Option<bool> {
    let values = one.values.as_deref().unwrap_or_default();
    let is_listed = || label.is_some_and(|label| values.iter().any(|value| value == label));
    let bound = || -> Option<(Option<i64>, i64)> {
        let [bound] = values else { return None };
        Some((label.and_then(|label| label.parse().ok()), bound.parse().ok()?))
    };
    match one.operator.as_str() {
        "In" if !values.is_empty() => Some(is_listed()),
        "NotIn" if !values.is_empty() => Some(!is_listed()),
        "Exists" if values.is_empty() => Some(label.is_some()),
        "DoesNotExist" if values.is_empty() => Some(label.is_none()),
        "Gt" => bound().map(|(label, bound)| label.is_some_and(|label| label > bound)),
        "Lt" => bound().map(|(label, bound)| label.is_some_and(|label| label < bound)),
        _ => None,
    }
}

fn field_holds(one: &NodeSelectorRequirement, name: &str) -> Option<bool> {
    let [value] = one.values.as_deref().unwrap_or_default() else {
        return None;
    };
    match (one.key.as_str(), one.operator.as_str()) {
        (NAME_FIELD, "In") => Some(value == name),
        (NAME_FIELD, "NotIn") => Some(value != name),
        _ => None,
    }
}

/// Whether one of the tolerations covers a taint.
pub(crate) fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|one| tolerates(one, taint))
}

fn tolerates(one: &Toleration, taint: &Taint) -> bool {
    let says = |field: &Option<String>, value: &str| {
        field
            .as_deref()
            .is_none_or(|field| field.is_empty() || field == value)
    };
    if !says(&one.effect, &taint.effect) || !says(&one.key, &taint.key) {
        return false;
    }
    match one.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            one.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        // Comparisons of numbers are off unless a feature gate is set, also in the real one.
        _ => false,
    }
}

/// The taints of a node that keep a pod away.
pub(crate) fn repelling(pod: &Pod, node: &Node) -> bool {
    taints(node, &["NoSchedule", "NoExecute"]).any(|taint| !tolerated(taint, tolerations(pod)))
}

/// How many taints of a node a pod would rather avoid.
pub(crate) fn disliked(pod: &Pod, node: &Node) -> usize {
    taints(node, &["PreferNoSchedule"])
        .filter(|taint| !tolerated(taint, tolerations(pod)))
        .count()
}

/// A pod's tolerations.
pub(crate) fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

fn taints<'a>(node: &'a Node, effects: &'a [&str]) -> impl Iterator<Item = &'a Taint> {
    let all = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    all.unwrap_or_default()
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"workload": "gpu", "cards": "4"}},
            "spec": {"taints": [
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                {"key": "slow", "effect": "PreferNoSchedule"},
            ]},
        }))
        .unwrap()
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn asking(terms: Value) -> Pod {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        pod(json!({"containers": [], "affinity": {"nodeAffinity": required}}))
    }

    fn label(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[rstest]
    #[case::in_a_list(label("workload", "In", &["cpu", "gpu"]), true)]
    #[case::not_in_a_list(label("workload", "In", &["cpu"]), false)]
    #[case::none_of_a_list(label("workload", "NotIn", &["cpu"]), true)]
    #[case::one_of_a_forbidden_list(label("workload", "NotIn", &["gpu"]), false)]
    #[case::a_missing_label_is_not_in_any_list(label("zone", "NotIn", &["a"]), true)]
    #[case::there(label("workload", "Exists", &[]), true)]
    #[case::not_there(label("workload", "DoesNotExist", &[]), false)]
    #[case::more(label("cards", "Gt", &["3"]), true)]
    #[case::not_more(label("cards", "Gt", &["4"]), false)]
    #[case::less(label("cards", "Lt", &["5"]), true)]
    #[case::a_word_is_not_less(label("workload", "Lt", &["5"]), false)]
    #[case::an_unknown_operator_holds_nowhere(label("workload", "Like", &["g"]), false)]
    #[case::a_list_without_values_holds_nowhere(label("workload", "NotIn", &[]), false)]
    #[case::an_empty_term_holds_nowhere(json!({}), false)]
    #[case::by_name(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), true)]
    #[case::by_another_name(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}), false)]
    #[case::by_not_having_a_name(json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}), false)]
    #[case::by_another_field(json!({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["n"]}]}), false)]
    fn a_required_term_holds(#[case] term: Value, #[case] expected: bool) {
        assert_eq!(wants(&asking(json!([term])), &node()), expected);
        // Terms are alternatives.
        assert!(wants(
            &asking(json!([term, label("workload", "Exists", &[])])),
            &node()
        ));
    }

    #[rstest]
    #[case(json!({"workload": "gpu"}), true)]
    #[case(json!({"workload": "cpu"}), false)]
    #[case(json!({"workload": "gpu", "zone": "a"}), false)]
    fn a_node_selector_asks_for_all_its_labels(#[case] selector: Value, #[case] expected: bool) {
        assert_eq!(
            wants(&pod(json!({"containers": [], "nodeSelector": selector})), &node()),
            expected
        );
    }

    #[test]
    fn a_selector_and_an_affinity_must_both_hold() {
        let mut both = asking(json!([label("workload", "Exists", &[])]));
        both.spec.as_mut().unwrap().node_selector = Some(BTreeMap::from([("workload".into(), "cpu".into())]));
        assert!(!wants(&both, &node()));
    }

    #[test]
    fn names_count_only_when_every_term_has_some() {
        let by_name = |names: &[&str]| {
            let fields: Vec<_> = names
                .iter()
                .map(|name| json!({"key": "metadata.name", "operator": "In", "values": [name]}))
                .collect();
            json!({"matchFields": fields})
        };
        let names = |terms: Value| named(&asking(terms)).map(|names| names.into_iter().collect::<Vec<_>>());
        assert_eq!(
            names(json!([by_name(&["a"]), by_name(&["b"])])),
            Some(vec!["a".into(), "b".into()])
        );
        assert_eq!(names(json!([by_name(&["a", "b"])])), Some(vec![]));
        assert_eq!(names(json!([by_name(&["a"]), label("x", "Exists", &[])])), None);
        assert_eq!(named(&pod(json!({"containers": []}))), None);
    }

    #[rstest]
    #[case::nothing(json!([]), true)]
    #[case::all(json!([{"operator": "Exists"}]), false)]
    #[case::the_key(json!([{"key": "dedicated", "operator": "Exists"}]), false)]
    #[case::the_value(json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]), false)]
    #[case::another_value(json!([{"key": "dedicated", "value": "db"}]), true)]
    #[case::another_effect(json!([{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}]), true)]
    #[case::a_comparison(json!([{"key": "dedicated", "operator": "Gt", "value": "1"}]), true)]
    fn a_taint_repels_who_tolerates(#[case] tolerations: Value, #[case] expected: bool) {
        assert_eq!(
            repelling(
                &pod(json!({"containers": [], "tolerations": tolerations})),
                &node()
            ),
            expected
        );
    }

    #[test]
    fn what_is_preferred_adds_up() {
        let term = |weight: i32, preference: Value| json!({"weight": weight, "preference": preference});
        let preferred = json!([
            term(5, label("workload", "In", &["gpu"])),
            term(7, label("workload", "In", &["cpu"])),
            term(1, json!({})),
        ]);
        let liked = pod(json!({"containers": [], "affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred}}}));
        assert_eq!(liking(&liked, &node()), 5);
        assert_eq!(disliked(&liked, &node()), 1);
        let tolerant = pod(json!({"containers": [], "tolerations": [{"key": "slow", "operator": "Exists"}]}));
        assert_eq!(disliked(&tolerant, &node()), 0);
    }
}
