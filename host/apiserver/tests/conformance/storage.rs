//! What was acknowledged is there after any end; what cannot be opened says why. All of it about this server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use hostler_apiserver::{Identity, OpenError, Options, Server, Store};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Lab, WIDGETS, config_map, names, version, widget, widgets};

fn options(path: &Path) -> Options {
    Options::new(Store::File(path.to_owned()))
}

#[tokio::test]
async fn a_server_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let (before, uid, ca) = {
        let lab = Lab::with(options(&path));
        lab.server.create_cluster("tenant").await.unwrap();
        lab.post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            widgets(),
        )
        .await
        .ok();
        lab.post(WIDGETS, widget("a")).await.ok();
        lab.post(CONFIG_MAPS, config_map("b")).await.ok();
        lab.delete(&format!("{CONFIG_MAPS}/b"), Value::Null).await.ok();
        lab.server.close();
        assert_eq!(lab.post(CONFIG_MAPS, config_map("late")).await.code, 500);
        (
            lab.get(WIDGETS).await.ok(),
            lab.server.cluster_uid("tenant"),
            lab.server.ca_pem().to_owned(),
        )
    };
    let lab = Lab::with(options(&path));
    assert_eq!(lab.server.clusters(), ["platform", "tenant"]);
    assert_eq!(
        (lab.server.cluster_uid("tenant"), lab.server.ca_pem()),
        (uid, ca.as_str())
    );
    let after = lab.get(WIDGETS).await.ok();
    assert_eq!(after, before);
    // Versions go on upwards, and what happened before is no longer told.
    let next = lab.post(WIDGETS, widget("c")).await.ok();
    assert!(version(&next) > version(&before));
    let mut watch = lab.watch(CONFIG_MAPS, "resourceVersion=1").await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

/// What the killed process was doing. Runs only as a child of the test below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is started, and killed, by another test"]
async fn a_child_that_writes_until_it_is_killed() {
    let path = std::env::var("STORE_OF_THE_CHILD").unwrap();
    let server = Server::open(options(Path::new(&path))).unwrap();
    let writers = (0..4).map(|writer| {
        let client = server.client("platform", Identity::administrator());
        tokio::spawn(async move {
            for number in 0_u64.. {
                let object = json!({"metadata": {"name": format!("w{writer}-{number}")}});
                let request = http::Request::post(CONFIG_MAPS)
                    .body(object.to_string().into_bytes())
                    .unwrap();
                let created: Value = client.request(request).await.unwrap();
                let line = format!(
                    "\nacknowledged {}\n",
                    created["metadata"]["name"].as_str().unwrap()
                );
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
        })
    });
    futures::future::join_all(writers).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    for _ in 0..3 {
        let mut acknowledged: Vec<String> = Vec::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "storage::a_child_that_writes_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env("STORE_OF_THE_CHILD", &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = |line: std::io::Result<String>| {
            if let Some(name) = line
                .ok()
                .as_deref()
                .and_then(|line| line.strip_prefix("acknowledged "))
            {
                acknowledged.push(name.to_owned());
            }
            acknowledged.len()
        };
        while lines.next().is_some_and(|line| told(line) < 40) {}
        // SIGKILL, in the middle of whatever it does.
        child.kill().unwrap();
        for line in lines {
            told(line);
        }
        child.wait().unwrap();
        let lab = Lab::with(options(&path));
        let list = lab.get(CONFIG_MAPS).await.ok();
        let found = names(&list);
        assert!(acknowledged.len() >= 40);
        let lost: Vec<&String> = acknowledged
            .iter()
            .filter(|name| !found.contains(&name.as_str()))
            .collect();
        assert!(lost.is_empty(), "lost {lost:?}");
        lab.delete(CONFIG_MAPS, Value::Null).await.ok();
        lab.server.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_on_many_threads_lose_nothing_and_share_no_version() {
    let directory = tempfile::tempdir().unwrap();
    for store in [Store::Memory, Store::File(directory.path().join("state.redb"))] {
        let lab = std::sync::Arc::new(Lab::with(Options::new(store)));
        lab.post(CONFIG_MAPS, config_map("a")).await.ok();
        let mut watch = lab.watch(CONFIG_MAPS, "").await;
        let writers = (0..8).map(|writer| {
            let lab = lab.clone();
            tokio::spawn(async move {
                for number in 0..25 {
                    let patch = json!({"data": {format!("k{writer}-{number}"): "v"}});
                    lab.patch("merge", &format!("{CONFIG_MAPS}/a"), patch).await.ok();
                }
            })
        });
        futures::future::join_all(writers)
            .await
            .into_iter()
            .for_each(|done| done.unwrap());
        let mut last = 0;
        for keys in 0..=200 {
            let event = watch.next().await.unwrap();
            assert!(version(&event["object"]) > last);
            last = version(&event["object"]);
            assert_eq!(
                event["object"]["data"]
                    .as_object()
                    .map_or(0, serde_json::Map::len),
                keys
            );
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_says_why_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let refusal = |path: &Path| Server::open(options(path)).err().expect("it does not open");
    let named = |error: OpenError, path: &Path| {
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        text
    };

    let held = Server::open(options(&path)).unwrap();
    let text = named(refusal(&path), &path);
    assert!(
        text.contains("in use by another process; stop that one"),
        "{text}"
    );
    held.close();

    let whole = std::fs::read(&path).unwrap();
    for length in [whole.len() / 2, 4096, 100, 1] {
        let cut = directory.path().join(format!("cut-{length}.redb"));
        std::fs::write(&cut, &whole[..length]).unwrap();
        let text = named(refusal(&cut), &cut);
        assert!(
            text.contains("is damaged") && text.contains("restore it from a copy"),
            "{length}: {text}"
        );
        assert_eq!(
            std::fs::read(&cut).unwrap().len(),
            length,
            "what is damaged is left as it is"
        );
    }
    let garbage = directory.path().join("garbage.redb");
    std::fs::write(&garbage, b"this is no store".repeat(1000)).unwrap();
    named(refusal(&garbage), &garbage);

    let other = directory.path().join("other.redb");
    let database = redb::Database::create(&other).unwrap();
    let numbers: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("numbers");
    let transaction = database.begin_write().unwrap();
    transaction
        .open_table(numbers)
        .unwrap()
        .insert("format", 99)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let text = named(refusal(&other), &other);
    assert!(
        text.contains("has format 99 and this version reads format 1"),
        "{text}"
    );

    let nowhere = directory.path().join("none").join("state.redb");
    let text = named(refusal(&nowhere), &nowhere);
    assert!(text.contains("does not exist; create it first"), "{text}");
    let text = named(refusal(directory.path()), directory.path());
    assert!(text.contains("cannot be opened"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn events_are_forgotten_after_their_time() {
    let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let began = tokio::time::Instant::now();
    let clock = std::sync::Arc::new(move || start + began.elapsed());
    let lab = Lab::with(Options {
        clock,
        ..Options::new(Store::Memory)
    });
    lab.server.start(tokio_util::sync::CancellationToken::new());
    let event = json!({
        "metadata": {"name": "e"}, "reason": "Because", "message": "m", "type": "Normal",
        "involvedObject": {"kind": "ConfigMap", "name": "n", "namespace": "default"},
    });
    let path = "/api/v1/namespaces/default/events";
    lab.post(path, event).await.ok();
    lab.post(CONFIG_MAPS, config_map("stays")).await.ok();
    tokio::time::sleep(std::time::Duration::from_secs(50 * 60)).await;
    lab.patch("merge", &format!("{path}/e"), json!({"count": 2}))
        .await
        .ok();
    tokio::time::sleep(std::time::Duration::from_secs(50 * 60)).await;
    assert_eq!(lab.get(&format!("{path}/e")).await.code, 200);
    tokio::time::sleep(std::time::Duration::from_secs(20 * 60)).await;
    lab.gone(&format!("{path}/e")).await;
    assert_eq!(lab.get(&format!("{CONFIG_MAPS}/stays")).await.code, 200);
}
