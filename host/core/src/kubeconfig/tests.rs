//! Tests of the kubeconfig: what is read, and everything that is refused, field by field.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Certificate and key of anybody, in PEM.
fn issued() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new())
        .unwrap()
        .self_signed(&key)
        .unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// A kubeconfig as a virtual cluster writes it.
fn good() -> Value {
    let (certificate, key) = issued();
    let data = |text: &str| STANDARD.encode(text);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "my-vcluster",
        "clusters": [{ "name": "my-vcluster", "cluster": {
            "server": "https://192.168.100.2:8443",
            "certificate-authority-data": data(&certificate),
        }}],
        "contexts": [{ "name": "my-vcluster", "context": {
            "cluster": "my-vcluster", "namespace": "default", "user": "my-vcluster",
        }}],
        "users": [{ "name": "my-vcluster", "user": {
            "client-certificate-data": data(&certificate),
            "client-key-data": data(&key),
        }}],
    })
}

/// The same with a value somewhere.
fn with(pointer: &str, value: Value) -> String {
    let mut tree = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = if parent.is_empty() {
        &mut tree
    } else {
        tree.pointer_mut(parent).unwrap()
    };
    match parent {
        Value::Array(items) => items.push(value),
        other => other[key] = value,
    }
    tree.to_string()
}

fn read(text: &str) -> Result<Kubeconfig, Reason> {
    parse(text, &Own::new(["https://10.0.0.1:6443", "10.96.0.1:443"]))
}

const CLUSTER: &str = "/clusters/0/cluster";
const USER: &str = "/users/0/user";

#[test]
fn what_a_virtual_cluster_writes_is_read() {
    let read = read(&good().to_string()).unwrap();
    assert_eq!(read.server.url, "https://192.168.100.2:8443");
    assert_eq!(read.ca.len(), 1);
    assert!(read.ca_pem.starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(matches!(read.proof, Proof::Certificate { .. }));
    assert!(read.expires.is_some());
}

#[test]
fn the_kubeconfig_of_the_embedded_api_server_has_the_same_form() {
    // Block style, quoted, with keys in another order.
    let (certificate, _) = issued();
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: \"https://127.0.0.1:7443/clusters/one\"\n    certificate-authority-data: >-\n      {}\nusers:\n- name: u\n  user:\n    token: abc.def\ncontexts:\n- name: x\n  context: {{cluster: c, user: u}}\ncurrent-context: x\n",
        STANDARD.encode(certificate)
    );
    let read = read(&text).unwrap();
    assert_eq!(read.server.url, "https://127.0.0.1:7443/clusters/one");
    assert_eq!(read.proof, Proof::Token("abc.def".to_owned()));
}

#[rstest]
#[case::a_program(USER, "exec", json!({"command": "touch", "args": ["/tmp/x"]}))]
#[case::a_program_without_fields(USER, "exec", json!({}))]
#[case::an_auth_provider(USER, "auth-provider", json!({"name": "gcp"}))]
#[case::a_token_file(USER, "tokenFile", json!("/var/run/secrets/token"))]
#[case::a_certificate_file(USER, "client-certificate", json!("/etc/tls.crt"))]
#[case::a_key_file(USER, "client-key", json!("/etc/tls.key"))]
#[case::a_user_to_act_as(USER, "as", json!("system:admin"))]
#[case::a_uid_to_act_as(USER, "as-uid", json!("1"))]
#[case::groups_to_act_as(USER, "as-groups", json!(["system:masters"]))]
#[case::extras_to_act_as(USER, "as-user-extra", json!({"a": ["b"]}))]
#[case::a_user_name(USER, "username", json!("admin"))]
#[case::a_password(USER, "password", json!("hunter2-secret"))]
#[case::a_ca_file(CLUSTER, "certificate-authority", json!("/etc/ca.crt"))]
#[case::a_proxy(CLUSTER, "proxy-url", json!("http://127.0.0.1:3128"))]
#[case::any_certificate(CLUSTER, "insecure-skip-tls-verify", json!(true))]
#[case::any_certificate_as_text(CLUSTER, "insecure-skip-tls-verify", json!("yes"))]
#[case::another_servers_name(CLUSTER, "tls-server-name", json!("kubernetes"))]
fn a_field_that_is_more_than_data_is_refused_by_name(
    #[case] parent: &str,
    #[case] field: &str,
    #[case] value: Value,
) {
    let reason = read(&with(&format!("{parent}/{field}"), value)).unwrap_err();
    assert_eq!(reason.code, UNSAFE);
    let path = parent[1..].replace("/0/", "[0].");
    assert!(
        reason.message.starts_with(&format!("{path}.{field} ")),
        "{}",
        reason.message
    );
    assert!(reason.remedy.is_some());
    assert!(!reason.text().contains("hunter2"), "{}", reason.text());
}

#[rstest]
#[case::null(USER, "exec", Value::Null)]
#[case::an_empty_path(USER, "tokenFile", json!(""))]
#[case::said_to_be_off(CLUSTER, "insecure-skip-tls-verify", json!(false))]
#[case::compression(CLUSTER, "disable-compression", json!(true))]
#[case::what_other_programs_keep(CLUSTER, "extensions", json!([{"name": "minikube.sigs.k8s.io", "extension": {"version": "1"}}]))]
#[case::a_namespace("/contexts/0/context", "namespace", json!("x"))]
fn a_field_that_says_nothing_to_us_is_let_through(
    #[case] parent: &str,
    #[case] field: &str,
    #[case] value: Value,
) {
    read(&with(&format!("{parent}/{field}"), value)).unwrap();
}

#[rstest]
#[case("/clusters/0/cluster/serverr")]
#[case("/clusters/0/exec")]
#[case("/users/0/user/execs")]
#[case("/users/0/extra")]
#[case("/contexts/0/context/proxy")]
#[case("/include")]
fn a_field_that_is_not_known_is_refused_without_its_name(#[case] pointer: &str) {
    let reason = read(&with(pointer, json!({"a-secret": 1}))).unwrap_err();
    assert_eq!(reason.code, UNSAFE);
    assert!(reason.message.contains("not known"), "{}", reason.message);
    assert!(!reason.text().contains("a-secret"), "{}", reason.text());
}

#[test]
fn an_entry_that_the_current_context_does_not_use_is_judged_too() {
    let other = json!({ "name": "other", "user": { "exec": { "command": "id" } } });
    let reason = read(&with("/users/-", other)).unwrap_err();
    assert_eq!(reason.code, UNSAFE);
    assert!(
        reason.message.starts_with("users[1].user.exec "),
        "{}",
        reason.message
    );
}

#[test]
fn of_several_contexts_the_current_one_decides() {
    let mut tree = good();
    let mut cluster = tree["clusters"][0].clone();
    cluster["name"] = json!("second");
    cluster["cluster"]["server"] = json!("https://second.example:7443/");
    tree["clusters"].as_array_mut().unwrap().insert(0, cluster);
    let context = json!({ "name": "second", "context": { "cluster": "second", "user": "my-vcluster" } });
    tree["contexts"].as_array_mut().unwrap().insert(0, context);
    assert_eq!(
        read(&tree.to_string()).unwrap().server.url,
        "https://192.168.100.2:8443"
    );
    tree["current-context"] = json!("second");
    assert_eq!(
        read(&tree.to_string()).unwrap().server.url,
        "https://second.example:7443"
    );
}

#[rstest]
#[case::the_clients("https://10.0.0.1:6443")]
#[case::with_a_path("https://10.0.0.1:6443/clusters/one")]
#[case::mapped_into_ipv6("https://[::ffff:10.0.0.1]:6443")]
#[case::the_service_address("https://10.96.0.1")]
#[case::the_service_address_with_its_port("https://10.96.0.1:443/")]
#[case::the_service("https://kubernetes")]
#[case::the_service_in_its_namespace("https://kubernetes.default:443")]
#[case::the_service_whole("https://kubernetes.default.svc")]
#[case::the_service_with_its_domain("https://kubernetes.default.svc.cluster.local.:6443")]
#[case::in_capitals("https://KUBERNETES.Default.svc")]
fn the_platforms_own_api_is_nobodys_tenant(#[case] server: &str) {
    let reason = read(&with("/clusters/0/cluster/server", json!(server))).unwrap_err();
    assert_eq!(reason.code, UNSAFE, "{server}");
    assert!(
        reason.message.contains("the platform's own API"),
        "{}",
        reason.message
    );
}

#[rstest]
#[case("https://127.0.0.1:6443", "https://localhost:6443", true)]
#[case("https://127.0.0.1:6443", "https://[::1]:6443", true)]
#[case("https://127.0.0.1:6443", "https://0.0.0.0:6443", true)]
#[case("https://127.0.0.1:6443", "https://127.3.2.1:6443", true)]
#[case("https://127.0.0.1:6443", "https://a.localhost:6443", true)]
#[case("https://127.0.0.1:6443", "https://127.0.0.1:6444", false)]
#[case("https://api.example", "https://API.example.:443", true)]
#[case("https://api.example", "https://api.example:6443", false)]
#[case("http://[fd00::1]:80/", "https://[fd00:0::1]:80", true)]
fn an_address_has_one_spelling(#[case] own: &str, #[case] server: &str, #[case] same: bool) {
    let address = Address::parse(server, "server").unwrap();
    assert_eq!(Own::new([own]).has(&address), same);
}

#[rstest]
#[case::plain("http://192.168.100.2:8443", UNSAFE)]
#[case::nothing_before("192.168.100.2:8443", UNSAFE)]
#[case::a_password("https://me:hunter2@192.168.100.2", UNSAFE)]
#[case::a_query("https://192.168.100.2?x=1", UNSAFE)]
#[case::a_fragment("https://192.168.100.2#x", UNSAFE)]
#[case::a_number("https://2130706433", INVALID)]
#[case::a_short_address("https://127.1", INVALID)]
#[case::an_octal_address("https://0177.0.0.1", INVALID)]
#[case::a_hex_address("https://0x7f.0x1", INVALID)]
#[case::a_hex_number("https://0x7f000001", INVALID)]
#[case::no_host("https://:443", INVALID)]
#[case::port_zero("https://a.example:0", INVALID)]
#[case::a_signed_port("https://a.example:+443", INVALID)]
#[case::no_port("https://a.example:", INVALID)]
#[case::a_zone("https://[fe80::1%25eth0]:443", INVALID)]
#[case::an_escape("https://a.example/%2e%2e", INVALID)]
#[case::upwards("https://a.example/x/../y", INVALID)]
#[case::a_blank("https://a.example /x", INVALID)]
#[case::a_line("https://a.example\n/x", INVALID)]
#[case::no_end(&format!("https://a.example/{}", "x".repeat(600)), INVALID)]
#[case::another_alphabet("https://ｋubernetes.default", INVALID)]
fn a_server_that_is_no_https_address_is_refused(#[case] server: &str, #[case] code: &str) {
    let reason = read(&with("/clusters/0/cluster/server", json!(server))).unwrap_err();
    assert_eq!(reason.code, code, "{server}");
    assert!(
        reason.message.starts_with("clusters[0].cluster.server "),
        "{}",
        reason.message
    );
    assert!(!reason.text().contains("hunter2"));
}

#[rstest]
#[case::no_current_context("/current-context", Value::Null, "current-context is missing")]
#[case::another_context("/current-context", json!("x"), "current-context names no entry")]
#[case::another_cluster("/contexts/0/context/cluster", json!("x"), "contexts[0].context.cluster names no entry")]
#[case::another_user("/contexts/0/context/user", json!("x"), "contexts[0].context.user names no entry")]
#[case::no_server(
    "/clusters/0/cluster/server",
    Value::Null,
    "clusters[0].cluster.server is missing"
)]
#[case::no_key(
    "/users/0/user/client-key-data",
    Value::Null,
    "users[0].user.client-key-data is missing"
)]
#[case::no_certificate("/users/0/user/client-certificate-data", json!(""), "users[0].user.client-certificate-data is missing")]
#[case::two_proofs("/users/0/user/token", json!("t"), "users[0].user has both")]
#[case::no_user("/users/0/user", json!({}), "users[0].user has no credentials")]
#[case::no_base64("/clusters/0/cluster/certificate-authority-data", json!("%%%"), "clusters[0].cluster.certificate-authority-data is no certificate")]
#[case::no_pem("/clusters/0/cluster/certificate-authority-data", json!("aGVsbG8="), "clusters[0].cluster.certificate-authority-data is no certificate")]
#[case::a_key_in_place_of_a_certificate("/users/0/user/client-certificate-data", json!(STANDARD.encode(issued().1)), "users[0].user.client-certificate-data is no certificate")]
#[case::a_certificate_in_place_of_a_key("/users/0/user/client-key-data", json!(STANDARD.encode(issued().0)), "users[0].user.client-key-data is no key")]
#[case::a_number("/current-context", json!(1), "current-context is no text")]
#[case::no_list("/users", json!({}), "users is no list")]
#[case::twice("/users/-", json!({"name": "my-vcluster"}), "users[1].name is there twice")]
#[case::another_kind("/kind", json!("Secret"), "kind is not Config")]
#[case::another_version("/apiVersion", json!("v2"), "apiVersion is not v1")]
fn what_is_incomplete_is_told_by_its_path(#[case] pointer: &str, #[case] value: Value, #[case] told: &str) {
    let reason = read(&with(pointer, value)).unwrap_err();
    assert_eq!(reason.code, INVALID);
    assert!(reason.message.starts_with(told), "{}", reason.message);
}

#[test]
fn without_a_ca_nothing_is_believed() {
    let reason = read(&with(
        "/clusters/0/cluster/certificate-authority-data",
        Value::Null,
    ))
    .unwrap_err();
    assert_eq!(reason.code, UNSAFE);
}

#[rstest]
#[case::two_lines("a\nb")]
#[case::a_blank("a b")]
#[case::no_ascii("ä")]
fn a_token_that_fits_into_no_header_is_refused(#[case] token: &str) {
    let mut tree = good();
    tree["users"][0]["user"] = json!({ "token": token });
    let reason = read(&tree.to_string()).unwrap_err();
    assert_eq!(reason.code, INVALID);
    assert!(!reason.text().contains(token), "{}", reason.text());
}

#[rstest]
#[case::nothing("")]
#[case::a_list("- a")]
#[case::a_word("hello")]
#[case::broken("{a: hunter2")]
#[case::no_anchor("users: *hunter2")]
#[case::a_key_twice("kind: Config\nkind: hunter2")]
#[case::a_tag("kind: !hunter2 Config\nusers: !!int hunter2")]
#[case::two_documents("kind: Config\n---\nkind: hunter2")]
fn what_is_no_kubeconfig_is_told_without_its_text(#[case] text: &str) {
    let reason = read(text).unwrap_err();
    assert!(!reason.text().contains("hunter2"), "{}", reason.text());
}

#[test]
fn aliases_depth_and_size_have_bounds() {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for n in 1..40 {
        let one = format!("*a{}", n - 1);
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", vec![one; 9].join(",")));
    }
    for text in [
        bomb,
        "[".repeat(100_000),
        format!("kind: {}", "x".repeat(yaml::MAX_BYTES)),
        format!("preferences: {}1{}", "{a: ".repeat(80), "}".repeat(80)),
    ] {
        assert_eq!(read(&text).unwrap_err().code, INVALID);
    }
}

#[test]
fn what_is_shown_of_it_holds_no_secret() {
    let read = read(&good().to_string()).unwrap();
    let shown = format!("{read:?}");
    assert!(!shown.contains("BEGIN") && !shown.contains("PRIVATE"), "{shown}");
    assert!(shown.contains("192.168.100.2"), "{shown}");
}

/// Trees that look like parts of a kubeconfig.
fn trees() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "clusters",
        "cluster",
        "users",
        "user",
        "contexts",
        "context",
        "name",
        "server",
        "exec",
        "token",
        "current-context",
        "client-key-data",
        "client-certificate-data",
        "certificate-authority-data",
        "a",
        "https://a.example",
        "https://[::1]:1",
        "Config",
        "v1",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((words.clone(), inner), 0..8).prop_map(|fields| fields
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(?s).{0,400}") {
        drop(read(&text));
    }

    #[test]
    fn no_tree_makes_it_panic(tree in trees()) {
        if let Err(reason) = read(&tree.to_string()) {
            prop_assert!(reason.code == UNSAFE || reason.code == INVALID);
        }
    }

    #[test]
    fn no_change_to_a_good_one_makes_it_panic(at in 0..10_000_usize, put in "(?s).{0,3}", cut in 0..4_usize) {
        static GOOD: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| good().to_string());
        let mut text: Vec<char> = GOOD.chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        drop(read(&text.into_iter().collect::<String>()));
    }

    #[test]
    fn no_address_makes_it_panic(url in "https://.{0,40}") {
        if let Ok(address) = Address::parse(&url, "server") {
            prop_assert!(url.starts_with(&address.url[..8]));
            prop_assert!(Own::new([address.authority().as_str()]).has(&address));
        }
    }

    #[test]
    fn a_secret_in_any_known_place_is_in_no_reason(place in 0..6_usize, broken in 0..4_usize) {
        let secret = "hunter2-hunter2";
        let places = [
            "/users/0/user/token", "/users/0/user/client-key-data", "/users/0/user/password",
            "/users/0/user/client-certificate-data", "/users/0/user/as", "/clusters/0/cluster/proxy-url",
        ];
        let text = with(places[place], json!(secret));
        let text = match broken {
            0 => text,
            1 => text.replace('}', ""),
            2 => text.replace("hunter2-", "hunter2- *"),
            _ => format!("{text}\n{text}"),
        };
        if let Err(reason) = read(&text) {
            prop_assert!(!reason.text().contains("hunter2"), "{}", reason.text());
        }
    }
}
