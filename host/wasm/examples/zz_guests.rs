//! Temporary.
use std::io::Write;
#[tokio::main]
async fn main() {
    let text = std::fs::read_to_string("/tmp/cases.jsonl").unwrap();
    let mut guests = std::collections::HashMap::new();
    let mut out = std::fs::File::create("/tmp/answers.jsonl").unwrap();
    for line in text.lines() {
        let mut c: serde_json::Value = serde_json::from_str(line).unwrap();
        let folder = c["folder"].as_str().unwrap().to_owned();
        let name = std::path::Path::new(&folder).parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        if !guests.contains_key(&name) {
            let p = format!("/work/main/target/wasm32-unknown-unknown/guest/{}.component", name.replace('-', "_"));
            let t = std::time::Instant::now();
            let g = hostler_wasm::cases::Guest::load(&name, &std::fs::read(p).unwrap()).await.unwrap();
            eprintln!("{name} compiled in {:?}", t.elapsed());
            guests.insert(name.clone(), g);
        }
        match guests[&name].call(c["call"].as_str().unwrap(), &c["arguments"]).await {
            Ok(a) => c["answer"] = a,
            Err(e) => c["error"] = e.to_string().into(),
        }
        writeln!(out, "{c}").unwrap();
    }
    for plan in ["trap", "recurse", "eat", "flood", "big-answer", "loop"] {
        let a: serde_json::Value = serde_json::from_str(&text.lines().map(str::to_owned).find(|l| l.contains("without a plan it takes")).unwrap()).unwrap();
        let mut a = a["arguments"].clone();
        a["order"]["properties"]["hostile/plan"] = plan.into();
        let t = std::time::Instant::now();
        let r = guests["driver-hostile"].call("provision", &a).await;
        eprintln!("{plan}: {} in {:?}", match r { Ok(_) => "answered".to_owned(), Err(e) => format!("{e:?}").chars().take(300).collect() }, t.elapsed());
    }
}
