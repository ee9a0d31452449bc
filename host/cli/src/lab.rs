//! `hostler lab`: an API server, a simulated data centre and the host itself, in one process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hostler_api::{VirtualClusterInstance, names};
use hostler_apiserver::{Identity, Server};
use hostler_controllers::Settings;
use hostler_lab::{Lab, Network};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::LabOptions;
use crate::control_plane::{Clients, Embedded, write_private};
use crate::telemetry::say;
use crate::{control_plane, run, telemetry, wire};

mod apply;
mod copies;
mod timeline;

/// Longest wait for the parts to end after they were told to.
const FAREWELL: Duration = Duration::from_secs(10);

pub(crate) async fn main(options: LabOptions) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&options.data)
        .with_context(|| format!("data directory {} cannot be made", options.data.display()))?;
    telemetry::to_file(&options.data.join("hostler.log"))?;
    let manifests = apply::read(&options.apply)?;
    let stop = run::stopped_by_signal()?;
    let laboratory = Laboratory::start(&options, &stop).await?;
    say("lab ready");
    let code = laboratory.serve(&options, manifests, &stop).await;
    laboratory.end(&stop).await;
    code
}

/// A laboratory that runs.
struct Laboratory {
    client: Client,
    server: Arc<Server>,
    base: String,
    kubeconfig: PathBuf,
    data: PathBuf,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Laboratory {
    async fn start(options: &LabOptions, stop: &CancellationToken) -> anyhow::Result<Self> {
        let data = std::path::absolute(&options.data)?;
        let plugins = data.join("plugins");
        for note in copies::refresh(&options.plugins, &plugins, &data.join("plugins.copied.json"))? {
            say(&note);
        }
        let mut server_options =
            hostler_apiserver::Options::new(hostler_apiserver::Store::File(data.join("store.redb")));
        server_options.cluster = PLATFORM.to_owned();
        let network = Network::new();
        server_options.kubelets = Some(control_plane::kubelets(&network));
        let server = Arc::new(Server::open(server_options)?);
        let listener = listen(options.listen, &data.join("listen")).await?;
        let base = format!("https://{}", listener.local_addr()?);
        let kubeconfig = data.join("kubeconfig");
        write_private(
            &kubeconfig,
            &server.kubeconfig(PLATFORM, &base, &Identity::administrator())?,
        )?;

        let mut tasks = JoinSet::new();
        server.start(stop.clone());
        tasks.spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { Ok(server.serve(listener, stop).await?) }
        });
        let client = server.client(PLATFORM, Identity::host(HOST));
        let mut definitions = hostler_api::all_crds();
        definitions.extend(hostler_lab::crds::all());
        wire::install(&client, definitions).await?;

        let mut lab_options = hostler_lab::Options::default();
        if let Some(time) = options.imaging_time {
            lab_options.times.provision = time;
        }
        let lab = Lab::start(client.clone(), network.clone(), lab_options, stop.clone());
        tasks.spawn({
            let stop = stop.clone();
            async move {
                stop.cancelled().await;
                Ok(lab.stop().await?)
            }
        });
        let catalog = wire::catalog(
            &plugins,
            &data.join("components"),
            &options.required,
            wire::this_program()?,
        )
        .await?;
        let clients: Clients = Arc::new({
            let server = server.clone();
            move |cluster| Ok(server.client(cluster, Identity::host(HOST)))
        });
        let tenants = data.join("tenants");
        let control_planes = Embedded::new(server.clone(), clients, network, base.clone(), tenants);
        let control_planes = Arc::new(control_planes.with_schedulers(stop.clone()));
        let settings = Settings {
            installation: installation(&data)?,
            ..Settings::default()
        };
        tasks.spawn(wire::controllers(
            client.clone(),
            catalog,
            control_planes,
            settings,
            stop.clone(),
        ));
        if options.servers > 0 {
            apply::rack(&client, options.servers).await?;
        }
        Ok(Self {
            client,
            server,
            base,
            kubeconfig,
            data,
            tasks,
        })
    }

    /// Applies what was asked for and stays until it is told to stop.
    async fn serve(
        &self,
        options: &LabOptions,
        manifests: Vec<apply::Manifest>,
        stop: &CancellationToken,
    ) -> anyhow::Result<ExitCode> {
        let stays = !options.once;
        if !manifests.is_empty() {
            let watching = timeline::Timeline::start(self.client.clone());
            // Whoever asked for an end that did not come must not take it for one.
            let stopped = if stays {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
            let applied = tokio::select! {
                () = stop.cancelled() => return Ok(stopped),
                applied = apply::all(&self.client, manifests) => applied,
            };
            match applied {
                // What runs goes on: it may be somebody's.
                Err(error) if stays => {
                    telemetry::complain(&error);
                    say("\nthe rest was not applied; correct the file and use kubectl apply, or start again");
                }
                other => other?,
            }
            let tenant = |cluster: &str| self.server.client(cluster, Identity::administrator());
            let clusters = || self.server.clusters();
            let still = || self.invite(None);
            let sources = timeline::Sources {
                clusters: &clusters,
                tenant: &tenant,
                still: &still,
            };
            let outcome = tokio::select! {
                () = stop.cancelled() => Ok(stopped),
                outcome = watching.follow(&sources, options.once.then_some(options.timeout)) => outcome,
            };
            if !stays || stop.is_cancelled() {
                return outcome;
            }
            outcome?;
        } else if !stays {
            return Ok(ExitCode::SUCCESS);
        }
        let tenants: Api<VirtualClusterInstance> = Api::all(self.client.clone());
        self.invite(tenants.list(&ListParams::default()).await?.items.first());
        stop.cancelled().await;
        say("\nstopping; start again with the same --data to go on");
        Ok(ExitCode::SUCCESS)
    }

    /// The next commands to try.
    fn invite(&self, tenant: Option<&VirtualClusterInstance>) {
        say(&format!(
            "\nThe laboratory runs at {} until Ctrl-C. In another terminal:\n",
            self.base
        ));
        say(&format!("  export KUBECONFIG={}", self.kubeconfig.display()));
        say("  kubectl get nodeclaims.management.loft.sh -A");
        say("  kubectl get nodetypes.management.loft.sh");
        say("  kubectl get bmh -A");
        let Some(tenant) = tenant else { return };
        let (name, namespace) = (tenant.name_any(), tenant.namespace().unwrap_or_default());
        if let Some(project) = names::project_of(&namespace) {
            let file = self
                .data
                .join("tenants")
                .join(project)
                .join(format!("{name}.kubeconfig"));
            say(&format!(
                "  kubectl --kubeconfig {} get nodes -o wide",
                file.display()
            ));
        }
        say(&format!(
            "  kubectl delete virtualclusterinstances.management.loft.sh {name} -n {namespace}"
        ));
    }

    async fn end(mut self, stop: &CancellationToken) {
        stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            tracing::warn!("some parts did not end in time; what they acknowledged is on disk");
        }
    }
}

/// User name of the host in the clusters' APIs.
const HOST: &str = "system:hostler";
/// Name of the platform's logical cluster.
const PLATFORM: &str = "platform";

/// Listens where asked, else where the last start did, else on a free port that is kept for the next start.
async fn listen(asked: Option<SocketAddr>, kept: &Path) -> anyhow::Result<TcpListener> {
    let known: Option<SocketAddr> = std::fs::read_to_string(kept)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let address = match (asked, known) {
        // Port 0 means the same port every time: boot data that was written names it.
        (Some(asked), Some(known)) if asked.port() == 0 && asked.ip() == known.ip() => known,
        (Some(asked), _) => asked,
        (None, Some(known)) => known,
        (None, None) => SocketAddr::from(([127, 0, 0, 1], 0)),
    };
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}; stop what uses the port, or choose another with --listen (the address of the last start is kept in {})",
            kept.display()
        )
    })?;
    write_private(kept, &listener.local_addr()?.to_string())?;
    Ok(listener)
}

/// Name of this installation: made once, kept with the state.
fn installation(data: &Path) -> anyhow::Result<String> {
    let path = data.join("installation");
    if let Ok(text) = std::fs::read_to_string(&path) {
        return Ok(text.trim().to_owned());
    }
    let name = format!("lab-{:08x}", rand::random::<u32>());
    write_private(&path, &name)?;
    Ok(name)
}
