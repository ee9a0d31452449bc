//! Joins the parts: controllers, components and control planes meet here and nowhere else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use hostler_controllers::control_plane::ControlPlane;
use hostler_controllers::{Ctx, Settings, SystemClock};
use hostler_wasm::{Catalog, CompileCommand, CompileWith, Required};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::COMPILE;
use crate::args::RequiredPlugins;

/// The program that compiles components: this one, or the one named for tests that are another program.
fn compiler() -> anyhow::Result<CompileCommand> {
    let program = match std::env::var_os("HOSTLER_COMPILER") {
        Some(program) => PathBuf::from(program),
        None => std::env::current_exe().context("the path of this program cannot be told")?,
    };
    Ok(CompileCommand { program, args: vec![COMPILE.into()] })
}

/// Opens the plugin directory.
///
/// # Errors
/// A directory that does not exist, a state directory that cannot be written.
pub async fn catalog(directory: &Path, state: &Path, required: &RequiredPlugins) -> anyhow::Result<Arc<Catalog>> {
    let required = Required { resolver: required.resolver.clone(), policies: required.policies.clone() };
    let options = hostler_wasm::Options::new(directory, state, required, CompileWith::Child(compiler()?));
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
        crds.patch(&name, &params, &Patch::Apply(crd)).await.with_context(|| format!("definition {name} was refused"))?;
    }
    for crd in definitions {
        let name = crd.name_any();
        await_condition(crds.clone(), &name, conditions::is_crd_established())
            .await
            .with_context(|| format!("definition {name} was not established"))?;
    }
    Ok(())
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
    let ctx = Ctx::start(client, plugins, control_planes, Arc::new(SystemClock), settings, &stop);
    hostler_controllers::run(ctx, stop).await;
    Ok(())
}
