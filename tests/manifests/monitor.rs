//! The ServiceMonitor under the Prometheus operator's own definition: taken without a warning, and nothing of it is pruned.

use serde_json::Value;

use super::objects;
use crate::definitions::site::{Definition, Site};
use crate::modules::PROMETHEUS;

fn monitor() -> Value {
    let all = objects(&["--service-monitor"]);
    all.into_iter()
        .find(|object| object["kind"] == "ServiceMonitor")
        .unwrap()
}

async fn is_taken_whole(site: &Site) {
    let Some(definitions) = PROMETHEUS.definitions() else {
        return;
    };
    site.take(&definitions).await;
    let all = definitions.iter().map(Definition::of);
    let definition = all.into_iter().find(|one| one.kind == "ServiceMonitor").unwrap();
    let answer = site.create(&definition, &monitor(), false).await;
    assert_eq!(answer.code, 201, "{}: {}", site.name, answer.body);
    assert_eq!(answer.warnings, [""; 0], "{}", site.name);
    assert_eq!(answer.body["spec"], monitor()["spec"], "{}", site.name);
    // And it is this definition that says so.
    let mut wrong = monitor();
    wrong["metadata"]["name"] = "wrong".into();
    wrong["spec"]["endpoints"][0]["interval"] = "often".into();
    let answer = site.create(&definition, &wrong, false).await;
    assert_eq!(answer.code, 422, "{}: {}", site.name, answer.body);
    assert_eq!(
        answer.causes()[0].field,
        "spec.endpoints[0].interval",
        "{}",
        site.name
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_monitor_passes_the_definition_of_its_operator() {
    is_taken_whole(&Site::embedded().await).await;
    if let Some(real) = Site::real().await {
        is_taken_whole(&real).await;
    }
}
