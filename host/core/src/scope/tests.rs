//! A hostile driver's answers, one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use rstest::rstest;

use super::*;
use crate::grant::Limits;
use crate::loan::ClaimId;
use crate::seams::{Loan, MachineIdentity, Object, Progress, Reason, Role};

const BMH: &str = "metal3.io/v1alpha1";

fn holder() -> Holder {
    Holder {
        installation: "lab".to_owned(),
        claim: ClaimId {
            namespace: "p-default".to_owned(),
            name: "one-cqhsw".to_owned(),
            uid: "u-1".to_owned(),
        },
    }
}

fn reference(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

fn granted(api_version: &str, kind: &str, access: Access, namespaces: &[&str], places: &[&str]) -> KindGrant {
    KindGrant {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        access,
        namespaces: namespaces.iter().map(|one| (*one).to_owned()).collect(),
        places: places.iter().map(|one| (*one).to_owned()).collect(),
        service_account: (kind == "Pod").then(|| "runner".to_owned()),
    }
}

fn grant() -> Grant {
    let places = [
        "/spec/image",
        "/spec/userData",
        "/spec/networkData",
        "/spec/metaData",
        "/spec/online",
        "/spec/consumerRef",
        "/metadata/labels/metal3.vcluster.com~1*",
    ];
    Grant {
        settings: json!({}),
        limits: Limits::default(),
        kinds: vec![
            granted(BMH, "BareMetalHost", Access::BorrowFields, &["*"], &places),
            granted("v1", "Secret", Access::Manage, &["*"], &[]),
            granted("v1", "ConfigMap", Access::Manage, &["*"], &[]),
            granted("v1", "Pod", Access::Manage, &["machines"], &[]),
            granted("batch/v1", "Job", Access::Manage, &["machines"], &[]),
        ],
    }
}

fn uses() -> Vec<KindUse> {
    let used = |api_version: &str, kind: &str, access, namespace: &str| KindUse {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        access,
        role: Role::Product,
        selector: String::new(),
    };
    vec![
        used(BMH, "BareMetalHost", Access::BorrowFields, "machines"),
        used("v1", "Secret", Access::Manage, "machines"),
        used("v1", "Secret", Access::Manage, "kube-system"),
        used("v1", "ConfigMap", Access::Read, "machines"),
        used("v1", "Pod", Access::Manage, "machines"),
        used("batch/v1", "Job", Access::Manage, "machines"),
        used(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            Access::Manage,
            "machines",
        ),
        used("hostler.dev/v1alpha1", "Enrollment", Access::Manage, "machines"),
    ]
}

fn order() -> Order {
    let object = |kind: &str, name: &str, json: Value| Object {
        api_version: "management.loft.sh/v1".to_owned(),
        kind: kind.to_owned(),
        namespace: None,
        name: name.to_owned(),
        uid: "u".to_owned(),
        json: Arc::new(json),
    };
    Order {
        claim: object("NodeClaim", "one-cqhsw", json!({})),
        provider: object(
            "NodeProvider",
            "metal3",
            json!({"spec": {"metal3": {"clusterRef": {"namespace": "machines"}}}}),
        ),
        node_type: "gpu-server".to_owned(),
        machine: Some(reference(BMH, "BareMetalHost", "machines", "bare-metal-2")),
        os_image: None,
        environment: None,
        properties: BTreeMap::new(),
        boot_secret: Some(reference("v1", "Secret", "machines", "boot-u-1")),
        memo: String::new(),
    }
}

fn host(uid: &str) -> Value {
    json!({"apiVersion": BMH, "kind": "BareMetalHost", "metadata": {"name": "bare-metal-2", "namespace": "machines", "uid": uid}, "spec": {}})
}

fn plan() -> Plan {
    Plan {
        owned: Vec::new(),
        loans: Vec::new(),
        wants: Vec::new(),
        memo: String::new(),
        outcome: Outcome::Working(Progress {
            step: "Writing".to_owned(),
            message: String::new(),
            recheck: None,
        }),
    }
}

fn lent(patch: Value) -> Plan {
    Plan {
        loans: vec![Loan {
            target: order().machine.unwrap(),
            patch,
        }],
        ..plan()
    }
}

fn owning(object: Value) -> Plan {
    Plan {
        owned: vec![object],
        ..plan()
    }
}

fn verdict(plan: &Plan, phase: Phase, live: &Value) -> Result<(), OutOfScope> {
    let (grant, uses, order, holder) = (grant(), uses(), order(), holder());
    let scope = Scope {
        grant: &grant,
        uses: &uses,
        order: &order,
        machine_uid: Some("h-2"),
        holder: &holder,
        phase,
    };
    judge(plan, &scope, &[live])
}

#[rstest]
#[case::a_full_loan(lent(json!({
    "metadata": {"labels": {"metal3.vcluster.com/node-claim": "one-cqhsw"}},
    "spec": {"online": true, "image": {"url": "u"}, "userData": {"name": "boot-u-1", "namespace": "machines"}, "consumerRef": {"name": "x"}},
})))]
#[case::a_secret_by_name_alone(lent(json!({"spec": {"userData": {"name": "boot-u-1"}}})))]
#[case::clearing(lent(json!({"spec": {"userData": null, "metaData": null}})))]
#[case::a_secret_of_its_own(owning(json!({
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "net", "namespace": "machines"}, "stringData": {"a": "b"},
})))]
#[case::a_pod_where_it_may_run(owning(json!({
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "machines"}, "spec": {"containers": []},
})))]
#[case::a_secret_that_holds_a_secret(owning(json!({
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "net", "namespace": "machines"}, "stringData": {"secret": "b"},
})))]
#[case::a_pod_with_text_for_user_data(owning(json!({
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "machines"}, "spec": {"userData": "#cloud-config"},
})))]
#[case::a_look_at_a_config_map(Plan { wants: vec![reference("v1", "ConfigMap", "machines", "c")], ..plan() })]
fn is_in_scope(#[case] plan: Plan) {
    verdict(&plan, Phase::Provision, &host("h-2")).unwrap();
}

fn secret(metadata: Value, kind: &str) -> Plan {
    owning(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}))
}

#[rstest]
#[case::another_host(
    Plan { loans: vec![Loan { target: reference(BMH, "BareMetalHost", "machines", "bare-metal-1"), patch: json!({}) }], ..plan() },
    "BareMetalHost machines/bare-metal-1"
)]
#[case::the_bmc(lent(json!({"spec": {"bmc": {"address": "redfish://evil"}}})), "/spec/bmc/address is not granted")]
#[case::a_foreign_label(lent(json!({"metadata": {"labels": {"role": "cpu"}}})), "/metadata/labels/role")]
#[case::a_finalizer(lent(json!({"metadata": {"finalizers": []}})), "can never be borrowed")]
#[case::a_status(lent(json!({"status": {"poweredOn": true}})), "can never be borrowed")]
#[case::the_record(lent(json!({"metadata": {"annotations": {"hostler.dev/loan": "{}"}}})), "can never be borrowed")]
#[case::another_claims_secret(lent(json!({"spec": {"userData": {"name": "boot-u-2"}}})), "/spec/userData points at a Secret")]
#[case::a_secret_elsewhere(lent(json!({"spec": {"networkData": {"name": "boot-u-1", "namespace": "default"}}})), "/spec/networkData")]
#[case::a_secrets_namespace_alone(lent(json!({"spec": {"metaData": {"namespace": "kube-system"}}})), "/spec/metaData")]
#[case::a_pull_secret(lent(json!({"spec": {"image": {"ociAuthSecretName": "bmc"}}})), "/spec/image/ociAuthSecretName")]
#[case::a_binding(
    owning(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b", "namespace": "machines"}})),
    "of a kind that no driver may touch"
)]
#[case::a_cluster_binding(
    owning(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"}})),
    "ClusterRoleBinding b"
)]
#[case::an_enrollment(
    owning(json!({"apiVersion": "hostler.dev/v1alpha1", "kind": "Enrollment", "metadata": {"name": "b", "namespace": "machines"}})),
    "of a kind that no driver may touch"
)]
#[case::a_kind_only_asked_for_reading(
    owning(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "machines"}})),
    "was not asked for (manage)"
)]
#[case::a_namespace_that_the_provider_does_not_name(
    secret(json!({"name": "s", "namespace": "kube-system"}), "Opaque"),
    "which provider metal3 does not name"
)]
#[case::a_namespace_nobody_asked_for(secret(json!({"name": "s", "namespace": "p-default"}), "Opaque"), "was not asked for")]
#[case::a_token_of_a_service_account(
    secret(json!({"name": "s", "namespace": "machines"}), "kubernetes.io/service-account-token"),
    "only Opaque ones"
)]
#[case::the_uid_of_another_claim(
    secret(json!({"name": "s", "namespace": "machines", "labels": {"hostler.dev/claim-uid": "u-2"}}), "Opaque"),
    "uid of another claim"
)]
#[case::an_owner(
    secret(json!({"name": "s", "namespace": "machines", "ownerReferences": []}), "Opaque"),
    "metadata.ownerReferences"
)]
#[case::a_bad_name(secret(json!({"name": "../s", "namespace": "machines"}), "Opaque"), "no DNS name")]
#[case::no_name(secret(json!({"namespace": "machines"}), "Opaque"), "owned[0]")]
#[case::a_job_without_an_account(
    owning(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "machines"}})),
    "runs something"
)]
#[case::a_pod_with_a_bmc_secret(
    owning(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "machines"},
        "spec": {"volumes": [{"secret": {"secretName": "bmc"}}]},
    })),
    "/spec/volumes/0/secret/secretName"
)]
#[case::a_long_memo(Plan { memo: "x".repeat(LONGEST_MEMO + 1), ..plan() }, "memo")]
#[case::a_wish_elsewhere(Plan { wants: vec![reference("v1", "Secret", "default", "bmc")], ..plan() }, "Secret default/bmc")]
#[case::gone_from_provision(Plan { outcome: Outcome::Gone, ..plan() }, "\"gone\" is no answer to provision")]
fn is_out_of_scope(#[case] plan: Plan, #[case] says: &str) {
    let error = verdict(&plan, Phase::Provision, &host("h-2"))
        .unwrap_err()
        .to_string();
    assert!(error.contains(says), "{error}");
}

#[rstest]
#[case::ready(Outcome::Ready(MachineIdentity::default()))]
#[case::lost(Outcome::Lost(Reason::new("X", "x")))]
fn is_no_answer_to_release(#[case] outcome: Outcome) {
    verdict(&Plan { outcome, ..plan() }, Phase::Release, &host("h-2")).unwrap_err();
}

#[test]
fn a_newcomer_of_the_same_name_is_not_the_machine() {
    let plan = lent(json!({"spec": {"online": true}}));
    let error = verdict(&plan, Phase::Provision, &host("h-3")).unwrap_err();
    assert!(error.why.contains("no longer the object"), "{error}");
}

#[test]
fn one_bad_item_rejects_the_good_ones_beside_it() {
    let mut plan = lent(json!({"spec": {"online": true}}));
    plan.owned.push(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ok", "namespace": "machines"}}),
    );
    verdict(&plan, Phase::Provision, &host("h-2")).unwrap();
    plan.wants.push(reference("v1", "Node", "machines", "x"));
    verdict(&plan, Phase::Provision, &host("h-2")).unwrap_err();
}

#[test]
fn what_runs_runs_under_the_granted_account() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "machines"},
        "spec": {"serviceAccountName": "admin", "serviceAccount": "admin", "containers": []}, "status": {"phase": "x"},
    });
    let written = stamped(&pod, &grant(), &holder());
    assert_eq!(
        written["spec"],
        json!({"serviceAccountName": "runner", "containers": []})
    );
    assert_eq!(written["metadata"]["labels"]["hostler.dev/claim-uid"], "u-1");
    assert_eq!(written.get("status"), None);
}
