//! Joins the parts: controllers, components and control planes meet here and nowhere else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use hostler_controllers::control_plane::ControlPlane;
use hostler_controllers::control_plane::given::{Connect, Given};
use hostler_controllers::{Ctx, Settings, SystemClock};
use hostler_core::kubeconfig::Own;
use hostler_wasm::{Catalog, CompileCommand, CompileWith, Required};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::COMPILE;
use crate::args::RequiredPlugins;

/// This program, which compiles components when it is called again with a hidden word.
///
/// # Errors
/// Where the system does not tell the path.
pub fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("the path of this program cannot be told")
}

/// Opens the plugin directory; `compiler` is a `hostler` binary.
///
/// # Errors
/// A directory that does not exist, a state directory that cannot be written.
pub async fn catalog(
    directory: &Path,
    state: &Path,
    required: &RequiredPlugins,
    compiler: PathBuf,
) -> anyhow::Result<Arc<Catalog>> {
    let required = Required {
        resolver: required.resolver.clone(),
        policies: required.policies.clone(),
    };
    let compiler = CompileCommand {
        program: compiler,
        args: vec![COMPILE.into()],
    };
    let mut options = hostler_wasm::Options::new(directory, state, CompileWith::Child(compiler));
    options.required = required;
    Ok(Catalog::open(options).await?)
}

/// Installs definitions and waits until they are served.
///
/// # Errors
/// What the API server says.
pub async fn install(client: &Client, definitions: Vec<CustomResourceDefinition>) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in &definitions {
        let name = crd.name_any();
        let params = PatchParams::apply(hostler_api::names::FIELD_MANAGER).force();
        crds.patch(&name, &params, &Patch::Apply(crd))
            .await
            .with_context(|| format!("definition {name} was refused"))?;
    }
    for crd in definitions {
        let name = crd.name_any();
        await_condition(crds.clone(), &name, conditions::is_crd_established())
            .await
            .with_context(|| format!("definition {name} was not established"))?;
    }
    Ok(())
}

/// Tenants' APIs by the Secrets that somebody else made on the platform, which `config` leads to. `connect` makes the host's client of each.
#[must_use]
pub fn given(platform: Client, config: &kube::Config, connect: Connect) -> Arc<dyn ControlPlane> {
    Arc::new(Given::new(platform, own_addresses(config), connect))
}

/// The platform's own API: where its client goes, and where every pod of it is told to go.
fn own_addresses(config: &kube::Config) -> Own {
    let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    let service = set("KUBERNETES_SERVICE_HOST").map(|host| {
        let port = set("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    });
    let configured = config.cluster_url.to_string();
    Own::new(std::iter::once(configured.as_str()).chain(service.as_deref()))
}

/// Runs the controllers until `stop`.
///
/// # Errors
/// What ends a host: nothing but its own faults.
pub async fn controllers(
    client: Client,
    plugins: Arc<Catalog>,
    control_planes: Arc<dyn ControlPlane>,
    settings: Settings,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let ctx = Ctx::start(
        client,
        plugins,
        control_planes,
        Arc::new(SystemClock),
        settings,
        &stop,
    );
    hostler_controllers::run(ctx, stop).await;
    Ok(())
}
