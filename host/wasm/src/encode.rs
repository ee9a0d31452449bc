//! Makes components: what `hostler plugin build` does, for our plugins and for everybody's.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use wit_component::ComponentEncoder;

use crate::error::LoadError;
use crate::grants;
use crate::inspect::{self, Inspection};

const TARGET: &str = "wasm32-unknown-unknown";

/// The profile that is used where the workspace has it; plain release elsewhere.
const PROFILE: &str = "guest";

/// What to build.
#[derive(Clone, Debug)]
pub struct Build {
    /// Folder of the crate.
    pub crate_folder: PathBuf,
    /// Where `NAME.wasm` and `NAME.toml` go; `components` in the target directory if not given.
    pub out: Option<PathBuf>,
    /// The cargo to run.
    pub cargo: OsString,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Built {
    /// The component.
    pub component: PathBuf,
    /// Its operator file, if the crate has one.
    pub operator_file: Option<PathBuf>,
    /// What it is.
    pub inspection: Inspection,
}

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Cargo could not be run.
    #[error("cannot run {cargo:?}: {source}; install Rust, or name another cargo")]
    NoCargo {
        /// What was run.
        cargo: OsString,
        /// Why not.
        source: io::Error,
    },
    /// Cargo said no; it has printed why.
    #[error("cargo could not {0}; its messages are above")]
    CargoFailed(&'static str),
    /// The folder holds no package.
    #[error("{0} is no package of its own; name the folder of one crate")]
    NoPackage(PathBuf),
    /// The crate makes no module.
    #[error("crate {0} makes no WebAssembly module; add `crate-type = [\"cdylib\", \"rlib\"]` to its [lib]")]
    NoModule(String),
    /// The module does not make a component.
    #[error(
        "{name} cannot be made a component: {why}; export a world of hostler-sdk, and import nothing else"
    )]
    NotEncoded {
        /// The crate.
        name: String,
        /// Why.
        why: String,
    },
    /// The component is none that a host would load.
    #[error("{name} {source}")]
    NotLoadable {
        /// The crate.
        name: String,
        /// Why.
        source: LoadError,
    },
    /// The operator file would be refused.
    #[error("{path}: {source}")]
    OperatorFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: LoadError,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Build {
    /// The crate in this folder, with the cargo of the environment.
    pub fn new(crate_folder: impl Into<PathBuf>) -> Self {
        Self {
            crate_folder: crate_folder.into(),
            out: None,
            cargo: OsString::from("cargo"),
        }
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Encodes a core module that carries the description of its world, as `wit-bindgen` leaves it.
///
/// # Errors
/// The text says what the module has too much or not enough of.
pub fn encode(module: &[u8]) -> Result<Vec<u8>, String> {
    let mut encoder = ComponentEncoder::default();
    let encoded = encoder
        .module(module)
        .and_then(|encoder| encoder.validate(true).encode());
    encoded.map_err(|error| format!("{error:#}"))
}

/// Builds a crate for WebAssembly, makes a component of it, and puts it where a host can be pointed at, with its operator file.
///
/// # Errors
/// Where any step fails. A component that no host would load is not written.
pub fn build(build: &Build) -> Result<Built, BuildError> {
    let folder = &build.crate_folder;
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| BuildError::File { path, source }
    };
    let folder = folder.canonicalize().map_err(file(folder))?;
    let metadata = metadata(build, &folder)?;
    let manifest = folder.join("Cargo.toml");
    let package = metadata
        .packages
        .iter()
        .find(|package| package.manifest_path == manifest);
    let package = package.ok_or_else(|| BuildError::NoPackage(folder.clone()))?;
    let name = &package.name;
    let module = module(build, &folder, package, has_profile(&metadata.workspace_root))?;
    let bytes = fs::read(&module).map_err(file(&module))?;
    let component = encode(&bytes).map_err(|why| BuildError::NotEncoded {
        name: name.clone(),
        why,
    })?;
    let refused = |source| BuildError::NotLoadable {
        name: name.clone(),
        source,
    };
    let mut inspection = inspect::inspect_bytes(name, &component).map_err(refused)?;
    if let Some(problem) = inspection.problem.take() {
        return Err(refused(problem));
    }

    let out = build
        .out
        .clone()
        .unwrap_or_else(|| metadata.target_directory.join("components"));
    fs::create_dir_all(&out).map_err(file(&out))?;
    let operator_file = copy_operator_file(&folder, name, &out)?;
    let place = out.join(format!("{name}.wasm"));
    replace(&place, &component).map_err(file(&place))?;
    Ok(Built {
        component: place,
        operator_file,
        inspection,
    })
}

fn metadata(build: &Build, folder: &Path) -> Result<Metadata, BuildError> {
    let mut command = Command::new(&build.cargo);
    command
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(folder);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| no_cargo(build, source))?;
    if !output.status.success() {
        return Err(BuildError::CargoFailed("read the workspace"));
    }
    serde_json::from_slice(&output.stdout).map_err(|_| BuildError::CargoFailed("describe the workspace"))
}

fn no_cargo(build: &Build, source: io::Error) -> BuildError {
    BuildError::NoCargo {
        cargo: build.cargo.clone(),
        source,
    }
}

fn has_profile(workspace: &Path) -> bool {
    let text = fs::read_to_string(workspace.join("Cargo.toml")).unwrap_or_default();
    let manifest = toml::from_str::<toml::Table>(&text).unwrap_or_default();
    manifest
        .get("profile")
        .and_then(|profiles| profiles.get(PROFILE))
        .is_some()
}

/// Path of the module that cargo made of the crate.
fn module(build: &Build, folder: &Path, package: &Package, has_profile: bool) -> Result<PathBuf, BuildError> {
    let mut command = Command::new(&build.cargo);
    command
        .args([
            "build",
            "--lib",
            "--target",
            TARGET,
            "--message-format",
            "json-render-diagnostics",
        ])
        .args(["--profile", if has_profile { PROFILE } else { "release" }])
        .current_dir(folder)
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|source| no_cargo(build, source))?;
    let mut module = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|source| no_cargo(build, source))?;
            let Ok(message) = serde_json::from_str::<Message>(&line) else {
                continue;
            };
            if message.reason == "compiler-artifact" && message.package_id == package.id {
                let made = message
                    .filenames
                    .into_iter()
                    .find(|path| path.extension().is_some_and(|e| e == "wasm"));
                module = made.or(module);
            }
        }
    }
    let status = child.wait().map_err(|source| no_cargo(build, source))?;
    if !status.success() {
        return Err(BuildError::CargoFailed("build the crate"));
    }
    module.ok_or_else(|| BuildError::NoModule(package.name.clone()))
}

/// The operator file that the crate proposes. It is read as a host would read it, so that a mistake shows here.
fn copy_operator_file(folder: &Path, name: &str, out: &Path) -> Result<Option<PathBuf>, BuildError> {
    let source = folder.join(format!("{name}.toml"));
    let text = match fs::read_to_string(&source) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(BuildError::File {
                path: source,
                source: error,
            });
        }
    };
    grants::parse(Some(&text)).map_err(|error| BuildError::OperatorFile {
        path: source,
        source: error,
    })?;
    let place = out.join(format!("{name}.toml"));
    replace(&place, text.as_bytes()).map_err(|source| BuildError::File {
        path: place.clone(),
        source,
    })?;
    Ok(Some(place))
}

/// Whole or not at all: a host may be watching. Equal content is left alone.
fn replace(place: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    if fs::read(place).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = place.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(place).map_err(|error| error.error)?;
    Ok(())
}
