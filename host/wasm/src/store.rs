//! What the host keeps of components: bytes by digest, compiled code by key, and a record of what served.
//!
//! # Guarantees
//! Files are written whole beside their place, flushed, and renamed into it; none is ever rewritten, so code that is mapped stays
//! what it was. The directory belongs to this user alone. Everything is checked against its digest when it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, mem};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use hostler_core::digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

const KEPT: &str = "kept";
const COMPILED: &str = "compiled";
const RECORD: &str = "serving.json";
/// How names begin while a file is being written.
const HALF: &str = ".half-";

/// Version of the record; another one is set aside, never guessed at.
const FORMAT: u32 = 1;

/// The directory. Names inside it come from digests and from the record, so they are resolved below it and nowhere else.
pub(crate) struct StateDir {
    path: PathBuf,
    dir: Dir,
}

/// What served last, and whose bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// By name.
    pub(crate) serving: BTreeMap<String, Serving>,
    /// By digest: all whose bytes are kept, those that serve among them.
    pub(crate) kept: BTreeMap<String, Kept>,
}

/// Whose bytes these are: a digest is only ever served under the name that it was taken under, and with what it was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grant: Option<String>,
}

/// One last good version: bytes and operator file together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Serving {
    pub(crate) digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grant: Option<String>,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            format: FORMAT,
            serving: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }
}

impl StateDir {
    /// Opens the directory, or makes it, for this user alone.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for directory in [path.to_owned(), path.join(KEPT), path.join(COMPILED)] {
            own(&directory)?;
        }
        let path = path.canonicalize()?;
        let dir = Dir::open_ambient_dir(&path, ambient_authority())?;
        let state = Self { path, dir };
        state.drop_halves()?;
        Ok(state)
    }

    /// Files that an earlier process was writing when it ended.
    fn drop_halves(&self) -> io::Result<()> {
        for folder in [".", KEPT, COMPILED] {
            for entry in self.dir.read_dir(folder)? {
                let name = entry?.file_name();
                if name.as_encoded_bytes().starts_with(HALF.as_bytes()) {
                    self.dir.remove_file(Path::new(folder).join(&name))?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the bytes of a component.
    pub(crate) fn keep(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        let place = kept(digest)?;
        if self.dir.exists(&place) && self.read_kept(digest, u64::MAX).is_ok() {
            return Ok(());
        }
        self.write(KEPT, &place, bytes)
    }

    /// The bytes, if they are still what their name says.
    pub(crate) fn read_kept(&self, digest: &str, largest: u64) -> io::Result<Vec<u8>> {
        let file = self.dir.open(kept(digest)?)?;
        let mut bytes = Vec::new();
        file.take(largest).read_to_end(&mut bytes)?;
        if digest::of(&bytes) != digest {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kept bytes have changed",
            ));
        }
        Ok(bytes)
    }

    /// For the child that compiles it.
    pub(crate) fn open_kept(&self, digest: &str) -> io::Result<fs::File> {
        Ok(self.dir.open(kept(digest)?)?.into_std())
    }

    /// Path of compiled code, if it is there and is what was written.
    pub(crate) fn compiled(&self, key: &str) -> Option<PathBuf> {
        let mut wanted = String::new();
        self.dir
            .open(format!("{COMPILED}/{key}.sha256"))
            .ok()?
            .take(128)
            .read_to_string(&mut wanted)
            .ok()?;
        let file = self.dir.open(format!("{COMPILED}/{key}.cwasm")).ok()?;
        let found = file_digest(file.into_std()).ok()?;
        if found != wanted.trim() {
            tracing::warn!(
                key,
                "compiled code in the cache is not what was written there; compiling again"
            );
            return None;
        }
        Some(self.path.join(COMPILED).join(format!("{key}.cwasm")))
    }

    /// A file in the same file system as the cache, to compile into.
    pub(crate) fn compile_into(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(HALF)
            .tempfile_in(self.path.join(COMPILED))
    }

    /// Takes over compiled code of this digest. The digest is in place first: code without it, or with another, is not used.
    pub(crate) fn put_compiled(&self, key: &str, code: NamedTempFile, digest: &str) -> io::Result<PathBuf> {
        code.as_file().sync_all()?;
        self.write(COMPILED, &format!("{COMPILED}/{key}.sha256"), digest.as_bytes())?;
        let place = self.path.join(COMPILED).join(format!("{key}.cwasm"));
        code.persist(&place).map_err(|error| error.error)?;
        sync_directory(&self.path.join(COMPILED))?;
        Ok(place)
    }

    /// The record; an empty one where there is none. One that cannot be read is set aside and said so.
    pub(crate) fn record(&self) -> io::Result<Record> {
        let text = match self.dir.read_to_string(RECORD) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(error),
        };
        match serde_json::from_str::<Record>(&text) {
            Ok(record) if record.format == FORMAT => Ok(record),
            other => {
                let found = other.map_or_else(|error| error.to_string(), |r| format!("format {}", r.format));
                tracing::error!(file = %self.path.join(RECORD).display(), found,
                    "the record of last good components cannot be read and was set aside; only the directory counts");
                self.dir
                    .rename(RECORD, &self.dir, format!("{RECORD}.unreadable"))?;
                Ok(Record::default())
            }
        }
    }

    /// Writes the record.
    pub(crate) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.write("", RECORD, &serde_json::to_vec_pretty(record)?)
    }

    /// Drops the bytes and the compiled code of everything else.
    pub(crate) fn sweep(&self, digests: &BTreeSet<String>) -> io::Result<()> {
        let hexes: BTreeSet<&str> = digests.iter().filter_map(|digest| parse_digest(digest)).collect();
        for (folder, ends) in [(KEPT, ".wasm"), (COMPILED, ".cwasm"), (COMPILED, ".sha256")] {
            for entry in self.dir.read_dir(folder)? {
                let name = entry?.file_name();
                let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(ends)) else {
                    continue;
                };
                let hex = stem.split('-').next().unwrap_or_default();
                if !hexes.contains(hex) {
                    self.dir.remove_file(Path::new(folder).join(&name))?;
                }
            }
        }
        Ok(())
    }

    fn write(&self, folder: &str, place: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(HALF)
            .tempfile_in(self.path.join(folder))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(self.path.join(place)).map_err(|error| error.error)?;
        sync_directory(&self.path.join(folder))
    }
}

/// Key of compiled code: the bytes, and everything that makes other code of them.
pub(crate) fn key(digest: &str, compatibility: u64) -> io::Result<String> {
    let hex = parse_digest(digest).ok_or_else(no_digest)?;
    Ok(format!(
        "{hex}-{compatibility:016x}-{}",
        env!("CARGO_PKG_VERSION")
    ))
}

/// `sha256:<hex>` of a whole file, from its beginning.
pub(crate) fn file_digest(mut file: fs::File) -> io::Result<String> {
    io::Seek::rewind(&mut file)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest::text(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

fn kept(digest: &str) -> io::Result<String> {
    let hex = parse_digest(digest).ok_or_else(no_digest)?;
    Ok(format!("{KEPT}/{hex}.wasm"))
}

fn parse_digest(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:")?;
    let is_hex = hex.len() == 64
        && hex
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_hex.then_some(hex)
}

fn no_digest() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "this is no sha256 digest")
}

/// Compiled code is native code: whoever can write here runs in this process. So nobody else can.
fn own(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let metadata = fs::metadata(directory)?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        let what = format!(
            "{} belongs to another user; give it to user {user}",
            directory.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

impl Record {
    /// Notes that this serves now; its bytes are kept with it.
    pub(crate) fn serves(&mut self, name: &str, digest: &str, grant: Option<String>) {
        self.serving.insert(
            name.to_owned(),
            Serving {
                digest: digest.to_owned(),
                grant,
            },
        );
        let (name, grant) = (name.to_owned(), self.serving[name].grant.clone());
        self.kept.insert(digest.to_owned(), Kept { name, grant });
    }

    /// Forgets kept bytes that nobody names; returns what is left to keep.
    pub(crate) fn retain(&mut self, digests: &BTreeSet<String>) -> BTreeSet<String> {
        let serving: BTreeSet<&String> = self.serving.values().map(|serving| &serving.digest).collect();
        let kept = mem::take(&mut self.kept);
        self.kept = kept
            .into_iter()
            .filter(|(d, _)| digests.contains(d) || serving.contains(d))
            .collect();
        self.kept.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(&directory.path().join("state")).unwrap();
        (directory, state)
    }

    fn put(state: &StateDir, key: &str, code: &[u8]) -> PathBuf {
        let mut file = state.compile_into().unwrap();
        file.write_all(code).unwrap();
        state.put_compiled(key, file, &digest::of(code)).unwrap()
    }

    #[test]
    fn the_state_directory_is_for_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        StateDir::open(&path).unwrap();
        for folder in [path.clone(), path.join(KEPT), path.join(COMPILED)] {
            assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn kept_bytes_that_changed_are_not_taken_for_what_they_were() {
        let (_directory, state) = state();
        let digest = digest::of(b"one");
        state.keep(&digest, b"one").unwrap();
        assert_eq!(state.read_kept(&digest, 100).unwrap(), b"one");
        fs::write(state.path.join(kept(&digest).unwrap()), b"two").unwrap();
        assert!(state.read_kept(&digest, 100).is_err());
        state.keep(&digest, b"one").unwrap();
        assert_eq!(state.read_kept(&digest, 100).unwrap(), b"one");
    }

    #[test]
    fn what_an_earlier_process_did_not_finish_writing_is_dropped() {
        let (_directory, state) = state();
        let half = state.compile_into().unwrap().into_temp_path().keep().unwrap();
        StateDir::open(&state.path).unwrap();
        assert!(!half.exists());
    }

    #[test]
    fn a_digest_that_is_a_path_reaches_nothing() {
        let (_directory, state) = state();
        for bad in [
            "sha256:../../serving.json",
            "../x",
            "",
            &format!("sha256:{}/", "a".repeat(63)),
        ] {
            assert!(state.keep(bad, b"x").is_err(), "{bad}");
            assert!(state.read_kept(bad, 10).is_err(), "{bad}");
        }
    }

    #[test]
    fn compiled_code_is_replaced_by_another_file_and_never_rewritten() {
        let (_directory, state) = state();
        let path = put(&state, "k", b"first");
        let mut mapped = fs::File::open(&path).unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        put(&state, "k", b"second");
        assert_ne!(fs::metadata(&path).unwrap().ino(), before);
        let mut old = String::new();
        mapped.read_to_string(&mut old).unwrap();
        assert_eq!(old, "first", "who has the old file open still has it whole");
    }

    #[test]
    fn compiled_code_that_was_changed_or_cut_is_not_used() {
        let (_directory, state) = state();
        let path = put(&state, "k", b"native code");
        assert_eq!(state.compiled("k"), Some(path.clone()));
        fs::write(&path, b"native").unwrap();
        assert_eq!(state.compiled("k"), None);
        fs::remove_file(path).unwrap();
        assert_eq!(state.compiled("k"), None);
    }

    #[test]
    fn a_record_of_another_format_is_set_aside_and_not_guessed_at() {
        let (_directory, state) = state();
        let mut record = Record::default();
        record.serves("driver-a", &digest::of(b"a"), None);
        state.write_record(&record).unwrap();
        assert_eq!(state.record().unwrap(), record);
        for broken in [
            "{\"format\": 99, \"serving\": {}, \"kept\": {}}",
            "{\"format\": 1, \"ser",
        ] {
            fs::write(state.path.join(RECORD), broken).unwrap();
            assert_eq!(state.record().unwrap(), Record::default());
            assert!(state.path.join("serving.json.unreadable").exists());
        }
    }

    #[test]
    fn the_sweep_leaves_what_serves_and_what_orders_name() {
        let (_directory, state) = state();
        let digests: Vec<String> = ["a", "b", "c"].map(|b| digest::of(b.as_bytes())).into();
        let mut record = Record::default();
        for (bytes, digest) in ["a", "b", "c"].iter().zip(&digests) {
            state.keep(digest, bytes.as_bytes()).unwrap();
            put(&state, &key(digest, 7).unwrap(), b"code");
            record.serves("driver-x", digest, None);
        }
        let left = record.retain(&BTreeSet::from([digests[0].clone()]));
        state.sweep(&left).unwrap();
        assert!(state.read_kept(&digests[0], 9).is_ok(), "an order names it");
        assert!(state.read_kept(&digests[1], 9).is_err(), "nobody names it");
        assert!(state.compiled(&key(&digests[1], 7).unwrap()).is_none());
        assert!(state.read_kept(&digests[2], 9).is_ok(), "it serves");
        assert!(state.compiled(&key(&digests[2], 7).unwrap()).is_some());
    }
}
