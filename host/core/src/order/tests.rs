//! Orders in examples: what wins, what is frozen, what drifts.

use hostler_api::{NodeClaimSpec, NodeEnvironmentSpec, NodeProviderSpec, NodeTypeSpec, OSImageSpec};
use serde_json::json;

use super::*;

fn strings<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

struct World {
    claim: NodeClaim,
    provider: NodeProvider,
    node_type: NodeType,
    environment: NodeEnvironment,
    os_image: OSImage,
}

fn world() -> World {
    let mut claim = NodeClaim::new(
        "one-cqhsw",
        NodeClaimSpec {
            provider_ref: "metal3".to_owned(),
            properties: strings([
                ("vcluster.com/os-image", "u"),
                ("metal3.vcluster.com/image-url", "http://evil"),
            ]),
            ..NodeClaimSpec::default()
        },
    );
    claim.metadata.uid = Some("u-1".to_owned());
    let mut provider = NodeProvider::new(
        "metal3",
        NodeProviderSpec {
            properties: strings([
                ("a", "provider"),
                ("b", "provider"),
                ("c", "provider"),
                ("d", "provider"),
            ]),
            metal3: Some(
                json!({"clusterRef": {"namespace": "m"}, "nodeTypes": [{"name": "gpu", "x": 1}, {"name": "cpu"}]}),
            ),
            ..NodeProviderSpec::default()
        },
    );
    provider.metadata.annotations = Some(strings([("hostler.dev/tenant-properties", "d, e")]));
    let node_type = NodeType::new(
        "metal3.gpu",
        NodeTypeSpec {
            properties: strings([("b", "type"), ("c", "type")]),
            ..NodeTypeSpec::default()
        },
    );
    let environment = NodeEnvironment::new(
        "net",
        NodeEnvironmentSpec {
            properties: strings([("c", "environment")]),
            ..NodeEnvironmentSpec::default()
        },
    );
    let os_image = OSImage::new(
        "u",
        OSImageSpec {
            properties: strings([("metal3.vcluster.com/image-url", "http://u")]),
            ..OSImageSpec::default()
        },
    );
    claim.spec.properties.insert("d".to_owned(), "claim".to_owned());
    World {
        claim,
        provider,
        node_type,
        environment,
        os_image,
    }
}

impl World {
    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            claim: &self.claim,
            provider: &self.provider,
            node_type: &self.node_type,
            environment: Some(&self.environment),
            os_image: Some(&self.os_image),
            component: "driver-metal3",
            digest: "sha256:1",
            uses: &[],
            tenant_uid: "t-1",
        }
    }
}

#[test]
fn the_later_layer_wins_and_a_tenant_sets_only_its_own_keys() {
    let world = world();
    let want = strings([
        ("a", "provider"),
        ("b", "type"),
        ("c", "environment"),
        ("d", "claim"),
        ("metal3.vcluster.com/image-url", "http://u"),
        ("vcluster.com/os-image", "u"),
    ]);
    assert_eq!(world.inputs().properties(), want);
}

#[test]
fn an_order_is_made_of_what_was_frozen() {
    let mut world = world();
    let mut frozen = world.inputs().freeze(Timestamp::UNIX_EPOCH);
    let preparation = Preparation {
        node_name: "n".to_owned(),
        boot_namespace: "m".to_owned(),
        network_data: None,
    };
    prepared(&mut frozen, &preparation, "u-1");
    world.claim.spec.kubelet_args = strings([("v", "9")]);
    let order = order(&world.claim, &frozen);
    assert_eq!(
        order.claim.json["spec"].get("kubeletArgs"),
        None,
        "a later edit reached the order"
    );
    assert_eq!(order.node_type, "gpu");
    assert_eq!(order.boot_secret, None, "a Secret that is not written yet");
    frozen.boot_secret.as_mut().unwrap().uid = Some("s".to_owned());
    let order = super::order(&world.claim, &frozen);
    assert_eq!(order.boot_secret.unwrap().name, "hostler-u-1");
    assert_eq!(
        frozen.token.as_deref(),
        Some(format!("bootstrap-token-{}", token_id("u-1")).as_str())
    );
}

#[test]
fn drift_is_told_by_name() {
    let mut world = world();
    let frozen = world.inputs().freeze(Timestamp::UNIX_EPOCH);
    assert!(world.inputs().drifted_from(&frozen).is_empty());
    world.claim.spec.type_ref = Some("metal3.gpu".to_owned());
    world.provider.spec.metal3.as_mut().unwrap()["nodeTypes"] =
        json!([{"name": "gpu", "x": 1}, {"name": "new"}]);
    assert!(
        world.inputs().drifted_from(&frozen).is_empty(),
        "another type of the provider is none of ours"
    );
    world.provider.spec.metal3.as_mut().unwrap()["nodeTypes"] = json!([{"name": "gpu", "x": 2}]);
    world
        .os_image
        .spec
        .properties
        .insert("metal3.vcluster.com/image-url".to_owned(), "http://v".to_owned());
    world.claim.spec.node_labels = strings([("a", "b")]);
    let inputs = Inputs {
        digest: "sha256:2",
        environment: None,
        ..world.inputs()
    };
    let want = [
        "the driver",
        "provider metal3",
        "the environment",
        "property c",
        "property metal3.vcluster.com/image-url",
        "spec.nodeLabels",
    ];
    assert_eq!(inputs.drifted_from(&frozen), want);
}

#[test]
fn names_in_properties_are_found_in_the_last_layer_that_has_them() {
    let mut world = world();
    world
        .provider
        .spec
        .properties
        .insert(names::PROPERTY_OS_IMAGE.to_owned(), "default".to_owned());
    world
        .node_type
        .spec
        .properties
        .insert(names::PROPERTY_SSH_KEYS.to_owned(), "a, b".to_owned());
    world.claim.spec.environment_ref = Some("net".to_owned());
    let found = named(&world.claim, &world.provider, &world.node_type);
    let want = Named {
        os_image: Some("u".to_owned()),
        environment: Some("net".to_owned()),
        ssh_keys: vec!["a".to_owned(), "b".to_owned()],
    };
    assert_eq!(found, want);
}

#[test]
fn a_token_follows_from_its_claim() {
    assert_eq!(token_id("u-1"), token_id("u-1"));
    assert_ne!(token_id("u-1"), token_id("u-2"));
    assert!(
        token_id("u-1")
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    );
    assert_eq!(token_id("u-1").len(), 6);
}

#[test]
fn what_was_judged_is_the_whole_spec_but_for_the_type() {
    let mut claim = world().claim;
    let judged = spec_digest(&claim);
    claim.spec.type_ref = Some("metal3.gpu".to_owned());
    assert_eq!(spec_digest(&claim), judged);
    claim.spec.node_labels = strings([("team", "a")]);
    assert_ne!(spec_digest(&claim), judged);
    assert!(
        judged.starts_with("sha256:") && judged.len() == 7 + 64,
        "{judged}"
    );
}
