//! A kubeconfig is data, and a tenant's API is somebody else's: what either tries costs nobody anything.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hostler_apiserver::{Identity, Options, Server, Store};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stage;
use crate::harness::{SelfSigned, Stack, World, eventually};

const WHY: &str = "there the Secrets of tenants are written by what makes their clusters";

/// Where tenants that behave have their APIs: a server of its own, beside the platform's.
struct Landlord {
    server: Server,
    base: String,
    _stop: DropGuard,
}

impl Landlord {
    async fn new() -> Self {
        let server = Server::open(Options::new(Store::Memory)).unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        let (serving, end) = (server.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, end).await });
        Self {
            server,
            base,
            _stop: stop.drop_guard(),
        }
    }

    /// A kubeconfig for a cluster of its own.
    async fn kubeconfig(&self, cluster: &str) -> Value {
        self.server.create_cluster(cluster).await.unwrap();
        let text = self
            .server
            .kubeconfig(cluster, &self.base, &Identity::host("hostler"))
            .unwrap();
        serde_saphyr::from_str(&text).unwrap()
    }
}

/// A listener that nobody should come to.
struct Trap {
    address: String,
    came: Arc<AtomicUsize>,
}

impl Trap {
    fn set() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = came.clone();
        std::thread::spawn(move || {
            for one in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(one);
            }
        });
        Self { address, came }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

/// Writes the kubeconfig of a tenant where its installer would, once the tenant has its place.
async fn give(world: &World, name: &str, kubeconfig: &Value) {
    let data = STANDARD.encode(kubeconfig.to_string());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("vc-{name}"), "namespace": format!("loft-default-v-{name}")},
        "data": {"config": data},
    });
    stage::apply(world, &secret).await;
}

async fn tenant(world: &World, name: &str) {
    stage::apply(world, &stage::tenant("default", name, stage::PRIVATE)).await;
}

async fn told(world: &World, name: &str, reason: &str) -> stage::Told {
    let tenant = ("VirtualClusterInstance", Some("p-default"), name);
    stage::until(world, tenant, ("VirtualClusterOnline", reason)).await
}

/// Waits until the tenant of the example has both its nodes.
async fn served(world: &World) {
    eventually("the example's claims are Available", || async {
        let claims = stage::api(world, "NodeClaim", Some("p-default"));
        let all = claims
            .list(&Default::default())
            .await
            .map_err(|error| error.to_string())?;
        let done = all
            .items
            .iter()
            .filter(|claim| claim.data["status"]["phase"] == "Available")
            .count();
        if done == 2 {
            Ok(())
        } else {
            Err(format!("{done} of {}", all.items.len()))
        }
    })
    .await;
}

/// The tenant of the example, its API at the landlord's.
async fn example(world: &World, landlord: &Landlord) {
    world.example().await;
    let kubeconfig = landlord.kubeconfig("one").await;
    world.lead("192.168.100.2:8443", &landlord.server.url("one", &landlord.base));
    world.apply_file("examples/01-lab/tenant.yaml").await;
    give(world, "one", &kubeconfig).await;
}

/// A file that tells whether somebody opens it to read.
fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Whether somebody waits for what is written to a pipe.
fn is_read(path: &Path) -> bool {
    // O_NONBLOCK: without a reader the open fails.
    const NONBLOCK: i32 = 0o4000;
    std::fs::File::options()
        .write(true)
        .custom_flags(NONBLOCK)
        .open(path)
        .is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_that_is_more_than_data_starts_nothing_reads_nothing_and_connects_nowhere() {
    if Stack::only_embedded(WHY) {
        return;
    }
    let (world, landlord, trap) = (World::new().await, Landlord::new().await, Trap::set());
    let host = world.host_given().await;
    example(&world, &landlord).await;
    let touched = world.folder.path().join("touched");
    let file = world.folder.path().join("secret-file");
    pipe(&file);
    let good = landlord.kubeconfig("bad").await;
    let at = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        bad["clusters"][0]["cluster"]["server"] = json!(format!("https://{}", trap.address));
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[key] = value;
        bad
    };
    let program = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "/bin/sh", "args": ["-c", format!("touch {}", touched.display())],
    });
    let gcp = json!({"name": "gcp", "config": {"cmd-path": "/bin/sh", "cmd-args": format!("-c 'touch {}'", touched.display())}});
    let own = world.stack.url("platform");
    let proxy = format!("http://{}", trap.address);
    let cases = [
        ("exec", at("/users/0/user/exec", program)),
        ("provider", at("/users/0/user/auth-provider", gcp)),
        ("token", at("/users/0/user/tokenFile", json!(file))),
        ("cert", at("/users/0/user/client-certificate", json!(file))),
        ("key", at("/users/0/user/client-key", json!(file))),
        ("ca", at("/clusters/0/cluster/certificate-authority", json!(file))),
        ("proxy", at("/clusters/0/cluster/proxy-url", json!(proxy))),
        (
            "blind",
            at("/clusters/0/cluster/insecure-skip-tls-verify", json!(true)),
        ),
        (
            "other",
            at("/clusters/0/cluster/tls-server-name", json!("kubernetes")),
        ),
        ("as", at("/users/0/user/as", json!("system:admin"))),
        ("groups", at("/users/0/user/as-groups", json!(["system:masters"]))),
        (
            "plain",
            at(
                "/clusters/0/cluster/server",
                json!(format!("http://{}", trap.address)),
            ),
        ),
        ("platform", at("/clusters/0/cluster/server", json!(own))),
        (
            "alias",
            at(
                "/clusters/0/cluster/server",
                json!(own.replace("127.0.0.1", "localhost")),
            ),
        ),
        (
            "service",
            at(
                "/clusters/0/cluster/server",
                json!("https://kubernetes.default.svc"),
            ),
        ),
        ("unknown", at("/users/0/user/helper", json!("/bin/sh"))),
    ];
    for (name, _) in &cases {
        tenant(&world, name).await;
    }
    for (name, bad) in &cases {
        give(&world, name, bad).await;
    }
    for (name, _) in &cases {
        let told = told(&world, name, "TenantKubeconfigUnsafe").await;
        assert_eq!(told.status, "False", "{name}: {}", told.message);
        assert!(
            told.message.contains("; "),
            "{name}: no remedy in {}",
            told.message
        );
        assert!(!told.message.contains("PRIVATE"), "{name}: {}", told.message);
    }
    let told = stage::until_event(&world, "exec", "TenantKubeconfigUnsafe").await;
    assert!(told.contains("users[0].user.exec"), "{told}");
    // The others are served, before and after.
    served(&world).await;
    assert!(!touched.exists(), "a program ran");
    assert!(!is_read(&file), "a file was read");
    assert_eq!(trap.came(), 0, "somebody connected");
    // It was the kubeconfig, and nothing else: with a good one the tenant is served.
    give(&world, "exec", &good).await;
    let mended = ("VirtualClusterInstance", Some("p-default"), "exec");
    stage::until_true(&world, mended, "VirtualClusterReady").await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_a_given_tenant_is_never_written_and_survives_its_tenant() {
    if Stack::only_embedded(WHY) {
        return;
    }
    let (world, landlord) = (World::new().await, Landlord::new().await);
    stage::apply(&world, &stage::namespace("outside")).await;
    let host = world.host_given().await;
    example(&world, &landlord).await;
    let place = Some("loft-default-v-one");
    let before = stage::read(&world, "Secret", place, "vc-one").await.unwrap();
    served(&world).await;
    let after = stage::read(&world, "Secret", place, "vc-one").await.unwrap();
    assert_eq!(before, after);
    // A place that somebody else made, and marked for the tenant by hand, is left with what is in it.
    let mut kept = stage::tenant("default", "kept", stage::PRIVATE);
    kept["spec"]["clusterRef"] = json!({"namespace": "outside", "virtualCluster": "kept"});
    stage::apply(&world, &kept).await;
    let of_kept = ("VirtualClusterInstance", Some("p-default"), "kept");
    eventually("a place that is not marked is refused", || async {
        let seen = stage::read(&world, of_kept.0, of_kept.1, of_kept.2)
            .await
            .unwrap_or_default();
        if seen["status"]["reason"] == "TenantRefTaken" {
            Ok(())
        } else {
            Err(seen["status"].to_string())
        }
    })
    .await;
    let uid = stage::read(&world, of_kept.0, of_kept.1, of_kept.2)
        .await
        .unwrap()["metadata"]["uid"]
        .clone();
    let mark = json!({"metadata": {"labels": {"hostler.dev/tenant-uid": uid}}});
    stage::change(&world, "Namespace", None, "outside", mark).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vc-kept", "namespace": "outside"},
        "data": {"config": STANDARD.encode(landlord.kubeconfig("kept").await.to_string())},
    });
    stage::apply(&world, &secret).await;
    stage::until_true(&world, of_kept, "VirtualClusterReady").await;
    let before = stage::read(&world, "Secret", Some("outside"), "vc-kept")
        .await
        .unwrap();
    stage::delete(&world, of_kept.0, of_kept.1, of_kept.2).await;
    stage::until_gone(&world, of_kept.0, of_kept.1, of_kept.2).await;
    let after = stage::read(&world, "Secret", Some("outside"), "vc-kept")
        .await
        .unwrap();
    assert_eq!(before, after);
    host.stop().await;
}

/// How a server behaves once TLS stands.
#[derive(Clone, Copy)]
enum Manners {
    /// It takes the connection and says nothing, not even TLS.
    Mute,
    /// It speaks TLS, and then says nothing.
    Silent,
    /// Bytes that are no HTTP.
    Garbage,
    /// Elsewhere.
    Redirects,
    /// An answer that does not end.
    Endless,
    /// A good first answer, then answers and events that do not end.
    Liar,
}

/// A server with bad manners, until the process ends.
struct Rude {
    kubeconfig: Value,
    /// What was asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Rude {
    fn start(manners: Manners, elsewhere: &str) -> Self {
        let SelfSigned { ca_pem, config } = SelfSigned::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, elsewhere) = (asked.clone(), elsewhere.to_owned());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (tls, seen, elsewhere) = (config.clone(), seen.clone(), elsewhere.clone());
                std::thread::spawn(move || {
                    // A client that hangs up is what is wanted here.
                    drop(converse(socket, tls, manners, &seen, &elsewhere));
                });
            }
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {
                "server": server, "certificate-authority-data": STANDARD.encode(ca_pem),
            }}],
            "users": [{"name": "x", "user": {"token": "a-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        });
        Self { kubeconfig, asked }
    }
}

fn converse(
    mut socket: TcpStream,
    tls: Arc<rustls::ServerConfig>,
    manners: Manners,
    asked: &Mutex<Vec<String>>,
    elsewhere: &str,
) -> std::io::Result<()> {
    if matches!(manners, Manners::Mute) {
        return std::io::copy(&mut socket, &mut std::io::sink()).map(drop);
    }
    let connection = rustls::ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        asked.lock().unwrap().push(path.clone());
        match manners {
            Manners::Mute => {}
            Manners::Silent => drop(std::io::copy(&mut stream, &mut std::io::sink())?),
            Manners::Garbage => {
                stream.write_all(&[0xff; 4096])?;
                stream.flush()?;
            }
            Manners::Redirects => {
                write!(
                    stream,
                    "HTTP/1.1 307 Temporary Redirect\r\nlocation: https://{elsewhere}/\r\ncontent-length: 0\r\n\r\n"
                )?;
                stream.flush()?;
            }
            Manners::Liar if path == "/api/v1/namespaces/kube-system" => {
                let namespace = json!({
                    "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "mine"},
                })
                .to_string();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{namespace}",
                    namespace.len()
                )?;
                stream.flush()?;
            }
            Manners::Liar | Manners::Endless => {
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
                )?;
                let piece = vec![b' '; 64 << 10];
                loop {
                    write!(stream, "{:x}\r\n", piece.len())?;
                    stream.write_all(&piece)?;
                    stream.write_all(b"\r\n")?;
                    stream.flush()?;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_api_is_dead_slow_or_hostile_costs_the_others_nothing() {
    if Stack::only_embedded(WHY) {
        return;
    }
    let (world, landlord, trap) = (World::new().await, Landlord::new().await, Trap::set());
    let host = world.host_given().await;
    stage::apply(
        &world,
        &json!({"apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": "default"}, "spec": {}}),
    )
    .await;
    let rude = |manners| Rude::start(manners, &trap.address);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut gone = rude(Manners::Mute);
    gone.kubeconfig["clusters"][0]["cluster"]["server"] = json!(format!("https://{nobody}"));
    let cases = [
        ("gone", gone, "TenantUnreachable"),
        ("mute", rude(Manners::Mute), "TenantUnreachable"),
        ("silent", rude(Manners::Silent), "TenantUnreachable"),
        ("garbage", rude(Manners::Garbage), "TenantUnreachable"),
        ("redirects", rude(Manners::Redirects), "TenantUnreachable"),
        ("endless", rude(Manners::Endless), "TenantUnreachable"),
    ];
    let liar = rude(Manners::Liar);
    for name in cases.iter().map(|(name, ..)| *name).chain(["liar"]) {
        tenant(&world, name).await;
    }
    for (name, rude, _) in &cases {
        give(&world, name, &rude.kubeconfig).await;
    }
    give(&world, "liar", &liar.kubeconfig).await;
    let of_liar = ("VirtualClusterInstance", Some("p-default"), "liar");
    stage::until_true(&world, of_liar, "VirtualClusterReady").await;
    // All of them are asked by now, and misbehave; the one that comes last is served all the same.
    for (name, _, reason) in &cases {
        told(&world, name, reason).await;
    }
    example(&world, &landlord).await;
    served(&world).await;
    for (name, rude, _) in &cases {
        let asked = rude.asked.lock().unwrap().clone();
        assert!(
            asked.iter().all(|path| path == "/api/v1/namespaces/kube-system"),
            "{name} was asked for {asked:?}"
        );
    }
    assert_eq!(trap.came(), 0, "a redirection was followed");
    // And they go when they are told to.
    for name in ["mute", "endless", "liar"] {
        stage::delete(&world, "VirtualClusterInstance", Some("p-default"), name).await;
    }
    for name in ["mute", "endless", "liar"] {
        stage::until_gone(&world, "VirtualClusterInstance", Some("p-default"), name).await;
    }
    host.stop().await;
}
