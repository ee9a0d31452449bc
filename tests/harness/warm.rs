//! Compiled components, ours and those that only tests load: compiled once for all worlds, in a directory that is kept
//! between runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hostler_cli::args::RequiredPlugins;
use hostler_cli::wire;

use super::{components, fixtures, hostler};

/// Where a state directory keeps compiled code.
const COMPILED: &str = "compiled";

static WARM: OnceLock<PathBuf> = OnceLock::new();

/// Puts the compiled code of them, and nothing else, into a new state directory.
pub(crate) fn start(state: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    let warm = WARM.get_or_init(|| compiled(&[components(), fixtures()]));
    let to = state.join(COMPILED);
    if to.exists() {
        return;
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&to)
        .unwrap();
    for entry in std::fs::read_dir(warm.join(COMPILED)).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A state directory in which the components of these directories were compiled.
fn compiled(directories: &[PathBuf]) -> PathBuf {
    let files = files(directories);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("components-{:016x}", digest(&files)));
    if kept.exists() {
        return kept;
    }
    let fresh = tempfile::Builder::new()
        .prefix(".components-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap();
    let plugins = fresh.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    for file in &files {
        std::fs::copy(file, plugins.join(file.file_name().unwrap())).unwrap();
    }
    let required = RequiredPlugins {
        resolver: "resolver-precedence".to_owned(),
        policies: vec!["policy-allowlist".to_owned()],
    };
    // On a thread of its own, since whoever asks may be inside of a runtime already.
    std::thread::scope(|scope| {
        let compiling = scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            drop(
                runtime
                    .block_on(wire::catalog(&plugins, fresh.path(), &required, hostler()))
                    .unwrap(),
            );
        });
        compiling.join().unwrap();
    });
    let of_kind = |folder: &Path, kind: &str| {
        let files = std::fs::read_dir(folder).unwrap().flatten();
        files
            .filter(|file| file.path().extension().is_some_and(|found| found == kind))
            .count()
    };
    assert_eq!(
        of_kind(&fresh.path().join(COMPILED), "cwasm"),
        of_kind(&plugins, "wasm"),
        "what is kept is all of it"
    );
    // Where another process was faster, its directory is as good.
    match std::fs::rename(fresh.path(), &kept) {
        Err(error) if !kept.exists() => panic!("{}: {error}", kept.display()),
        _ => kept,
    }
}

fn files(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut files: Vec<_> = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).unwrap().flatten())
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

fn digest(files: &[PathBuf]) -> u64 {
    let mut digest = DefaultHasher::new();
    for file in files {
        std::fs::read(file).unwrap().hash(&mut digest);
    }
    digest.finish()
}
