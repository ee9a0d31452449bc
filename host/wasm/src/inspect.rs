//! What a file is: judged from its bytes alone, before anything is compiled or run.

use std::fmt;
use std::path::Path;

use hostler_core::digest;
use wasmparser::component_types::{ComponentAnyTypeId, ComponentEntityType};
use wasmparser::types::TypesRef;
use wasmparser::{Encoding, Parser, Payload, ValidPayload, Validator, WasmFeatures};

use crate::error::LoadError;
use crate::{source, text, wasi};

/// Package of the contract.
const PACKAGE: &str = "hostler:plugin";

/// Version of the contract that this host speaks; any later patch of it fits too.
const SPOKEN: (u64, u64) = (0, 1);

/// The same features as the engine's, in the words of this parser.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL)
    .difference(WasmFeatures::GC_TYPES);

/// What a component is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum World {
    /// Chooses profiles.
    ProfileResolver,
    /// Judges requests.
    ReviewPolicy,
    /// Drives machines.
    MachineDriver,
}

/// What is known of a component without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Name of the file without `.wasm`.
    pub name: String,
    /// World and version, like `machine-driver@0.1.0`; none if this host has no such world.
    pub world: Option<String>,
    /// Version of the contract that it was built against.
    pub version: Option<String>,
    /// Imports, in order.
    pub imports: Vec<String>,
    /// Exports, in order.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size: u64,
    /// `sha256:<hex>`
    pub digest: String,
    /// Who made it: (`language`, `Rust 1.95`) and the like, as it says itself.
    pub producers: Vec<(String, String)>,
    /// Why this host would not load it, if it would not.
    pub problem: Option<LoadError>,
}

/// What the host needs to know before it compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) world: World,
    pub(crate) version: String,
    /// Whether it imports anything of WASI.
    pub(crate) wasi: bool,
}

/// Looks at a file.
///
/// # Errors
/// What makes it no component at all. What only makes this host refuse it is in `problem`.
pub fn inspect(path: &Path) -> Result<Inspection, LoadError> {
    let bytes = source::read(path, source::LARGEST)?;
    let name = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    inspect_bytes(&name, &bytes)
}

/// The same for bytes.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_bytes(name: &str, bytes: &[u8]) -> Result<Inspection, LoadError> {
    let surface = Surface::read(bytes)?;
    Validator::new_with_features(FEATURES)
        .validate_all(bytes)
        .map_err(|error| invalid(&error))?;
    let problem = surface.judge(name).err();
    Ok(Inspection {
        name: name.to_owned(),
        world: surface.world_and_version(),
        version: surface.exported_world().ok().map(|(_, version)| version),
        imports: surface.imports.into_iter().map(|import| import.name).collect(),
        exports: surface.exports,
        size: bytes.len() as u64,
        digest: digest::of(bytes),
        producers: surface.producers,
        problem,
    })
}

/// World and version of bytes, like `machine-driver@0.1.0`; none if this host has no such world.
pub(crate) fn world_and_version(bytes: &[u8]) -> Option<String> {
    Surface::read(bytes).ok()?.world_and_version()
}

/// Whether the host would compile this.
pub(crate) fn judge(name: &str, bytes: &[u8]) -> Result<Facts, LoadError> {
    Surface::read(bytes)?.judge(name)
}

impl World {
    const ALL: [Self; 3] = [Self::MachineDriver, Self::ProfileResolver, Self::ReviewPolicy];

    /// The interface that a component of this world exports.
    fn interface(self) -> &'static str {
        match self {
            Self::ProfileResolver => "resolver",
            Self::ReviewPolicy => "policy",
            Self::MachineDriver => "driver",
        }
    }

    fn of_interface(interface: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|world| world.interface() == interface)
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProfileResolver => "profile-resolver",
            Self::ReviewPolicy => "review-policy",
            Self::MachineDriver => "machine-driver",
        })
    }
}

impl Facts {
    pub(crate) fn world_and_version(&self) -> String {
        format!("{}@{}", self.world, self.version)
    }

    /// Name of the export that makes it so.
    pub(crate) fn interface(&self) -> String {
        format!("{PACKAGE}/{}@{}", self.world.interface(), self.version)
    }
}

/// The outside of a valid component.
struct Surface {
    imports: Vec<Import>,
    exports: Vec<String>,
    producers: Vec<(String, String)>,
}

struct Import {
    name: String,
    /// An interface of nothing but types: it gives the guest words and no powers.
    only_types: bool,
}

impl Surface {
    /// Validates all but the code of functions, which takes longest and which nothing here depends on: whoever compiles it validates that.
    fn read(bytes: &[u8]) -> Result<Self, LoadError> {
        recognise(bytes)?;
        let mut validator = Validator::new_with_features(FEATURES);
        let mut types = None;
        let mut imports = Vec::new();
        let mut surface = Self {
            imports: Vec::new(),
            exports: Vec::new(),
            producers: Vec::new(),
        };
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(|error| invalid(&error))?;
            if let ValidPayload::End(ended) = validator.payload(&payload).map_err(|error| invalid(&error))? {
                types = Some(ended);
            }
            match payload {
                Payload::Version { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 1 => {
                    for import in section {
                        imports.push(import.map_err(|error| invalid(&error))?.name.name);
                    }
                }
                Payload::ComponentExportSection(section) if depth == 1 => {
                    for export in section {
                        let export = export.map_err(|error| invalid(&error))?;
                        surface.exports.push(export.name.name.to_owned());
                    }
                }
                Payload::CustomSection(section) => surface.note_producers(section.as_known()),
                _ => {}
            }
        }
        // The last one that ended is the whole.
        let holds_only_types = |name: &str| {
            types
                .as_ref()
                .is_some_and(|types| only_types(types.as_ref(), name))
        };
        surface.imports = imports
            .into_iter()
            .map(|name| Import {
                name: name.to_owned(),
                only_types: holds_only_types(name),
            })
            .collect();
        Ok(surface)
    }

    fn note_producers(&mut self, section: wasmparser::KnownCustom<'_>) {
        let wasmparser::KnownCustom::Producers(fields) = section else {
            return;
        };
        for field in fields.into_iter().flatten() {
            for value in field.values.into_iter().flatten() {
                let tool = text::message(&format!("{} {}", value.name, value.version));
                let entry = (text::message(field.name), tool);
                if self.producers.len() < 64 && !self.producers.contains(&entry) {
                    self.producers.push(entry);
                }
            }
        }
    }

    fn judge(&self, name: &str) -> Result<Facts, LoadError> {
        let (world, version) = self.exported_world()?;
        for import in &self.imports {
            if !import.is_harmless() {
                return Err(LoadError::ImportRefused {
                    import: text::message(&import.name),
                    name: name.to_owned(),
                    hint: import.hint(),
                });
            }
        }
        let wasi = self.imports.iter().any(|import| import.name.starts_with("wasi:"));
        Ok(Facts { world, version, wasi })
    }

    fn world_and_version(&self) -> Option<String> {
        let (world, version) = self.exported_world().ok()?;
        Some(format!("{world}@{version}"))
    }

    /// The one world that the exports name, and its version. Read before the imports: a component for another host should be told
    /// so, and not that it imports something.
    fn exported_world(&self) -> Result<(World, String), LoadError> {
        let ours = self
            .exports
            .iter()
            .filter_map(|export| parse_name(export))
            .filter(|n| n.package == PACKAGE);
        let mut found = None;
        for export in ours {
            let Some(world) = World::of_interface(export.interface) else {
                continue;
            };
            let spoken = export.version.and_then(parse_version);
            if spoken.is_none_or(|(major, minor)| (major, minor) != SPOKEN) {
                let version = export.version.unwrap_or("no version");
                return Err(unknown(format!(
                    "is made for {world} of contract {}",
                    text::message(version)
                )));
            }
            if let Some((other, _)) = found {
                return Err(unknown(format!(
                    "exports both {other} and {world}, a component is of one world"
                )));
            }
            found = Some((world, export.version.unwrap_or_default().to_owned()));
        }
        found.ok_or_else(|| {
            let exports: Vec<_> = self
                .exports
                .iter()
                .take(4)
                .map(|export| text::message(export))
                .collect();
            match exports.as_slice() {
                [] => unknown("exports nothing".to_owned()),
                _ => unknown(format!("exports {}", exports.join(", "))),
            }
        })
    }
}

impl Import {
    fn is_harmless(&self) -> bool {
        if self.only_types {
            return true;
        }
        let Some(name) = parse_name(&self.name) else {
            return false;
        };
        let version = name.version.and_then(parse_version);
        if name.package == PACKAGE {
            return name.interface == "log" && version == Some(SPOKEN);
        }
        let path = self.name.split('@').next().unwrap_or_default();
        wasi::HARMLESS.contains(&path) && version == Some((0, 2))
    }

    fn hint(&self) -> &'static str {
        match self.name.split(['/', '@']).next() {
            Some("wasi:filesystem") => "a driver needs no files: ask for objects in `describe`",
            Some("wasi:sockets" | "wasi:http") => {
                "a driver needs no network: the host reads and writes for it"
            }
            Some("wasi:cli" | "wasi:clocks" | "wasi:io" | "wasi:random") => "this host has WASI 0.2",
            Some(PACKAGE) => "of the contract only `log` is there to be imported",
            _ => "the contract is in wit/v0.1",
        }
    }
}

struct Name<'a> {
    package: &'a str,
    interface: &'a str,
    version: Option<&'a str>,
}

/// `package:name/interface@version`
fn parse_name(name: &str) -> Option<Name<'_>> {
    let (path, version) = match name.split_once('@') {
        Some((path, version)) => (path, Some(version)),
        None => (name, None),
    };
    let (package, interface) = path.split_once('/')?;
    Some(Name {
        package,
        interface,
        version,
    })
}

/// Major and minor; none for a pre-release, which promises nothing.
fn parse_version(version: &str) -> Option<(u64, u64)> {
    let version = version.split('+').next()?;
    let mut parts = version.split('.').map(str::parse::<u64>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(_)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    Some((major, minor))
}

fn unknown(found: String) -> LoadError {
    let has: Vec<_> = World::ALL
        .iter()
        .map(|world| format!("{world}@{}.{}.x", SPOKEN.0, SPOKEN.1))
        .collect();
    LoadError::UnknownWorld {
        found,
        has: has.join(", "),
    }
}

/// Tells what is no component by its first bytes, so that each mistake gets its own words.
fn recognise(bytes: &[u8]) -> Result<(), LoadError> {
    if bytes.is_empty() {
        return Err(LoadError::FileEmpty);
    }
    if bytes.starts_with(b"\x7fELF") {
        return Err(LoadError::Precompiled);
    }
    if !bytes.starts_with(b"\0asm") {
        return Err(LoadError::NotWebAssembly);
    }
    match Parser::new(0).parse_all(bytes).next() {
        Some(Ok(Payload::Version {
            encoding: Encoding::Module,
            ..
        })) => Err(LoadError::CoreModule),
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(invalid(&error)),
        None => Err(LoadError::FileEmpty),
    }
}

fn invalid(error: &wasmparser::Error) -> LoadError {
    LoadError::InvalidComponent(text::message(&error.to_string()))
}

fn only_types(types: TypesRef<'_>, import: &str) -> bool {
    let Some(item) = types.component_item_for_import(import) else {
        return false;
    };
    let ComponentEntityType::Instance(id) = item.ty else {
        return false;
    };
    types[id].exports.values().all(|export| match export.ty {
        ComponentEntityType::Type { created, .. } => !matches!(created, ComponentAnyTypeId::Resource(_)),
        _ => false,
    })
}
