//! Tests of the values: the seed's text, and everything that is refused.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const SEED: &str = "
controlPlane:
  backingStore:
    etcd:
      embedded:
        enabled: true
  endpoint: 192.168.100.2:8443
  advanced:
    kubeVip:
      enabled: true
      interface: net1
  statefulSet:
    pods:
      annotations:
        k8s.v1.cni.cncf.io/networks: p-default/br0-vcluster-one
privateNodes:
  enabled: true
  autoNodes:
    - provider: metal3
      static:
        - name: gpu
          quantity: 1
          nodeTypeSelector:
            - property: vcluster.com/node-type
              value: gpu-server
          nodeLabels:
            run.ai/simulated-gpu-node-pool: default
            workload: gpu
        - name: cpu
          quantity: 1
          nodeTypeSelector:
            - property: vcluster.com/node-type
              value: cpu-server
          nodeLabels:
            workload: cpu
          properties:
            vcluster.com/ssh-keys: ops
      properties:
        vcluster.com/os-image: ubuntu2404-20260926
        vcluster.com/ssh-keys: all
";

fn pool(lines: &str) -> String {
    let body: String = lines.lines().map(|line| format!("          {line}\n")).collect();
    format!(
        "privateNodes:\n  enabled: true\n  autoNodes:\n    - provider: metal3\n      static:\n        - name: gpu\n{body}"
    )
}

fn told(text: &str) -> Vec<String> {
    parse(text).map_or_else(
        |problems| problems.iter().map(ToString::to_string).collect(),
        |_| Vec::new(),
    )
}

#[test]
fn the_values_of_the_seed_are_read() {
    let values = parse(SEED).unwrap();
    assert_eq!(values.endpoint.as_deref(), Some("192.168.100.2:8443"));
    let [gpu, cpu] = values.private_nodes.pools.as_slice() else {
        panic!("two pools")
    };
    assert_eq!(
        (gpu.name.as_str(), gpu.provider.as_str(), gpu.kind),
        ("gpu", "metal3", Kind::Static { quantity: 1 })
    );
    assert_eq!(gpu.requirements[0].values, ["gpu-server"]);
    assert_eq!(gpu.node_labels["run.ai/simulated-gpu-node-pool"], "default");
    assert_eq!(gpu.properties["vcluster.com/os-image"], "ubuntu2404-20260926");
    assert_eq!(
        gpu.property_paths["vcluster.com/ssh-keys"],
        "privateNodes.autoNodes[0].properties[\"vcluster.com/ssh-keys\"]"
    );
    assert_eq!(cpu.properties["vcluster.com/ssh-keys"], "ops");
}

#[test]
fn a_pool_holds_no_more_than_a_claim_may() {
    let many =
        |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(", ");
    for (field, most, written) in [
        (
            "nodeLabels",
            128,
            format!("{{{}}}", many(129, &|n| format!("l{n}: x"))),
        ),
        (
            "properties",
            128,
            format!("{{{}}}", many(129, &|n| format!("p{n}: x"))),
        ),
        (
            "taints",
            64,
            format!(
                "[{}]",
                many(65, &|n| format!("{{key: t{n}, effect: NoSchedule}}"))
            ),
        ),
        (
            "nodeTypeSelector",
            64,
            format!("[{}]", many(65, &|n| format!("{{property: p{n}, value: x}}"))),
        ),
    ] {
        let text = format!(
            "privateNodes: {{enabled: true, autoNodes: [{{provider: metal3, static: [{{name: a, quantity: 1, {field}: {written}}}]}}]}}"
        );
        let problems: Vec<_> = parse(&text)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        let told = format!(
            "privateNodes.autoNodes[0].static[0].{field}: {} entries are too many; at most {most}",
            most + 1
        );
        assert_eq!(problems, [told]);
    }
}

#[test]
fn nothing_and_a_chart_without_machines_are_fine() {
    for text in [
        "",
        "  \n",
        "# nothing\n",
        "sync: {toHost: {pods: {enabled: true}}}",
        "privateNodes:",
    ] {
        let values = parse(text).unwrap();
        assert!(
            !values.private_nodes.enabled && values.private_nodes.pools.is_empty(),
            "{text:?}"
        );
    }
}

#[rstest]
#[case::a_typo(
    "nodeTypeSelectr: []\nquantity: 1",
    "privateNodes.autoNodes[0].static[0].nodeTypeSelectr: unknown field, did you mean nodeTypeSelector"
)]
#[case::negative(
    "quantity: -1",
    "privateNodes.autoNodes[0].static[0].quantity: -1 is negative; set 0 or more"
)]
#[case::two_billion(
    "quantity: 2000000000",
    "privateNodes.autoNodes[0].static[0].quantity: 2000000000 is too many; a pool has at most 10000 nodes"
)]
#[case::beyond_any_number(
    "quantity: 99999999999999999999",
    "privateNodes.autoNodes[0].static[0].quantity: must be a whole number, not the number 1e+20"
)]
#[case::half(
    "quantity: 1.5",
    "privateNodes.autoNodes[0].static[0].quantity: must be a whole number, not the number 1.5"
)]
#[case::a_text(
    "quantity: \"1\"",
    "privateNodes.autoNodes[0].static[0].quantity: must be a whole number, not a text"
)]
#[case::missing(
    "nodeLabels: {}",
    "privateNodes.autoNodes[0].static[0].quantity: is missing; set how many nodes the pool has, 0 for none"
)]
#[case::a_protected_label(
    "quantity: 1\nnodeLabels: {vcluster.com/node-profile: x}",
    "privateNodes.autoNodes[0].static[0].nodeLabels[\"vcluster.com/node-profile\"]: vcluster.com/node-profile is set by the host from the profile that it assigned; use `profile` to ask for one"
)]
#[case::a_yaml_1_1_yes(
    "quantity: 1\nnodeLabels: {a: true}",
    "privateNodes.autoNodes[0].static[0].nodeLabels[\"a\"]: must be a text, not true; put it in quotes"
)]
#[case::grace(
    "quantity: 1\nterminationGracePeriod: soon",
    "privateNodes.autoNodes[0].static[0].terminationGracePeriod: \"soon\" is no duration; write it like 30s, 5m or 1h30m, or Never"
)]
#[case::an_operator(
    "quantity: 1\nnodeTypeSelector: [{property: a, operator: Like, value: b}]",
    "privateNodes.autoNodes[0].static[0].nodeTypeSelector[0].operator: \"Like\" is no operator; use In, NotIn, Exists, DoesNotExist, Gt or Lt"
)]
#[case::both(
    "quantity: 1\nnodeTypeSelector: [{property: a, value: b, values: [c]}]",
    "privateNodes.autoNodes[0].static[0].nodeTypeSelector[0].value: and values exclude each other; keep one of them"
)]
#[case::a_twin_taint(
    "quantity: 1\ntaints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]",
    "privateNodes.autoNodes[0].static[0].taints[1]: a:NoSchedule stands there twice; a node has one taint for a key and effect"
)]
#[case::a_profile(
    "quantity: 1\nprofile: No_Name",
    "privateNodes.autoNodes[0].static[0].profile: \"No_Name\" is no name; lower-case letters, digits, '-' and '.'"
)]
fn one_pool(#[case] lines: &str, #[case] want: &str) {
    assert_eq!(told(&pool(lines)), [want]);
}

#[rstest]
#[case::an_unknown_section(
    "privatNodes: {enabled: true}",
    "privatNodes: unknown field, did you mean privateNodes"
)]
#[case::pools_as_a_map(
    "privateNodes: {enabled: true, autoNodes: {provider: a}}",
    "privateNodes.autoNodes: must be a list, not a map"
)]
#[case::a_provider_twice(
    "privateNodes: {enabled: true, autoNodes: [{provider: a}, {provider: a}]}",
    "privateNodes.autoNodes[1].provider: \"a\" stands in an earlier entry; put all its pools into that one"
)]
#[case::no_provider(
    "privateNodes: {enabled: true, autoNodes: [{static: []}]}",
    "privateNodes.autoNodes[0].provider: is missing; name a NodeProvider"
)]
#[case::a_provider_with_a_dot(
    "privateNodes: {enabled: true, autoNodes: [{provider: a.b}]}",
    "privateNodes.autoNodes[0].provider: \"a.b\" is no name; lower-case letters, digits and '-', without dots"
)]
#[case::a_pool_twice(
    "privateNodes: {enabled: true, autoNodes: [{provider: a, static: [{name: x, quantity: 1}], dynamic: [{name: x}]}]}",
    "privateNodes.autoNodes[0].dynamic[0].name: \"x\" is the name of privateNodes.autoNodes[0].static[0] too; pool names are unique in a tenant"
)]
#[case::an_endpoint_without_nodes(
    "controlPlane: {endpoint: 'a:1'}",
    "controlPlane.endpoint: is only valid with private nodes; set privateNodes.enabled: true or remove it"
)]
#[case::no_endpoint(
    "controlPlane: {endpoint: a}\nprivateNodes: {enabled: true}",
    "controlPlane.endpoint: \"a\" is no address; write it like 192.168.100.2:8443"
)]
#[case::a_list("[1]", "values: must be a map, not a list")]
#[case::yes_is_no_flag(
    "privateNodes: {enabled: yes}",
    "privateNodes.enabled: must be true or false, not a text"
)]
fn the_whole_text(#[case] text: &str, #[case] want: &str) {
    assert_eq!(told(text), [want]);
}

#[rstest]
#[case::twice_the_same_key("privateNodes: {enabled: true}\nprivateNodes: {enabled: false}")]
#[case::not_yaml("a: [")]
#[case::two_documents("a: 1\n---\nb: 2")]
fn what_is_no_yaml_is_refused(#[case] text: &str) {
    let told = told(text);
    assert!(
        told.len() == 1 && told[0].starts_with("values: not YAML that can be read: "),
        "{told:?}"
    );
}

#[test]
fn what_has_no_effect_here_is_named() {
    let text = "privateNodes: {enabled: true, vpn: {enabled: false}, kubelet: {}, daemon: {enabled: true}, joinNode: {skipPhases: [a]}, \
        autoNodes: [{provider: a, dynamic: [{name: x, limits: {nodes: 3}}]}]}";
    assert_eq!(
        parse(text).unwrap().private_nodes.unserved,
        [
            "privateNodes.joinNode",
            "privateNodes.daemon",
            "privateNodes.autoNodes[0].dynamic"
        ]
    );
}

#[test]
fn nobody_is_exhausted_by_values() {
    let deep = format!("sync: {}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
    let long = format!("# {}", "x".repeat(MAX_BYTES));
    let mut laughs = "sync:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let ten = vec![format!("*a{}", level - 1); 10].join(", ");
        laughs.push_str(&format!("  a{level}: &a{level} [{ten}]\n"));
    }
    for text in [deep, long, laughs] {
        assert_eq!(told(&text).len(), 1);
    }
}

#[test]
fn one_reason_names_the_first_five() {
    let unknown: String = (0..7).map(|index| format!("zzz{index}: 1\n")).collect();
    let reason = reason(&parse(&unknown).unwrap_err());
    assert_eq!(reason.code, INVALID);
    assert!(reason.message.contains("zzz4: unknown field") && reason.message.ends_with("; and 2 more"));
    assert!(reason.remedy.is_some());
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_fall_over(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn every_quantity_in_range_is_kept_and_no_other(quantity in -20_000i64..20_000) {
        let parsed = parse(&pool(&format!("quantity: {quantity}")));
        match parsed {
            Ok(values) => {
                prop_assert_eq!(values.private_nodes.pools[0].kind, Kind::Static { quantity });
                prop_assert!((0..=MAX_QUANTITY).contains(&quantity));
            }
            Err(_) => prop_assert!(!(0..=MAX_QUANTITY).contains(&quantity)),
        }
    }
}
