//! Objects that were stored before a rule was there: read, labelled, reported on and deleted as before, and not made anew.

use serde_json::{Value, json};

use super::cases::sheets;
use super::loosened;
use super::site::Site;
use crate::harness::eventually;

/// Stores every object that is refused today under definitions without rules, brings today's back, and goes on with it.
pub(super) async fn run(site: &Site) {
    let ours = hostler_api::all_crds();
    let loose: Vec<_> = ours.iter().map(loosened).collect();
    site.take(&loose).await;
    let mut stored = Vec::new();
    for (definition, sheet) in sheets() {
        for (index, case) in sheet.cases.iter().enumerate() {
            if !case.is_create() || !case.is_refused() || case.of_status() {
                continue;
            }
            let (_, mut object) = case.objects(&sheet);
            let mut anew = object.clone();
            // Either the name is what is wrong, or it is that of the example and would meet other cases.
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if sheet
                .full
                .iter()
                .any(|full| full["metadata"]["name"] == name.as_str())
            {
                object["metadata"]["name"] = json!(format!("c{index}-{name}"));
                anew["metadata"]["name"] = json!(format!("a{index}-{name}"));
            }
            // A server checks by a changed schema a moment after it has stored it.
            eventually(
                &format!("{}: {} is stored", definition.kind, case.name),
                || async {
                    let answer = site.create(&definition, &object, false).await;
                    if answer.code == 201 {
                        Ok(())
                    } else {
                        Err(answer.body.to_string())
                    }
                },
            )
            .await;
            stored.push((definition.clone(), case.name.clone(), object, anew));
        }
    }
    site.take(&ours).await;
    assert!(stored.len() > 30, "{} objects were stored", stored.len());
    for (definition, case, object, anew) in stored {
        eventually(
            &format!("{}: {case} is not made anew", definition.kind),
            || async {
                let answer = site.create(&definition, &anew, true).await;
                if answer.code == 422 {
                    Ok(())
                } else {
                    Err(answer.body.to_string())
                }
            },
        )
        .await;
        let name = object["metadata"]["name"].as_str().unwrap();
        let title = format!("{}: {} {case}", site.name, definition.kind);
        let read = site.read(&definition, name).await;
        assert_eq!(read.code, 200, "{title}: {}", read.body);
        assert_eq!(read.body["spec"], object["spec"], "{title}");
        for patch in [
            json!({"metadata": {"labels": {"seen": "yes"}, "finalizers": ["example.com/mine"]}}),
            json!({"metadata": {"finalizers": null}}),
        ] {
            let changed = site.change(&definition, name, &patch).await;
            assert_eq!(changed.code, 200, "{title}: {}", changed.body);
        }
        let mut current = site.read(&definition, name).await.body;
        current["status"] = Value::Object(serde_json::Map::new());
        let reported = site.replace(&definition, &current, true).await;
        assert_eq!(reported.code, 200, "{title}: {}", reported.body);
        site.delete(&definition, name).await;
    }
}
