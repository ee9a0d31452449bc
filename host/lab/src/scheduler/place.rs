//! Chooses the node of one pod, or says why there is none, in the words of the real scheduler.
//!
//! # How it decides
//! The filters run in the order of the real scheduler's default plugins and the first that refuses a node names the reason:
//! unschedulable, taints, node affinity and selector, host ports, resources. What is left is weighed as there: taints that
//! would rather be avoided (weight 3), preferred node affinity (2), room left (1), CPU and memory in balance (1). Where the
//! real one draws lots among the best, this one takes the first by name.
//!
//! The message is that of `FitError` in
//! <https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/scheduler/framework/types.go>, with what preemption has to say
//! after it (`pkg/scheduler/framework/preemption/preemption.go` there).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::resources::{Amounts, allocatable, lacks, requests, used};
use super::wishes::{disliked, liking, named, repelling, tolerated, tolerations, wants};

/// A node and the pods on it that have not ended.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Node,
    pub(crate) pods: Vec<&'a Pod>,
}

impl Place<'_> {
    fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }
}

/// Why a node is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unfit {
    reasons: Vec<String>,
    /// Whether it would stay so if other pods went.
    lasting: bool,
}

impl Unfit {
    fn lasting(reason: &str) -> Self {
        Self {
            reasons: vec![reason.to_owned()],
            lasting: true,
        }
    }
}

/// The best node for a pod, or why no node is.
pub(crate) fn place<'a>(pod: &Pod, places: &'a [Place<'a>]) -> Result<&'a str, String> {
    if let Some(unread) = unread(pod) {
        return Err(unread);
    }
    if places.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let wanted = requests(pod);
    let named = named(pod);
    if named.as_ref().is_some_and(BTreeSet::is_empty) {
        let why = format!(
            "0/{} nodes are available: pod affinity terms conflict.",
            places.len()
        );
        return Err(format!("{why} {}", afterwards(pod, places, &BTreeMap::new())));
    }
    let mut refused = BTreeMap::new();
    let mut fitting = Vec::new();
    for place in places {
        if named.as_ref().is_some_and(|names| !names.contains(place.name())) {
            let why = Unfit::lasting("node(s) didn't satisfy plugin(s) [NodeAffinity]");
            refused.insert(place.name(), why);
            continue;
        }
        match fits(pod, &wanted, place) {
            Ok(()) => fitting.push(place),
            Err(unfit) => {
                refused.insert(place.name(), unfit);
            }
        }
    }
    let best = fitting
        .iter()
        .zip(scores(pod, &wanted, &fitting))
        .max_by(|(a, one), (b, two)| one.cmp(two).then_with(|| b.name().cmp(a.name())));
    if let Some((best, _)) = best {
        return Ok(best.name());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in refused.values().flat_map(|unfit| &unfit.reasons) {
        *counts.entry(reason).or_default() += 1;
    }
    let all = sentence(places.len(), counts);
    Err(format!("{all} {}", afterwards(pod, places, &refused)))
}

/// `0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.`
fn sentence<'s>(nodes: usize, counts: impl IntoIterator<Item = (&'s str, usize)>) -> String {
    let mut parts: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    format!("0/{nodes} nodes are available: {}.", parts.join(", "))
}

/// What the real scheduler adds when no node was found: there are no claims for devices whose devices could be freed, and what
/// preemption could do.
fn afterwards(pod: &Pod, places: &[Place<'_>], refused: &BTreeMap<&str, Unfit>) -> String {
    format!(
        "no new claims to deallocate, {}",
        preemption(pod, places, refused)
    )
}

/// What the real scheduler would say about making room by ending others. This one never does.
fn preemption(pod: &Pod, places: &[Place<'_>], refused: &BTreeMap<&str, Unfit>) -> String {
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never") {
        return "preemption: not eligible due to preemptionPolicy=Never.".to_owned();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for place in places {
        let might_help = refused.get(place.name()).is_some_and(|unfit| !unfit.lasting);
        let lesser = place.pods.iter().any(|other| priority(other) < priority(pod));
        let why = match (might_help, lesser) {
            (false, _) => "Preemption is not helpful for scheduling",
            (true, false) => "No preemption victims found for incoming pod",
            (true, true) => "node(s) with pods of lower priority, which this scheduler does not preempt",
        };
        *counts.entry(why).or_default() += 1;
    }
    format!("preemption: {}", sentence(places.len(), counts))
}

/// A pod's priority.
pub(crate) fn priority(pod: &Pod) -> i32 {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.priority)
        .unwrap_or_default()
}

/// What a pod demands that this scheduler does not read. To ignore it would place the pod wrongly.
fn unread(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let affinity = spec.affinity.as_ref();
    let is_some = |list: Option<usize>| list.is_some_and(|length| length > 0);
    let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let apart = apart.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let together = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let together = together.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let spread = spec.topology_spread_constraints.iter().flatten();
    let demands = [
        ("spec.affinity.podAffinity", is_some(together.map(Vec::len))),
        ("spec.affinity.podAntiAffinity", is_some(apart.map(Vec::len))),
        (
            "spec.topologySpreadConstraints",
            spread
                .into_iter()
                .any(|one| one.when_unsatisfiable == "DoNotSchedule"),
        ),
        (
            "spec.volumes[].persistentVolumeClaim",
            spec.volumes
                .iter()
                .flatten()
                .any(|one| one.persistent_volume_claim.is_some() || one.ephemeral.is_some()),
        ),
        (
            "spec.resourceClaims",
            is_some(spec.resource_claims.as_ref().map(Vec::len)),
        ),
    ];
    let fields: Vec<&str> = demands
        .into_iter()
        .filter(|(_, demanded)| *demanded)
        .map(|(field, _)| field)
        .collect();
    (!fields.is_empty()).then(|| {
        format!(
            "the laboratory's scheduler does not read {}; leave it out, or set spec.nodeName",
            fields.join(" and ")
        )
    })
}

fn fits(pod: &Pod, wanted: &Amounts, place: &Place<'_>) -> Result<(), Unfit> {
    let cordoned = place.node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if cordoned && !tolerated(&cordon, tolerations(pod)) {
        return Err(Unfit::lasting("node(s) were unschedulable"));
    }
    if repelling(pod, place.node) {
        return Err(Unfit::lasting("node(s) had untolerated taint(s)"));
    }
    if !wants(pod, place.node) {
        return Err(Unfit::lasting(
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    let taken: BTreeSet<Port> = place.pods.iter().flat_map(|pod| ports(pod)).collect();
    if ports(pod)
        .iter()
        .any(|one| taken.iter().any(|other| clash(one, other)))
    {
        return Err(Unfit {
            reasons: vec!["node(s) didn't have free ports for the requested pod ports".to_owned()],
            lasting: false,
        });
    }
    let lacks = lacks(
        wanted,
        &allocatable(place.node),
        &used(place.pods.iter().copied()),
    );
    if lacks.is_empty() {
        return Ok(());
    }
    Err(Unfit {
        lasting: lacks.iter().any(super::resources::Lack::is_lasting),
        reasons: lacks.iter().map(super::resources::Lack::reason).collect(),
    })
}

/// Address, protocol and number of a port of the node itself.
type Port = (String, String, i32);

fn ports(pod: &Pod) -> Vec<Port> {
    let containers = pod.spec.iter().flat_map(|spec| {
        let staying = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|one| one.restart_policy.as_deref() == Some("Always"));
        spec.containers.iter().chain(staying)
    });
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.clone().filter(|address| !address.is_empty());
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((address.unwrap_or_else(|| "0.0.0.0".to_owned()), protocol, number))
        })
        .collect()
}

fn clash(one: &Port, other: &Port) -> bool {
    let all = |port: &Port| port.0 == "0.0.0.0";
    one.1 == other.1 && one.2 == other.2 && (one.0 == other.0 || all(one) || all(other))
}

/// A number for each place: the higher the better.
fn scores(pod: &Pod, wanted: &Amounts, places: &[&Place<'_>]) -> Vec<i64> {
    let dislikes: Vec<i64> = places
        .iter()
        .map(|place| i64::try_from(disliked(pod, place.node)).unwrap_or(i64::MAX))
        .collect();
    let likings: Vec<i64> = places.iter().map(|place| liking(pod, place.node)).collect();
    let most = |list: &[i64]| list.iter().copied().max().unwrap_or_default();
    let (most_disliked, most_liked) = (most(&dislikes), most(&likings));
    let share = |part: i64, whole: i64| if whole == 0 { 0 } else { 100 * part / whole };
    places
        .iter()
        .enumerate()
        .map(|(at, place)| {
            let unloved = share(dislikes[at], most_disliked);
            3 * (100 - unloved) + 2 * share(likings[at], most_liked) + room(wanted, place)
        })
        .collect()
}

/// Room that is left, and how evenly: each up to 100.
fn room(wanted: &Amounts, place: &Place<'_>) -> i64 {
    let (has, used) = (allocatable(place.node), used(place.pods.iter().copied()));
    let filled = |name: &str| -> Option<i64> {
        let of = |amounts: &Amounts| amounts.get(name).copied().unwrap_or_default();
        let capacity = of(&has);
        let after = of(&used).saturating_add(of(wanted)).min(capacity);
        (capacity > 0).then(|| after.saturating_mul(100) / capacity)
    };
    let filled: Vec<i64> = ["cpu", "memory"].into_iter().filter_map(filled).collect();
    let count = i64::try_from(filled.len()).unwrap_or(1).max(1);
    let left = filled.iter().map(|percent| 100 - percent).sum::<i64>() / count;
    let apart = match filled.as_slice() {
        [cpu, memory] => (cpu - memory).abs() / 2,
        _ => 0,
    };
    left + 100 - apart
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn gpu() -> Node {
        node(
            "bare-metal-2",
            json!({"workload": "gpu"}),
            json!({"nvidia.com/gpu": "4"}),
            json!({}),
        )
    }

    fn cpu() -> Node {
        node("bare-metal-1", json!({"workload": "cpu"}), json!({}), json!({}))
    }

    fn node(name: &str, labels: Value, more: Value, spec: Value) -> Node {
        let mut has = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
        has.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": has},
        }))
        .unwrap()
    }

    fn pod(more: Value) -> Pod {
        let mut spec = json!({"containers": [{"name": "main"}], "priority": 0});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn cards(count: u32) -> Value {
        json!({"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": count.to_string()}}}]})
    }

    fn asking(resource: &str, amount: &str) -> Value {
        json!({"containers": [{"name": "main", "resources": {"requests": {resource: amount}}}]})
    }

    fn placed(pod: &Pod, nodes: &[(Node, Vec<Pod>)]) -> Result<String, String> {
        let places: Vec<Place<'_>> = nodes
            .iter()
            .map(|(node, pods)| Place {
                node,
                pods: pods.iter().collect(),
            })
            .collect();
        place(pod, &places).map(ToOwned::to_owned)
    }

    /// The four pods of the seed: the last is refused by both nodes for the same reason.
    #[rstest]
    #[case::gpu_ok(cards(1), Ok("bare-metal-2"))]
    #[case::cpu_only(json!({"nodeSelector": {"workload": "cpu"}}), Ok("bare-metal-1"))]
    #[case::gpu_too_big(
        cards(5),
        Err(
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/2 nodes are \
        available: 2 Preemption is not helpful for scheduling."
        )
    )]
    fn the_seeds_pods(#[case] spec: Value, #[case] expected: Result<&str, &str>) {
        let nodes = [(cpu(), vec![]), (gpu(), vec![])];
        let found = placed(&pod(spec), &nodes);
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[rstest]
    #[case::each_node_for_a_reason_of_its_own(
        json!({"nodeSelector": {"workload": "cpu"}, "containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}),
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector. \
         no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )]
    #[case::a_node_for_several(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "64", "memory": "1Ti"}}}]}),
        "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory. no new claims to deallocate, preemption: 0/2 nodes are available: 2 \
         Preemption is not helpful for scheduling."
    )]
    #[case::nodes_that_are_not_named(
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["elsewhere"]}]}]}}}}),
        "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims to deallocate, preemption: 0/2 nodes are available: \
         2 Preemption is not helpful for scheduling."
    )]
    #[case::with_no_wish_to_preempt(
        json!({"preemptionPolicy": "Never", "nodeSelector": {"workload": "none"}}),
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: not eligible due to \
         preemptionPolicy=Never."
    )]
    #[case::what_is_not_read(
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
        "the laboratory's scheduler does not read spec.topologySpreadConstraints and spec.volumes[].persistentVolumeClaim; \
         leave it out, or set spec.nodeName"
    )]
    fn no_node_is_found(#[case] spec: Value, #[case] why: &str) {
        let nodes = [(cpu(), vec![]), (gpu(), vec![])];
        assert_eq!(placed(&pod(spec), &nodes).unwrap_err(), why);
    }

    #[test]
    fn without_nodes_nothing_is_counted() {
        assert_eq!(
            placed(&pod(json!({})), &[]).unwrap_err(),
            "no nodes available to schedule pods"
        );
    }

    #[test]
    fn what_pods_have_is_not_there_for_others() {
        let full = [(gpu(), vec![pod(cards(3)), pod(json!({}))])];
        assert_eq!(placed(&pod(cards(1)), &full).as_deref(), Ok("bare-metal-2"));
        assert_eq!(
            placed(&pod(cards(2)), &full).unwrap_err(),
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption \
             victims found for incoming pod."
        );
        let urgent = pod(
            json!({"priority": 1000, "containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}),
        );
        assert!(
            placed(&urgent, &full)
                .unwrap_err()
                .ends_with("which this scheduler does not preempt.")
        );
    }

    #[test]
    fn a_node_takes_as_many_pods_as_it_says() {
        let mut node = cpu();
        let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
        allocatable.get_mut("pods").unwrap().0 = "1".to_owned();
        assert!(placed(&pod(json!({})), &[(node.clone(), vec![])]).is_ok());
        let why = placed(&pod(json!({})), &[(node, vec![pod(json!({}))])]).unwrap_err();
        assert!(
            why.starts_with("0/1 nodes are available: 1 Too many pods."),
            "{why}"
        );
    }

    #[rstest]
    #[case::a_cordon(json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}), "node(s) were unschedulable")]
    #[case::a_taint(json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), "node(s) had untolerated taint(s)")]
    #[case::a_taint_that_evicts(json!({"taints": [{"key": "a", "effect": "NoExecute"}]}), "node(s) had untolerated taint(s)")]
    fn a_node_keeps_pods_away(#[case] spec: Value, #[case] why: &str) {
        let nodes = [(node("n", json!({}), json!({}), spec), vec![])];
        let found = placed(&pod(json!({})), &nodes).unwrap_err();
        assert!(
            found.starts_with(&format!("0/1 nodes are available: 1 {why}.")),
            "{found}"
        );
        let tolerant = pod(json!({"tolerations": [{"operator": "Exists"}]}));
        assert!(placed(&tolerant, &nodes).is_ok());
    }

    #[test]
    fn two_pods_do_not_listen_on_one_port_of_a_node() {
        let listening = |address: &str, protocol: &str| {
            pod(json!({"containers": [{"name": "a", "ports": [
                {"containerPort": 80, "hostPort": 80, "hostIP": address, "protocol": protocol}]}]}))
        };
        let nodes = [(cpu(), vec![listening("10.0.0.1", "TCP")])];
        assert!(placed(&listening("10.0.0.2", "TCP"), &nodes).is_ok());
        assert!(placed(&listening("", "UDP"), &nodes).is_ok());
        let why = placed(&listening("", "TCP"), &nodes).unwrap_err();
        assert!(
            why.contains("1 node(s) didn't have free ports for the requested pod ports."),
            "{why}"
        );
    }

    #[rstest]
    #[case::where_no_taint_would_rather_have_it_away(
        node("a", json!({}), json!({}), json!({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]})), vec![],
        node("b", json!({}), json!({}), json!({})), vec![], json!({}), "b"
    )]
    #[case::where_it_likes_to_be(
        cpu(), vec![], gpu(), vec![],
        json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "workload", "operator": "In", "values": ["gpu"]}]}}]}}}),
        "bare-metal-2"
    )]
    #[case::where_more_room_is_left(
        cpu(), vec![pod(asking("cpu", "16"))], gpu(), vec![], json!({}), "bare-metal-2"
    )]
    #[case::on_the_first_by_name_when_all_is_equal(
        node("b", json!({}), json!({}), json!({})), vec![], node("a", json!({}), json!({}), json!({})), vec![], json!({}), "a"
    )]
    fn the_better_node_is_taken(
        #[case] one: Node,
        #[case] on_one: Vec<Pod>,
        #[case] other: Node,
        #[case] on_other: Vec<Pod>,
        #[case] spec: Value,
        #[case] expected: &str,
    ) {
        let nodes = [(one, on_one), (other, on_other)];
        assert_eq!(placed(&pod(spec), &nodes).as_deref(), Ok(expected));
    }
}
