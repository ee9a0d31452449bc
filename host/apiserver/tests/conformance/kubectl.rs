//! The real kubectl against the socket. Skipped, and said so, where there is none on the path.

use std::io::Write;
use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::clusters::Listening;
use crate::harness::widgets;

struct Kubectl {
    lab: Listening,
    home: tempfile::TempDir,
}

impl Kubectl {
    /// In a cluster that is not the server's own, so that the prefix of paths is tried as well.
    async fn start() -> Option<Self> {
        if Command::new("kubectl")
            .arg("version")
            .arg("--client")
            .output()
            .await
            .is_err()
        {
            eprintln!("skipped: there is no kubectl on the path");
            return None;
        }
        let lab = Listening::start().await;
        lab.server.create_cluster("tenant").await.unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), lab.kubeconfig("tenant")).unwrap();
        Some(Self { lab, home })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(line.split_whitespace())
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path())
            .current_dir(self.home.path());
        command
    }

    async fn output(&self, line: &str) -> Output {
        self.command(line).output().await.unwrap()
    }

    /// What a command prints when it succeeds.
    async fn run(&self, line: &str) -> String {
        let output = self.output(line).await;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {line}: {out}{err}");
        format!("{out}{err}")
    }

    /// What a command prints when it fails.
    async fn fails(&self, line: &str) -> String {
        let output = self.output(line).await;
        assert!(
            !output.status.success(),
            "kubectl {line}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::File::create(self.home.path().join(name))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }
}

const WIDGET: &str = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 3}\n";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_does_what_it_does_elsewhere() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.file("crd.yaml", &widgets().to_string());
    kubectl.file("a.yaml", WIDGET);
    let printed = kubectl.run("apply -f crd.yaml").await;
    assert_eq!(
        printed,
        "customresourcedefinition.apiextensions.k8s.io/widgets.example.com created\n"
    );
    kubectl
        .run("wait --for=condition=Established crd/widgets.example.com --timeout=30s")
        .await;
    assert_eq!(
        kubectl.run("apply -f a.yaml").await,
        "widget.example.com/a created\n"
    );
    assert_eq!(
        kubectl.run("apply -f a.yaml").await,
        "widget.example.com/a unchanged\n"
    );
    assert_eq!(kubectl.run("get wd").await, "NAME   SIZE\na      3\n");
    assert_eq!(kubectl.run("get wd -o name").await, "widget.example.com/a\n");
    assert_eq!(kubectl.run("get wd a -o jsonpath={.spec.color}").await, "red");
    assert!(kubectl.run("describe widget a").await.contains("Color:  red"));
    assert!(
        kubectl
            .run("api-resources --api-group=example.com")
            .await
            .contains("widgets   wd           example.com/v1   true         Widget")
    );
    assert!(
        kubectl
            .run("explain widget.spec.size")
            .await
            .contains("FIELD: size <integer>")
    );
    assert!(kubectl.run("explain node.spec.taints").await.contains("effect"));

    assert_eq!(
        kubectl.run("label wd a x=y").await,
        "widget.example.com/a labeled\n"
    );
    assert_eq!(
        kubectl.run("annotate wd a note=this").await,
        "widget.example.com/a annotated\n"
    );
    assert_eq!(
        kubectl.run("get wd -l x=y -o name").await,
        "widget.example.com/a\n"
    );
    assert_eq!(
        kubectl
            .run("patch wd a --type=merge -p {\"spec\":{\"size\":4}}")
            .await,
        "widget.example.com/a patched\n"
    );
    assert_eq!(
        kubectl
            .run("wait wd/a --for=jsonpath={.spec.size}=4 --timeout=30s")
            .await,
        "widget.example.com/a condition met\n"
    );

    kubectl.file("a.yaml", &WIDGET.replace("size: 3", "size: 5"));
    let diff = kubectl.output("diff -f a.yaml").await;
    assert_eq!(diff.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&diff.stdout).contains("+  size: 5"));
    assert_eq!(
        kubectl
            .run("apply --server-side --force-conflicts -f a.yaml")
            .await,
        "widget.example.com/a serverside-applied\n"
    );
    kubectl.file("a.yaml", &WIDGET.replace("size: 3", "size: 11"));
    let refused = kubectl.fails("apply --server-side -f a.yaml").await;
    assert!(
        refused.contains("The Widget \"a\" is invalid: spec.size: Invalid value: 11"),
        "{refused}"
    );
    kubectl.file("a.yaml", &WIDGET.replace("size: 3", "sise: 3"));
    let refused = kubectl.fails("create -f a.yaml").await;
    assert!(
        refused.contains("strict decoding error: unknown field \"spec.sise\""),
        "{refused}"
    );

    let mut edit = kubectl.command("edit wd a");
    let edited = edit
        .env("KUBE_EDITOR", "sed -i s/size:.5/size:\\ 6/")
        .output()
        .await
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&edited.stdout),
        "widget.example.com/a edited\n"
    );
    assert_eq!(kubectl.run("get wd a -o jsonpath={.spec.size}").await, "6");

    assert_eq!(
        kubectl.run("create configmap c --from-literal=k=v").await,
        "configmap/c created\n"
    );
    let message = "Error from server (AlreadyExists): configmaps \"c\" already exists\n";
    let failed = kubectl.fails("create configmap c").await;
    assert!(
        failed.ends_with(&message.replace(
            "Error from server (AlreadyExists)",
            "error: failed to create configmap"
        )),
        "{failed}"
    );
    let shown = kubectl.run("get all,cm").await;
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.windows(2).any(|two| two == ["configmap/c", "1"]), "{shown}");
    assert_eq!(kubectl.run("create namespace n").await, "namespace/n created\n");
    assert_eq!(
        kubectl
            .run("delete namespace n --timeout=30s")
            .await
            .lines()
            .next(),
        Some("namespace \"n\" deleted")
    );
    let missing = kubectl.fails("get wd none").await;
    assert_eq!(
        missing,
        "Error from server (NotFound): widgets.example.com \"none\" not found\n"
    );
    let unknown = kubectl.fails("get nonsense").await;
    assert_eq!(
        unknown,
        "error: the server doesn't have a resource type \"nonsense\"\n"
    );
    assert_eq!(
        kubectl.run("events").await,
        "No events found in default namespace.\n"
    );
    assert!(
        kubectl
            .run("delete -f crd.yaml --timeout=30s")
            .await
            .contains("deleted")
    );
    // kubectl remembers the kind for a while, and then is told that it is not served.
    kubectl.fails("get wd").await;
    drop(kubectl.lab);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_watches_rows() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.run("create configmap first").await;
    let mut watching = kubectl
        .command("get configmaps -w --output-watch-events --field-selector metadata.name!=kube-root-ca.crt");
    let mut child = watching
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = async || {
        let line = tokio::time::timeout(std::time::Duration::from_secs(30), lines.next_line()).await;
        let line = line.expect("a line comes in time").unwrap().unwrap();
        line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line().await, "EVENT NAME DATA");
    assert_eq!(line().await, "ADDED first 0");
    kubectl.run("create configmap second --from-literal=k=v").await;
    assert_eq!(line().await, "ADDED second 1");
    kubectl.run("delete configmap first").await;
    assert_eq!(line().await, "DELETED first 0");
    child.kill().await.unwrap();
}
