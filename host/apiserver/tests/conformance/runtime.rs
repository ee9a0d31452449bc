//! What kube's own runtime makes of the server: watchers, reflectors, controllers, typed clients.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hostler_apiserver::{Options, Store};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{
    Api, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams,
    PostParams,
};
use kube::core::PartialObjectMeta;
use kube::discovery::Discovery;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::harness::Lab;

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn a_typed_client_does_what_it_does_elsewhere() {
    let lab = Lab::new();
    let api: Api<ConfigMap> = Api::default_namespaced(lab.client.clone());
    let created = api.create(&PostParams::default(), &map("a")).await.unwrap();
    assert_eq!(created.name_any(), "a");
    let error = api.create(&PostParams::default(), &map("a")).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.is_already_exists()),
        "{error}"
    );
    assert_eq!(api.get_opt("none").await.unwrap(), None);
    let patch = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}}));
    let applied = api
        .patch("a", &PatchParams::apply("test").force(), &patch)
        .await
        .unwrap();
    assert_eq!(applied.data.unwrap()["k"], "v");
    assert_eq!(
        api.list(&ListParams::default().limit(1))
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(api.get_metadata("a").await.unwrap().name_any(), "a");
    assert!(
        api.delete("a", &DeleteParams::default())
            .await
            .unwrap()
            .is_right()
    );
    let nodes: Api<Node> = Api::all(lab.client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    let mut node = nodes.create(&PostParams::default(), &node).await.unwrap();
    node.status = serde_json::from_value(json!({"phase": "Running"})).ok();
    let written = nodes
        .replace_status("n", &PostParams::default(), &node)
        .await
        .unwrap();
    assert_eq!(written.status.unwrap().phase.as_deref(), Some("Running"));
}

#[tokio::test]
async fn watchers_of_all_strategies_see_all_there_is_and_all_that_comes() {
    let lab = Lab::with(Options::new(Store::Memory));
    let api: Api<ConfigMap> = Api::default_namespaced(lab.client.clone());
    api.create(&PostParams::default(), &map("old")).await.unwrap();
    let configs = [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ];
    let mut streams: Vec<_> = configs
        .into_iter()
        .map(|config| {
            watcher(api.clone(), config)
                .applied_objects()
                .map(|object| object.unwrap().name_any())
                .boxed()
        })
        .collect();
    let metadata = watcher(
        Api::<PartialObjectMeta<ConfigMap>>::default_namespaced(lab.client.clone()),
        watcher::Config::default(),
    )
    .applied_objects()
    .boxed();
    let mut names: Vec<Vec<String>> = Vec::new();
    streams.push(metadata.map(|object| object.unwrap().name_any()).boxed());
    for stream in &mut streams {
        names.push(vec![stream.next().await.unwrap()]);
    }
    api.create(&PostParams::default(), &map("new")).await.unwrap();
    for (stream, names) in streams.iter_mut().zip(&mut names) {
        names.push(stream.next().await.unwrap());
        assert_eq!(*names, ["old", "new"]);
    }
}

/// An hour of waiting passes in no time, in memory and on disk: nothing here needs the real clock.
#[tokio::test(start_paused = true)]
async fn a_controller_works_through_hours_of_standing_time() {
    let directory = tempfile::tempdir().unwrap();
    for store in [Store::Memory, Store::File(directory.path().join("state.redb"))] {
        let lab = Lab::with(Options::new(store));
        let api: Api<ConfigMap> = Api::default_namespaced(lab.client.clone());
        api.create(&PostParams::default(), &map("a")).await.unwrap();
        api.create(&PostParams::default(), &map("count")).await.unwrap();
        let start = tokio::time::Instant::now();
        let rounds = Controller::new(api.clone(), watcher::Config::default().fields("metadata.name=a"))
            .run(
                |_, api: Arc<Api<ConfigMap>>| async move {
                    let object = api.get("count").await?;
                    let count: u64 = object
                        .annotations()
                        .get("rounds")
                        .map_or(0, |text| text.parse().unwrap())
                        + 1;
                    let patch = json!({"metadata": {"annotations": {"rounds": count.to_string()}}});
                    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                        .await?;
                    Ok(Action::requeue(Duration::from_secs(3600)))
                },
                |_, error: &kube::Error, _| panic!("{error}"),
                Arc::new(api.clone()),
            )
            .take_while(|_| async { start.elapsed() < Duration::from_secs(10 * 3600) });
        rounds.for_each(|_| async {}).await;
        assert!(
            api.get("count").await.unwrap().annotations()["rounds"]
                .parse::<u64>()
                .unwrap()
                > 5
        );
    }
}

#[tokio::test]
async fn entries_are_written_once_and_kinds_are_found_by_asking() {
    let lab = Lab::with(Options::new(Store::Memory));
    let api: Api<ConfigMap> = Api::default_namespaced(lab.client.clone());
    let write = PostParams::default();
    let mut first = api.entry("e").await.unwrap().or_insert(|| map("e"));
    first.commit(&write).await.unwrap();
    let mut stale = api.entry("e").await.unwrap().or_insert(|| map("never"));
    first.get_mut().data = Some([("k".to_owned(), "v".to_owned())].into());
    first.commit(&write).await.unwrap();
    stale.get_mut().immutable = Some(true);
    assert!(stale.commit(&write).await.is_err(), "it was changed meanwhile");

    for found in [
        Discovery::new(lab.client.clone()).run().await.unwrap(),
        Discovery::new(lab.client.clone()).run_aggregated().await.unwrap(),
    ] {
        assert!(found.has_group("coordination.k8s.io"));
        let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
        let (resource, can) = found.resolve_gvk(&kind).unwrap();
        assert!(can.supports_operation("patch"));
        let untyped: Api<DynamicObject> = Api::default_namespaced_with(lab.client.clone(), &resource);
        assert_eq!(untyped.get("e").await.unwrap().data["data"], json!({"k": "v"}));
    }
}

#[tokio::test]
async fn a_reflector_knows_what_a_list_would_show() {
    let lab = Lab::with(Options::new(Store::Memory));
    let api: Api<ConfigMap> = Api::default_namespaced(lab.client.clone());
    for number in 0..20 {
        api.create(&PostParams::default(), &map(&format!("m{number}")))
            .await
            .unwrap();
    }
    let (reader, writer) = reflector::store();
    // Pages are small, so that there are several.
    let stream = watcher(api.clone(), watcher::Config::default().page_size(7))
        .reflect(writer)
        .touched_objects();
    tokio::spawn(stream.for_each(|_| async {}));
    reader.wait_until_ready().await.unwrap();
    assert_eq!(reader.len(), 20);
    api.delete("m3", &DeleteParams::default()).await.unwrap();
    let key = reflector::ObjectRef::<ConfigMap>::new("m3").within("default");
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    while reader.get(&key).is_some() {
        assert!(
            tokio::time::Instant::now() < end,
            "the reflector never hears of the deletion"
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(ConfigMap::kind(&()), "ConfigMap");
}
