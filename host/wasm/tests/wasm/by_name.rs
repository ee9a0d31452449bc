//! Functions called by name with JSON, as golden cases call them.

use hostler_wasm::cases::{CallError, Guest};
use serde_json::json;

use crate::fixtures::{denying, driver, resolver, trapping};

#[tokio::test]
async fn a_driver_is_called_by_name_with_objects_as_kubernetes_shows_them() {
    let guest = Guest::load("driver-d", &driver("rack")).await.unwrap();
    let provider = json!({
        "apiVersion": "management.loft.sh/v1", "kind": "NodeProvider",
        "metadata": { "name": "metal", "uid": "u" }, "spec": {},
    });
    let answer = guest
        .call("describe", &json!({ "provider": provider }))
        .await
        .unwrap();
    let description =
        json!({ "configSchema": "{}", "cluster": null, "uses": [], "nodeTypes": [], "properties": ["rack"] });
    assert_eq!(answer, json!({ "ok": description }));
}

#[tokio::test]
async fn a_resolver_gets_lists_and_what_is_left_out_is_absent() {
    let guest = Guest::load("resolver-r", &resolver()).await.unwrap();
    let object = |kind: &str| json!({ "kind": kind, "metadata": { "name": "x" } });
    let subject = json!({ "tenant": object("V"), "project": object("P"), "enrollment": object("E") });
    let candidates = json!([{ "source": "explicit", "profile": "gpu", "exists": true }]);
    let arguments = json!({ "subject": subject, "candidates": candidates });
    assert_eq!(
        guest.call("resolve", &arguments).await.unwrap(),
        json!({ "ok": { "chosen": 0, "why": "first" } })
    );
    let none = guest
        .call("resolve", &json!({ "subject": subject }))
        .await
        .unwrap();
    assert_eq!(none, json!({ "ok": { "chosen": null, "why": "first" } }));
}

#[tokio::test]
async fn json_texts_may_be_written_as_what_they_say() {
    let guest = Guest::load("policy-p", &denying("no")).await.unwrap();
    let arguments =
        json!({ "settings": { "strict": true }, "request": { "kind": "claim", "json": { "a": [1] } } });
    let denied = json!({ "allowed": false, "reasons": [{ "code": "No", "message": "no", "remedy": null }], "validFor": null });
    assert_eq!(guest.call("review", &arguments).await.unwrap(), denied);
    let accepted = guest.call("accepts", &json!({})).await.unwrap();
    assert_eq!(accepted, json!({ "ok": [{ "kind": "claim", "wants": [] }] }));
}

#[tokio::test]
async fn what_does_not_fit_is_said_with_its_place() {
    let guest = Guest::load("policy-p", &trapping()).await.unwrap();
    let unknown = guest.call("resolve", &json!({})).await.unwrap_err();
    assert_eq!(unknown.to_string(), "a review-policy has no function resolve");
    let typo = guest.call("review", &json!({ "setings": {} })).await.unwrap_err();
    assert!(
        matches!(&typo, CallError::Arguments(what) if what.contains("setings")),
        "{typo}"
    );
    let unfit = guest.call("review", &json!({ "request": [] })).await.unwrap_err();
    assert!(
        matches!(&unfit, CallError::Arguments(what) if what.contains("request")),
        "{unfit}"
    );
    let request = json!({ "request": { "kind": "claim", "json": {} } });
    let trapped = guest.call("review", &request).await.unwrap_err();
    assert!(
        matches!(&trapped, CallError::Failed(failure) if failure.reason().code == "PluginTrapped"),
        "{trapped}"
    );
}
