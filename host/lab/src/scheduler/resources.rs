//! What a pod asks for and what a node has, in numbers that can be compared.
//!
//! A pod's requests are counted as the real scheduler counts them
//! (`k8s.io/component-helpers/resource`, `PodRequests`): the sum over the containers and those init containers that stay,
//! or what any other init container needs while it runs, whichever is more; then what is said of the pod as a whole.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity::{thousandths, units};

/// Amounts by name: CPU in thousandths, all else in units.
pub(crate) type Amounts = BTreeMap<String, i64>;

type Written = BTreeMap<String, Quantity>;

fn amount(name: &str, quantity: &Quantity) -> Option<i64> {
    if name == "cpu" {
        thousandths(&quantity.0)
    } else {
        units(&quantity.0)
    }
}

/// What a container asks for. What it may have at most it also asks for, unless it says so itself.
fn asked(resources: Option<&ResourceRequirements>) -> Amounts {
    let empty = Written::new();
    let of = |list: fn(&ResourceRequirements) -> &Option<Written>| {
        resources
            .and_then(|resources| list(resources).as_ref())
            .unwrap_or(&empty)
    };
    let (requests, limits) = (of(|list| &list.requests), of(|list| &list.limits));
    limits
        .iter()
        .filter(|(name, _)| !requests.contains_key(*name))
        .chain(requests)
        // What cannot be read fits nowhere; to take it for nothing would place a pod that nobody can run.
        .map(|(name, quantity)| (name.clone(), amount(name, quantity).unwrap_or(i64::MAX)))
        .collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn at_least(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = to.entry(name.clone()).or_default();
        *known = (*known).max(*amount);
    }
}

/// What a pod asks for.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let of = |container: &Container| asked(container.resources.as_ref());
    let mut all = Amounts::new();
    for container in &spec.containers {
        add(&mut all, &of(container));
    }
    let (mut staying, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut all, &needs);
            add(&mut staying, &needs);
            needs = staying.clone();
        } else {
            add(&mut needs, &staying);
        }
        at_least(&mut starting, &needs);
    }
    at_least(&mut all, &starting);
    // Of the pod as a whole only these can be said.
    let whole = asked(spec.resources.as_ref());
    let can_be_said = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    all.extend(whole.into_iter().filter(|(name, _)| can_be_said(name)));
    for (name, quantity) in spec.overhead.iter().flatten() {
        let more = amount(name, quantity).unwrap_or(i64::MAX);
        add(&mut all, &Amounts::from([(name.clone(), more)]));
    }
    all
}

/// What a node lets pods have.
pub(crate) fn allocatable(node: &Node) -> Amounts {
    let status = node.status.as_ref();
    let written = status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
    written
        .into_iter()
        .flatten()
        .map(|(name, quantity)| (name.clone(), amount(name, quantity).unwrap_or_default()))
        .collect()
}

/// What all these pods ask for together, and how many they are.
pub(crate) fn used<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Amounts {
    let mut all = Amounts::new();
    for pod in pods {
        add(&mut all, &requests(pod));
        add(&mut all, &Amounts::from([("pods".to_owned(), 1)]));
    }
    all
}

/// One thing of which a node has too little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    /// Its name; `pods` when there are too many of those.
    pub(crate) resource: String,
    pub(crate) requested: i64,
    pub(crate) used: i64,
    pub(crate) capacity: i64,
}

impl Lack {
    /// In the words of the real scheduler.
    pub(crate) fn reason(&self) -> String {
        match self.resource.as_str() {
            "pods" => "Too many pods".to_owned(),
            name => format!("Insufficient {name}"),
        }
    }

    /// Whether not even the empty node would do.
    pub(crate) fn is_lasting(&self) -> bool {
        self.resource != "pods" && self.requested > self.capacity
    }
}

/// What of `wanted` a node with these amounts cannot give. Empty when it fits.
pub(crate) fn lacks(wanted: &Amounts, allocatable: &Amounts, used: &Amounts) -> Vec<Lack> {
    let one = ("pods".to_owned(), 1);
    let wanted = std::iter::once((&one.0, &one.1)).chain(wanted.iter().filter(|(name, _)| *name != "pods"));
    wanted
        .filter(|(_, requested)| **requested > 0)
        .map(|(name, requested)| Lack {
            resource: name.clone(),
            requested: *requested,
            used: used.get(name).copied().unwrap_or_default(),
            capacity: allocatable.get(name).copied().unwrap_or_default(),
        })
        .filter(|lack| lack.requested > lack.capacity.saturating_sub(lack.used))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn amounts(all: &[(&str, i64)]) -> Amounts {
        all.iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect()
    }

    #[rstest]
    #[case::the_sum_of_the_containers(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}),
        &[("cpu", 1500), ("memory", 1 << 30)]
    )]
    #[case::limits_where_nothing_is_requested(
        json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2"}, "requests": {"cpu": "1"}}}]}),
        &[("cpu", 1000), ("nvidia.com/gpu", 1)]
    )]
    #[case::the_largest_init_container_when_it_is_more(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "10"}}}],
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}, {"name": "j", "resources": {"requests": {"cpu": "2"}}}]}),
        &[("cpu", 3000), ("memory", 10)]
    )]
    #[case::init_containers_that_stay_beside_all_that_follow(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
                {"name": "i", "resources": {"requests": {"cpu": "4"}}}]}),
        &[("cpu", 6000)]
    )]
    #[case::of_the_pod_as_a_whole_and_its_overhead(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "resources": {"requests": {"cpu": "5"}}, "overhead": {"cpu": "250m"}}),
        &[("cpu", 5250)]
    )]
    #[case::what_cannot_be_read_as_more_than_anybody_has(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "many"}}}]}), &[("cpu", i64::MAX)]
    )]
    fn a_pod_asks_for(#[case] spec: Value, #[case] expected: &[(&str, i64)]) {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        assert_eq!(requests(&pod), amounts(expected));
    }

    #[rstest]
    #[case::nothing_asked(&[], &[("pods", 2)], &[], &[])]
    #[case::room(&[("cpu", 500)], &[("cpu", 1000), ("pods", 2)], &[("cpu", 500), ("pods", 1)], &[])]
    #[case::used_up(&[("cpu", 501)], &[("cpu", 1000), ("pods", 2)], &[("cpu", 500)], &[("Insufficient cpu", false)])]
    #[case::more_than_there_is(&[("nvidia.com/gpu", 5)], &[("nvidia.com/gpu", 4), ("pods", 9)], &[], &[("Insufficient nvidia.com/gpu", true)])]
    #[case::of_a_sort_that_is_not_there(&[("nvidia.com/gpu", 1)], &[("pods", 9)], &[], &[("Insufficient nvidia.com/gpu", true)])]
    #[case::none_of_what_is_not_there(&[("nvidia.com/gpu", 0)], &[("pods", 9)], &[], &[])]
    #[case::no_place_for_a_pod(&[("cpu", 1)], &[("cpu", 1000), ("pods", 1)], &[("pods", 1)], &[("Too many pods", false)])]
    fn a_node_lacks(
        #[case] wanted: &[(&str, i64)],
        #[case] has: &[(&str, i64)],
        #[case] used: &[(&str, i64)],
        #[case] expected: &[(&str, bool)],
    ) {
        let found = lacks(&amounts(wanted), &amounts(has), &amounts(used));
        let found: Vec<_> = found
            .iter()
            .map(|lack| (lack.reason(), lack.is_lasting()))
            .collect();
        let found: Vec<_> = found
            .iter()
            .map(|(reason, lasting)| (reason.as_str(), *lasting))
            .collect();
        assert_eq!(found, expected);
    }
}
